//! `[[agent.storages.pools]]`: one of the file systems that a storage consists of.

use std::path::PathBuf;

use longhaul_model::PoolState;
use longhaul_model::limits::{POOL_NAME_BYTES_MAX, STORAGE_POOLS_MAX};
use serde::{Deserialize, Serialize};

/// One pool of a storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Unique in the storage.
    pub name: String,
    /// Nothing outside this directory is ever read or written.
    pub root: PathBuf,
    /// What it is for.
    #[serde(default)]
    pub state: PoolState,
}

/// Checks the pools of a storage.
pub(super) fn check_pools(pools: &[PoolConfig]) -> Result<(), String> {
    if pools.len() > STORAGE_POOLS_MAX {
        return Err(format!("{} pools, the limit is {STORAGE_POOLS_MAX}", pools.len()));
    }
    for (place, pool) in pools.iter().enumerate() {
        let name = &pool.name;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > POOL_NAME_BYTES_MAX || !name.chars().all(is_plain) {
            return Err(format!(
                "pool {name:?}: a name has 1 to {POOL_NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
            ));
        }
        if pool.root.as_os_str().is_empty() {
            return Err(format!("pool {name}: root is missing: the directory of the pool"));
        }
        let others = &pools[..place];
        if others.iter().any(|other| other.name == *name) {
            return Err(format!("two pools are named {name}"));
        }
        let overlaps =
            |other: &&PoolConfig| other.root.starts_with(&pool.root) || pool.root.starts_with(&other.root);
        if let Some(other) = others.iter().find(overlaps) {
            return Err(format!("the roots of pools {} and {name} lie in each other", other.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_have_names_and_roots_of_their_own() {
        let pool = |name: &str, root: &str| PoolConfig {
            name: name.to_owned(),
            root: root.into(),
            state: PoolState::Open,
        };
        assert_eq!(check_pools(&[pool("disk-1", "/data1"), pool("disk-10", "/data10")]), Ok(()));
        for (pools, why) in [
            (vec![pool("a b", "/data1")], "pool \"a b\": a name has"),
            (vec![pool("", "/data1")], "pool \"\": a name has"),
            (vec![pool("a", "")], "pool a: root is missing"),
            (vec![pool("a", "/data1"), pool("a", "/data2")], "two pools are named a"),
            (vec![pool("a", "/data/x"), pool("b", "/data")], "roots of pools a and b lie in each other"),
            (vec![pool("a", "/data"); STORAGE_POOLS_MAX + 1], "the limit is"),
        ] {
            let said = check_pools(&pools).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let parsed: PoolConfig = toml::from_str("name = 'a'\nroot = '/d'\nstate = 'read-only'").unwrap();
        assert_eq!(parsed.state, PoolState::ReadOnly);
    }
}
