//! The import graph of the modules of a crate, and its circles: strongly connected components (Tarjan 1972).
//!
//! Read from the text of `use` declarations and of paths that begin with `crate`, `self` or `super`. A name
//! that a module re-exports counts as an import of the module that defines it. Tests do not count.
//!
//! Start with [`Graph::read`]; `cargo xtask circles` prints what [`Graph::circles`] finds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tools::root;

/// A module by its path below the crate's root: `jobs::tape`. The root itself is the empty path.
type Module = Vec<String>;

/// The largest circle that `cargo xtask circles` lets pass: a screen full of files that have to be read
/// together.
const CIRCLE_MODULES_MAX: usize = 10;

/// The crates whose circles are bounded: the successors of one large control plane, the agent, the catalog.
const BOUNDED: [&str; 7] = ["agent", "catalog", "control", "identity", "jobs", "netops", "service"];

#[derive(Default)]
pub(crate) struct Graph {
    /// Which modules a module imports from.
    imports: BTreeMap<Module, BTreeSet<Module>>,
}

/// One source file while its imports are resolved.
struct Source {
    /// Paths that it imports or names, made absolute.
    paths: Vec<Vec<String>>,
    /// Names that it re-exports, with the absolute path of each; `*` for all of a module.
    exports: Vec<(String, Vec<String>)>,
}

impl Graph {
    /// Reads the sources of the crate in `crates/NAME`.
    pub(crate) fn read(name: &str) -> Result<Graph, String> {
        let folder = root().join("crates").join(name).join("src");
        let mut texts = BTreeMap::new();
        read_folder(&folder, &mut Vec::new(), &mut texts)?;
        Ok(Graph::from_texts(&texts))
    }

    /// The graph of these modules, by path and text.
    #[cfg(test)]
    pub(crate) fn from_sources(files: &[(&str, &str)]) -> Graph {
        let module =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let texts =
            files.iter().map(|(name, text)| (module(name), without_tests_and_comments(text))).collect();
        Graph::from_texts(&texts)
    }

    fn from_texts(texts: &BTreeMap<Module, String>) -> Graph {
        let modules: BTreeSet<Module> = texts.keys().cloned().collect();
        let sources: BTreeMap<&Module, Source> =
            texts.iter().map(|(module, text)| (module, read_source(module, text, &modules))).collect();
        let mut imports = BTreeMap::new();
        for (module, source) in &sources {
            let found: BTreeSet<Module> = source
                .paths
                .iter()
                .filter_map(|path| resolve(path, &modules, &sources, 0))
                .filter(|target| target != *module && !target.is_empty() && !module.is_empty())
                .collect();
            imports.insert((*module).clone(), found);
        }
        Graph { imports }
    }

    /// Whether a module below `from` imports one below `to`; if so, the two.
    pub(crate) fn edge(&self, from: &str, to: &str) -> Option<(String, String)> {
        let below = |module: &Module, top: &str| module.first().is_some_and(|first| first == top);
        let mut edges = self.imports.iter().filter(|(module, _)| below(module, from));
        edges.find_map(|(module, targets)| {
            let target = targets.iter().find(|target| below(target, to))?;
            Some((module.join("::"), target.join("::")))
        })
    }

    /// The modules right below the crate's root, each once.
    pub(crate) fn tops(&self) -> impl Iterator<Item = &str> {
        let tops: BTreeSet<&str> =
            self.imports.keys().filter_map(|module| module.first()).map(String::as_str).collect();
        tops.into_iter()
    }

    /// Whether there is such a module right below the crate's root.
    pub(crate) fn has(&self, top: &str) -> bool {
        self.tops().any(|module| module == top)
    }

