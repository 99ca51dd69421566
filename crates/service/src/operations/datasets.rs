//! Datasets, their blocks and files.

use longhaul_api::Problem;
use longhaul_api::native::{BlockView, ChangeKind, DatasetCreate, DatasetView, FileView, Page, ReplicaView};
use longhaul_api::rights;
use longhaul_catalog::{DatasetRow, FileScope, TaskKind};
use longhaul_identity::{Belonging, Caller};
use longhaul_model::{BlockId, BlockName, CommunityName, DatasetName, Fault, FaultCode, FileId};

use super::{Operations, PageQuery, bad_request, not_found, page, problem};
use crate::views;

/// The community of a dataset unless the request names one.
const COMMUNITY: &str = "default";

/// Query of `dataset_files`.
#[derive(Clone, Debug, Default)]
pub struct FileList {
    pub block: Option<BlockName>,
    pub page: PageQuery,
}

impl Operations {
    pub fn dataset_list(&self, query: &PageQuery) -> Result<Page<DatasetView>, Problem> {
        let limit = query.limit();
        let rows =
            self.shared.kernel.catalog.datasets(query.after()?.as_ref(), limit + 1).map_err(problem)?;
        page(rows, limit, |row| row.name.to_string(), |row| self.dataset_view(row))
    }

    pub fn dataset_create(&self, caller: &Caller, request: DatasetCreate) -> Result<DatasetView, Problem> {
        // A community's manager registers for no other.
        let community = match request.community.or_else(|| caller.principal.manages.community.clone()) {
            Some(community) => community,
            None => CommunityName::parse(COMMUNITY).map_err(|error| bad_request(error.to_string()))?,
        };
        caller.check(&rights::DATASET_CREATE, &[Belonging::Data(&community)])?;
        let now = self.now();
        let (row, made) =
            self.shared.kernel.catalog.create_dataset(&request.name, &community, now).map_err(problem)?;
        if made {
            tracing::info!(dataset = %row.name, "dataset made");
            self.shared.kernel.changes.touch(ChangeKind::Dataset, &row.name, now);
        } else if row.community != community {
            let detail = format!("{} belongs to the community {}", row.name, row.community);
            let problem = Problem::from(Fault::new(FaultCode::AlreadyExists, detail));
            return Err(problem.with_remedy("choose another name, or name that community"));
        }
        self.dataset_view(row)
    }

    pub fn dataset_show(&self, name: &DatasetName) -> Result<DatasetView, Problem> {
        let row = self.dataset_row(name)?;
        self.dataset_view(row)
    }

    pub fn dataset_close(&self, caller: &Caller, name: &DatasetName) -> Result<DatasetView, Problem> {
        let row = self.dataset_row(name)?;
        caller.check(&rights::DATASET_CLOSE, &[Belonging::Data(&row.community)])?;
        self.shared.kernel.catalog.close_dataset(row.id).map_err(problem)?;
        self.shared.kernel.changes.touch(ChangeKind::Dataset, name, self.now());
        self.dataset_show(name)
    }

    /// Forgets a dataset that no storage holds and nobody wants.
    pub fn dataset_delete(&self, caller: &Caller, name: &DatasetName) -> Result<(), Problem> {
        let row = self.dataset_row(name)?;
        caller.check(&rights::DATASET_DELETE, &[Belonging::Data(&row.community)])?;
        let deleted = self.shared.kernel.catalog.delete_dataset(row.id);
        deleted.map_err(|error| deletion_problem(problem(error)))?;
        tracing::info!(dataset = %name, files = row.files, "dataset deleted");
        Ok(())
    }

    pub fn dataset_blocks(&self, name: &DatasetName, query: &PageQuery) -> Result<Page<BlockView>, Problem> {
        let dataset = self.dataset_row(name)?;
        let limit = query.limit();
        let after = query.after()?.map(BlockId);
        let rows = self.shared.kernel.catalog.blocks(dataset.id, after, limit + 1).map_err(problem)?;
        page(
            rows,
            limit,
            |row| row.id.to_string(),
            |row| {
                let replicas = self.shared.kernel.catalog.replicas_of_block(row.id).map_err(problem)?;
                Ok(views::block(row, replicas))
            },
        )
    }

