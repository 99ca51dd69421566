//! The order of the modules inside large crates: which part must not import which.
//!
//! A crate's outside is bound by `rooms`; here is what a reader may rely on inside.

use super::Findings;
use crate::modules::Graph;

/// `from` and all below it must not import `to` or anything below that.
struct Forbidden {
    krate: &'static str,
    from: &'static str,
    to: &'static str,
    why: &'static str,
}

const FORBIDDEN: &[Forbidden] = &[
    Forbidden { krate: "catalog", from: "sql", to: "rows", why: "SQL knows no tables of ours" },
    Forbidden { krate: "catalog", from: "rows", to: "subscriptions", why: "rows are read, not acted upon" },
    Forbidden { krate: "catalog", from: "database", to: "subscriptions", why: "a database has no rules" },
    Forbidden { krate: "jobs", from: "mover", to: "job_control", why: "a mover knows one copy" },
    Forbidden { krate: "jobs", from: "tokens", to: "job_control", why: "state knows none of its users" },
    Forbidden { krate: "jobs", from: "work", to: "job_control", why: "messages know no state" },
    Forbidden { krate: "service", from: "operations", to: "http", why: "operations have many callers" },
    Forbidden { krate: "service", from: "messages", to: "http", why: "brokers are not answered over HTTP" },
    Forbidden { krate: "service", from: "messages", to: "operations", why: "messages follow from changes" },
];

/// `module` and all below it may be imported by nobody in its crate but `importers`.
struct Facade {
    krate: &'static str,
    module: &'static str,
    importers: &'static [&'static str],
    why: &'static str,
}

const FACADES: &[Facade] = &[
    Facade {
        krate: "service",
        module: "fts",
        importers: &["http"],
        why: "the words of FTS stay at the edge",
    },
    Facade {
        krate: "service",
        module: "http",
        importers: &["fts", "service"],
        why: "only façades and the wiring know HTTP",
    },
];

pub(crate) fn check(findings: &mut Findings) {
    for edge in FORBIDDEN {
        match Graph::read(edge.krate) {
            Ok(graph) => check_edge(edge, &graph, findings),
            Err(why) => findings.push(why),
        }
    }
    for facade in FACADES {
        match Graph::read(facade.krate) {
            Ok(graph) => check_facade(facade, &graph, findings),
            Err(why) => findings.push(why),
        }
    }
}

fn check_edge(edge: &Forbidden, graph: &Graph, findings: &mut Findings) {
    for module in [edge.from, edge.to].into_iter().filter(|module| !graph.has(module)) {
        findings.push(format!("{}: a forbidden import names {module}, which is no module", edge.krate));
    }
    if let Some((from, to)) = graph.edge(edge.from, edge.to) {
        findings.push(format!("{}: {from} imports {to}: {}", edge.krate, edge.why));
    }
}

fn check_facade(facade: &Facade, graph: &Graph, findings: &mut Findings) {
    let Facade { krate, module, importers, why } = facade;
    for module in importers.iter().chain([module]).filter(|module| !graph.has(module)) {
        findings.push(format!("{krate}: a façade names {module}, which is no module"));
    }
    for from in graph.tops().filter(|from| from != module && !importers.contains(from)) {
        if let Some((from, to)) = graph.edge(from, module) {
            findings.push(format!("{krate}: {from} imports {to}: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_import_is_found() {
        let graph = Graph::from_sources(&[
            ("jobs::tape", "use crate::operations::Operations;\n"),
            ("operations", "use crate::jobs::tape::Tape;\n"),
            ("http", "\n"),
        ]);
        let mut findings = Findings::new();
        check_edge(
            &Forbidden { krate: "x", from: "jobs", to: "operations", why: "y" },
            &graph,
            &mut findings,
        );
        check_edge(
            &Forbidden { krate: "x", from: "operations", to: "http", why: "y" },
            &graph,
            &mut findings,
        );
        assert_eq!(findings, ["x: jobs::tape imports operations: y"]);
    }

    #[test]
    fn a_rule_about_a_module_that_is_gone_is_found() {
        let graph = Graph::from_sources(&[("http", "\n")]);
        let mut findings = Findings::new();
        check_edge(&Forbidden { krate: "x", from: "brain", to: "http", why: "y" }, &graph, &mut findings);
        assert_eq!(findings, ["x: a forbidden import names brain, which is no module"]);
    }

    #[test]
    fn the_fts_facade_is_imported_by_http_alone() {
        let fts = FACADES.iter().find(|facade| facade.module == "fts").unwrap();
        let sources = [
            ("", "mod fts;\npub use fts::ROUTES;\n"),
            ("fts", "mod routes;\npub use routes::ROUTES;\n"),
            ("fts::routes", "use crate::operations::Operations;\n"),
            ("http", "use crate::fts::routes;\n"),
            ("operations::jobs", "\n"),
        ];
        let mut findings = Findings::new();
        check_facade(fts, &Graph::from_sources(&sources), &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        let mut broken = sources;
        broken[4].1 = "use crate::fts::ROUTES;\n";
        check_facade(fts, &Graph::from_sources(&broken), &mut findings);
        assert_eq!(
            findings,
            ["service: operations::jobs imports fts::routes: the words of FTS stay at the edge"]
        );
    }
}
