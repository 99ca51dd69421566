//! The order of the rooms: which crate may use which, and what pure rooms may use from outside.

use super::{Findings, members};

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// No clock, socket, file, thread or random source.
    Pure,
    /// Owns one kind of outside world.
    Edge,
    /// Connects rooms and holds no algorithms.
    Joining,
    /// The binary, the tests' house, the tools.
    Top,
}

pub(crate) struct Room {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Rooms it may use beyond the pure ones that stand before it.
    uses: &'static [&'static str],
}

const fn room(name: &'static str, kind: Kind, uses: &'static [&'static str]) -> Room {
    Room { name, kind, uses }
}

/// In the order in which data meets them. A pure room may use the pure rooms named; every other room may
/// use any pure room, and of the rest only those named.
pub(crate) const ROOMS: &[Room] = &[
    room("model", Kind::Pure, &[]),
    room("api", Kind::Pure, &["model"]),
    room("wire", Kind::Pure, &["model"]),
    room("network", Kind::Pure, &["model"]),
    room("circuits", Kind::Pure, &["model"]),
    room("scheduler", Kind::Pure, &["model", "network"]),
    room("simulator", Kind::Pure, &["model", "network", "circuits", "scheduler"]),
    room("security", Kind::Edge, &[]),
    room("threads", Kind::Edge, &[]),
    room("outbound", Kind::Edge, &["security"]),
    room("catalog", Kind::Edge, &[]),
    room("storage", Kind::Edge, &[]),
    room("storage-remote", Kind::Edge, &["storage", "security", "outbound"]),
    room("gateways", Kind::Edge, &["security", "threads", "outbound"]),
    room("engine", Kind::Edge, &["storage", "security", "threads"]),
    room("doors", Kind::Edge, &["storage", "security", "outbound"]),
    room("copy", Kind::Joining, &["engine", "storage", "security", "gateways"]),
    room("doctor", Kind::Joining, &["storage", "security"]),
    room(
        "agent",
        Kind::Joining,
        &["engine", "storage", "storage-remote", "doors", "security", "threads", "doctor", "gateways"],
    ),
    room("identity", Kind::Joining, &["catalog", "security", "gateways"]),
    room("control", Kind::Joining, &["catalog", "security", "threads", "identity"]),
    room("netops", Kind::Joining, &["catalog", "storage-remote", "gateways", "control"]),
    room(
        "jobs",
        Kind::Joining,
        &["catalog", "security", "storage-remote", "gateways", "identity", "control", "netops"],
    ),
    room(
        "service",
        Kind::Joining,
        &[
            "catalog",
            "security",
            "threads",
            "gateways",
            "storage-remote",
            "identity",
            "control",
            "netops",
            "jobs",
        ],
    ),
    room("web", Kind::Joining, &["security", "identity", "service"]),
    room(
        "longhaul",
        Kind::Top,
        &[
            "security",
            "catalog",
            "storage",
            "storage-remote",
            "gateways",
            "engine",
            "copy",
            "doctor",
            "agent",
            "service",
            "web",
        ],
    ),
    // All others use it in their tests only.
    room("testkit", Kind::Top, &[]),
    room(
        "testbed",
        Kind::Top,
        &[
            "security",
            "catalog",
            "storage",
            "storage-remote",
            "gateways",
            "engine",
            "doctor",
            "agent",
            "service",
            "web",
            "testkit",
        ],
    ),
    room(
        "bench",
        Kind::Top,
        &["security", "catalog", "storage", "engine", "doctor", "agent", "service", "testbed"],
    ),
    // What it shared with the rooms that it tests would be tested by nobody.
    room("provider", Kind::Top, &[]),
    room("xtask", Kind::Top, &[]),
];

/// Pure rooms may use these from outside: computation and derivation only. `api` has a client in a feature,
/// which is the one place where a pure room's crate holds more (see `text::EXEMPT`).
const PURE_DEPENDENCIES: &[&str] = &[
    "blake3",
    "crc32c",
    "jiff",
    "md-5",
    "percent-encoding",
    "regex-lite",
    "serde",
    "serde_json",
    "sha1",
    "sha2",
    "simd-adler32",
    "thiserror",
    "toml",
    "utoipa",
    "zeroize",
];
const CLIENT_DEPENDENCIES: &[&str] = &[
    "bytes",
    "http",
    "http-body-util",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "rustls",
    "tokio",
    "tower",
    "futures-core",
    "http-body",
];

pub(crate) fn check(metadata: &serde_json::Value, findings: &mut Findings) {
    let mut seen = Vec::new();
    for package in members(metadata) {
        let Some(name) = package["name"].as_str() else { continue };
        let short = name.strip_prefix("longhaul-").unwrap_or(name);
        let Some(room) = ROOMS.iter().find(|room| room.name == short) else {
            findings
                .push(format!("{name}: is in no row of the table of rooms (crates/xtask/src/tidy/rooms.rs)"));
            continue;
        };
        seen.push(room.name);
        if package["description"].as_str().is_none_or(str::is_empty) {
            findings.push(format!("{name}: has no description, and so no line on the map"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_dev = dependency["kind"].as_str() == Some("dev");
            if let Some(used) = dependency["name"].as_str().filter(|_| !is_dev) {
                check_edge(room, used, findings);
            }
        }
    }
    for room in ROOMS.iter().filter(|room| !seen.contains(&room.name)) {
        findings.push(format!("{}: stands in the table of rooms and is no crate", room.name));
    }
}

fn check_edge(room: &Room, used: &str, findings: &mut Findings) {
    let Some(other) = ROOMS.iter().find(|other| used.strip_prefix("longhaul-") == Some(other.name)) else {
        let allowed =
            PURE_DEPENDENCIES.contains(&used) || (room.name == "api" && CLIENT_DEPENDENCIES.contains(&used));
        if room.kind == Kind::Pure && !allowed {
            findings.push(format!("{}: a pure room may not use {used}", room.name));
        }
        return;
    };
    let named = room.uses.contains(&other.name);
    let pure = other.kind == Kind::Pure && room.kind != Kind::Pure;
    if !named && !pure {
        findings.push(format!(
            "{}: may not use {} (the order of the rooms: ARCHITECTURE.md)",
            room.name, other.name
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str) -> Findings {
        let mut findings = Findings::new();
        let room = ROOMS.iter().find(|room| room.name == from).unwrap();
        check_edge(room, to, &mut findings);
        findings
    }

    #[test]
    fn forbidden_edges_are_found() {
        for (from, to) in [
            ("engine", "longhaul-catalog"),
            ("scheduler", "longhaul-catalog"),
            ("storage", "longhaul-engine"),
            ("web", "longhaul-catalog"),
            // The FTS façade and the pages: nothing below may know them.
            ("jobs", "longhaul-service"),
            ("control", "longhaul-service"),
            ("service", "longhaul-web"),
            ("jobs", "longhaul-web"),
            ("service", "longhaul-testbed"),
            ("wire", "longhaul-scheduler"),
            ("model", "tokio"),
            ("scheduler", "hyper"),
        ] {
            assert_eq!(edge(from, to).len(), 1, "{from} → {to}");
        }
        for (from, to) in [
            ("engine", "longhaul-wire"),
            ("scheduler", "longhaul-network"),
            ("api", "hyper"),
            ("agent", "tokio"),
        ] {
            assert!(edge(from, to).is_empty(), "{from} → {to}");
        }
    }

    #[test]
    fn the_table_is_in_order() {
        for (place, room) in ROOMS.iter().enumerate() {
            for used in room.uses {
                assert!(
                    ROOMS[..place].iter().any(|before| before.name == *used),
                    "{} uses {used}, which stands after it",
                    room.name
                );
            }
        }
    }
}
