//! Replica catalog of a simulated world. Complete blocks are one entry; single files are tracked only where a
//! block is partly present.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_model::{FileId, StorageId};
use longhaul_scheduler::WantedFile;

use crate::plan::Plan;

#[derive(Debug, Default)]
struct BlockReplicas {
    complete: Vec<u32>,
    partial: BTreeMap<u32, PartialReplica>,
    /// Single replicas that turned out to be no good.
    bad: BTreeSet<(u32, u32)>,
}

#[derive(Debug)]
struct PartialReplica {
    present: Vec<u64>,
    count: u32,
    /// Files that have failed for good, and are not offered again.
    failed: BTreeSet<u32>,
}

#[derive(Debug)]
pub struct ReplicaCatalog {
    blocks: Vec<BlockReplicas>,
}

/// What came of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was there already.
    Duplicate,
    New,
    /// And it was the last one of its block.
    CompletesBlock,
}

impl ReplicaCatalog {
    pub fn new(plan: &Plan) -> Self {
        let blocks = plan
            .work
            .blocks
            .iter()
            .map(|block| BlockReplicas { complete: block.at.clone(), ..BlockReplicas::default() });
        ReplicaCatalog { blocks: blocks.collect() }
    }

    pub fn has_block(&self, block: u32, site: u32) -> bool {
        self.blocks[block as usize].complete.contains(&site)
    }

    pub fn has_file(&self, plan: &Plan, block: u32, file: u32, site: u32) -> bool {
        let holding = &self.blocks[block as usize];
        if holding.bad.contains(&(file, site)) {
            return false;
        }
        holding.complete.contains(&site)
            || holding
                .partial
                .get(&site)
                .is_some_and(|part| part.has(file - plan.work.blocks[block as usize].files.start))
    }

    /// Sites that have all of it.
    pub fn sites_with_block(&self, block: u32) -> Vec<u32> {
        let mut sites = self.blocks[block as usize].complete.clone();
        sites.sort_unstable();
        sites
    }

    /// Files and bytes that are missing.
    pub fn missing(&self, plan: &Plan, block: u32, site: u32) -> (u64, u64) {
        let files = plan.work.blocks[block as usize].files.clone();
        let missing = files.filter(|&file| !self.has_file(plan, block, file, site));
        missing.fold((0, 0), |(files, bytes), file| (files + 1, bytes + plan.work.sizes[file as usize]))
    }

    pub fn add_replica(&mut self, plan: &Plan, block: u32, file: u32, site: u32) -> Arrival {
        if self.has_file(plan, block, file, site) {
            return Arrival::Duplicate;
        }
        let files = &plan.work.blocks[block as usize].files;
        let holding = &mut self.blocks[block as usize];
        let part = holding.partial.entry(site).or_insert_with(|| PartialReplica::new(files.len()));
        part.add(file - files.start);
        if part.count as usize == files.len() {
            holding.partial.remove(&site);
            holding.complete.push(site);
            return Arrival::CompletesBlock;
        }
        Arrival::New
    }

    pub fn remove_replica(&mut self, block: u32, file: u32, site: u32) {
        self.blocks[block as usize].bad.insert((file, site));
    }

    pub fn mark_failed(&mut self, plan: &Plan, block: u32, file: u32, site: u32) {
        let count = plan.work.blocks[block as usize].files.len();
        let part =
            self.blocks[block as usize].partial.entry(site).or_insert_with(|| PartialReplica::new(count));
        part.failed.insert(file);
    }

    /// The answer to a question for files: those missing after one of them, in the order of their numbers.
    pub fn missing_files(
        &self,
        plan: &Plan,
        block: u32,
        target: u32,
        after: Option<FileId>,
        limit: u32,
    ) -> (Vec<WantedFile>, bool) {
        let files = plan.work.blocks[block as usize].files.clone();
        let first = after.map_or(files.start, |after| u32::try_from(after.0 + 1).unwrap_or(u32::MAX));
        let holding = &self.blocks[block as usize];
        let part = holding.partial.get(&target);
        let mut found = Vec::new();
        for file in first.max(files.start)..files.end {
            let failed = part.is_some_and(|part| part.failed.contains(&file));
            if failed || self.has_file(plan, block, file, target) {
                continue;
            }
            if found.len() >= limit as usize {
                return (found, false);
            }
            let sources = self.sources(holding, file, file - files.start);
            found.push(WantedFile {
                file: FileId(file.into()),
                size: plan.work.sizes[file as usize],
                sources,
            });
        }
        (found, true)
    }

    fn sources(&self, holding: &BlockReplicas, file: u32, offset: u32) -> Vec<StorageId> {
        let parts = holding.partial.iter().filter(|(_, part)| part.has(offset)).map(|(site, _)| site);
        let all = holding.complete.iter().chain(parts);
        all.filter(|site| !holding.bad.contains(&(file, **site)))
            .map(|&site| StorageId(site.into()))
            .collect()
    }
}

impl PartialReplica {
    fn new(files: usize) -> Self {
        PartialReplica { present: vec![0; files.div_ceil(64)], count: 0, failed: BTreeSet::new() }
    }

    fn has(&self, offset: u32) -> bool {
        self.present[offset as usize / 64] >> (offset % 64) & 1 == 1
    }

    fn add(&mut self, offset: u32) {
        self.present[offset as usize / 64] |= 1 << (offset % 64);
        self.count += 1;
    }
}
