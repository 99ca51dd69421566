//! Workload: replicas at the start and requests over time, from campaigns, streams and bursts of new data,
//! and recorded requests. All become datasets of blocks of files, and requests for datasets.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use longhaul_model::{ActivityName, CommunityName, NameError};

use crate::layout::{Layout, name_matches};
use crate::plan::{FILES_MAX, REQUESTS_MAX};
use crate::quantity::{Share, Size};
use crate::random::Random;
use crate::scenario::{Dataset, RequestTerms, Scenario, ScenarioError, Sizes, Stream};

/// Files of a block.
const BLOCK_FILES_DEFAULT: u32 = 1_000;
/// Largest file of the grid.
const GRID_FILE_BYTES_MAX: f64 = 20e9;
/// Priority of requests that name none.
const PRIORITY_DEFAULT: u8 = 5;
/// Valid priorities.
const PRIORITIES: RangeInclusive<u8> = 1..=9;
/// Community of requests that name none.
const COMMUNITY_DEFAULT: &str = "default";

#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Sizes of all files in bytes.
    pub sizes: Vec<u64>,
    pub blocks: Vec<BlockPlan>,
    pub datasets: Vec<DatasetPlan>,
    /// In the order of their times.
    pub requests: Vec<Request>,
    pub communities: Vec<CommunityPlan>,
}

#[derive(Clone, Debug)]
pub struct BlockPlan {
    pub dataset: u32,
    pub files: Range<u32>,
    /// Sites that have all of it at the beginning.
    pub at: Vec<u32>,
    /// Part of the replicas beyond the first that are bad.
    pub bad: f64,
    /// Files whose replicas are all damaged.
    pub damaged: Range<u32>,
}

