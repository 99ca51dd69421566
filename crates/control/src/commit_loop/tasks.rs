//! Scans, verifications and deletions on their way to the agents that do them.
//!
//! A verification or deletion may name millions of files. Its agent gets them a page at a time under one id;
//! only the end of the last page is the end of the task.

use longhaul_api::agent::{ExpectedFile, Task, TaskKind};
use longhaul_catalog::{Admission, CatalogError, Claim, TaskRow};
use longhaul_model::{AgentId, FileId, TaskId};

use super::CommitLoop;

const PAGE_FILES: usize = 2_000;

impl CommitLoop {
    /// Gives a task to its storage's agent; one that is away gets it when it says hello.
    pub(super) fn deliver_task(&self, id: TaskId) {
        let delivered = self.kernel.catalog.task(id).and_then(|task| match task {
            Some(task) if !task.done => match self.control.agents.of_storage(task.storage) {
                Some(agent) => self.send_task(agent, &task),
                None => Ok(()),
            },
            _ => Ok(()),
        });
        if let Err(error) = delivered {
            // It goes out with the agent's next hello.
            tracing::error!(task = %id, %error, "cannot hand out a task");
        }
    }

    pub(super) fn clear_relays(&self) {
        if self.kernel.trouble().is_some() {
            return;
        }
        match self.kernel.catalog.clear_relays(|| self.kernel.new_id(), self.kernel.now()) {
            Ok((tasks, change)) => {
                self.notify_replicas(change);
                for task in tasks {
                    tracing::info!(task = %task.id, storage = %task.storage_name, files = task.files_total,
                        "a relay is cleared");
                    self.deliver_task(task.id);
                }
            }
            Err(error) => tracing::warn!(%error, "relays could not be cleared"),
        }
    }

    /// Has replicas that other sites found bad verified where they are.
    pub(super) fn order_verifications(&self) {
        if self.kernel.trouble().is_some() {
            return;
        }
        match self.kernel.catalog.order_verifications(|| self.kernel.new_id(), self.kernel.now()) {
            Ok(tasks) => {
                for task in tasks {
                    tracing::info!(task = %task.id, storage = %task.storage_name, files = task.files_total,
                        "files that a target found bad are verified at their source");
                    self.deliver_task(task.id);
                }
            }
            Err(error) => tracing::warn!(%error, "a verification could not be ordered"),
        }
    }

    pub(super) fn send_task(&self, agent: AgentId, row: &TaskRow) -> Result<(), CatalogError> {
        let kind = match &row.kind {
            longhaul_catalog::TaskKind::Scan { path, algorithms, digests } => TaskKind::Scan {
                dataset: row.dataset_name.clone(),
                path: path.clone(),
                algorithms: algorithms.clone(),
                digests: *digests,
            },
            longhaul_catalog::TaskKind::Verify => TaskKind::Verify { files: self.page(row.id)? },
            longhaul_catalog::TaskKind::Delete { .. } => TaskKind::Delete { files: self.page(row.id)? },
            longhaul_catalog::TaskKind::Clear => TaskKind::Delete { files: self.page(row.id)? },
        };
        self.control.agents.put_task(agent, Task { id: row.id, storage: row.storage_name.clone(), kind });
        Ok(())
    }

    fn page(&self, task: TaskId) -> Result<Vec<ExpectedFile>, CatalogError> {
        let begin =
            self.kernel.catalog.setting(&page_setting(task))?.and_then(|text| text.parse().ok()).map(FileId);
        let page = self.kernel.catalog.task_files(task, begin, PAGE_FILES, &self.control.copy_terms())?;
        self.next_pages.borrow_mut().insert(task, page.next);
        let files = page.files.into_iter();
        Ok(files.map(|file| ExpectedFile { lfn: file.lfn, size: file.size, digests: file.digests }).collect())
    }

    /// Whether the page that an agent says it has done is the last one. After a restart of the service nobody
    /// knows: then it is not, and the page is done again.
    fn was_last_page(&self, task: TaskId) -> Result<bool, CatalogError> {
        let scan = |row: &TaskRow| matches!(row.kind, longhaul_catalog::TaskKind::Scan { .. });
        match self.kernel.catalog.task(task)? {
            Some(row) if !row.done && !scan(&row) => Ok(self.next_pages.borrow().get(&task) == Some(&None)),
            _ => Ok(true),
        }
    }

    /// Whether this agent's word that it has done a page means that the next one is due.
    pub(super) fn turns_page(&self, agent: AgentId, task: TaskId) -> Result<bool, CatalogError> {
        let admission = self.kernel.catalog.task_admission(Claim::TaskDone, agent, task)?;
        Ok(admission == Admission::Full && !self.was_last_page(task)?)
    }

    pub(super) fn forget_task(&self, task: TaskId) {
        self.next_pages.borrow_mut().remove(&task);
    }

    /// The agent has done a page that is not the last.
    pub(super) fn turn_page(&self, task: TaskId) -> Result<(), CatalogError> {
        let next = self.next_pages.borrow_mut().remove(&task).flatten();
        if let Some(next) = next {
            // Kept, so that a restart repeats a page at the most.
            self.kernel.catalog.set_setting(&page_setting(task), &next.0.to_string())?;
        }
        self.deliver_task(task);
        Ok(())
    }
}

fn page_setting(task: TaskId) -> String {
    format!("task-page/{task}")
}
