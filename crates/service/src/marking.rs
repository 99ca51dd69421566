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
        MarkTable::new(&self.rules, &registry)
            .map_err(|fault| Fault::new(fault.code, format!("service.marking: {}", fault.detail)))
    }
}

fn read(path: &PathBuf) -> Result<Registry, Fault> {
    let about = |why: String| {
        let detail = format!("service.marking.registry, {}: {why}", path.display());
        Fault::new(FaultCode::BadRequest, detail)
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| about(error.to_string()))?;
    // One more than may be, so that the parser sees what is too long.
    let most = REGISTRY_BYTES_MAX as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(|error| about(error.to_string()))?;
    Registry::parse(&bytes).map_err(|fault| about(fault.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_file_that_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.json");
        std::fs::write(&path, r#"{"version":1,"experiments":[{"expName":"new","expId":99}]}"#).unwrap();
        let rules = r#"{"community":"cms","experiment":"new","dscp":"cs1","class":"scavenger"}"#;
        let text = format!(r#"{{"registry":{path:?},"rules":[{rules}]}}"#);
        let config: MarkingConfig = serde_json::from_str(&text).unwrap();
        let treatment = config.table().unwrap().of(&"cms".parse().unwrap(), None);
        assert_eq!(treatment.mark.scitag.unwrap().experiment(), 99);
        let built_in = MarkingConfig { registry: None, ..config.clone() };
        let detail = built_in.table().unwrap_err().detail;
        assert!(
            detail.starts_with("service.marking: rule 1 for marks: the registry has no experiment"),
            "{detail}"
        );
        std::fs::write(&path, "[]").unwrap();
        assert!(config.table().unwrap_err().detail.contains("api.json"));
        std::fs::remove_file(&path).unwrap();
        assert!(config.table().unwrap_err().detail.contains("No such file"));
        assert_eq!(MarkingConfig::default().table().unwrap(), MarkTable::default());
    }
}
