//! Logging: JSON lines (or text for people), to standard error or a file.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use longhaul_model::units::printable;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock;
use crate::failure::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Human,
}

pub struct Logging {
    pub format: LogFormat,
    /// A level such as `info`, or levels per crate: `warn,longhaul_engine=debug`.
    pub level: String,
    pub file: Option<PathBuf>,
}

impl Logging {
    /// Starts logging. Call it once, before the first event.
    pub fn start(&self) -> Result<(), Failure> {
        let targets: Targets = self.level.parse().map_err(|error| {
            Failure::usage(
                format!("\"{}\" is not a log level", self.level),
                format!("{error}"),
                "use error, warn, info, debug or trace; or a list such as info,longhaul_engine=debug",
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
        // A second start (in tests) keeps the first.
        let _ = match self.format {
            LogFormat::Json => registry.with(layer.event_format(JsonLine)).try_init(),
            LogFormat::Human => registry.with(layer.fmt_fields(HumanFields)).try_init(),
        };
        Ok(())
    }
}

struct Clock;

/// Formats `message key=value …`. Texts may come from outside: a line stays one line, and nothing moves the
/// cursor.
struct HumanFields;

impl<'writer> FormatFields<'writer> for HumanFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> std::fmt::Result {
        let mut visitor = HumanVisitor { writer, result: Ok(()), begun: false };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct HumanVisitor<'writer> {
    writer: Writer<'writer>,
    result: std::fmt::Result,
    begun: bool,
}

impl Visit for HumanVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let gap = if std::mem::replace(&mut self.begun, true) { " " } else { "" };
        let text = printable(&format!("{value:?}"));
        let written = match field.name() {
            "message" => write!(self.writer, "{gap}{text}"),
            name => write!(self.writer, "{gap}{name}={text}"),
        };
        self.result = self.result.and(written);
    }
}

/// Formats one object per line: `at`, `level`, `room` and `message`, then the event's own fields. The library
/// calls the crate `target`, which our events use for where a file goes, and a key must not appear twice in
/// an object.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let metadata = event.metadata();
        let head = [
            ("at", clock::wall().to_string()),
            ("level", metadata.level().as_str().to_ascii_lowercase()),
            ("room", metadata.target().to_owned()),
        ];
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let message = fields.0.remove("message");
        write!(writer, "{{")?;
        for (name, value) in head {
            write!(writer, "\"{name}\":{},", Value::String(value))?;
        }
        write!(writer, "\"message\":{}", message.unwrap_or_default())?;
        for (name, value) in
            fields.0.iter().filter(|(name, _)| !["at", "level", "room"].contains(&name.as_str()))
        {
            write!(writer, ",{}:{value}", Value::from(name.as_str()))?;
        }
        writeln!(writer, "}}")
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), Value::from(value));
    }
}

impl FormatTime for Clock {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{}", clock::wall())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Captures what is logged.
    #[derive(Clone, Default)]
    struct LogCapture(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogCapture {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_object_whose_keys_stand_once() {
        let taken = LogCapture::default();
        let writer = taken.clone();
        let layer =
            tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).event_format(JsonLine);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(
                target: "room",
                target = "gamma",
                lfn = "new\nline\u{1b}\"",
                bytes = 7u64,
                good = true,
                level = "x",
                "done"
            );
        });
        let bytes = taken.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        for key in ["at", "level", "room", "message", "target", "lfn", "bytes", "good"] {
            assert_eq!(text.matches(&format!("\"{key}\":")).count(), 1, "{key} in {text}");
        }
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["target"], &line["room"], &line["bytes"]),
            (&"gamma".into(), &"room".into(), &7.into())
        );
        assert_eq!(line["lfn"], "new\nline\u{1b}\"");
        assert_eq!(line["level"], "info");
    }

    #[test]
    fn a_line_for_people_is_one_line_whatever_is_logged() {
        let taken = LogCapture::default();
        let writer = taken.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .fmt_fields(HumanFields);
        let subscriber = tracing_subscriber::registry().with(layer);
        let hostile = "0.1.0\n2026 INFO forged\u{1b}[2J";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(version = %hostile, fault = ?Some(hostile), n = 7, "said {hostile}");
        });
        let text = String::from_utf8(taken.0.lock().unwrap().clone()).unwrap();
        assert_eq!((text.lines().count(), text.contains('\u{1b}')), (1, false), "{text}");
        assert!(text.contains(r"said 0.1.0\n2026 INFO forged\u{1b}[2J version=0.1.0\n2026"), "{text}");
        assert!(text.trim_end().ends_with("n=7"), "{text}");
    }
}
