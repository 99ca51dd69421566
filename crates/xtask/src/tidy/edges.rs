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
    Forbidden { krate: "service", from: "brain", to: "http", why: "the scheduler's loop answers nobody" },
];

pub(crate) fn check(findings: &mut Findings) {
    for edge in FORBIDDEN {
        match Graph::read(edge.krate) {
            Ok(graph) => check_edge(edge, &graph, findings),
            Err(why) => findings.push(why),
        }
    }
}

fn check_edge(edge: &Forbidden, graph: &Graph, findings: &mut Findings) {
    if let Some((from, to)) = graph.edge(edge.from, edge.to) {
        findings.push(format!("{}: {from} imports {to}: {}", edge.krate, edge.why));
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
}
