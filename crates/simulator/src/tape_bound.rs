//! Lower bounds that need no prices: files that must be recalled from tape take their time, at the drives and
//! in the sessions that carry them.

use std::collections::BTreeMap;

use crate::plan::Plan;
use crate::scenario::Mover;
use crate::workload::BlockPlan;

/// What drives must recall, since it lies on the tapes of one site only.
#[derive(Clone, Copy, Debug)]
pub struct DriveBound {
    pub site: u32,
    pub files: u64,
    /// Seconds until a tape is mounted and wound.
    pub mount: f64,
    pub bytes: f64,
    /// Rate of one drive.
    pub rate: f64,
    pub drives: u32,
}

/// What one session must bring from tape, since its target alone wants it. A session has few large files open
/// at a time, and each is open while its tape is mounted, wound and read, and while the copy begins.
///
/// A file is opened if fewer than `files_open` are, or if less than `bytes_open` of all that are open is to
/// come. Let a file of b bytes weigh 1, or b · (`files_open` − 1) / `bytes_open` if that is less. When one is
/// opened, those that have not begun to come are `files_open` − 1 at most, or weigh no more than that
/// together; with it they weigh `files_open` at most.
#[derive(Clone, Copy, Debug)]
pub struct SessionBound {
    pub from: u32,
    pub to: u32,
    /// Weights of the files, added up; and of their bytes.
    pub files: f64,
    pub bytes: f64,
    /// Seconds of each file beside the reading.
    pub wait_s: f64,
    /// Rate of one drive.
    pub rate: f64,
    /// Files open in all sessions between pools of the two sites.
    pub open: u32,
}

impl DriveBound {
    pub fn bound(&self) -> f64 {
        (self.mount * self.files as f64 + self.bytes / self.rate) / f64::from(self.drives)
    }
}

impl SessionBound {
    pub fn bound(&self) -> f64 {
        (self.wait_s * self.files + self.bytes / self.rate) / f64::from(self.open)
    }
}

/// Blocks that lie on the tapes of one site only, with that site, and those who want them.
fn blocks_on_tape(plan: &Plan) -> impl Iterator<Item = (&BlockPlan, u32, Vec<u32>)> {
    let mut wanted: Vec<Vec<u32>> = vec![Vec::new(); plan.work.blocks.len()];
    for request in &plan.work.requests {
        for block in plan.work.datasets[request.dataset as usize].blocks.clone() {
            wanted[block as usize].push(request.target);
        }
    }
    plan.work.blocks.iter().zip(wanted).filter_map(|(block, mut targets)| {
        let &[site] = block.at.as_slice() else { return None };
        plan.layout.sites[site as usize].tape.as_ref().filter(|tape| tape.recall)?;
        targets.retain(|&target| target != site);
        targets.sort_unstable();
        targets.dedup();
        (!targets.is_empty()).then_some((block, site, targets))
    })
}

/// Each file once: mounting, winding and reading, by the drives of the site that needs longest.
pub fn drive_bound(plan: &Plan) -> Option<DriveBound> {
    let mut sites: BTreeMap<u32, DriveBound> = BTreeMap::new();
    for (block, site, _) in blocks_on_tape(plan) {
        let tape = plan.layout.sites[site as usize].tape.as_ref()?;
        let (mount, rate, drives) = (tape.mount.0, tape.rate.0, tape.drives);
        let row = sites.entry(site).or_insert(DriveBound { site, files: 0, mount, bytes: 0.0, rate, drives });
        row.files += block.files.len() as u64;
        row.bytes += block.files.clone().map(|file| plan.work.sizes[file as usize]).sum::<u64>() as f64;
    }
    sites.into_values().max_by(|one, other| one.bound().total_cmp(&other.bound()))
}

/// Where nobody passes anything on.
pub fn session_bound(plan: &Plan) -> Option<SessionBound> {
    let model = &plan.model;
    if model.mover != Mover::Session
        || model.files_open == 0
        || plan.layout.sites.iter().any(|site| site.relay)
    {
        return None;
    }
    let of_byte = f64::from(model.files_open - 1) / model.bytes_open.0.max(1.0);
    let mut sessions: BTreeMap<(u32, u32), SessionBound> = BTreeMap::new();
    for (block, from, targets) in blocks_on_tape(plan) {
        let &[to] = targets.as_slice() else { continue };
        let (source, target) = (&plan.layout.sites[from as usize], &plan.layout.sites[to as usize]);
        let tape = source.tape.as_ref()?;
        let wait = tape.mount.0 + model.overhead.0;
        let open = model.files_open * (source.pools.len() * target.pools.len()) as u32;
        let fresh = SessionBound { from, to, files: 0.0, bytes: 0.0, wait_s: wait, rate: tape.rate.0, open };
        let row = sessions.entry((from, to)).or_insert(fresh);
        for file in block.files.clone() {
            let size = plan.work.sizes[file as usize] as f64;
            let weight = (size * of_byte).min(1.0);
            row.files += weight;
            row.bytes += weight * size;
        }
    }
    sessions.into_values().max_by(|one, other| one.bound().total_cmp(&other.bound()))
}
