//! Who has what: the catalog of a simulated world. Whole blocks are one entry; single files are kept only
//! where a block is partly there.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_model::{FileId, StorageId};
use longhaul_scheduler::WantedFile;

use crate::plan::Plan;

#[derive(Debug, Default)]
struct Holding {
    whole: Vec<u32>,
    partly: BTreeMap<u32, Part>,
    /// Single replicas that turned out to be no good.
    lost: BTreeSet<(u32, u32)>,
}

#[derive(Debug)]
struct Part {
    here: Vec<u64>,
    count: u32,
    /// Files that have failed for good, and are not offered again.
    failed: BTreeSet<u32>,
}

#[derive(Debug)]
pub struct Holdings {
    blocks: Vec<Holding>,
}

/// What came of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was there already.
    Again,
    New,
    /// And it was the last one of its block.
    Completes,
}

impl Holdings {
    pub fn new(plan: &Plan) -> Self {
        let blocks =
            plan.work.blocks.iter().map(|block| Holding { whole: block.at.clone(), ..Holding::default() });
        Holdings { blocks: blocks.collect() }
    }

    pub fn has_block(&self, block: u32, site: u32) -> bool {
        self.blocks[block as usize].whole.contains(&site)
    }

    pub fn has(&self, plan: &Plan, block: u32, file: u32, site: u32) -> bool {
        let holding = &self.blocks[block as usize];
        if holding.lost.contains(&(file, site)) {
            return false;
        }
        holding.whole.contains(&site)
            || holding
                .partly
                .get(&site)
                .is_some_and(|part| part.has(file - plan.work.blocks[block as usize].files.start))
    }

    /// Sites that have all of it.
    pub fn with_block(&self, block: u32) -> Vec<u32> {
        let mut sites = self.blocks[block as usize].whole.clone();
        sites.sort_unstable();
        sites
    }

    /// Files and bytes that are missing.
    pub fn lacking(&self, plan: &Plan, block: u32, site: u32) -> (u64, u64) {
        let files = plan.work.blocks[block as usize].files.clone();
        let missing = files.filter(|&file| !self.has(plan, block, file, site));
        missing.fold((0, 0), |(files, bytes), file| (files + 1, bytes + plan.work.sizes[file as usize]))
    }

    pub fn arrived(&mut self, plan: &Plan, block: u32, file: u32, site: u32) -> Arrival {
        if self.has(plan, block, file, site) {
            return Arrival::Again;
        }
        let files = &plan.work.blocks[block as usize].files;
        let holding = &mut self.blocks[block as usize];
        let part = holding.partly.entry(site).or_insert_with(|| Part::new(files.len()));
        part.add(file - files.start);
        if part.count as usize == files.len() {
            holding.partly.remove(&site);
            holding.whole.push(site);
            return Arrival::Completes;
        }
        Arrival::New
    }

    pub fn lose(&mut self, block: u32, file: u32, site: u32) {
        self.blocks[block as usize].lost.insert((file, site));
    }

    pub fn give_up(&mut self, plan: &Plan, block: u32, file: u32, site: u32) {
        let count = plan.work.blocks[block as usize].files.len();
        let part = self.blocks[block as usize].partly.entry(site).or_insert_with(|| Part::new(count));
        part.failed.insert(file);
    }

    /// The answer to a question for files: those missing after one of them, in the order of their numbers.
    pub fn wanted(
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
        let part = holding.partly.get(&target);
        let mut found = Vec::new();
        for file in first.max(files.start)..files.end {
            let failed = part.is_some_and(|part| part.failed.contains(&file));
            if failed || self.has(plan, block, file, target) {
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

    fn sources(&self, holding: &Holding, file: u32, offset: u32) -> Vec<StorageId> {
        let parts = holding.partly.iter().filter(|(_, part)| part.has(offset)).map(|(site, _)| site);
        let all = holding.whole.iter().chain(parts);
        all.filter(|site| !holding.lost.contains(&(file, **site)))
            .map(|&site| StorageId(site.into()))
            .collect()
    }
}

impl Part {
    fn new(files: usize) -> Self {
        Part { here: vec![0; files.div_ceil(64)], count: 0, failed: BTreeSet::new() }
    }

    fn has(&self, offset: u32) -> bool {
        self.here[offset as usize / 64] >> (offset % 64) & 1 == 1
    }

    fn add(&mut self, offset: u32) {
        self.here[offset as usize / 64] |= 1 << (offset % 64);
        self.count += 1;
    }
}
