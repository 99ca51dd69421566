//! What is known of the network: shown, explained, and exchanged with other instances.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_api::Problem;
use longhaul_api::native::Page;
use longhaul_api::network::{
    ForecastQuality, NetworkBin, NetworkFailure, NetworkImport, NetworkImported, NetworkLink,
    NetworkLinkDetail, NetworkRate, NetworkTime, NetworkView, NetworkWhatIf,
};
use longhaul_control::Directory;
use longhaul_model::limits::WHAT_IF_FILES_MAX;
use longhaul_model::{SiteId, StorageId, StorageName, Timestamp, json};
use longhaul_netops::measured::{changes, probe_state};
use longhaul_network::exchange::Exchange;
use longhaul_network::{ChangeScope, Knowledge, Link, LinkReport, WhatIfAnswer, WhatIfQuery};
use longhaul_scheduler::{ImportedKnowledge, Scheduler};

use super::{Operations, PageQuery, bad_request, busy, page, unprocessable};

/// What is told of a link with more work unless something else is asked.
const MORE_DEFAULT: [u32; 3] = [1, 4, 16];
const BYTES_DEFAULT: [u64; 3] = [1_000_000_000, 100_000_000_000, 10_000_000_000_000];

/// What somebody wants to know of a link with more work.
#[derive(Clone, Copy, Debug, Default)]
pub struct MoreWork {
    pub files: Option<u32>,
    pub bytes: Option<u64>,
}

impl MoreWork {
    fn questions(self) -> Result<WhatIfQuery, Problem> {
        if self.files.is_some_and(|files| files > WHAT_IF_FILES_MAX) {
            return Err(bad_request(format!(
                "files is more than {WHAT_IF_FILES_MAX}, the most that is foretold"
            )));
        }
        if self.bytes == Some(0) {
            return Err(bad_request("bytes is 0: nothing takes no time".to_owned()));
        }
        Ok(WhatIfQuery {
            more: self.files.map_or(MORE_DEFAULT.to_vec(), |files| vec![files]),
            bytes: self.bytes.map_or(BYTES_DEFAULT.to_vec(), |bytes| vec![bytes]),
            at_once: self.files.filter(|&files| files > 0),
            ..WhatIfQuery::default()
        })
    }
}

impl Operations {
    pub fn network_show(&self) -> Result<NetworkView, Problem> {
        let directory = self.shared.kernel.directory();
        let ask = move |knowledge: &Knowledge, now: Timestamp| NetworkView {
            now,
            links: knowledge.links().count() as u64,
            changes: knowledge.changes().rev().map(|change| changes::view(change, &directory)).collect(),
            forecasts: qualities(knowledge),
        };
        self.known(ask)
    }

    pub fn network_links(
        &self,
        source: Option<&StorageName>,
        target: Option<&StorageName>,
        query: &PageQuery,
    ) -> Result<Page<NetworkLink>, Problem> {
        let source = source.map(|name| self.storage_row(name)).transpose()?.map(|row| row.id);
        let target = target.map(|name| self.storage_row(name)).transpose()?.map(|row| row.id);
        let after: Option<Cursor> = query.after()?;
        let (limit, directory) = (query.limit(), self.shared.kernel.directory());
        let ask = move |knowledge: &Knowledge, now: Timestamp| -> Vec<(Link, NetworkLink)> {
            let wanted = |link: &Link| {
                source.is_none_or(|source| source == link.source)
                    && target.is_none_or(|target| target == link.target)
                    && after.as_ref().is_none_or(|after| *link > after.0)
            };
            let mut worse = worse_since(knowledge, now);
            let views = knowledge.links().filter(wanted).filter_map(|link| {
                let view = link_view(&knowledge.report(link, now), &directory)?;
                Some((link, NetworkLink { worse_since: worse.remove(&link), ..view }))
            });
            views.take(limit + 1).collect()
        };
        let (shorts, directory) =
            (probe_state::shorts(&self.shared.netops, self.now()), self.shared.kernel.directory());
        let probed = |link: Link| {
            let site = |storage| directory.storages.get(&storage).map(|row| row.site);
            shorts.get(&(site(link.source)?, site(link.target)?)).cloned()
        };
        let view = |(link, view)| Ok(NetworkLink { probed: probed(link), ..view });
        page(self.known(ask)?, limit, |(link, _)| Cursor(*link).to_string(), view)
    }