    /// Groups of modules that all reach each other, the largest first.
    pub(crate) fn circles(&self) -> Vec<Vec<String>> {
        let mut search = Search::new(self);
        for module in self.imports.keys() {
            if !search.index.contains_key(module) {
                search.visit(module);
            }
        }
        let mut circles = search.circles;
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// Tarjan's search for strongly connected components.
struct Search<'g> {
    graph: &'g Graph,
    index: BTreeMap<&'g Module, usize>,
    low: BTreeMap<&'g Module, usize>,
    stack: Vec<&'g Module>,
    on_stack: BTreeSet<&'g Module>,
    circles: Vec<Vec<String>>,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph) -> Search<'g> {
        Search {
            graph,
            index: BTreeMap::new(),
            low: BTreeMap::new(),
            stack: Vec::new(),
            on_stack: BTreeSet::new(),
            circles: Vec::new(),
        }
    }

    fn visit(&mut self, module: &'g Module) {
        let index = self.index.len();
        self.index.insert(module, index);
        self.low.insert(module, index);
        self.stack.push(module);
        self.on_stack.insert(module);
        let graph = self.graph;
        for target in graph.imports.get(module).into_iter().flatten() {
            let reached = if !self.index.contains_key(target) {
                self.visit(target);
                self.low.get(target).copied()
            } else {
                self.index.get(target).filter(|_| self.on_stack.contains(target)).copied()
            };
            if let (Some(reached), Some(low)) = (reached, self.low.get_mut(module)) {
                *low = reached.min(*low);
            }
        }
        if self.low.get(module) == Some(&index) {
            self.close(module);
        }
    }

    /// Takes the component of `module` off the stack.
    fn close(&mut self, module: &'g Module) {
        let mut circle = Vec::new();
        while let Some(member) = self.stack.pop() {
            self.on_stack.remove(member);
            circle.push(member.join("::"));
            if member == module {
                break;
            }
        }
        if circle.len() > 1 {
            circle.sort();
            self.circles.push(circle);
        }
    }
}

/// Prints the circles of these crates, or of all.
///
/// # Errors
/// If a bounded crate has a circle of more than ten modules.
pub(crate) fn run(crates: &[&str]) -> Result<(), String> {
    let all = all_crates()?;
    let chosen: Vec<&str> =
        if crates.is_empty() { all.iter().map(String::as_str).collect() } else { crates.to_vec() };
    let mut too_large = Vec::new();
    for name in chosen {
        let graph = Graph::read(name)?;
        let circles = graph.circles();
        let sizes: Vec<String> = circles.iter().map(|circle| circle.len().to_string()).collect();
        let shown = if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
        println!("{name:<15} {:>3} modules, circles: {shown}", graph.imports.len());
        for circle in circles.iter().filter(|_| !crates.is_empty()) {
            println!("    {}", circle.join(" "));
        }
        if BOUNDED.contains(&name) && circles.iter().any(|circle| circle.len() > CIRCLE_MODULES_MAX) {
            too_large.push(name.to_owned());
        }
    }
    if too_large.is_empty() {
        return Ok(());
    }
    Err(format!("circles of more than {CIRCLE_MODULES_MAX} modules: {}", too_large.join(", ")))
}

fn all_crates() -> Result<Vec<String>, String> {
    let folder = root().join("crates");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("src").is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn read_folder(
    folder: &Path,
    module: &mut Module,
    texts: &mut BTreeMap<Module, String>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned) else { continue };
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            module.push(stem);
            read_folder(&path, module, texts)?;
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut name = module.clone();
            if !matches!(stem.as_str(), "lib" | "main" | "mod") {
                name.push(stem);
            }
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            texts.insert(name, without_tests_and_comments(&text));
        }
    }
    Ok(())
}

/// The code alone: comments and literals of text blanked, unit tests (at the bottom of a file) cut off.
fn without_tests_and_comments(text: &str) -> String {
    let text = match text.find("\n#[cfg(test)]\nmod ") {
        Some(end) => &text[..end],
        None => text,
    };
    let mut code = String::from("\n");
    for line in text.lines() {
        let mut in_text = false;
        let mut before = ' ';
        for c in line.chars() {
            match c {
                '"' if before != '\\' => in_text = !in_text,
                '/' if before == '/' && !in_text => {
                    code.pop();
                    break;
                }
                _ if !in_text => code.push(c),
                _ => {}
            }
            before = c;
        }
        code.push('\n');
    }
    code
}

fn read_source(module: &Module, code: &str, modules: &BTreeSet<Module>) -> Source {
    let mut source = Source { paths: Vec::new(), exports: Vec::new() };
    for statement in code.split(';') {
        let declaration = use_tree(statement);
        let code = declaration.map_or(statement, |(_, tree)| &statement[..statement.len() - tree.len()]);
        for path in inline_paths(code) {
            source.paths.extend(absolute(&path, module, modules));
        }
        let Some((public, tree)) = declaration else { continue };
        for (path, alias) in expand(tree) {
            let Some(absolute) = absolute(&path, module, modules) else { continue };
            let name = alias.or_else(|| absolute.last().cloned()).unwrap_or_default();
            if public {
                source.exports.push((name, absolute.clone()));
            }
            let of_a_child = absolute.len() > module.len() && absolute.starts_with(module);
            if !(public && of_a_child) {
                source.paths.push(absolute);
            }
        }
    }
    source
}

