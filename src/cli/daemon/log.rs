//! Destination of log lines: stderr in the foreground, the journal or syslog in the background.
//!
//! Rules that hold here
//! * Plain file names are logged only at `debug` and below. The callers follow this rule, as
//!   names cannot be recognized here.
//! * An event is one line, whatever it contains. Text from the store (names, the contents of a
//!   lock) must not forge another line.

use std::{fmt, io};

use syslog_tracing::{Facility, Options, Syslog};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, SubscriberBuilder};
use tracing_subscriber::registry::LookupSpan;

use crate::cli::args::LogLevel;
use crate::cli::display::Line;

/// The destination of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The terminal.
    Stderr,
    /// syslog(3), which on most systems is the journal.
    Syslog,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> LevelFilter {
        match level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

/// The default format of events, each escaped to one line.
struct OneLine<T>(format::Format<T, ()>);

impl<S, N, T> FormatEvent<S, N> for OneLine<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    format::Format<T, ()>: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        writeln!(writer, "{}", Line(text.trim_end_matches('\n')))
    }
}

/// Returns the settings that both targets share.
fn builder(
    level: LevelFilter,
    shows_level: bool,
) -> SubscriberBuilder<format::DefaultFields, OneLine<format::Full>, LevelFilter> {
    let format =
        format::format().with_target(false).without_time().with_ansi(false).with_level(shows_level);
    tracing_subscriber::fmt().event_format(OneLine(format)).with_max_level(level)
}

/// Enables logging for the rest of the process. A second call has no effect.
pub fn start(level: LogLevel, target: Target) {
    match target {
        Target::Stderr => {
            let _ = builder(level.into(), true).with_writer(io::stderr).try_init();
        }
        Target::Syslog => {
            // None if the process already has a syslog connection, which is opened only here.
            let Some(syslog) = Syslog::new(c"kithfs", Options::LOG_PID, Facility::Daemon) else {
                return;
            };
            let _ = builder(level.into(), false).with_writer(syslog).try_init();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        // Text from the store, such as a lock file or names of control files, was logged unescaped:
        // a line feed or a carriage return in it made lines that looked like the daemon's own.
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber =
            builder(LevelFilter::INFO, true).with_writer(log.reopen().unwrap()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let hostile = "x\r ERROR all is lost\n ERROR forged \x1b[2J";
            tracing::warn!("process 7 on {hostile} has it now");
            tracing::warn!(path = %hostile, other = hostile, "deferred flush failed");
            tracing::debug!("not at this level");
        });
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(
            log.lines()
                .all(|line| line.starts_with(" WARN ") && !line.contains(|c: char| c.is_control())),
            "{log}"
        );
        assert!(
            log.contains(
                "process 7 on x\\x0d ERROR all is lost\\x0a ERROR forged \\x1b[2J has it now"
            ),
            "{log}"
        );
    }
}
