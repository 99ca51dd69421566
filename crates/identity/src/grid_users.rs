//! Grid users: which certificates are trusted (IGTF authorities, VOMS), and to which community a subject
//! maps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::MappingCallout;
use longhaul_security::grid::{GridSettings, GridTrust};
use longhaul_security::gridmap::{self, CommunityMap, MAP_BYTES_MAX};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::FtsConfig;

/// Trust anchors, the community map and the mapping command.
pub struct GridUsers {
    /// None: only the deployment's own certificates are known.
    trust: Option<GridTrust>,
    map: Option<PathBuf>,
    communities: RwLock<Arc<CommunityMap>>,
    /// Asked about those who are in no map.
    mapping: Option<MappingCallout>,
    /// What was wrong with the files when it was told last.
    told: Mutex<Vec<String>>,
    delegating: Mutex<()>,
}

impl GridUsers {
    /// `hosts`: names of this service.
    pub fn load(config: &FtsConfig, hosts: &[String], now: Timestamp) -> Result<GridUsers, Fault> {
        let load = |directory: &PathBuf| {
            let settings = GridSettings {
                voms_directory: config.voms_dir.clone(),
                hosts: hosts.to_vec(),
                ..GridSettings::new(directory)
            };
            let named = |fault: Fault| {
                Fault::new(fault.code, format!("service.fts.trust_dir: {}", fault.detail)).with_source(fault)
            };
            GridTrust::load(settings, now).map_err(named)
        };
        let trust = config.trust_dir.as_ref().map(load).transpose()?;
        let users = GridUsers {
            trust,
            map: config.community_map.clone(),
            communities: RwLock::default(),
            mapping: config.mapping().map(MappingCallout::new),
            told: Mutex::default(),
            delegating: Mutex::default(),
        };
        users.read_files(now)?;
        Ok(users)
    }

    pub fn trust(&self) -> Option<&GridTrust> {
        self.trust.as_ref()
    }

    /// By the map that an administrator keeps, and by their command. Where there is a command and it does not
    /// tell, nobody is let in by a guess: a fault says why.
    pub fn community(&self, subject: &str, now: Timestamp) -> Result<Option<String>, Fault> {
        let communities = self.communities.read().clone();
        if let Some(community) = communities.community_of(subject) {
            return Ok(Some(community.to_owned()));
        }
        let Some(mapping) = &self.mapping else { return Ok(None) };
        match mapping.resolve(subject, now) {
            Ok(Some(community)) => Ok(Some(community.as_str().to_owned())),
            Ok(None) => {
                let detail = format!("{subject} is of no community here, says service.fts.mapping_command");
                Err(Fault::new(FaultCode::NotAllowed, detail))
            }
            Err(fault) => {
                tracing::warn!(subject, fault = %fault.chain(), "service.fts.mapping_command");
                Err(fault)
            }
        }
    }

    /// Held from the look at a delegation to its change: two clients of one user must not cross.
    pub fn delegating(&self) -> MutexGuard<'_, ()> {
        self.delegating.lock()
    }

    /// Takes over what has changed in the files. What cannot be read stays as it was, and is told.
    pub fn reload(&self, now: Timestamp) {
        if let Err(fault) = self.read_files(now) {
            tracing::warn!(fault = %fault.chain(), "users of the grid are known by what was read before");
        }
    }

    fn read_files(&self, now: Timestamp) -> Result<(), Fault> {
        let Some(trust) = &self.trust else { return Ok(()) };
        let mut fault = None;
        let mut problems = Vec::new();
        match trust.reload(now) {
            Ok(looked) => problems.extend(looked.problems),
            Err(found) => fault = Some(found),
        }
        match self.map.as_deref().map(read_map) {
            Some(Ok((map, bad))) => {
                problems.extend(bad);
                *self.communities.write() = Arc::new(map);
            }
            Some(Err(found)) => fault = fault.or(Some(found)),
            None => {}
        }
        self.log_problems(problems);
        fault.map_or(Ok(()), Err)
    }

    /// Once, until it is something else.
    fn log_problems(&self, problems: Vec<String>) {
        let mut told = self.told.lock();
        for problem in problems.iter().filter(|problem| !told.contains(problem)) {
            tracing::warn!("users of the grid: {problem}");
        }
        *told = problems;
    }
}

/// The map, and its lines that do not count.
fn read_map(path: &Path) -> Result<(CommunityMap, Vec<String>), Fault> {
    let trouble = |why: String| {
        Fault::new(FaultCode::StateDirectory, format!("service.fts.community_map: {}: {why}", path.display()))
    };
    let file = std::fs::File::open(path).map_err(|error| trouble(error.to_string()).with_source(error))?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MAP_BYTES_MAX as u64 + 1), &mut bytes)
        .map_err(|error| trouble(error.to_string()).with_source(error))?;
    if bytes.len() > MAP_BYTES_MAX {
        return Err(trouble(format!("it has more than {MAP_BYTES_MAX} bytes")));
    }
    let map = gridmap::parse(&bytes);
    let bad = map.bad.iter().chain(&map.shadowed);
    let bad = bad.map(|bad| format!("{}:{}: {}", path.display(), bad.line, bad.why)).collect();
    Ok((CommunityMap::new(&map), bad))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: &str = "/DC=org/DC=example/CN=alice";

    fn users(config: &FtsConfig) -> Result<GridUsers, Fault> {
        GridUsers::load(config, &[], Timestamp(0))
    }

    #[test]
    fn nobody_is_known_where_no_authorities_are_named_and_bad_ones_stop_the_start() {
        let mut config = FtsConfig::default();
        let nobody = users(&config).unwrap();
        assert!(nobody.trust().is_none() && nobody.community(ALICE, Timestamp(0)).unwrap().is_none());
        let empty = tempfile::tempdir().unwrap();
        config.trust_dir = Some(empty.path().to_owned());
        let detail = users(&config).err().unwrap().detail;
        assert!(detail.starts_with("service.fts.trust_dir: "), "{detail}");
    }

    #[test]
    fn a_map_says_what_counts_in_it_and_what_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map");
        assert!(read_map(&path).unwrap_err().detail.contains("service.fts.community_map: "));
        std::fs::write(&path, format!("\"{ALICE}\" atlas\n\"{ALICE}\" cms\n\"/CN=broken atlas\n")).unwrap();
        let (map, bad) = read_map(&path).unwrap();
        assert_eq!(map.community_of(ALICE), Some("atlas"));
        assert!(bad.len() == 2 && bad.iter().any(|line| line.contains("map:3: ")), "{bad:?}");
        std::fs::write(&path, vec![b'#'; MAP_BYTES_MAX + 1]).unwrap();
        assert!(read_map(&path).unwrap_err().detail.contains("more than"));
    }
}
