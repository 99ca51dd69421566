//! CPUs: their number, and the instructions that encryption and checksums use.

use serde::Serialize;

use super::Tree;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processor {
    pub cpus: usize,
    pub model: Option<String>,
    /// AES instructions.
    pub aes: Option<bool>,
    /// Vector AES: several blocks at once.
    pub wide_aes: Option<bool>,
    /// Carry-less multiplication: half of AES-GCM, and fast CRC.
    pub carryless: Option<bool>,
}

impl Processor {
    pub(super) fn read(tree: &Tree) -> Processor {
        let Some(text) = tree.text("proc/cpuinfo") else { return Processor::default() };
        let value = |names: &[&str]| {
            text.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                names.contains(&name.trim()).then(|| value.trim().to_owned())
            })
        };
        // `flags` on x86, `Features` on ARM.
        let flags = value(&["flags", "Features"]);
        let has = |names: &[&str]| {
            flags.as_ref().map(|flags| flags.split_whitespace().any(|flag| names.contains(&flag)))
        };
        Processor {
            cpus: text.lines().filter(|line| line.starts_with("processor")).count(),
            model: value(&["model name"]),
            aes: has(&["aes"]),
            wide_aes: has(&["vaes"]),
            carryless: has(&["pclmulqdq", "pmull"]),
        }
    }
}
