//! Circuits for mover commands. While a circuit is in use and the source has a name on it, a command gets
//! that name in place of the usual one when it begins. A running command stays where it began.

use std::collections::BTreeMap;
use std::net::IpAddr;

use longhaul_engine::Path;
use longhaul_model::AgentId;

use crate::command::CircuitCommands;

/// After this many commands in a row that fetched nothing, the circuit is not used any more.
const FAILURES_MAX: u32 = 3;

/// A circuit in use.
#[derive(Clone, Debug)]
struct Circuit {
    address: String,
    /// Our address on it.
    local: Option<IpAddr>,
    failures: u32,
}

#[derive(Default)]
pub(super) struct CommandCircuits {
    used: BTreeMap<AgentId, Circuit>,
    commands: BTreeMap<AgentId, CircuitCommands>,
}

impl CommandCircuits {
    /// Takes the paths that the engine is given; an empty list: no circuit any more.
    pub(super) fn set(&mut self, source: AgentId, paths: &[Path]) {
        match paths.first() {
            None => {
                self.used.remove(&source);
            }
            Some(first) if self.used.get(&source).is_some_and(|used| used.address == first.address) => {}
            Some(first) => {
                let (address, local) = (first.address.clone(), first.local);
                self.used.insert(source, Circuit { address, local, failures: 0 });
            }
        }
    }

    /// Begins a command on the circuit from there, if there is one; returns our address on it. It counts as
    /// running until [`CommandCircuits::ended`].
    pub(super) fn begin(&mut self, source: AgentId) -> Option<Option<IpAddr>> {
        let used = self.used.get(&source).filter(|used| used.failures < FAILURES_MAX)?;
        self.commands.entry(source).or_default().running += 1;
        Some(used.local)
    }

    /// Ends a command with the bytes that arrived; none if that says nothing about the circuit.
    pub(super) fn end(&mut self, source: AgentId, bytes: Option<u64>) {
        let commands = self.commands.entry(source).or_default();
        commands.running = commands.running.saturating_sub(1);
        let Some(bytes) = bytes else { return };
        commands.bytes = commands.bytes.saturating_add(bytes);
        if let Some(used) = self.used.get_mut(&source) {
            used.failures = if bytes > 0 { 0 } else { used.failures.saturating_add(1) };
            if used.failures == FAILURES_MAX {
                tracing::warn!(%source, "commands fetched nothing over the circuit; it is not used any more");
            }
        }
    }

    pub(super) fn commands(&self, source: AgentId) -> CircuitCommands {
        self.commands.get(&source).copied().unwrap_or_default()
    }
}

/// The URL with another host; scheme, user, port and path stay as they are. A name that is no URL is
/// unchanged.
pub(super) fn at_host(name: &str, host: &str) -> String {
    let Some((scheme, rest)) = name.split_once("://") else { return name.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, own) = authority.rfind('@').map_or(("", authority), |end| authority.split_at(end + 1));
    let end = match own.find(']') {
        Some(end) => end + 1,
        None => own.find(':').unwrap_or(own.len()),
    };
    if end == 0 {
        return name.to_owned();
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!("{scheme}://{user}{host}{}{path}", &own[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_of_a_url_is_replaced() {
        for (name, host, expected) in [
            ("fdt://dtn.example:8444/data/f", "10.77.1.2", "fdt://10.77.1.2:8444/data/f"),
            ("gsiftp://me@a.example/x@y:z", "b.example", "gsiftp://me@b.example/x@y:z"),
            (
                "gsiftp://me:word@[2001:db8::1]:2811//x",
                "2001:db8::2",
                "gsiftp://me:word@[2001:db8::2]:2811//x",
            ),
            ("root://a", "2001:db8::2", "root://[2001:db8::2]"),
            ("srm://a:8443?SFN=/x:y", "b", "srm://b:8443?SFN=/x:y"),
            // Nothing to replace.
            ("/data/f", "b", "/data/f"),
            ("file:///data/f", "b", "file:///data/f"),
        ] {
            assert_eq!(at_host(name, host), expected);
        }
    }

    #[test]
    fn a_circuit_is_used_until_it_ends_or_delivers_nothing() {
        let (mut circuits, source) = (CommandCircuits::default(), AgentId(7));
        let circuit = |at: &str| Path { local: "10.1.0.1".parse().ok(), ..Path::new(at) };
        assert_eq!(circuits.begin(source), None);
        circuits.set(source, &[circuit("10.1.0.2:7000"), Path { spare: true, ..Path::new("10.0.0.2:7000") }]);
        assert_eq!(
            (circuits.begin(source), circuits.begin(AgentId(8))),
            (Some("10.1.0.1".parse().ok()), None)
        );
        circuits.end(source, Some(70));
        assert_eq!(circuits.commands(source), CircuitCommands { running: 0, bytes: 70 });
        for _ in 0..FAILURES_MAX {
            assert!(circuits.begin(source).is_some());
            // Said again, for another storage of the same agent.
            circuits.set(source, &[circuit("10.1.0.2:7000")]);
            circuits.end(source, Some(0));
        }
        assert_eq!(circuits.begin(source), None, "it brings nothing");
        circuits.set(source, &[circuit("10.2.0.2:7000")]);
        assert!(circuits.begin(source).is_some(), "this is another one");
        circuits.set(source, &[]);
        assert_eq!(
            (circuits.begin(source), circuits.commands(source).running),
            (None, 1),
            "one goes on there"
        );
        circuits.end(source, None);
        assert_eq!(circuits.commands(source), CircuitCommands { running: 0, bytes: 70 });
    }
}