#[derive(Clone, Debug)]
pub struct DatasetPlan {
    pub name: String,
    group: String,
    pub blocks: Range<u32>,
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Request {
    /// Seconds.
    pub at: f64,
    pub dataset: u32,
    pub target: u32,
    pub community: u32,
    pub activity: Option<ActivityName>,
    pub priority: u8,
    /// Seconds, from the beginning of the world.
    pub deadline: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CommunityPlan {
    pub name: CommunityName,
    pub share: f64,
    pub activities: BTreeMap<ActivityName, f64>,
}

pub fn build(scenario: &Scenario, layout: &Layout, seed: u64) -> Result<Workload, ScenarioError> {
    let mut work = Workload::default();
    add_communities(&mut work, scenario)?;
    for (at, dataset) in scenario.dataset.iter().enumerate() {
        let mut random = Random::stream(seed ^ at as u64, "dataset");
        add_datasets(&mut work, dataset, layout, &mut random)?;
    }
    add_campaigns(&mut work, scenario, layout, seed)?;
    for (at, stream) in scenario.stream.iter().enumerate() {
        let mut random = Random::stream(seed ^ at as u64, "stream");
        add_stream(&mut work, stream, scenario.until.0, layout, &mut random)?;
    }
    for (at, recorded) in scenario.recorded.iter().enumerate() {
        add_recorded(&mut work, &recorded.requests, layout, &format!("[[recorded]] {}", at + 1))?;
    }
    if work.requests.is_empty() {
        return Err(ScenarioError::new(
            "[[campaign]]",
            "nobody wants anything",
            "add a [[campaign]] or a [[stream]]",
        ));
    }
    if work.requests.len() > REQUESTS_MAX {
        let what = format!("{} requests, the limit is {REQUESTS_MAX}", work.requests.len());
        return Err(ScenarioError::new("[[campaign]]", what, "use larger datasets"));
    }
    work.requests.sort_by(|one, other| one.at.total_cmp(&other.at));
    Ok(work)
}

fn add_communities(work: &mut Workload, scenario: &Scenario) -> Result<(), ScenarioError> {
    for community in &scenario.community {
        if !(community.share >= 0.0 && community.share.is_finite()) {
            let what = format!("a share of {} for \"{}\"", community.share, community.name);
            return Err(ScenarioError::new("[[community]]", what, "give a number of 0 or more"));
        }
        let place = format!("[[community]] {}", community.name);
        let mut activities = BTreeMap::new();
        for (name, &weight) in &community.activities {
            if !(weight >= 0.0 && weight.is_finite()) {
                return Err(ScenarioError::new(
                    place,
                    format!("a weight of {weight} for {name}"),
                    "give a number of 0 or more",
                ));
            }
            activities.insert(parse_name(name, &place)?, weight);
        }
        let name = parse_name(&community.name, &place)?;
        work.communities.push(CommunityPlan { name, share: community.share, activities });
    }
    let sum: f64 = work.communities.iter().map(|community| community.share).sum();
    if !work.communities.is_empty() && sum <= 0.0 {
        return Err(ScenarioError::new(
            "[[community]]",
            "the shares sum to zero: nobody would get anything",
            "give one of them more",
        ));
    }
    Ok(())
}

fn check_priority(terms: &RequestTerms, place: &str) -> Result<(), ScenarioError> {
    match terms.priority {
        Some(priority) if !PRIORITIES.contains(&priority) => {
            let what = format!("a priority of {priority}");
            Err(ScenarioError::new(
                place,
                what,
                format!("give 1 (least) to 9; without one it is {PRIORITY_DEFAULT}"),
            ))
        }
        _ => Ok(()),
    }
}

fn parse_activity(terms: &RequestTerms, place: &str) -> Result<Option<ActivityName>, ScenarioError> {
    if terms.activity.is_empty() { Ok(None) } else { parse_name(&terms.activity, place).map(Some) }
}

/// A name by the rules of all names.
fn parse_name<T: FromStr<Err = NameError>>(text: &str, place: &str) -> Result<T, ScenarioError> {
    text.parse().map_err(|why: NameError| ScenarioError::new(place, why.to_string(), "choose another name"))
}

impl Workload {
    fn community(&mut self, name: &str, place: &str) -> Result<u32, ScenarioError> {
        let written = if name.is_empty() { COMMUNITY_DEFAULT } else { name };
        if let Some(at) = self.communities.iter().position(|community| community.name.as_str() == written) {
            return Ok(at as u32);
        }
        if name.is_empty() {
            let name = parse_name(COMMUNITY_DEFAULT, place)?;
            self.communities.push(CommunityPlan { name, share: 1.0, activities: BTreeMap::new() });
            return Ok((self.communities.len() - 1) as u32);
        }
        let what = format!("there is no community \"{name}\"");
        Err(ScenarioError::new(place, what, "add a [[community]] with this name and a share"))
    }

    fn add_dataset(
        &mut self,
        name: String,
        group: &str,
        sizes: impl IntoIterator<Item = u64>,
        block: u32,
        at: &[u32],
        bad: f64,
    ) -> Result<u32, ScenarioError> {
        let dataset = self.datasets.len() as u32;
        let first_block = self.blocks.len() as u32;
        let first = self.sizes.len();
        self.sizes.extend(sizes);
        if self.sizes.len() > FILES_MAX {
            let what = format!("more than {FILES_MAX} files");
            return Err(ScenarioError::new(format!("dataset {name}"), what, "use fewer and larger ones"));
        }
        let end = self.sizes.len() as u32;
        let mut from = first as u32;
        while from < end {
            let to = (from + block.max(1)).min(end);
            self.blocks.push(BlockPlan { dataset, files: from..to, at: at.to_vec(), bad, damaged: 0..0 });
            from = to;
        }
        let bytes = self.sizes[first..].iter().sum();
        let blocks = first_block..self.blocks.len() as u32;
        self.datasets.push(DatasetPlan { name, group: group.to_owned(), blocks, bytes });
        Ok(dataset)
    }

    /// Damages every replica of so many neighbouring files of a dataset, chosen by the seed.
    fn damage_files(&mut self, dataset: u32, count: u32, random: &mut Random) {
        let blocks = self.datasets[dataset as usize].blocks.clone();
        let blocks = &mut self.blocks[blocks.start as usize..blocks.end as usize];
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return };
        let (start, end) = (first.files.start, last.files.end);
        let count = count.min(end - start);
        if count == 0 {
            return;
        }
        let from = start + random.below((end - start - count + 1) as usize) as u32;
        for block in blocks {
            let to = (from + count).clamp(block.files.start, block.files.end);
            block.damaged = from.clamp(block.files.start, block.files.end)..to;
        }
    }

    fn add_request(
        &mut self,
        at: f64,
        dataset: u32,
        target: u32,
        community: u32,
        terms: &RequestTerms,
        activity: &Option<ActivityName>,
    ) {
        let blocks = self.datasets[dataset as usize].blocks.clone();
        let there = blocks.into_iter().all(|block| self.blocks[block as usize].at.contains(&target));
        if there {
            return;
        }
        self.requests.push(Request {
            at,
            dataset,
            target,
            community,
            activity: activity.clone(),
            priority: terms.priority.unwrap_or(PRIORITY_DEFAULT),
            deadline: terms.deadline.map(|deadline| at + deadline.0),
        });
    }
}

/// A size by its distribution.
fn draw_size(sizes: &Sizes, random: &mut Random) -> u64 {
    let size = match sizes {
        Sizes::Equal(size) => size.0,
        Sizes::Spread(spread) => match spread.grid {
            Some(scale) => scale * grid_size(random),
            None => random.lognormal(spread.median.map_or(1e9, |size| size.0), spread.sigma.unwrap_or(1.0)),
        },
    };
    size.clamp(0.0, 1e13) as u64
}

/// Logs and data: a quarter small, most near 1 GB, a tenth near 5 GB; 1.5 GB in the mean.
fn grid_size(random: &mut Random) -> f64 {
    let kind = random.uniform();
    let size = match kind {
        kind if kind < 0.25 => random.lognormal(2e6, 2.0),
        kind if kind < 0.90 => random.lognormal(0.9e9, 1.0),
        _ => random.lognormal(5e9, 0.5),
    };
    size.min(GRID_FILE_BYTES_MAX)
}

fn check_sizes(sizes: &Sizes, place: &str) -> Result<(), ScenarioError> {
    let Sizes::Spread(spread) = sizes else { return Ok(()) };
    let numbers = [spread.median.map(|Size(size)| size), spread.sigma, spread.grid];
    let sound = |number: &Option<f64>| {
        number.is_none_or(|number| number.is_finite() && (0.0..=1e12).contains(&number))
    };
    if !numbers.iter().all(sound) || spread.sigma.is_some_and(|sigma| sigma > 4.0) {
        return Err(ScenarioError::new(
            place,
            "sizes that cannot be",
            "give median and sigma (0 to 4), or grid",
        ));
    }
    Ok(())
}

fn add_datasets(
    work: &mut Workload,
    dataset: &Dataset,
    layout: &Layout,
    random: &mut Random,
) -> Result<(), ScenarioError> {
    let place = format!("[[dataset]] {}", dataset.name);
    check_sizes(&dataset.sizes, &place)?;
    if dataset.files == 0 || dataset.count == Some(0) || dataset.block == Some(0) {
        return Err(ScenarioError::new(place, "it is empty", "give files, count and block, 1 or more"));
    }
    if work.datasets.iter().any(|other| other.group == dataset.name) {
        return Err(ScenarioError::new(place, "two datasets have this name", "rename one"));
    }
    let sites = layout.sites_named(&dataset.at, &place)?;
    for number in 1..=dataset.count.unwrap_or(1) {
        let name = dataset.count.map_or(dataset.name.clone(), |_| format!("{}-{number}", dataset.name));
        let at = sample_sites(&sites, dataset.copies, layout, random);
        let sizes: Vec<u64> = (0..dataset.files).map(|_| draw_size(&dataset.sizes, random)).collect();
        let block = dataset.block.unwrap_or(BLOCK_FILES_DEFAULT);
        let index = work.add_dataset(name, &dataset.name, sizes, block, &at, dataset.bad.0)?;
        work.damage_files(index, dataset.damaged, random);
    }
    Ok(())
}

/// All sites, or so many of them, larger ones likelier.
fn sample_sites(sites: &[usize], copies: Option<u32>, layout: &Layout, random: &mut Random) -> Vec<u32> {
    let Some(copies) = copies else { return sites.iter().map(|&site| site as u32).collect() };
    let weights: Vec<f64> = sites.iter().map(|&site| layout.sites[site].size).collect();
    let mut chosen: Vec<u32> = random
        .sample_weighted(&weights, copies.max(1) as usize)
        .into_iter()
        .map(|at| sites[at] as u32)
        .collect();
    chosen.sort_unstable();
    chosen
}

fn add_campaigns(
    work: &mut Workload,
    scenario: &Scenario,
    layout: &Layout,
    seed: u64,
) -> Result<(), ScenarioError> {
    for (at, campaign) in scenario.campaign.iter().enumerate() {
        let place = format!("[[campaign]] {}", at + 1);
        let mut random = Random::stream(seed ^ at as u64, "campaign");
        check_priority(&campaign.terms, &place)?;
        let targets = layout.sites_named(&campaign.to, &place)?;
        let community = work.community(&campaign.terms.community, &place)?;
        let activity = parse_activity(&campaign.terms, &place)?;
        for written in &campaign.datasets {
            let fits = |dataset: &DatasetPlan| name_matches(written, &dataset.name, &dataset.group);
            let found: Vec<u32> =
                (0..work.datasets.len() as u32).filter(|&at| fits(&work.datasets[at as usize])).collect();
            if found.is_empty() {
                let what = format!("there is no dataset \"{written}\"");
                return Err(ScenarioError::new(place, what, "add a [[dataset]] of this name"));
            }
            for dataset in found {
                for target in sample_sites(&targets, campaign.copies, layout, &mut random) {
                    work.add_request(campaign.at.0, dataset, target, community, &campaign.terms, &activity);
                }
            }
        }
    }
    Ok(())
}

fn add_stream(
    work: &mut Workload,
    stream: &Stream,
    until: f64,
    layout: &Layout,
    random: &mut Random,
) -> Result<(), ScenarioError> {
    let place = format!("[[stream]] {}", stream.name);
    check_sizes(&stream.sizes, &place)?;
    check_priority(&stream.terms, &place)?;
    let end = stream.end.map_or(until, |end| end.0).min(until);
    let rate_fits = stream.files_per_day.is_finite() && stream.files_per_day > 0.0;
    if !rate_fits || stream.files == 0 || stream.burst == 0 || stream.begin.0 >= end {
        return Err(ScenarioError::new(
            place,
            "nothing would ever come",
            "give files_per_day, files, and begin before end",
        ));
    }
    let from = layout.sites_named(&stream.from, &place)?;
    let to = layout.sites_named(&stream.to, &place)?;
    let community = work.community(&stream.terms.community, &place)?;
    let activity = parse_activity(&stream.terms, &place)?;
    let datasets_per_s = stream.files_per_day / 86_400.0 / f64::from(stream.files);
    let bursts = datasets_per_s / f64::from(stream.burst);
    if datasets_per_s * (end - stream.begin.0) > REQUESTS_MAX as f64 {
        return Err(ScenarioError::new(place, "too many datasets", "give each more files"));
    }
    let mut at = stream.begin.0;
    let mut number = 0u32;
    loop {
        at += random.exponential(1.0 / bursts / (1.0 + stream.daily.0));
        if at >= end {
            return Ok(());
        }
        // Thinned out by night: at noon of the first day there is most.
        let daylight = 1.0 - stream.daily.0 * (std::f64::consts::TAU * at / 86_400.0).cos();
        if !random.chance(daylight / (1.0 + stream.daily.0)) {
            continue;
        }
        for _ in 0..stream.burst {
            number += 1;
            let sources = sample_sites(&from, Some(stream.copies), layout, random);
            let elsewhere: Vec<usize> =
                to.iter().copied().filter(|&site| !sources.contains(&(site as u32))).collect();
            let sizes: Vec<u64> = (0..stream.files).map(|_| draw_size(&stream.sizes, random)).collect();
            let name = format!("{}-{number}", stream.name);
            let Share(bad) = stream.bad;
            let dataset = work.add_dataset(name, &stream.name, sizes, BLOCK_FILES_DEFAULT, &sources, bad)?;
            for target in sample_sites(&elsewhere, Some(stream.targets), layout, random) {
                work.add_request(at, dataset, target, community, &stream.terms, &activity);
            }
        }
    }
}

/// Requests as they were, one a line of tab-separated fields: seconds from the beginning, dataset, files,
/// bytes of all files, sources (`+` between), target, priority, community. Lines that begin with `#` are
/// remarks. A dataset that comes again is the same, whatever the line says of it.
pub(crate) fn add_recorded(
    work: &mut Workload,
    text: &str,
    layout: &Layout,
    place: &str,
) -> Result<(), ScenarioError> {
    let mut known: BTreeMap<String, u32> =
        (0u32..).zip(&work.datasets).map(|(at, dataset)| (dataset.name.clone(), at)).collect();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("{place} line {}", number + 1);
        let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
        let wrong = |what: String| {
            ScenarioError::new(
                place.clone(),
                what,
                "seconds, dataset, files, bytes, sources, target, priority, community",
            )
        };
        let &[at, name, files, bytes, sources, target, priority, community] = fields.as_slice() else {
            return Err(wrong(format!("{} fields in place of 8", fields.len())));
        };
        let at: f64 = at.parse().map_err(|_| wrong(format!("\"{at}\" is no number of seconds")))?;
        let files: u32 = files.parse().map_err(|_| wrong(format!("\"{files}\" is no number of files")))?;
        let bytes: u64 = bytes.parse().map_err(|_| wrong(format!("\"{bytes}\" is no number of bytes")))?;
        let priority: u8 = priority.parse().map_err(|_| wrong(format!("\"{priority}\" is no priority")))?;
        if !(at >= 0.0 && at.is_finite())
            || files == 0
            || files as usize > FILES_MAX
            || !PRIORITIES.contains(&priority)
        {
            return Err(wrong("time, files or priority are out of range".to_owned()));
        }
        let names: Vec<String> = sources.split('+').map(ToOwned::to_owned).collect();
        let sources: Vec<u32> =
            layout.sites_named(&names, &place)?.into_iter().map(|site| site as u32).collect();
        let target = layout.sites_named(&[target.to_owned()], &place)?[0] as u32;
        let terms = RequestTerms { priority: Some(priority), ..RequestTerms::default() };
        let community = work.community(community, &place)?;
        let dataset = match known.get(name) {
            Some(&dataset) => dataset,
            None => {
                // The remainder goes to the first files, so that the sum is kept.
                let (each, rest) = (bytes / u64::from(files), bytes % u64::from(files));
                let sizes = (0..u64::from(files)).map(|file| each + u64::from(file < rest));
                let dataset =
                    work.add_dataset(name.to_owned(), name, sizes, BLOCK_FILES_DEFAULT, &sources, 0.0)?;
                known.insert(name.to_owned(), dataset);
                dataset
            }
        };
        work.add_request(at, dataset, target, community, &terms, &None);
    }
    Ok(())
}
