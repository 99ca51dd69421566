//! Shutdown signals of this process.

use std::io::{self, Read};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure, plain_io};

/// Completes at the first SIGINT, SIGTERM or SIGHUP from now on.
pub fn shutdown() -> Result<impl Future<Output = ()>, Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| {
            Failure::new(
                longhaul_model::FaultCode::Internal,
                format!("cannot receive signals: {}", plain_io(&error)),
            )
        })
    };
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

/// Ends this process when standard input is closed. Our parent holds the other end of that pipe and writes
/// nothing, so it closes only when the parent dies, even by SIGKILL.
pub fn exit_with_parent() {
    std::thread::spawn(|| {
        let mut input = io::stdin().lock();
        let mut scratch = [0u8; 64];
        while !matches!(input.read(&mut scratch), Ok(0) | Err(_)) {}
        std::process::exit(Exit::Interrupted as i32);
    });
}
