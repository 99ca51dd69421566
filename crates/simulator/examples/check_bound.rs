//! Adds up the proof of a bound that `longhaul simulate --out` wrote:
//! `cargo run --release -p longhaul-simulator --example check_bound -- bound-best.tsv`.
//!
//! It is a program of its own on purpose: it uses nothing of the simulator (`rustc` alone makes it), knows
//! the file and what `docs/reference/scenarios.md` says of it, and searches nothing. The tests give it the
//! proofs of whole worlds.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

/// Rounding: numbers are added up in another order here.
const SLACK: f64 = 1e-9;
/// Larger worlds are refused by the simulator as well.
const SITES_MAX: usize = 1_000;
/// Targets of a group of which every set is looked at.
const TARGETS_OF_TREES: usize = 5;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: check_bound FILE...");
        return ExitCode::from(2);
    }
    let mut sound = true;
    for file in files {
        let proven =
            std::fs::read_to_string(&file).map_err(|why| why.to_string()).and_then(|text| check(&text));
        match proven {
            Ok(proven) => println!("{file}: proven, {proven:.3} s"),
            Err(why) => {
                sound = false;
                println!("{file}: NOT PROVEN: {why}");
            }
        }
    }
    ExitCode::from(u8::from(!sound))
}

struct Capacity {
    price: f64,
    /// (from when on, bytes a second)
    rates: Vec<(f64, f64)>,
}

struct Group {
    bytes: f64,
    sources: Vec<usize>,
    targets: Vec<usize>,
    price: f64,
}

#[derive(Default)]
struct Proof {
    bound: f64,
    /// Bounds without prices: of the last request, and of tape drives.
    own: f64,
    relays: Vec<bool>,
    capacities: Vec<Capacity>,
    ways: Vec<(usize, usize, Vec<usize>)>,
    groups: Vec<Group>,
}

/// The seconds that the text proves no schedule can beat, if those that it claims are no more.
pub fn check(text: &str) -> Result<f64, String> {
    let proof = read(text)?;
    let prices = Prices::new(&proof)?;
    let mut cost = 0.0;
    for (number, group) in proof.groups.iter().enumerate() {
        let least = prices.least(group);
        if !(group.price >= 0.0 && group.price <= least * (1.0 + SLACK)) {
            return Err(format!("group {}: a byte costs {least:e}, not {:e}", number + 1, group.price));
        }
        cost += group.bytes * group.price;
    }
    let proven = paid_at(&proof.capacities, cost).max(proof.own);
    if proof.bound <= proven * (1.0 + SLACK) {
        Ok(proven)
    } else {
        Err(format!("it claims {} s, and {proven} s follow from what it says", proof.bound))
    }
}

/// Least prices of a byte from one site to another.
struct Prices {
    count: usize,
    relays: Vec<usize>,
    /// Directly.
    direct: Vec<f64>,
    /// By relays, too.
    whole: Vec<f64>,
}

impl Prices {
    fn new(proof: &Proof) -> Result<Self, String> {
        let count = proof.relays.len();
        let mut direct = vec![f64::INFINITY; count * count];
        for (from, to, capacities) in &proof.ways {
            let mut price = 0.0;
            for &number in capacities {
                price +=
                    proof.capacities.get(number).ok_or("a way crosses a capacity that is not there")?.price;
            }
            *direct.get_mut(from * count + to).ok_or("a way between sites that are not there")? = price;
        }
        let relays: Vec<usize> = (0..count).filter(|&site| proof.relays[site]).collect();
        let mut whole = direct.clone();
        for &middle in &relays {
            for from in 0..count {
                for to in 0..count {
                    let around = whole[from * count + middle] + whole[middle * count + to];
                    whole[from * count + to] = whole[from * count + to].min(around);
                }
            }
        }
        Ok(Prices { count, relays, direct, whole })
    }

    /// Price of bringing a byte to all targets of a group: by the cheapest tree from its first replicas, as
    /// targets and relays may pass it on. Of many targets there are too many trees, and a sum that is never
    /// above the cheapest is taken.
    fn least(&self, group: &Group) -> f64 {
        let mut targets = Vec::new();
        // Where nothing can bring it, it is not counted.
        while let Some(&more) = group.targets.iter().find(|&&to| {
            let mut from = group.sources.iter().chain(&targets);
            !targets.contains(&to) && from.any(|from| self.whole[from * self.count + to].is_finite())
        }) {
            targets.push(more);
        }
        if targets.len() > TARGETS_OF_TREES {
            self.at_least(group, &targets)
        } else {
            self.tree(group, &targets)
        }
    }

