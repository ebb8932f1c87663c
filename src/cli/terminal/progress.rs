//! Progress on a terminal: a bar if the total is known, else a counter or a spinner. Nothing is
//! shown if stderr is not a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress of a long command.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar over `bytes`, or a counter.
    pub fn new(bytes: Option<u64>) -> Progress {
        if !is_shown() {
            return Progress {
                bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
            };
        }
        let (bar, template) = match bytes {
            Some(bytes) => (
                ProgressBar::new(bytes),
                "{bar:30} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta}  {msg}",
            ),
            None => {
                (ProgressBar::new_spinner(), "{spinner} {bytes}  {binary_bytes_per_sec}  {msg}")
            }
        };
        bar.set_style(
            ProgressStyle::with_template(template).expect("the templates here are well formed"),
        );
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar }
    }

    /// Adds this many bytes.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Sets the bytes and files done so far.
    pub fn set(&self, bytes: u64, files: u64) {
        self.bar.set_position(bytes);
        self.bar.set_message(format!("{files} files"));
    }

    /// Sets the number of files done so far.
    pub fn files(&self, files: u64) {
        self.bar.set_message(format!("{files} files"));
    }

    /// Prints a line about one file above the bar.
    pub fn warn(&self, message: impl std::fmt::Display) {
        self.bar.suspend(|| crate::cli::report::warn(message));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A spinner beside the name of a step that takes a moment.
pub struct Busy {
    bar: ProgressBar,
}

impl Busy {
    /// Shows the spinner until the value is dropped.
    pub fn new(step: &'static str) -> Busy {
        let bar = if is_shown() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        };
        bar.set_message(step);
        if is_shown() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Busy { bar }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns whether the progress is visible, so that counting the total first is worth the time.
pub fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}
