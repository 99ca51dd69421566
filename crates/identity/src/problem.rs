//! Faults of the catalog, and problems, as clients are told of them.

use longhaul_api::Problem;
use longhaul_api::fts::Refusal;
use longhaul_catalog::CatalogError;
use longhaul_model::{ErrorChain, Fault};

/// A failing catalog as the problem that a client sees.
pub fn catalog_problem(error: CatalogError) -> Problem {
    let status = match &error {
        CatalogError::Full(_) => Some(507),
        CatalogError::Busy(_) | CatalogError::Unusable(_) => Some(503),
        _ => None,
    };
    if status.is_some() || matches!(error, CatalogError::Corrupt(_) | CatalogError::Statement(_)) {
        tracing::error!(error = %ErrorChain::new(&error), "the catalog failed");
    }
    let disk = matches!(error, CatalogError::Full(_) | CatalogError::Unusable(_));
    let mut problem = Problem::from(Fault::from(error));
    problem.status = status.unwrap_or(problem.status);
    if disk {
        problem.remedy =
            "free space on the disk under the service's state directory; it goes on by itself".to_owned();
    }
    problem
}

/// A problem in the form of the FTS3 API.
pub fn refusal(problem: Problem) -> Refusal {
    Refusal::new(problem.status, problem.to_string())
}

#[cfg(test)]
mod tests {
    use longhaul_model::FaultCode;

    use super::*;

    #[test]
    fn a_catalog_that_cannot_work_is_our_fault_and_says_so() {
        assert_eq!(catalog_problem(CatalogError::Unusable("read-only".into())).status, 503);
        assert_eq!(catalog_problem(CatalogError::Busy("locked".into())).status, 503);
        assert!(catalog_problem(CatalogError::Unusable("read-only".into())).remedy.contains("by itself"));
        let refused = catalog_problem(CatalogError::Refused(Fault::new(FaultCode::Conflict, "closed")));
        assert_eq!((refused.status, refused.code), (409, FaultCode::Conflict));
    }
}
