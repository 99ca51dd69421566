//! Transfers, live and finished: what each waits for, and why each source was chosen.

use std::collections::BTreeMap;

use longhaul_api::Problem;
use longhaul_api::native::{Page, TransferDetail, TransferQuery, TransferView};
use longhaul_catalog::{TransferFilter, TransferRow};
use longhaul_control::brain::Input;
use longhaul_model::{Fault, FaultCode, TransferId, TransferState};
use longhaul_scheduler::Event;

use super::{Operations, PageQuery, not_found, problem};
use crate::views;

impl Operations {
    pub fn transfer_list(&self, query: &TransferQuery) -> Result<Page<TransferView>, Problem> {
        let paging = PageQuery { limit: query.limit, after: query.after.clone() };
        let filter = TransferFilter {
            dataset: query.dataset.as_ref().map(|name| self.dataset_row(name)).transpose()?.map(|row| row.id),
            source: query.source.as_ref().map(|name| self.storage_row(name)).transpose()?.map(|row| row.id),
            target: query.target.as_ref().map(|name| self.storage_row(name)).transpose()?.map(|row| row.id),
            state: query.state,
            before: paging.after()?,
            limit: paging.limit(),
        };
        let found = self.shared.kernel.catalog.transfers(&filter).map_err(problem)?;
        let next = found.next.map(|id| id.to_string());
        Ok(Page { items: self.transfer_views(found.items), next })
    }

    pub fn transfer_show(&self, id: TransferId) -> Result<TransferDetail, Problem> {
        let detail = self.transfer_row(id)?;
        let transfer = self.transfer_view(detail.transfer)?;
        Ok(TransferDetail { transfer, attempts: detail.attempts.into_iter().map(views::attempt).collect() })
    }

    /// Asks for another try now: of one that failed for good, or that rests until its next try.
    pub fn transfer_retry(&self, id: TransferId) -> Result<TransferView, Problem> {
        let row = self.transfer_row(id)?.transfer;
        match row.state {
            TransferState::Done | TransferState::Leased | TransferState::Cancelled => {
                let detail =
                    format!("the transfer is {}: only a waiting or failed one can be tried again", row.state);
                let problem = Problem::from(Fault::new(FaultCode::Conflict, detail));
                return Err(problem.with_remedy(format!("see its attempts: longhaul transfer show {id}")));
            }
            TransferState::Failed | TransferState::Waiting => {}
        }
        let found = self.shared.kernel.catalog.replicas_of_file(&row.lfn).map_err(problem)?;
        let (file, replicas) =
            found.ok_or_else(|| not_found("file", row.lfn.shown(), "longhaul dataset show NAME --files"))?;
        // A replica that is said to be there again is used again at once.
        let mut events = Vec::new();
        for replica in
            replicas.into_iter().filter(|replica| replica.storage != row.target && !replica.deleting)
        {
            if replica.suspect.is_some() {
                let change = self
                    .shared
                    .kernel
                    .catalog
                    .clear_suspect(row.file, replica.storage, self.now())
                    .map_err(problem)?;
                self.replicas_changed(change);
            }
            events.push(Event::ReplicaAdded { file: row.file, storage: replica.storage });
        }
        if row.state == TransferState::Failed {
            // A new transfer takes its place: nothing waits because of this one.
            self.shared.control.live.settled(id);
        }
        events.push(Event::TryNow { transfer: id });
        self.shared.kernel.notify_scheduler(Input::Events(events));
        self.shared.kernel.notify_scheduler(Input::Forgive {
            target: row.target,
            block: file.block,
            file: row.file,
        });
        tracing::info!(transfer = %id, "to be tried again by request");
        self.transfer_view(self.transfer_row(id)?.transfer)
    }

    fn transfer_row(&self, id: TransferId) -> Result<longhaul_catalog::TransferDetail, Problem> {
        let found = self.shared.kernel.catalog.transfer(id).map_err(problem)?;
        found.ok_or_else(|| not_found("transfer", id, "longhaul transfer list"))
    }

    fn transfer_view(&self, row: TransferRow) -> Result<TransferView, Problem> {
        let id = row.id;
        let view = self.transfer_views(vec![row]).into_iter().next();
        view.ok_or_else(|| not_found("transfer", id, "longhaul transfer list"))
    }

    fn transfer_views(&self, rows: Vec<TransferRow>) -> Vec<TransferView> {
        let waiting: Vec<TransferId> =
            rows.iter().filter(|row| row.state == TransferState::Waiting).map(|row| row.id).collect();
        let mut reasons: BTreeMap<TransferId, String> = BTreeMap::new();
        if !waiting.is_empty() {
            let asked = self.query_scheduler(move |scheduler, now| {
                waiting.into_iter().filter_map(|id| Some((id, scheduler.explain_wait(id, now)?))).collect()
            });
            reasons = asked.unwrap_or_default();
        }
        let view = |row: TransferRow| {
            let waits = (row.state == TransferState::Waiting).then(|| {
                reasons.remove(&row.id).unwrap_or_else(|| "the scheduler to look at it again".to_owned())
            });
            let bytes = self.shared.control.live.bytes_done(row.id);
            views::transfer(row, bytes, waits)
        };
        rows.into_iter().map(view).collect()
    }
}