/// If a statement ends in a `use` declaration: whether it re-exports, and its tree.
fn use_tree(statement: &str) -> Option<(bool, &str)> {
    let (before, tree) = match statement.rfind("\nuse ") {
        Some(at) => (&statement[..at], &statement[at + 5..]),
        None => {
            let at = statement.rfind(" use ").or_else(|| statement.rfind("(use "))?;
            (&statement[..at], &statement[at + 5..])
        }
    };
    let line = before.rsplit('\n').next().unwrap_or_default().trim();
    if !(line.is_empty() || line.starts_with("pub")) || tree.contains('=') {
        return None;
    }
    Some((line.starts_with("pub"), tree))
}

/// `a::{b, c::{d as e}}` as its single paths, each with its alias.
fn expand(tree: &str) -> Vec<(Vec<String>, Option<String>)> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim().to_owned())),
            None => (tree, None),
        };
        let mut path: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        return vec![(path, alias)];
    };
    let prefix: Vec<String> =
        tree[..open].trim().trim_end_matches("::").split("::").map(|part| part.trim().to_owned()).collect();
    let inner = tree[open + 1..].strip_suffix('}').unwrap_or(&tree[open + 1..]);
    let mut paths = Vec::new();
    for part in split_top(inner) {
        for (rest, alias) in expand(part) {
            let rest = if rest == ["self"] { Vec::new() } else { rest };
            paths.push((prefix.iter().cloned().chain(rest).collect(), alias));
        }
    }
    paths
}

/// Splits at commas that no brace encloses.
fn split_top(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begun) = (Vec::new(), 0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begun..at]);
                begun = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begun..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Paths in code that begin with `crate`, `self` or `super`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut paths = Vec::new();
    for word in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(word) {
            if code[..at].ends_with(|c: char| is_word(c) || c == ':') {
                continue;
            }
            let end = code[at..].find(|c: char| !is_word(c) && c != ':').map_or(code.len(), |end| at + end);
            let path = code[at..end].trim_end_matches(':');
            paths.push(path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
        }
    }
    paths
}

/// A path from the crate's root, if it stays inside the crate.
fn absolute(path: &[String], module: &Module, modules: &BTreeSet<Module>) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let join = |base: &[String], rest: &[String]| base.iter().chain(rest).cloned().collect::<Vec<_>>();
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some(join(module, rest)),
        "super" => {
            let above = module.len().checked_sub(1)?;
            let ups = rest.iter().take_while(|part| *part == "super").count();
            Some(join(&module[..above.checked_sub(ups)?], &rest[ups..]))
        }
        _ => {
            let child = join(module, std::slice::from_ref(first));
            modules.contains(&child).then(|| join(module, path))
        }
    }
}

/// How many re-exports of re-exports are followed.
const EXPORTS_DEEP_MAX: usize = 8;

/// The module in which what a path names is defined.
fn resolve(
    path: &[String],
    modules: &BTreeSet<Module>,
    sources: &BTreeMap<&Module, Source>,
    depth: usize,
) -> Option<Module> {
    let length = (0..=path.len()).rev().find(|&length| modules.contains(&path[..length]))?;
    let module = path[..length].to_vec();
    let (Some(item), true) = (path.get(length), depth < EXPORTS_DEEP_MAX) else { return Some(module) };
    let exports = &sources.get(&module)?.exports;
    match exports.iter().find(|(name, _)| name == item) {
        Some((_, target)) if target != path => {
            let further: Vec<String> = target.iter().chain(&path[length + 1..]).cloned().collect();
            resolve(&further, modules, sources, depth + 1)
        }
        _ => Some(module),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_through_a_re_export_is_found() {
        let graph = Graph::from_sources(&[
            ("", "mod a;\nmod b;\npub use a::A;"),
            ("a", "mod inner;\npub(crate) use inner::Inner;\n"),
            ("a::inner", "use crate::b::{self, B as Other};\n"),
            ("b", "//! use crate::nothing;\nfn f() -> crate::a::Inner { }\n"),
            ("c", "use crate::{a::Inner, b};\n\n#[cfg(test)]\nmod tests { use crate::d::D; }"),
            ("d", "use crate::c::C;\n"),
        ]);
        assert_eq!(graph.circles(), [["a::inner", "b"]]);
        assert_eq!(graph.edge("c", "b"), Some(("c".into(), "b".into())));
        assert_eq!(graph.edge("c", "d"), None);
    }

    #[test]
    fn paths_by_super_and_by_children_are_followed() {
        let graph = Graph::from_sources(&[
            ("a", "mod x;\nmod y;\nuse x::X;\n"),
            ("a::x", "use super::y::{Y, Z};\n"),
            ("a::y", "fn f() { super::f() }\n"),
        ]);
        assert_eq!(graph.circles(), [["a", "a::x", "a::y"]]);
    }
}
