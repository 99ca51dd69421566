//! One run of one program in one case: server up, clock, client, clock, server down, contents compared.

use std::fs;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use longhaul_testbed::wan::{Lab, Side, SocketMemory};
use serde::{Deserialize, Serialize};

use super::account::{Group, Peak};
use super::launch::{Launched, Stage, Words};
use super::traffic::{Received, second_half};
use super::trees;
use crate::peers::{Direction, Program, Run, Server};

/// Between two looks at memory and traffic.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// What one run showed. The client is near, the server far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: f64,
    /// CPU seconds of the path's emulator; its work includes what the kernel does to receive.
    pub(crate) path_cpu: f64,
    pub(crate) client_peak: u64,
    pub(crate) server_peak: u64,
    /// MB/s of payload in the second half.
    pub(crate) second_half: Option<f64>,
    pub(crate) server_words: String,
    pub(crate) client_words: String,
}

impl Measured {
    pub(crate) fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        (self.client_cpu + self.server_cpu) / self.bytes as f64 * 1e9
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was stopped at the limit, when this many MB/s were no longer possible.
    TooSlow {
        limit_s: u64,
        below_mb_per_s: f64,
    },
    Failed(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Failed(why)
    }
}

pub(crate) fn measure(stage: &Stage<'_>, program: &dyn Program, run: &Run<'_>) -> Result<Measured, Failure> {
    prepare(run)?;
    let outcome = timed(stage, program, run);
    let outcome = outcome.and_then(|measured| {
        if program.direction() != Direction::Memory {
            trees::compare(run.source, run.target).map_err(|why| format!("contents: {why}"))?;
        }
        Ok(measured)
    });
    let _ = fs::remove_dir_all(run.target);
    let _ = fs::remove_dir_all(run.folder);
    outcome
}

fn prepare(run: &Run<'_>) -> Result<(), String> {
    for folder in [run.target, run.folder] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    Ok(())
}

fn timed(stage: &Stage<'_>, program: &dyn Program, run: &Run<'_>) -> Result<Measured, Failure> {
    let wanted = program.server(run)?;
    let clocked = clocked(stage, &wanted, || program.client(run), Duration::from_secs(run.case.limit_s))
        .map_err(|failure| match failure {
            Failure::TooSlow { limit_s, .. } => {
                let below_mb_per_s = run.case.bytes() as f64 / 1e6 / limit_s as f64;
                Failure::TooSlow { limit_s, below_mb_per_s }
            }
            failed => failed,
        })?;
    let bytes = match program.direction() {
        Direction::Memory => program
            .received(&clocked.client_log)
            .ok_or_else(|| format!("no result in {}", clocked.client_log))?,
        Direction::Push | Direction::Pull => run.case.bytes(),
    };
    let receiver = usize::from(program.direction() != Direction::Pull);
    Ok(Measured {
        seconds: clocked.seconds,
        bytes,
        client_cpu: clocked.client_cpu,
        server_cpu: clocked.server_cpu,
        path_cpu: clocked.path_cpu,
        client_peak: clocked.peaks[0],
        server_peak: clocked.peaks[1],
        second_half: second_half(&clocked.received_at[receiver], bytes),
        server_words: wanted.shown(),
        client_words: clocked.client_words,
    })
}

/// One client beside its server, whatever they move. The client is near, the server far, and so in this
/// order.
pub(crate) struct Clocked {
    pub(crate) seconds: f64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: f64,
    pub(crate) path_cpu: f64,
    pub(crate) peaks: [u64; 2],
    /// Seconds since the start and bytes that the side's devices had received.
    pub(crate) received_at: [Vec<(f64, u64)>; 2],
    pub(crate) client_words: String,
    pub(crate) client_log: String,
}

/// Server up, clock, client, clock, server down. The client's words may tell what only a running server
/// knows.
pub(crate) fn clocked(
    stage: &Stage<'_>,
    wanted: &Server,
    words: impl FnOnce() -> Result<Words, String>,
    limit: Duration,
) -> Result<Clocked, Failure> {
    let mut server = stage.serve(wanted, "server.log")?;
    let words = words()?;
    let mut client = stage.prepare(Side::Left, &words, "client.log")?;
    let watch = Watch::new(stage.lab, &client, &server)?;
    let (server_before, path_before) = (server.cpu_seconds(), stage.lab.cpu_seconds());
    let (status, seconds, watch) = watch.during(&mut client, limit);
    let client_cpu = client.cpu_seconds();
    let path_cpu = stage.lab.cpu_seconds() - path_before;
    let server_lived = server.wait(Duration::ZERO).is_none();
    server.stop();
    match status {
        None => return Err(Failure::TooSlow { limit_s: limit.as_secs(), below_mb_per_s: 0.0 }),
        Some(status) if !status.success() => {
            let server_end = if server_lived { String::new() } else { "; its server ended too".to_owned() };
            let (shown, log) = (words.shown(), client.log_end());
            let why = format!("{shown}: {status}{server_end}: {log} (server: {})", server.log_end());
            return Err(Failure::Failed(why));
        }
        Some(_) => {}
    }
    Ok(Clocked {
        seconds,
        client_cpu,
        // After its end: what a server still did when its client had gone belongs to the run.
        server_cpu: server.cpu_seconds() - server_before,
        path_cpu,
        peaks: [watch.ends[0].peak.bytes(), watch.ends[1].peak.bytes()],
        received_at: watch.ends.map(|end| end.received_at),
        client_words: words.shown(),
        client_log: client.log(),
    })
}

/// Looks at both ends while a client runs.
struct Watch {
    ends: [End; 2],
}

struct End {
    group: Arc<Group>,
    sockets: SocketMemory,
    received: Received,
    peak: Peak,
    /// Seconds since the start, bytes.
    received_at: Vec<(f64, u64)>,
}

impl Watch {
    fn new(lab: &Lab, client: &Launched, server: &Launched) -> Result<Watch, String> {
        let end = |side, launched: &Launched| {
            Ok::<_, String>(End {
                group: launched.group.clone(),
                sockets: SocketMemory::open(lab, side)?,
                received: Received::open(lab, side)?,
                peak: Peak::default(),
                received_at: Vec::new(),
            })
        };
        Ok(Watch { ends: [end(Side::Left, client)?, end(Side::Right, server)?] })
    }

    /// Lets the client go and waits for its end, no longer than the limit.
    fn during(mut self, client: &mut Launched, limit: Duration) -> (Option<ExitStatus>, f64, Watch) {
        std::thread::scope(|scope| {
            let (stop, stopped) = channel::<()>();
            let begun = Instant::now();
            let looking = scope.spawn(move || {
                self.sample(begun);
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(SAMPLE_INTERVAL) {
                    self.sample(begun);
                }
                self.sample(begun);
                self
            });
            client.go();
            let status = client.wait(limit);
            let seconds = begun.elapsed().as_secs_f64();
            drop(stop);
            let watch = looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (status, seconds, watch)
        })
    }

    fn sample(&mut self, begun: Instant) {
        for end in &mut self.ends {
            let sockets = end.sockets.bytes().unwrap_or(0);
            end.peak.sample(&end.group.processes(), sockets);
            end.received_at.push((begun.elapsed().as_secs_f64(), end.received.bytes()));
        }
    }
}
