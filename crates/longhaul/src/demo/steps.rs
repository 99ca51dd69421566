//! The steps of the demo in order: data, service, sites, registration, subscriptions, watching, summary.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_agent::StorageConfig;
use longhaul_api::native::{
    CheckReport, DatasetCreate, DatasetView, Health, LoginToken, Page, ScanRequest, SiteAdd, SiteAdded,
    SiteView, Status, Subscribe, SubscriptionView, TaskView, TransferView,
};
use longhaul_api::routes;
use longhaul_model::units::{bytes, duration, printable};
use longhaul_model::{DatasetName, DigestOrigin, FaultCode, StorageName, Timestamp, TransferId};
use serde_json::{Value, json};

use super::plan::{DemoData, DemoPlan};
use super::report::{self, DemoReport};
use super::supervisor::Event;
use super::{DATASET, Demo, POLL_INTERVAL, generate};
use crate::clock;
use crate::commands::{agent, login, service, task, words};
use crate::config::{ClientConfig, PROFILE};
use crate::failure::{Exit, Failure};
use crate::progress::{Measure, REPAINT_INTERVAL, lines};
use crate::remote::Remote;

/// With `--exit`: the demo fails when nothing has arrived for this long.
const STALL_MAX: Duration = Duration::from_secs(300);

