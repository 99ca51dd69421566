//! The log: JSON lines (or text for people), to standard error or a file.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock;
use crate::failure::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Human,
}

pub struct Logging {
    pub form: Form,
    /// `info`, or per room: `warn,longhaul_engine=debug`.
    pub level: String,
    pub file: Option<PathBuf>,
}

impl Logging {
    /// To be called once, before the first event.
    pub fn start(&self) -> Result<(), Failure> {
        let targets: Targets = self.level.parse().map_err(|error| {
            Failure::usage(
                format!("\"{}\" is no log level", self.level),
                format!("{error}"),
                "write error, warn, info, debug or trace; or a list: info,longhaul_engine=debug",
            )
        })?;
        let writer = match &self.file {
            None => BoxMakeWriter::new(io::stderr),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                BoxMakeWriter::new(Mutex::new(file.map_err(|error| Failure::file("opening", path, &error))?))
            }
        };
        let registry = tracing_subscriber::registry().with(targets);
        let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_timer(Clock).with_ansi(false);
        // A second start (tests) keeps the first.
        let _ = match self.form {
            Form::Json => registry.with(layer.json().flatten_event(true).with_span_list(false)).try_init(),
            Form::Human => registry.with(layer).try_init(),
        };
        Ok(())
    }
}

struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{}", clock::now())
    }
}
