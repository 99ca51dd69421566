//! Counters, histograms and their text for Prometheus. Written by hand: a registry would be more code than
//! this.
//!
//! Labels are storages, blames and routes only: their number is bounded by the deployment's size, never by
//! files or users.

use std::collections::BTreeMap;
use std::fmt::Write;

use longhaul_identity::Counters;
use parking_lot::{Mutex, MutexGuard};

/// Label sets of one counter; further ones are counted under the label value `other`.
const SERIES_MAX: usize = 5_000;
const SECONDS: &[f64] = &[0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0, 3_600.0];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

type Labels = Vec<(&'static str, String)>;

struct Family {
    help: &'static str,
    kind: Kind,
    values: BTreeMap<Labels, f64>,
    histograms: BTreeMap<Labels, Histogram>,
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; SECONDS.len()],
    count: u64,
    sum: f64,
}

/// Everything counted since the start of the process.
#[derive(Default)]
pub struct Metrics {
    families: Mutex<BTreeMap<&'static str, Family>>,
}

impl Metrics {
    pub fn count(&self, name: &'static str, help: &'static str, labels: Labels, by: u64) {
        let mut families = self.lock();
        let family = family(&mut families, name, help, Kind::Counter);
        let labels = bounded(&family.values, labels);
        *family.values.entry(labels).or_default() += by as f64;
    }

    pub fn observe(&self, name: &'static str, help: &'static str, labels: Labels, seconds: f64) {
        let mut families = self.lock();
        let family = family(&mut families, name, help, Kind::Histogram);
        let labels = bounded(&family.histograms, labels);
        let histogram = family.histograms.entry(labels).or_default();
        histogram.count += 1;
        histogram.sum += seconds;
        for (bucket, bound) in histogram.buckets.iter_mut().zip(SECONDS) {
            *bucket += u64::from(seconds <= *bound);
        }
    }

    /// The whole page: what was counted, then `gauges` as they are now.
    pub fn render(&self, gauges: &Gauges) -> String {
        let mut out = String::new();
        for (name, family) in self.lock().iter() {
            head(&mut out, name, family.help, family.kind);
            for (labels, value) in &family.values {
                line(&mut out, name, "", labels, None, *value);
            }
            for (labels, histogram) in &family.histograms {
                for (bucket, bound) in histogram.buckets.iter().zip(SECONDS) {
                    line(&mut out, name, "_bucket", labels, Some(&bound.to_string()), *bucket as f64);
                }
                line(&mut out, name, "_bucket", labels, Some("+Inf"), histogram.count as f64);
                line(&mut out, name, "_sum", labels, None, histogram.sum);
                line(&mut out, name, "_count", labels, None, histogram.count as f64);
            }
        }
        for (name, (help, kind, values)) in &gauges.families {
            head(&mut out, name, help, *kind);
            for (labels, value) in values {
                line(&mut out, name, "", labels, None, *value);
            }
        }
        out
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.families.lock()
    }
}

impl Counters for Metrics {
    fn count(&self, name: &'static str, help: &'static str, labels: Vec<(&'static str, String)>, by: u64) {
        Metrics::count(self, name, help, labels, by);
    }
}

type Reading = (&'static str, Kind, Vec<(Labels, f64)>);

/// Values read at the moment of a scrape.
#[derive(Default)]
pub struct Gauges {
    families: BTreeMap<&'static str, Reading>,
}

impl Gauges {
    pub fn gauge(&mut self, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        self.families.entry(name).or_insert((help, Kind::Gauge, Vec::new())).2.push((labels, value));
    }

    /// A total that somebody else keeps.
    pub fn total(&mut self, name: &'static str, help: &'static str, labels: Labels, value: u64) {
        self.families.entry(name).or_insert((help, Kind::Counter, Vec::new())).2.push((labels, value as f64));
    }
}

fn family<'a>(
    families: &'a mut BTreeMap<&'static str, Family>,
    name: &'static str,
    help: &'static str,
    kind: Kind,
) -> &'a mut Family {
    families.entry(name).or_insert_with(|| Family {
        help,
        kind,
        values: BTreeMap::new(),
        histograms: BTreeMap::new(),
    })
}

fn bounded<V>(present: &BTreeMap<Labels, V>, labels: Labels) -> Labels {
    if present.len() < SERIES_MAX || present.contains_key(&labels) {
        return labels;
    }
    labels.into_iter().map(|(name, _)| (name, "other".to_owned())).collect()
}

fn head(out: &mut String, name: &str, help: &str, kind: Kind) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {}", escape(help, false), kind.word());
}

fn line(out: &mut String, name: &str, suffix: &str, labels: &Labels, bound: Option<&str>, value: f64) {
    let mut text: Vec<String> =
        labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value, true))).collect();
    text.extend(bound.map(|bound| format!("le=\"{bound}\"")));
    let braces = if text.is_empty() { String::new() } else { format!("{{{}}}", text.join(",")) };
    let _ = writeln!(out, "{name}{suffix}{braces} {value}");
}

/// The exposition format's escapes: backslash and line feed, and in label values the quote.
fn escape(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_counters_histograms_and_gauges_with_escapes() {
        let metrics = Metrics::default();
        metrics.count("longhaul_a_total", "things", vec![("link", "a\"\\\nb".into())], 2);
        metrics.observe("longhaul_b_seconds", "time", vec![], 0.3);
        let mut gauges = Gauges::default();
        gauges.gauge("longhaul_c", "now", vec![], 1.5);
        let text = metrics.render(&gauges);
        assert!(text.contains("longhaul_a_total{link=\"a\\\"\\\\\\nb\"} 2\n"), "{text}");
        assert!(text.contains("longhaul_b_seconds_bucket{le=\"0.1\"} 0\n"));
        assert!(text.contains("longhaul_b_seconds_bucket{le=\"0.5\"} 1\n"));
        assert!(text.contains("longhaul_b_seconds_bucket{le=\"+Inf\"} 1\nlonghaul_b_seconds_sum 0.3\n"));
        assert!(text.contains("# TYPE longhaul_c gauge\nlonghaul_c 1.5\n"));
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let metrics = Metrics::default();
        for n in 0..SERIES_MAX + 10 {
            metrics.count("longhaul_a_total", "", vec![("n", n.to_string())], 1);
        }
        let text = metrics.render(&Gauges::default());
        assert!(text.contains("{n=\"other\"} 10\n"));
        assert_eq!(text.lines().count(), 2 + SERIES_MAX + 1);
    }
}