impl Demo<'_> {
    /// Generates the files, or links to the user's directory.
    pub(super) async fn prepare_data(&mut self, plan: &DemoPlan) -> Result<(), Failure> {
        let state = plan.state.path();
        for site in &plan.sites {
            let directory = state.join(site.as_str());
            make_directory(&directory)?;
            make_directory(&directory.join("work"))?;
        }
        let storage = |site: &str| state.join(site).join("storage");
        let first = storage(plan.sites[0].as_str());
        for site in &plan.sites[1..] {
            make_directory(&storage(site.as_str()))?;
        }
        match &plan.data {
            DemoData::Given { directory, files, bytes: size } => {
                std::os::unix::fs::symlink(directory, &first)
                    .map_err(|error| Failure::file("linking", &first, &error))?;
                let shown = printable(&directory.to_string_lossy());
                self.board.print_message(&format!(
                    "  data     {shown}: {}, {}, read-only",
                    words::files(*files),
                    bytes(*size)
                ));
                Ok(())
            }
            DemoData::Generated { files, bytes: size } => {
                make_directory(&first)?;
                let begun = clock::now();
                self.generate(&first, *files, *size).await?;
                let took = duration(clock::now().since(begun));
                self.board.print_message(&format!(
                    "  data     {}, {} written in {took}",
                    words::files(*files as u64),
                    bytes(*size)
                ));
                Ok(())
            }
        }
    }

    async fn generate(&mut self, root: &Path, files: usize, size: u64) -> Result<(), Failure> {
        let written = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (counted, stop, to) = (written.clone(), self.stop_writing.clone(), root.to_owned());
        let writer = self.writer.insert(tokio::task::spawn_blocking(move || {
            generate::write(&to, &generate::plan(files, size), |bytes| {
                counted[0].fetch_add(1, Ordering::Relaxed);
                counted[1].fetch_add(bytes, Ordering::Relaxed);
                !stop.load(Ordering::Relaxed)
            })
        }));
        loop {
            tokio::select! {
                done = &mut *writer => {
                    self.writer = None;
                    self.board.clear();
                    return done
                        .map_err(|error| Failure::new(FaultCode::Internal, error.to_string()))?
                        .map_err(|error| Failure::file("writing below", root, &error));
                }
                () = tokio::time::sleep(REPAINT_INTERVAL) => {}
            }
            let measure = Measure {
                files_done: written[0].load(Ordering::Relaxed),
                files: Some(files as u64),
                bytes_done: written[1].load(Ordering::Relaxed),
                bytes: Some(size),
                ..Measure::default()
            };
            let line = lines(&[("data", measure.clone())], self.board.terminal().width());
            self.board.show(clock::now(), &line, || measure.plain("data"));
        }
    }

    /// As `service init`, `service run` and opening the web page do.
    pub(super) async fn start_service(&mut self, plan: &DemoPlan) -> Result<(Remote, String), Failure> {
        let directory = plan.state.path().join("service");
        let config = longhaul_service::Config {
            state_dir: directory.join("state"),
            listen: vec![plan.service],
            http: Some(plan.http),
            public_url: format!("https://{}", plan.service),
            deployment: "demo".to_owned(),
            ..longhaul_service::Config::default()
        };
        make_directory(&directory)?;
        let made = service::init(&config)?;
        let profile = ClientConfig { url: made.url, token: made.token, ca: made.ca };
        login::save(&plan.state.path().join(PROFILE), &profile)?;
        self.start("service", &directory, "service", &json!({ "service": config }))?;
        let remote = Remote::connect(&profile)?;
        self.wait_until("the service answers", async || {
            let health: Health = remote.get(&routes::READYZ, &[], &[]).await?;
            Ok(health.ok)
        })
        .await?;
        let page = page_url(plan, &remote).await?;
        Ok((remote, page))
    }

    /// As `site add`, `agent join` and `agent run` do, for all sites.
    pub(super) async fn start_sites(&mut self, plan: &DemoPlan, remote: &Remote) -> Result<(), Failure> {
        for (place, site) in plan.sites.iter().enumerate() {
            let directory = plan.state.path().join(site.as_str());
            let add = SiteAdd { name: site.clone(), token_seconds: None, storages: Vec::new() };
            let added: SiteAdded = remote.post(&routes::SITE_ADD, &[], &add).await?;
            let config = agent_config(plan, place)?;
            agent::join(None, &added.join_token, &config.state_dir).await?;
            self.start(site.as_str(), &directory, "agent", &json!({ "agent": config }))?;
        }
        self.wait_until("every site has its storage", async || {
            let sites: Vec<SiteView> = remote.list_all(&routes::SITE_LIST, &[], &[]).await?;
            let here = |site: &SiteView| {
                !site.storages.is_empty() && site.agents.iter().any(|agent| agent.connected)
            };
            Ok(sites.len() == plan.sites.len() && sites.iter().all(here))
        })
        .await
    }

    /// As `dataset register --scan` does.
    pub(super) async fn register(
        &mut self,
        plan: &DemoPlan,
        remote: &Remote,
        dataset: &DatasetName,
    ) -> Result<DatasetView, Failure> {
        let first = storage_name(plan, 0)?;
        let create = DatasetCreate { name: dataset.clone(), community: None };
        let _: DatasetView = remote.post(&routes::DATASET_CREATE, &[], &create).await?;
        let request = ScanRequest {
            storage: first.clone(),
            path: String::new(),
            algorithms: Vec::new(),
            digests: DigestOrigin::Computed,
        };
        let begun = clock::now();
        let mut scan: TaskView = remote.post(&routes::DATASET_SCAN, &[dataset.as_str()], &request).await?;
        while !scan.done {
            let measure = task::measure(&scan, Some(plan.data.size()));
            let line = lines(&[("scan", measure.clone())], self.board.terminal().width());
            self.board.show(clock::now(), &line, || measure.plain("scan"));
            self.wait(POLL_INTERVAL).await?;
            scan =
                self.or_previous(remote.get(&routes::TASK_SHOW, &[&scan.id.to_string()], &[]).await, scan)?;
        }
        self.board.clear();
        task::ensure_succeeded(&scan)?;
        let view: DatasetView = remote.get_with_retry(&routes::DATASET_SHOW, &[dataset.as_str()]).await?;
        self.board.print_wrapped(
            &format!(
                "  {:<8} has dataset {dataset}: {}, {}, digests adler32 + crc32c     scanned in {}",
                first.as_str(),
                words::files(view.files),
                bytes(view.bytes),
                duration(clock::now().since(begun))
            ),
            11,
        );
        Ok(view)
    }

    pub(super) async fn subscribe(
        &mut self,
        plan: &DemoPlan,
        remote: &Remote,
        dataset: &DatasetView,
    ) -> Result<(), Failure> {
        let mut line = String::from(" ");
        for place in 1..plan.sites.len() {
            let storage = storage_name(plan, place)?;
            line.push_str(&format!(" {:<8} subscribed   ", storage.as_str()));
            let wish = Subscribe {
                dataset: dataset.name.clone(),
                block: None,
                storage,
                priority: None,
                verification: None,
                custodial: false,
                terms: longhaul_api::steering::Terms::default(),
            };
            let _: SubscriptionView = remote.post(&routes::SUBSCRIPTION_CREATE, &[], &wish).await?;
        }
        self.board.print_message(line.trim_end());
        self.print_blank_line();
        Ok(())
    }

    /// Watches until every subscription is complete; with `exit` only as long as something moves.
    pub(super) async fn watch(
        &mut self,
        plan: &DemoPlan,
        remote: &Remote,
        dataset: &DatasetName,
        exit: bool,
    ) -> Result<Vec<SubscriptionView>, Failure> {
        let query = [("dataset", Some(dataset.to_string()))];
        let mut list: Vec<SubscriptionView> = Vec::new();
        let mut moved = (clock::now(), 0);
        loop {
            let answer = remote.list_all(&routes::SUBSCRIPTION_LIST, &[], &query).await;
            list = self.or_previous(answer, list)?;
            list.sort_by_key(|one| plan.sites.iter().position(|site| site.as_str() == one.storage.as_str()));
            let now = clock::now();
            let terminal = self.board.terminal();
            let lines =
                report::progress_block(&list, plan.sites[0].as_str(), now, terminal.width(), terminal.style);
            if list.len() + 1 == plan.sites.len() && list.iter().all(|one| one.complete) {
                self.board.finish_with(&lines);
                self.print_blank_line();
                return Ok(list);
            }
            let present = list.iter().map(|one| one.files_present + one.bytes_present).sum();
            if present != moved.1 {
                moved = (now, present);
            } else if exit && now.since(moved.0) > STALL_MAX {
                return Err(report::stalled_failure(&list, STALL_MAX));
            }
            self.board.show(now, &lines, || report::plain_line(&list, now));
            self.wait(REPAINT_INTERVAL).await?;
        }
    }

    pub(super) async fn collect_report(
        &mut self,
        plan: &DemoPlan,
        remote: &Remote,
        subscriptions: Vec<SubscriptionView>,
        seconds: f64,
        url: String,
        page: String,
    ) -> Result<DemoReport, Failure> {
        let dataset: DatasetView = remote.get_with_retry(&routes::DATASET_SHOW, &[DATASET]).await?;
        let status: Status = remote.get_with_retry(&routes::STATUS, &[]).await?;
        let checks: CheckReport = remote.get_with_retry(&routes::CHECK, &[]).await?;
        Ok(DemoReport {
            complete: false,
            wrong: Vec::new(),
            state: plan.state.path().to_string_lossy().into_owned(),
            url,
            page,
            seconds,
            dataset,
            subscriptions,
            bytes_moved: status.bytes_done,
            restarts: self.restarts,
            checks,
            example: example_transfer(plan, remote).await,
        })
    }

    /// Keeps everything running and reports events until the user stops it.
    pub(super) async fn keep_serving(&mut self, plan: &DemoPlan, remote: &Remote) -> Result<Exit, Failure> {
        loop {
            let event = self.supervisor.next_event().await;
            let service_again = matches!(&event, Event::Restarted { name, .. } if name == "service");
            self.handle_event(event)?;
            if service_again {
                // Sessions and one-time tokens were lost with the old process.
                self.wait_until("the service answers", async || page_url(plan, remote).await.map(|_| true))
                    .await?;
                let page = page_url(plan, remote).await?;
                self.board.print_message(&format!("  open     {page}"));
            }
        }
    }
}

