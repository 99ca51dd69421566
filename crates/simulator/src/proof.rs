//! Text form of the certificate of the bound, which any program can check without this one and without the
//! scenario: `docs/reference/scenarios.md` explains each line, and `examples/check_bound.rs` is such a
//! program.

use std::fmt::Write as _;

use crate::bound::Certificate;

const REMARK: &str = "\
# At a time T below the bound, the sum over capacities of price times what they could carry up to T is less
# than the sum over groups of bytes times price: docs/reference/scenarios.md.
";

impl Certificate {
    /// Lines of fields with tabs between. Numbers are written so that they are read as the same numbers.
    pub fn text(&self) -> String {
        let mut text = format!("{REMARK}bound\t{:?}\n", self.bound);
        if let Some(last) = &self.last {
            let _ = writeln!(
                text,
                "last\t{:?}\t{:?}\t{:?}\t{:?}",
                last.bound(),
                last.requested_s,
                last.bytes,
                last.rate
            );
        }
        if let Some(recall) = &self.recall {
            let _ = writeln!(
                text,
                "recall\t{:?}\t{}\t{}\t{:?}\t{:?}\t{:?}\t{}",
                recall.bound(),
                recall.site,
                recall.files,
                recall.mount,
                recall.bytes,
                recall.rate,
                recall.drives
            );
        }
        if let Some(session) = &self.session {
            let _ = writeln!(
                text,
                "session\t{:?}\t{}\t{}\t{:?}\t{:?}\t{:?}\t{:?}\t{}",
                session.bound(),
                session.from,
                session.to,
                session.files,
                session.wait_s,
                session.bytes,
                session.rate,
                session.open
            );
        }
        for (number, site) in self.sites.iter().enumerate() {
            let relay = if site.relay { "relay" } else { "end" };
            let _ = writeln!(text, "site\t{number}\t{}\t{relay}", site.name);
        }
        for (number, row) in self.capacities.iter().enumerate() {
            let rates: Vec<String> =
                row.rate.iter().map(|(from, rate)| format!("{from:?}:{rate:?}")).collect();
            let _ = writeln!(text, "capacity\t{number}\t{}\t{:?}\t{}", row.name, row.price, rates.join(" "));
        }
        for row in &self.crossings {
            let _ = writeln!(text, "way\t{}\t{}\t{}", row.from, row.to, joined(&row.capacities, " "));
        }
        for group in &self.groups {
            let (sources, targets) = (joined(&group.sources, "+"), joined(&group.targets, "+"));
            let _ = writeln!(text, "group\t{:?}\t{sources}\t{targets}\t{:?}", group.bytes, group.price);
        }
        text
    }
}

fn joined(numbers: &[u32], between: &str) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}
