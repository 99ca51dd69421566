//! What is wrong with an agent that its reports do not complain of: its clock, and its certificate. Pure.

use std::time::Duration;

use longhaul_api::native::AgentView;
use longhaul_model::{Blame, Fault, FaultCode, SiteName, Timestamp, units};

/// A clock that is further off is a problem of its site: agents measure with the service's clock, but what
/// others certify (tokens, authorities, circuits) is judged by their own.
pub const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(300);
/// A certificate that expires sooner should have been renewed: agents do so after half of its life.
pub const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(7 * 86_400);

/// A problem of an agent's site, and what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentProblem {
    pub fault: Fault,
    pub remedy: String,
}

/// The problems of one agent; none of one whose certificates are refused. `wall` is the host's time, by which
/// certificates are judged.
pub fn problems(site: &SiteName, agent: &AgentView, wall: Timestamp) -> Vec<AgentProblem> {
    if agent.refused_since.is_some() {
        return Vec::new();
    }
    clock_problem(site, agent).into_iter().chain(certificate_problem(site, agent, wall)).collect()
}

/// What an agent that is away said last of its clock says nothing of today.
fn clock_problem(site: &SiteName, agent: &AgentView) -> Option<AgentProblem> {
    let offset = Duration::from_millis(agent.clock_offset_ms.unsigned_abs());
    if !agent.connected || offset <= CLOCK_OFFSET_MAX {
        return None;
    }
    let side = if agent.clock_offset_ms < 0 { "behind" } else { "ahead of" };
    let detail = format!(
        "the clock of {site}'s agent on {} is {} s {side} the service's",
        agent.host,
        offset.as_secs()
    );
    let remedy = format!(
        "set the clock of {} and run NTP there; if all agents show this, that of the service",
        agent.host
    );
    Some(problem(FaultCode::ClockSkew, detail, remedy))
}

fn certificate_problem(site: &SiteName, agent: &AgentView, wall: Timestamp) -> Option<AgentProblem> {
    let expires = agent.certificate_expires?;
    let join = format!(
        "join again on {} with a new state directory: longhaul site add {site} --another-agent",
        agent.host
    );
    let (detail, remedy) = if expires <= wall {
        (format!("the certificate of {site}'s agent on {} expired at {expires}", agent.host), join)
    } else if expires.since(wall) < CERTIFICATE_LEFT_MIN {
        let days = units::plural(expires.since(wall).as_secs() / 86_400, "day", "days");
        let detail = format!(
            "the certificate of {site}'s agent on {} expires in {days}, and was not renewed",
            agent.host
        );
        (
            detail,
            format!("see why in the log of the agent, or start it if it is down; after that time {join}"),
        )
    } else {
        return None;
    };
    Some(problem(FaultCode::NotAuthenticated, detail, remedy))
}

fn problem(code: FaultCode, detail: String, remedy: String) -> AgentProblem {
    AgentProblem { fault: Fault::new(code, detail).blaming(Blame::Target), remedy }
}

#[cfg(test)]
mod tests {
    use longhaul_model::AgentId;

    use super::*;

    const NOW: Timestamp = Timestamp(1_763_717_531_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn agent(clock_offset_ms: i64, certificate_expires: Timestamp) -> AgentView {
        AgentView {
            id: AgentId(7),
            host: "worker1".into(),
            version: "0.1.0".into(),
            incarnation: 1,
            last_contact: Some(NOW),
            connected: true,
            data_addresses: Vec::new(),
            clock_offset_ms,
            certificate_expires: Some(certificate_expires),
            mover: None,
            refused_since: None,
        }
    }

    fn codes(agent: &AgentView) -> Vec<FaultCode> {
        problems(&"beta".parse().unwrap(), agent, NOW).into_iter().map(|found| found.fault.code).collect()
    }

    #[test]
    fn a_clock_that_is_hours_or_years_off_is_a_problem_of_its_site() {
        let well = NOW + 60 * DAY;
        for offset_ms in [7_200_000, -7_200_000, 63_000_000_000, i64::MIN, i64::MAX] {
            assert_eq!(codes(&agent(offset_ms, well)), [FaultCode::ClockSkew], "{offset_ms}");
        }
        for offset_ms in [0, 2_000, -60_000, 300_000] {
            assert!(codes(&agent(offset_ms, well)).is_empty(), "{offset_ms}");
        }
        let away = AgentView { connected: false, ..agent(7_200_000, well) };
        assert!(codes(&away).is_empty(), "its clock may have been set since");
        let found = problems(&"beta".parse().unwrap(), &agent(-7_200_000, well), NOW).remove(0);
        assert_eq!(found.fault.detail, "the clock of beta's agent on worker1 is 7200 s behind the service's");
        assert_eq!(found.fault.blame, Blame::Target);
    }

    #[test]
    fn a_certificate_that_expired_or_soon_will_is_a_problem_whether_the_agent_is_there_or_not() {
        for (left, expected) in [(60 * DAY, 0), (8 * DAY, 0), (6 * DAY, 1), (Duration::ZERO, 1)] {
            let there = agent(0, NOW + left);
            let away = AgentView { connected: false, ..there.clone() };
            assert_eq!((codes(&there).len(), codes(&away).len()), (expected, expected), "{left:?}");
        }
        let found = problems(&"beta".parse().unwrap(), &agent(0, NOW - DAY), NOW).remove(0);
        assert!(found.fault.detail.contains("expired at 2025-11-20"), "{}", found.fault.detail);
        assert!(found.remedy.contains("longhaul site add beta"), "{}", found.remedy);
    }
}