/// A URL that opens the web page, once.
async fn page_url(plan: &DemoPlan, remote: &Remote) -> Result<String, Failure> {
    let login: LoginToken = remote.post(&routes::LOGIN_TOKEN_CREATE, &[], &()).await?;
    Ok(format!("http://{}/ui/?token={}", plan.http, login.token))
}

fn agent_config(plan: &DemoPlan, place: usize) -> Result<longhaul_agent::Config, Failure> {
    let site = storage_name(plan, place)?;
    let directory = plan.state.path().join(site.as_str());
    let mut storage = StorageConfig::new(site, directory.join("storage"));
    storage.work = Some(directory.join("work"));
    if let (0, DemoData::Given { directory, .. }) = (place, &plan.data) {
        storage.root = directory.clone();
        storage.work = None;
        storage.writable = false;
    }
    let mut config = longhaul_agent::Config::new(directory.join("agent"), vec![storage]);
    config.listen = vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0))];
    Ok(config)
}

fn storage_name(plan: &DemoPlan, place: usize) -> Result<StorageName, Failure> {
    Ok(StorageName::parse(plan.sites[place].as_str())?)
}

/// When the last subscription was complete, on the service's clock, which is ours.
pub(super) fn completed_at(subscriptions: &[SubscriptionView]) -> Timestamp {
    subscriptions.iter().filter_map(|one| one.completed).max().unwrap_or_else(clock::now)
}

/// A transfer worth explaining; having none is no failure.
async fn example_transfer(plan: &DemoPlan, remote: &Remote) -> Option<TransferId> {
    let between = |source: &str, target: &str| {
        vec![
            ("source", Some(source.to_owned())),
            ("target", Some(target.to_owned())),
            ("limit", Some("1".to_owned())),
        ]
    };
    let sites = &plan.sites;
    let mut tries = vec![between(sites[0].as_str(), sites[1].as_str())];
    if let [_, second, third, ..] = sites.as_slice() {
        tries.insert(0, between(second.as_str(), third.as_str()));
    }
    for query in tries {
        let page: Result<Page<TransferView>, Failure> = remote.get(&routes::TRANSFER_LIST, &[], &query).await;
        if let Some(transfer) = page.ok().and_then(|page| page.items.into_iter().next()) {
            return Some(transfer.id);
        }
    }
    None
}

/// The program as it was called, so that printed commands can be typed.
pub(super) fn program_name() -> String {
    let name = std::env::args().next().unwrap_or_default();
    if name.is_empty() { "longhaul".to_owned() } else { printable(&name) }
}

fn make_directory(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::file("making", directory, &error))
}

/// Removes nulls, which TOML does not have.
pub(super) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}
