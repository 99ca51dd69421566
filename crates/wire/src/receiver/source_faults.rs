//! Which faults a source may tell its target: those about itself.
//!
//! A source knows its own files, the permit and the stream. That the target is full, or that the task is
//! wrong, is not for it to say: the first would stop everything that goes to that target, the second would
//! end the file for good, whichever other source has it.

use longhaul_model::{Blame, Fault, FaultCode};

/// The fault as the target takes it from a source. What blames the target or the request becomes an inability
/// of the source, with its words; and where it says "ourselves", it speaks of itself.
pub fn confine_to_source(fault: Fault) -> Fault {
    let speaks_for_others = |blame| matches!(blame, Blame::Target | Blame::Request);
    if speaks_for_others(fault.blame) || speaks_for_others(fault.code.blame()) {
        return Fault::new(FaultCode::SourceUnreadable, format!("the source says: {fault}"));
    }
    if fault.blame == Blame::Ourselves { fault.blaming(Blame::Source) } else { fault }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Retry;

    /// Whatever the code, the blame and the advice: nothing from a source ends a file for every source, or is
    /// about the target.
    #[test]
    fn a_source_speaks_of_itself() {
        let blames = [
            Blame::Source,
            Blame::Target,
            Blame::Network,
            Blame::Credential,
            Blame::Request,
            Blame::Ourselves,
        ];
        for &code in FaultCode::ALL {
            for blame in blames {
                for retry in [Retry::Now, Retry::Later, Retry::Never] {
                    let said = Fault::new(code, "so it is").blaming(blame).retrying(retry);
                    let taken = confine_to_source(said.clone());
                    assert!(
                        !matches!(taken.blame, Blame::Target | Blame::Request | Blame::Ourselves),
                        "{said:?}: {taken:?}"
                    );
                    assert!(taken.detail.contains("so it is"), "{taken:?}");
                    let own = !matches!(code.blame(), Blame::Target | Blame::Request);
                    if own && !matches!(blame, Blame::Target | Blame::Request) {
                        let blame = if blame == Blame::Ourselves { Blame::Source } else { blame };
                        assert_eq!(taken, said.blaming(blame));
                    } else {
                        assert_eq!((taken.code, taken.retry), (FaultCode::SourceUnreadable, Retry::Later));
                    }
                }
            }
        }
    }
}
