//! Random worlds by kind and seed, as the text of a scenario: worlds that the scheduler was never tuned on.

use std::fmt::Write as _;

use crate::random::Random;

/// Kinds of worlds.
pub const KINDS: [&str; 6] = ["mesh", "hierarchy", "replicas", "failures", "streams", "tape"];

/// The text of a world, or why there is none of this kind.
pub fn generate(kind: &str, seed: u64) -> Result<String, String> {
    if !KINDS.contains(&kind) {
        return Err(format!("there is no kind \"{kind}\": {} are known", KINDS.join(", ")));
    }
    let mut random = Random::stream(seed, kind);
    let mut text = format!(
        "# A random world of the kind {kind}, seed {seed}.\nname = \"{kind}-{seed}\"\n\
         about = \"a random world of the kind {kind}\"\nseed = {seed}\nuntil = \"7 d\"\n\n\
         [model]\noverhead = \"{:.2} s\"\nservice_round_trip = \"{:.0} ms\"\nfailures = {:.3}\n\n\
         [links]\ntopology = \"{}\"\nloss = {:.1e}\n",
        random.between(0.02, 2.0),
        random.between(10.0, 200.0),
        if kind == "failures" { random.between(0.02, 0.1) } else { 0.0 },
        if kind == "hierarchy" { "hierarchy" } else { "mesh" },
        10f64.powf(random.between(-8.0, -5.5)),
    );
    let sites = sites(&mut text, kind, &mut random);
    distances(&mut text, &mut random);
    work(&mut text, kind, &sites, &mut random);
    if kind == "failures" {
        failures(&mut text, &sites, &mut random);
        errors(&mut text, &sites, &mut random);
    }
    Ok(text)
}

/// A port as one buys them.
fn port(random: &mut Random) -> u32 {
    [1, 2, 5, 10, 10, 20, 40, 100][random.below(8)]
}

fn sites(text: &mut String, kind: &str, random: &mut Random) -> Vec<String> {
    let centres = 2 + random.below(4);
    let others = 2 + random.below(10);
    let mut names = Vec::new();
    for number in 1..=centres + others {
        let is_centre = number <= centres;
        let name = if is_centre { format!("centre-{number}") } else { format!("site-{}", number - centres) };
        let region = ["north", "south"][random.below(2)];
        let gigabits = if is_centre { port(random).max(10) } else { port(random) };
        let _ = write!(
            text,
            "\n[[site]]\nname = \"{name}\"\nregion = \"{region}\"\nport = \"{gigabits} Gbit/s\"\n"
        );
        if random.chance(0.3) {
            let _ = writeln!(text, "background = {:.2}", random.between(0.1, 0.6));
        }
        if random.chance(0.3) {
            let _ = writeln!(text, "write = \"{} MB/s\"", 50 + random.below(20) * 50);
        }
        if kind == "hierarchy" && is_centre {
            text.push_str("relay = true\n");
        }
        if kind == "hierarchy" && !is_centre {
            let _ = writeln!(text, "parent = \"centre-{}\"", 1 + random.below(centres));
        }
        if kind == "tape" && number == 1 {
            let drives = 2 + random.below(8);
            let rate = 100 + 50 * random.below(6);
            let _ =
                writeln!(text, "tape = {{ drives = {drives}, rate = \"{rate} MB/s\", mount = \"90 s\" }}");
        }
        names.push(name);
    }
    names
}

fn distances(text: &mut String, random: &mut Random) {
    let _ = write!(
        text,
        "\n[[distance]]\nfrom = \"north\"\nto = \"north\"\nrtt = \"{:.0} ms\"\n",
        random.between(2.0, 40.0)
    );
    let _ = write!(
        text,
        "\n[[distance]]\nfrom = \"north\"\nto = \"south\"\nrtt = \"{:.0} ms\"\n",
        random.between(60.0, 250.0)
    );
    if !text.contains("region = \"south\"") || !text.contains("region = \"north\"") {
        // A distance to a region without sites is a mistake: then there is one region only, with one
        // distance.
        let start = text.find("\n[[distance]]").unwrap_or(text.len());
        text.truncate(start);
    }
}