    /// Trees to each set of targets (a number whose bits they are), from each site: those to two parts of it,
    /// put together at a site that has the file by then, and the way there.
    fn tree(&self, group: &Group, targets: &[usize]) -> f64 {
        let full = (1usize << targets.len()) - 1;
        let sites: Vec<usize> =
            (0..self.count).filter(|at| targets.contains(at) || self.relays.contains(at)).collect();
        let path = |from: usize, to: usize| if from == to { 0.0 } else { self.whole[from * self.count + to] };
        let mut from_site = vec![vec![f64::INFINITY; self.count]; full + 1];
        // Of the first replicas, several may begin a tree each.
        let mut from_first = vec![0.0; full + 1];
        for set in 1..=full {
            let parts: Vec<usize> = (1..set).filter(|part| part & set == *part).collect();
            let mut here = vec![f64::INFINITY; self.count];
            for &site in &sites {
                let parted = parts.iter().map(|&part| from_site[part][site] + from_site[set ^ part][site]);
                here[site] = parted.fold(f64::INFINITY, f64::min);
            }
            if set.is_power_of_two() {
                here[targets[set.trailing_zeros() as usize]] = 0.0;
            }
            let least =
                |from: usize| sites.iter().map(|&to| path(from, to) + here[to]).fold(f64::INFINITY, f64::min);
            for &site in &sites {
                from_site[set][site] = least(site);
            }
            let parted = parts.iter().map(|&part| from_first[part] + from_first[set ^ part]);
            from_first[set] =
                group.sources.iter().map(|&from| least(from)).chain(parted).fold(f64::INFINITY, f64::min);
        }
        from_first[full]
    }

    /// Each has it by its cheapest way in: from a first replica, or from another target or a relay, which may
    /// pass it on. Whichever has it first has the whole way from a first replica.
    fn at_least(&self, group: &Group, targets: &[usize]) -> f64 {
        let cheapest = |prices: &[f64], to: usize, from: &mut dyn Iterator<Item = usize>| {
            from.filter(|&from| from != to)
                .map(|from| prices[from * self.count + to])
                .fold(f64::INFINITY, f64::min)
        };
        let (mut sum, mut more) = (0.0, f64::INFINITY);
        for &to in targets {
            let first = cheapest(&self.whole, to, &mut group.sources.iter().copied());
            let least =
                first.min(cheapest(&self.direct, to, &mut targets.iter().chain(&self.relays).copied()));
            sum += least;
            more = more.min(first - least);
        }
        if more.is_finite() { sum + more } else { sum }
    }
}

/// When the prices times what the capacities could carry since the beginning come to `cost`: halving, as the
/// sum only grows.
fn paid_at(capacities: &[Capacity], cost: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while paid(capacities, high) < cost && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if paid(capacities, middle) < cost {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn paid(capacities: &[Capacity], until: f64) -> f64 {
    let carried = |row: &Capacity| -> f64 {
        let ends = row.rates.iter().skip(1).map(|(from, _)| *from).chain([f64::INFINITY]);
        row.rates.iter().zip(ends).map(|((from, rate), end)| rate * (end.min(until) - from).max(0.0)).sum()
    };
    capacities.iter().map(|row| row.price * carried(row)).sum()
}

fn read(text: &str) -> Result<Proof, String> {
    let mut proof = Proof::default();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        read_line(&mut proof, &fields).map_err(|why| format!("line {}: {why}", number + 1))?;
    }
    let sites = proof.relays.len();
    let known = |list: &[usize]| list.iter().all(|&site| site < sites);
    if proof.groups.iter().any(|group| !known(&group.sources) || !known(&group.targets)) {
        return Err("a group names a site that is not there".to_owned());
    }
    Ok(proof)
}

fn read_line(proof: &mut Proof, fields: &[&str]) -> Result<(), String> {
    match fields {
        ["bound", seconds] => proof.bound = amount(seconds)?,
        ["last", _, asked, bytes, rate] => {
            proof.own = proof.own.max(amount(asked)? + amount(bytes)? / amount(rate)?);
        }
        ["recall", _, _, files, mount, bytes, rate, drives] => {
            let work = amount(files)? * amount(mount)? + amount(bytes)? / amount(rate)?;
            proof.own = proof.own.max(work / amount(drives)?);
        }
        ["session", _, _, _, files, wait, bytes, rate, open] => {
            let work = amount(files)? * amount(wait)? + amount(bytes)? / amount(rate)?;
            proof.own = proof.own.max(work / amount(open)?);
        }
        ["site", number, _, relay]
            if place(number)? == proof.relays.len() && proof.relays.len() < SITES_MAX =>
        {
            proof.relays.push(*relay == "relay");
        }
        ["capacity", number, _, price, rates] if place(number)? == proof.capacities.len() => {
            let rates: Vec<(f64, f64)> = rates.split(' ').map(rate).collect::<Result<_, _>>()?;
            let begins = rates.first().is_some_and(|(from, _)| *from == 0.0);
            if !begins || rates.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
                return Err("its rates do not follow one another from 0".to_owned());
            }
            proof.capacities.push(Capacity { price: amount(price)?, rates });
        }
        ["way", from, to, capacities] => proof.ways.push((place(from)?, place(to)?, list(capacities, ' ')?)),
        ["group", bytes, sources, targets, price] => proof.groups.push(Group {
            bytes: amount(bytes)?,
            sources: list(sources, '+')?,
            targets: list(targets, '+')?,
            price: amount(price)?,
        }),
        _ => return Err("is none of a proof, or out of its place".to_owned()),
    }
    Ok(())
}

fn amount(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("\"{text}\" is no number"))?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(format!("{number} cannot be")) }
}

fn place(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no place"))
}

fn list(text: &str, between: char) -> Result<Vec<usize>, String> {
    text.split(between).filter(|field| !field.is_empty()).map(place).collect()
}

fn rate(text: &str) -> Result<(f64, f64), String> {
    let (from, rate) = text.split_once(':').ok_or_else(|| format!("\"{text}\" is no rate"))?;
    Ok((amount(from)?, amount(rate)?))
}
