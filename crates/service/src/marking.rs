//! Which work is marked on the network, and how: the administrator's rules, with the numbers of a registry.

use std::io::Read;
use std::path::PathBuf;

use longhaul_model::mark::{MarkRule, MarkTable, REGISTRY_BYTES_MAX, Registry};
use longhaul_model::{Fault, FaultCode};
use serde::{Deserialize, Serialize};

/// Without rules nothing is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MarkingConfig {
    /// Experiments and activities as the SciTags registry publishes them; none: what is built in.
    pub registry: Option<PathBuf>,
    /// The first that fits says what work gets.
    pub rules: Vec<MarkRule>,
}

impl MarkingConfig {
    pub(crate) fn table(&self) -> Result<MarkTable, Fault> {
        let registry = self.registry.as_ref().map_or_else(|| Ok(Registry::built_in()), read)?;
        MarkTable::new(&self.rules, &registry).map_err(|fault| {
            Fault::new(fault.code, format!("service.marking: {}", fault.detail)).with_source(fault)
        })
    }
}

fn read(path: &PathBuf) -> Result<Registry, Fault> {
    let about = |why: String| {
        let detail = format!("service.marking.registry, {}: {why}", path.display());
        Fault::new(FaultCode::BadRequest, detail)
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| about(error.to_string()).with_source(error))?;
    // One more than may be, so that the parser sees what is too long.
    let most = REGISTRY_BYTES_MAX as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(|error| about(error.to_string()).with_source(error))?;
    Registry::parse(&bytes).map_err(|fault| about(fault.detail))
}
