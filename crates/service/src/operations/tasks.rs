//! Scans, verifications and deletions as they go on.

use longhaul_api::Problem;
use longhaul_api::native::{ChangeKind, Page, ScanRequest, TaskView};
use longhaul_api::rights;
use longhaul_catalog::{TaskKind, TaskRow};
use longhaul_identity::{Belonging, Caller};
use longhaul_model::{Algorithm, DatasetName, Fault, FaultCode, StorageName, TaskId};

use super::{Operations, PageQuery, not_found, page, problem, unprocessable};
use crate::views;

/// Datasets whose tasks are looked through when a list names none.
const DATASETS_MAX: usize = 1_000;

/// Query of `task_list`.
#[derive(Clone, Debug, Default)]
pub struct TaskList {
    pub dataset: Option<DatasetName>,
    pub storage: Option<StorageName>,
    pub page: PageQuery,
}

impl Operations {
    pub fn dataset_scan(
        &self,
        caller: &Caller,
        name: &DatasetName,
        request: &ScanRequest,
    ) -> Result<TaskView, Problem> {
        let dataset = self.dataset_row(name)?;
        caller.check(&rights::DATASET_SCAN, &[Belonging::Data(&dataset.community)])?;
        self.check_storage(caller, &rights::STORAGE_SCAN, &request.storage)?;
        if !dataset.open {
            let fault = Fault::new(FaultCode::Conflict, format!("{name} is closed: nothing can be added"));
            return Err(Problem::from(fault).with_remedy(super::CLOSED_REMEDY));
        }
        let storage = self.storage_row(&request.storage)?;
        if !request.path.is_empty() {
            longhaul_model::Lfn::parse(&request.path).map_err(|error| {
                unprocessable(format!("the path is relative to the storage's root: {error}"))
            })?;
        }
        let algorithms = if request.algorithms.is_empty() {
            vec![Algorithm::Adler32, Algorithm::Crc32c]
        } else {
            request.algorithms.clone()
        };
        let kind = TaskKind::Scan { path: request.path.clone(), algorithms, digests: request.digests };
        let task = self.add_task(kind, dataset.id, storage.id)?;
        Ok(self.task_view(task))
    }

    pub fn task_list(&self, query: &TaskList) -> Result<Page<TaskView>, Problem> {
        let catalog = &self.shared.kernel.catalog;
        let datasets = match &query.dataset {
            Some(name) => vec![self.dataset_row(name)?],
            None => catalog.datasets(None, DATASETS_MAX).map_err(problem)?,
        };
        let storage = query.storage.as_ref().map(|name| self.storage_row(name)).transpose()?;
        let mut rows = Vec::new();
        for dataset in datasets {
            rows.extend(catalog.tasks(dataset.id).map_err(problem)?);
        }
        let after: Option<TaskId> = query.page.after()?;
        rows.retain(|row| storage.as_ref().is_none_or(|storage| row.storage == storage.id));
        rows.retain(|row| after.is_none_or(|after| row.id < after));
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        page(rows, query.page.limit(), |row| row.id.to_string(), |row| Ok(self.task_view(row)))
    }

    pub fn task_show(&self, id: TaskId) -> Result<TaskView, Problem> {
        let row = self.shared.kernel.catalog.task(id).map_err(problem)?;
        let row = row.ok_or_else(|| not_found("task", id, "longhaul task list"))?;
        Ok(self.task_view(row))
    }

    pub fn task_cancel(&self, caller: &Caller, id: TaskId) -> Result<TaskView, Problem> {
        let row = self.shared.kernel.catalog.task(id).map_err(problem)?;
        let row = row.ok_or_else(|| not_found("task", id, "longhaul task list"))?;
        let (dataset, storage) = (self.dataset_row(&row.dataset_name)?, self.storage_row(&row.storage_name)?);
        let of = [Belonging::Data(&dataset.community), Belonging::Site(&storage.site_name)];
        caller.check(&rights::TASK_CANCEL, &of)?;
        let now = self.now();
        let fault = Fault::new(FaultCode::Cancelled, "by request");
        let (row, replicas) = self.shared.kernel.catalog.cancel_task(id, &fault, now).map_err(problem)?;
        self.replicas_changed(replicas);
        if let Some(agent) = self.shared.control.agents.of_storage(row.storage) {
            self.shared.control.agents.cancel_task(agent, id);
        }
        self.shared.kernel.changes.touch(ChangeKind::Task, id, now);
        Ok(self.task_view(row))
    }

    pub(crate) fn task_view(&self, row: TaskRow) -> TaskView {
        let waits_for = if row.done { None } else { self.task_waits(&row) };
        views::task(row, waits_for)
    }

    fn task_waits(&self, row: &TaskRow) -> Option<String> {
        let now = self.now();
        match self.shared.control.agents.of_storage(row.storage) {
            None => {
                Some(format!("no agent has said hello for {} since the service started", row.storage_name))
            }
            Some(agent) if !self.shared.control.agents.is_connected(agent, now) => {
                Some(format!("the agent of {} is not connected", row.storage_name))
            }
            Some(_) => None,
        }
    }
}
