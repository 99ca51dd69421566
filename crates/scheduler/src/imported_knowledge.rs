//! Network knowledge imported from other instances, as one document: plain data, so that an import can be
//! recorded and replayed.

use std::collections::BTreeMap;

use longhaul_model::{Fault, SiteId, Timestamp};
use longhaul_network::exchange::{Aliases, Exchange, Imported};
use serde::{Deserialize, Serialize};

use crate::scheduler::Scheduler;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportedKnowledge {
    pub document: Exchange,
    /// Known sites by name, including those without a storage so far.
    pub sites: BTreeMap<String, SiteId>,
    /// Pairs of their name and our name.
    pub aliases: Vec<(String, String)>,
}

impl Scheduler {
    /// Imports a document, or returns why it is refused.
    pub fn import_knowledge(
        &mut self,
        lesson: &ImportedKnowledge,
        now: Timestamp,
    ) -> Result<Imported, Fault> {
        let pairs = lesson.aliases.iter().map(|(theirs, ours)| (theirs.as_str(), ours.as_str()));
        let aliases = Aliases::new(pairs)?;
        lesson.sites.values().for_each(|&site| self.knowledge.add_site(site));
        self.knowledge.import(&lesson.document, &lesson.sites, &aliases, now)
    }
}
