//! iperf3: TCP from memory to memory, what the path and the kernel can do without files.

use super::{Direction, Program, Run, Server};
use crate::transfers::case::Case;
use crate::transfers::launch::Words;

const PORT: u16 = 5201;

/// With so many streams.
pub(crate) struct Iperf(pub(crate) u8);

impl Program for Iperf {
    fn name(&self) -> &'static str {
        if self.0 == 1 { "iperf3 -P1" } else { "iperf3 -P4" }
    }

    fn encrypted(&self) -> &'static str {
        "no"
    }

    fn verified(&self) -> &'static str {
        "no (memory only)"
    }

    fn direction(&self) -> Direction {
        Direction::Memory
    }

    fn takes(&self, case: &Case) -> bool {
        case.files == 1 && case.is_bulk()
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        let words = Words::new("iperf3").args("-s -1 -B").arg(run.far).arg("-p").arg(PORT.to_string());
        Ok(Server::new(words, PORT))
    }

    /// `-n` is for all streams together.
    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        let words = Words::new("iperf3").arg("-c").arg(run.far).arg("-p").arg(PORT.to_string());
        let streams = self.0.to_string();
        Ok(words.arg("-n").arg(run.case.bytes().to_string()).arg("-P").arg(streams).args("-i 0 --json"))
    }

    fn received(&self, output: &str) -> Option<u64> {
        let answer: serde_json::Value = serde_json::from_str(&output[output.find('{')?..]).ok()?;
        answer["end"]["sum_received"]["bytes"].as_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_is_read_from_its_answer() {
        let output = r#"warning {"end":{"sum_sent":{"bytes":12},"sum_received":{"bytes":11}}}"#;
        assert_eq!(Iperf(4).received(output), Some(11));
        assert_eq!(Iperf(4).received("error"), None);
    }
}
