//! A line for each way to schedule in one scenario, without building the whole program:
//! `cargo run --release -p longhaul-simulator --example quick scenarios/flapping.toml best queue/fts3`

#![allow(clippy::print_stdout, clippy::unwrap_used)]
fn main() {
    let Some(path) = std::env::args().nth(1) else {
        return println!("give a scenario, and strategies if not all");
    };
    let text = std::fs::read_to_string(path).unwrap();
    let scenario = match longhaul_simulator::Scenario::parse(&text) {
        Ok(s) => s,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    let plan = match longhaul_simulator::Plan::new(&scenario, None) {
        Ok(s) => s,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    println!(
        "{}: files {} requests {} caps {}",
        plan.name,
        plan.work.sizes.len(),
        plan.work.requests.len(),
        plan.layout.capacities.len()
    );
    let mut names: Vec<String> = std::env::args().skip(2).collect();
    if names.is_empty() {
        names = longhaul_simulator::Way::all().into_iter().map(|w| w.name).collect();
    }
    for name in names {
        let strategy = longhaul_simulator::Way::named(&name).unwrap();
        let t = std::time::Instant::now();
        let r = longhaul_simulator::simulate(&plan, &strategy, None);
        let s = &r.summary;
        println!(
            "{:24} mk {:8.0} bound {:8.0} ({:.2}) ds {:8.1} p95 {:8.1} file {:8.1} p95 {:8.1} twice {:6.0}GB jain {:.3} failed {} unf {} att {} fc {:.2} wall {:.2}",
            s.strategy,
            s.makespan_s.unwrap_or(-1.0),
            s.makespan_bound_s,
            s.makespan_bound_s / s.makespan_s.unwrap_or(-1.0),
            s.dataset_mean_s.unwrap_or(-1.0),
            s.dataset_p95_s.unwrap_or(-1.0),
            s.transfer_mean_s.unwrap_or(-1.0),
            r.transfer_p95_s.unwrap_or(-1.0),
            (s.bytes_moved as f64 - s.bytes_wanted as f64) / 1e9,
            s.jain,
            s.failed,
            r.unfinished,
            r.attempts_failed,
            r.forecast_error.unwrap_or(-1.0),
            t.elapsed().as_secs_f64()
        );
        for w in &r.waits {
            println!("     waits: {w}");
        }
        if name == "best" {
            println!(
                "     use {:?} shares {:?} leases {} decisions {} calc {}",
                r.use_most, r.shares, r.leases, r.decisions, r.calculations
            );
        }
    }
}