fn work(text: &mut String, kind: &str, sites: &[String], random: &mut Random) {
    let copies = match kind {
        "replicas" => 3,
        "tape" => 1,
        _ => 1 + random.below(3),
    };
    let all = quoted(sites);
    if kind == "streams" {
        for number in 1..=1 + random.below(3) {
            let _ = write!(
                text,
                "\n[[stream]]\nname = \"stream-{number}\"\nfiles_per_day = {}\nfiles = {}\nfrom = \
                    [{all}]\ncopies = {copies}\n\
                 to = [{all}]\nburst = {}\nsizes = {{ median = \"{} MB\", sigma = 0.8 }}\nend = \"12 h\"\n",
                5_000 + 1_000 * random.below(20),
                20 + random.below(80),
                1 + random.below(20),
                100 + 100 * random.below(15),
            );
        }
        return;
    }
    for number in 1..=2 + random.below(4) {
        let holders = if kind == "tape" && number == 1 { quoted(&sites[..1]) } else { all.clone() };
        let _ = write!(
            text,
            "\n[[dataset]]\nname = \"data-{number}\"\ncount = {}\nfiles = {}\nat = [{holders}]\ncopies = \
                {copies}\n\
             sizes = {{ median = \"{} MB\", sigma = {:.1} }}\n",
            2 + random.below(8),
            20 + random.below(180),
            100 + 100 * random.below(25),
            random.between(0.0, 1.2),
        );
        let _ = write!(
            text,
            "\n[[campaign]]\nat = \"0 s\"\ndatasets = [\"data-{number}\"]\nto = [{all}]\ncopies = {}\n",
            1 + random.below(3)
        );
    }
    if kind == "replicas" {
        // What is remembered of some links, true or not.
        for _ in 0..1 + random.below(6) {
            let (from, to) = (&sites[random.below(sites.len())], &sites[random.below(sites.len())]);
            let _ = write!(
                text,
                "\n[[history]]\nfrom = [\"{from}\"]\nto = [\"{to}\"]\nrate = \"{} MB/s\"\n",
                10 + 10 * random.below(100)
            );
        }
    }
}

fn failures(text: &mut String, sites: &[String], random: &mut Random) {
    failure(text, "site-down", sites, (1, 30), random);
    failure(text, "link-degraded", sites, (5, 120), random);
    let _ = writeln!(text, "to = [{}]\nfactor = {:.2}", quoted(sites), random.between(0.05, 0.5));
    failure(text, "slow-storage", sites, (5, 60), random);
    let _ = writeln!(text, "factor = {:.2}", random.between(0.1, 0.5));
}

/// A failure of one of the sites, within its first minutes. It lasts the first number of minutes at least,
/// and less than both together.
fn failure(text: &mut String, kind: &str, sites: &[String], minutes: (usize, usize), random: &mut Random) {
    let _ = writeln!(
        text,
        "\n[[failure]]\nkind = \"{kind}\"\nat = [\"{}\"]\nbegin = \"{} s\"\nlasts = \"{} min\"",
        sites[random.below(sites.len())],
        30 + random.below(600),
        minutes.0 + random.below(minutes.1)
    );
}

/// What is not as it seems: bad replicas, permits that are refused, and histories that are wrong by far.
fn errors(text: &mut String, sites: &[String], random: &mut Random) {
    let bad = random.between(0.02, 0.2);
    // A part of the replicas of each dataset.
    *text = text.replace("[[dataset]]\n", &format!("[[dataset]]\nbad = {bad:.2}\n"));
    failure(text, "credential-outage", sites, (1, 30), random);
    let _ = writeln!(text, "share = {:.2}", random.between(0.3, 1.0));
    for factor in [0.05, 20.0] {
        let rate = factor * random.between(50.0, 500.0);
        let _ = write!(
            text,
            "\n[[history]]\nfrom = [\"{}\"]\nto = [{}]\nrate = \"{rate:.0} MB/s\"\n",
            sites[random.below(sites.len())],
            quoted(sites)
        );
    }
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    quoted.join(", ")
}