    pub fn network_link(
        &self,
        source: &StorageName,
        target: &StorageName,
        more: MoreWork,
    ) -> Result<NetworkLinkDetail, Problem> {
        let questions = more.questions()?;
        let (source_row, target_row) = (self.storage_row(source)?, self.storage_row(target)?);
        let link = Link { source: source_row.id, target: target_row.id };
        if link.source == link.target {
            return Err(bad_request("source and target are the same storage".to_owned()));
        }
        let directory = self.shared.kernel.directory();
        let ask = move |scheduler: &Scheduler, now: Timestamp| {
            let knowledge = scheduler.knowledge();
            let questions = WhatIfQuery { backlog: scheduler.link_ahead(link), ..questions };
            let worse_since = worse_since(knowledge, now).remove(&link);
            let view = link_view(&knowledge.report(link, now), &directory)?;
            let bin = |bin: longhaul_network::Bin| NetworkBin {
                from: bin.from,
                seconds: bin.seconds,
                rate: bin.bytes_per_s,
                busy: bin.busy,
            };
            Some(NetworkLinkDetail {
                link: NetworkLink { worse_since, ..view },
                explanation: knowledge.explain(link, now),
                advice: knowledge.advise(link, now),
                changes: knowledge
                    .changes_for(link)
                    .iter()
                    .map(|change| changes::view(change, &directory))
                    .collect(),
                history: knowledge.history(link).into_iter().map(bin).collect(),
                probes: Vec::new(),
                uplinks: Vec::new(),
                what_if: what_if_view(&knowledge.what_if(link, &questions, now)),
            })
        };
        let detail = self.query_scheduler(ask).ok_or_else(|| busy("the service is starting or stopping"))?;
        let detail = detail.ok_or_else(|| super::not_found("storage", source, "longhaul site list"))?;
        let (sites, now) = ((source_row.site, target_row.site), self.now());
        let probed = probe_state::shorts(&self.shared.netops, now).remove(&sites);
        let (probes, uplinks) = probe_state::views(&self.shared.netops, sites.0, sites.1, now);
        let mut explanation = detail.explanation;
        explanation.extend(probe_state::uneven_uplinks(&self.shared.netops, [sites.0, sites.1], now));
        let link = NetworkLink { probed, ..detail.link };
        Ok(NetworkLinkDetail { link, explanation, probes, uplinks, ..detail })
    }

    pub fn network_export(&self) -> Result<Exchange, Problem> {
        let directory = self.shared.kernel.directory();
        let instance = self.shared.control.authority.deployment().to_owned();
        self.known(move |knowledge, now| {
            let names: BTreeMap<SiteId, String> =
                directory.sites.values().map(|site| (site.id, site.name.as_str().to_owned())).collect();
            knowledge.export(&instance, &names, now)
        })
    }

    pub fn network_import(&self, request: NetworkImport) -> Result<NetworkImported, Problem> {
        let document: Exchange = json::from_value(request.document)
            .map_err(|error| unprocessable(format!("the document is no network knowledge: {error}")))?;
        document.check()?;
        let sites = self.shared.kernel.directory();
        let sites = sites.sites.values().map(|site| (site.name.as_str().to_owned(), site.id)).collect();
        let lesson = ImportedKnowledge { document, sites, aliases: request.aliases.into_iter().collect() };
        let imported = self.learn(lesson).ok_or_else(|| busy("the service is starting or stopping"))??;
        Ok(NetworkImported {
            taken: imported.imported.into(),
            own_is_better: imported.kept_own.into(),
            nothing_new: imported.nothing_new.into(),
            unmapped: imported.unmapped,
            refused: imported.refused,
        })
    }

