#![allow(clippy::print_stdout, clippy::unwrap_used)]
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let scenario = match longhaul_simulator::Scenario::parse(&text) {
        Ok(s) => s,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    let t = std::time::Instant::now();
    let plan = match longhaul_simulator::Plan::new(&scenario, None) {
        Ok(s) => s,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    println!(
        "plan {:.2}s files {} requests {} caps {}",
        t.elapsed().as_secs_f64(),
        plan.work.sizes.len(),
        plan.work.requests.len(),
        plan.layout.capacities.len()
    );
    for name in std::env::args()
        .skip(2)
        .chain(std::iter::once("best".to_string()))
        .take(1.max(std::env::args().count() - 2))
    {
        let strategy = longhaul_simulator::Strategy::named(&name).unwrap();
        let t = std::time::Instant::now();
        let report = longhaul_simulator::simulate(&plan, &strategy, None);
        println!("{:#?}", report.summary);
        println!(
            "wall {:.2} unfinished {} attempts_failed {} leases {} decisions {} forecast {:?} use {:?} shares {:?} calc {} p95 {:?}",
            t.elapsed().as_secs_f64(),
            report.unfinished,
            report.attempts_failed,
            report.leases,
            report.decisions,
            report.forecast_error,
            report.use_most,
            report.shares,
            report.calculations,
            report.transfer_p95_s
        );
    }
}
