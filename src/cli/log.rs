//! Where log lines go: stderr in the foreground, the journal or syslog in the background.
//!
//! Rule: plain names of files are logged at `debug` and below only; this is for the callers to keep, for here they cannot be told apart.

use std::io;

use syslog_tracing::{Facility, Options, Syslog};
use tracing::level_filters::LevelFilter;

use super::args::LogLevel;

/// Where to.
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

/// Turns logging on, for the rest of the process. A second call changes nothing.
pub fn start(level: LogLevel, target: Target) {
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::from(level)).with_target(false).without_time().with_ansi(false);
    match target {
        Target::Stderr => {
            let _ = builder.with_writer(io::stderr).try_init();
        }
        Target::Syslog => {
            // None where the process has a syslog connection already: there is only this one place that makes it
            let Some(syslog) = Syslog::new(c"kithfs", Options::LOG_PID, Facility::Daemon) else { return };
            let _ = builder.with_level(false).with_writer(syslog).try_init();
        }
    }
}