    fn known<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Knowledge, Timestamp) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.query_scheduler(move |scheduler, now| question(scheduler.knowledge(), now))
            .ok_or_else(|| busy("the service is starting or stopping"))
    }
}

/// A link as `3.17`.
#[derive(Clone, Copy)]
struct Cursor(Link);

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0.source, self.0.target)
    }
}

impl std::str::FromStr for Cursor {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (source, target) = text.split_once('.').ok_or(())?;
        let number = |text: &str| text.parse().map(StorageId).map_err(|_| ());
        Ok(Cursor(Link { source: number(source)?, target: number(target)? }))
    }
}

/// Links that are worse than they were, since when.
fn worse_since(knowledge: &Knowledge, now: Timestamp) -> BTreeMap<Link, Timestamp> {
    let links = knowledge.ongoing_degradations(now).into_iter().filter_map(|change| match change.affected {
        ChangeScope::Link(link) => Some((link, change.from)),
        ChangeScope::Path { .. } => None,
    });
    links.collect()
}

fn qualities(knowledge: &Knowledge) -> Vec<ForecastQuality> {
    let view = |quality: longhaul_network::ForecastQuality| ForecastQuality {
        history_below: quality.history_max.map(u64::from),
        outcomes: quality.outcomes,
        within: quality.within,
        score: quality.score,
        score_ratio: quality.score_ratio,
    };
    knowledge.quality().into_iter().map(view).collect()
}

fn what_if_view(what_if: &WhatIfAnswer) -> NetworkWhatIf {
    let rates = what_if.rates.iter().map(|&(more_files, rate)| NetworkRate {
        more_files,
        rate: rate.bytes_per_s,
        rate_low: rate.low,
        rate_high: rate.high,
    });
    let times = what_if.times.iter().map(|(work, forecast)| NetworkTime {
        bytes: work.bytes,
        files: work.files,
        at_once: work.at_once,
        seconds: forecast.seconds.into(),
        seconds_low: forecast.low_s.into(),
        seconds_high: forecast.high_s.into(),
    });
    let failures = what_if
        .failures
        .iter()
        .map(|(blame, share)| NetworkFailure { blame: blame.to_string(), share: *share });
    NetworkWhatIf { rates: rates.collect(), times: times.collect(), failures: failures.collect() }
}

/// None if one of its storages is gone.
fn link_view(report: &LinkReport, directory: &Arc<Directory>) -> Option<NetworkLink> {
    let path = report.paths.iter().find(|path| path.rtt_us.is_some()).or(report.paths.first());
    let lowest = |value: fn(&longhaul_network::PathReport) -> Option<f64>| {
        report.paths.iter().filter_map(value).reduce(f64::min)
    };
    Some(NetworkLink {
        source: directory.name(report.link.source)?,
        target: directory.name(report.link.target)?,
        rate: report.rate.bytes_per_s,
        rate_low: report.rate.low,
        rate_high: report.rate.high,
        basis: report.rate.basis.describe().to_owned(),
        rate_expected: report.expected.bytes_per_s,
        rate_now: report.achieved_bytes_per_s,
        active: report.active.into(),
        rtt_us: path.and_then(|path| path.rtt_us),
        loss: path.and_then(|path| path.loss),
        mtu: path.and_then(|path| path.mtu),
        window_limit: lowest(|path| path.window_limit_bytes_per_s),
        loss_limit: lowest(|path| path.loss_limit_bytes_per_s),
        failure_share: report.failure_share,
        held_up_by: report.bottleneck.describe().to_owned(),
        worse_since: None,
        probed: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_as_it_is_written() {
        let link = Link { source: StorageId(3), target: StorageId(17) };
        let again: Cursor = Cursor(link).to_string().parse().unwrap();
        assert_eq!(again.0, link);
        for wrong in ["", "3", "3.", "a.b", "3.4.5"] {
            assert!(wrong.parse::<Cursor>().is_err(), "{wrong}");
        }
    }
}
