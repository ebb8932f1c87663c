//! Progress at a terminal: a bar where the whole is known, else a counter. Nothing where stderr is
//! no terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a long command is.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar over `bytes`, or a counter.
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

    /// This many bytes more.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// This many bytes in all, and `files` files.
    pub fn set(&self, bytes: u64, files: u64) {
        self.bar.set_position(bytes);
        self.bar.set_message(format!("{files} files"));
    }

    /// One more file is done.
    pub fn files(&self, files: u64) {
        self.bar.set_message(format!("{files} files"));
    }

    /// Prints a line about one file past the bar.
    pub fn warn(&self, message: impl std::fmt::Display) {
        self.bar.suspend(|| crate::cli::report::warn(message));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Whether somebody sees it, so that counting the whole first is worth the time.
pub fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}
