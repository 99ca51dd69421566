//! What others know of the network, handed over as one document: as data, so that it can be recorded and
//! taught again.

use std::collections::BTreeMap;

use longhaul_model::{Fault, SiteId, Timestamp};
use longhaul_network::exchange::{Aliases, Exchange, Imported};
use serde::{Deserialize, Serialize};

use crate::scheduler::Scheduler;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportedKnowledge {
    pub document: Exchange,
    /// Sites that are known here, by name. One without a storage so far can be known of as well.
    pub sites: BTreeMap<String, SiteId>,
    /// Their name, our name.
    pub aliases: Vec<(String, String)>,
}

impl Scheduler {
    /// Takes what a document tells, or says why not.
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
