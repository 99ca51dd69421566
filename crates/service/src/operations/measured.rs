//! Measurements of others, and which site their hosts belong to.

use longhaul_api::Problem;
use longhaul_api::measured::{
    ArchiveView, HostOfSite, HostView, HostsChange, HostsChanged, MeasurementsTaken, UnmappedHost,
};
use longhaul_api::native::Page;
use longhaul_catalog::HostRow;
use longhaul_control::metrics::Gauges;
use longhaul_gateways::perfsonar::push;
use longhaul_identity::Caller;
use longhaul_model::units::printable;
use longhaul_netops::measured;
use longhaul_network::mapping::{Entry, HostOrNetwork, Mapping, Role};

use super::{
    Operations, PageQuery, bad_request, not_found, page, problem, unprocessable, unprocessable_fault,
};

/// Entries of one request; `longhaul network map import` splits its input by this.
const HOSTS_PER_REQUEST_MAX: usize = longhaul_model::limits::BATCH_ITEMS_MAX;

impl Operations {
    /// What a measurement host sends. Repeating it does no harm.
    pub fn measurement_send(
        &self,
        caller: &Caller,
        observer: Option<&str>,
        body: &[u8],
    ) -> Result<MeasurementsTaken, Problem> {
        let from = observer.unwrap_or(&caller.principal.name);
        let harvest = push::read(body).inspect_err(|fault| {
            tracing::info!(%from, fault = %fault.chain(), "a pushed result makes no sense");
        });
        let harvest = harvest.map_err(unprocessable_fault)?;
        Ok(measured::take(&self.shared.netops, harvest, from, "push")?)
    }

    pub fn host_list(&self, query: &PageQuery) -> Result<Page<HostView>, Problem> {
        let after: Option<String> = query.after()?;
        let limit = query.limit();
        let rows = self.shared.kernel.catalog.hosts_page(after.as_deref(), limit + 1).map_err(problem)?;
        page(rows, limit, |row| row.entry.what.to_string(), |row| Ok(host_view(row)))
    }

    pub fn host_set(&self, request: &HostsChange) -> Result<HostsChanged, Problem> {
        let mapping = match request.mapping.as_deref() {
            None | Some("explicit") => Mapping::Explicit,
            Some("imported") => Mapping::Imported,
            Some(other) => {
                return Err(bad_request(format!(
                    "mapping is explicit or imported, not {}",
                    printable(other)
                )));
            }
        };
        if request.hosts.len() > HOSTS_PER_REQUEST_MAX {
            return Err(bad_request(format!("at most {HOSTS_PER_REQUEST_MAX} hosts at a time")));
        }
        let entries =
            request.hosts.iter().map(|host| entry(host, mapping)).collect::<Result<Vec<_>, Problem>>()?;
        let done = self.shared.kernel.catalog.set_hosts(&entries, self.now()).map_err(problem)?;
        tracing::info!(set = done.set, unchanged = done.unchanged, %mapping, "hosts of sites");
        measured::review(&self.shared.netops).map_err(problem)?;
        Ok(HostsChanged {
            set: done.set,
            unchanged: done.unchanged,
            kept_explicit: done.kept_explicit,
            unknown_sites: done.unknown_sites.into_iter().collect(),
        })
    }

    pub fn host_remove(&self, host: &str) -> Result<(), Problem> {
        let what = HostOrNetwork::parse(host).map_err(unprocessable)?;
        if !self.shared.kernel.catalog.remove_host(&what).map_err(problem)? {
            return Err(not_found("host or network", host, "longhaul network map list"));
        }
        measured::review(&self.shared.netops).map_err(problem)
    }

    pub fn unmapped_list(&self, query: &PageQuery) -> Result<Page<UnmappedHost>, Problem> {
        let after: Option<usize> = query.after()?;
        let limit = query.limit();
        let begin = after.unwrap_or(0);
        let rows: Vec<_> = self
            .shared
            .netops
            .measured
            .unmapped()
            .into_iter()
            .enumerate()
            .skip(begin)
            .take(limit + 1)
            .collect();
        page(rows, limit, |(place, _)| (place + 1).to_string(), |(_, row)| Ok(row))
    }

    pub fn archive_list(&self) -> Vec<ArchiveView> {
        self.shared.netops.measured.archives(self.now())
    }

    pub(crate) fn measured_gauges(&self, gauges: &mut Gauges) {
        let unmapped = self.shared.netops.measured.unmapped();
        for (state, count) in [
            ("none", unmapped.iter().filter(|host| host.inferred.is_none()).count()),
            ("inferred", unmapped.iter().filter(|host| host.inferred.is_some()).count()),
        ] {
            gauges.gauge(
                "longhaul_unmapped_hosts",
                "Measurement hosts without a site, or with one that is only inferred.",
                vec![("site", state.into())],
                count as f64,
            );
        }
        let archives = self.archive_list();
        let failing = archives.iter().filter(|archive| archive.fault.is_some()).count();
        gauges.gauge(
            "longhaul_archives",
            "Archives and meshes that are read.",
            vec![],
            archives.len() as f64,
        );
        gauges.gauge(
            "longhaul_archives_failing",
            "Of these, whose last reading failed.",
            vec![],
            failing as f64,
        );
        gauges.gauge(
            "longhaul_mesh_pairs_silent",
            "Pairs that a mesh expects results of, and that have had none for more than three of their \
                intervals.",
            vec![],
            archives.iter().map(|archive| archive.silent).sum::<u64>() as f64,
        );
    }
}

fn entry(host: &HostOfSite, mapping: Mapping) -> Result<Entry, Problem> {
    let what = HostOrNetwork::parse(&host.host).map_err(unprocessable)?;
    let wrong = |error: String| unprocessable(format!("{what}: {error}"));
    let family = host.family.as_deref().map(str::parse).transpose().map_err(wrong)?;
    let role = host.role.as_deref().map(str::parse).transpose().map_err(wrong)?;
    let role = match &what {
        HostOrNetwork::Network(_) if role.is_some() => return Err(wrong("a network has no role".to_owned())),
        HostOrNetwork::Network(_) => None,
        HostOrNetwork::Host(_) => Some(role.unwrap_or(Role::Both)),
    };
    Ok(Entry { what, site: host.site.clone(), role, family, mapping })
}

fn host_view(row: HostRow) -> HostView {
    HostView {
        host: row.entry.what.to_string(),
        site: row.entry.site,
        role: row.entry.role.map(|role| role.to_string()),
        family: row.entry.family.map(|family| family.to_string()),
        mapping: row.entry.mapping.to_string(),
        created: row.created,
    }
}