    pub fn dataset_files(&self, name: &DatasetName, query: &FileList) -> Result<Page<FileView>, Problem> {
        let dataset = self.dataset_row(name)?;
        let catalog = &self.shared.kernel.catalog;
        let part = match &query.block {
            None => FileScope::Dataset(dataset.id),
            Some(block) => match catalog.block(block).map_err(problem)? {
                Some(row) if row.dataset == dataset.id => FileScope::Block(row.id),
                _ => {
                    let blocks = format!("longhaul dataset show {name} --blocks");
                    return Err(not_found("block", block, &blocks));
                }
            },
        };
        let limit = query.page.limit();
        let after = query.page.after()?.map(FileId);
        let rows = catalog.files(part, after, limit + 1).map_err(problem)?;
        let mut blocks = std::collections::BTreeMap::new();
        page(
            rows,
            limit,
            |row| row.id.to_string(),
            |row| {
                let block = match blocks.get(&row.block) {
                    Some(name) => BlockName::clone(name),
                    None => {
                        let name = self.block_name(dataset.id, row.block)?;
                        blocks.insert(row.block, name.clone());
                        name
                    }
                };
                Ok(views::file(row, block))
            },
        )
    }

    pub fn dataset_replicas(&self, name: &DatasetName) -> Result<Vec<ReplicaView>, Problem> {
        let dataset = self.dataset_row(name)?;
        let rows = self.shared.kernel.catalog.replicas_of_dataset(dataset.id).map_err(problem)?;
        Ok(rows.into_iter().map(views::replica).collect())
    }

    fn block_name(&self, dataset: longhaul_model::DatasetId, block: BlockId) -> Result<BlockName, Problem> {
        let before = block.0.checked_sub(1).map(BlockId);
        let rows = self.shared.kernel.catalog.blocks(dataset, before, 1).map_err(problem)?;
        let row = rows.into_iter().find(|row| row.id == block);
        row.map(|row| row.name).ok_or_else(|| not_found("block", block, "longhaul dataset list"))
    }

    fn dataset_view(&self, row: DatasetRow) -> Result<DatasetView, Problem> {
        let catalog = &self.shared.kernel.catalog;
        let replicas = catalog.replicas_of_dataset(row.id).map_err(problem)?;
        let left_out = catalog.left_out(row.id).map_err(problem)?;
        let tasks = catalog.tasks(row.id).map_err(problem)?;
        let scan = tasks.into_iter().find(|task| !task.done && matches!(task.kind, TaskKind::Scan { .. }));
        Ok(DatasetView {
            name: row.name,
            community: row.community,
            open: row.open,
            files: row.files,
            bytes: row.bytes,
            blocks: row.blocks,
            created: row.created,
            left_out: left_out.into_iter().map(views::left_out).collect(),
            replicas: replicas.into_iter().map(views::replica).collect(),
            scan: scan.map(|task| self.task_view(task)),
        })
    }
}

/// Why a dataset stays. What is in its way names the next step, behind the semicolon.
fn deletion_problem(mut problem: Problem) -> Problem {
    if problem.code == FaultCode::Conflict
        && let Some((why, next)) = problem.detail.split_once("; ")
    {
        (problem.detail, problem.remedy) = (why.to_owned(), next.to_owned());
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_of_a_deletion_is_told_with_its_next_step() {
        let refused = |code, detail: &str| deletion_problem(Fault::new(code, detail).into());
        let in_the_way = refused(FaultCode::Conflict, "alpha is at work on it; wait: longhaul task list");
        assert_eq!(in_the_way.detail, "alpha is at work on it");
        assert_eq!(in_the_way.remedy, "wait: longhaul task list");
        let other = refused(FaultCode::NotAllowed, "not you; nor others");
        assert_eq!(other.remedy, FaultCode::NotAllowed.next_step());
    }
}
