//! Standard output.
//!
//! Rule: if the reader exits early (`kithfs ls V | head`), the command ends without a message.

use std::io::{self, IsTerminal, StdoutLock, Write};

use anstyle::Style;
use serde::Serialize;

use crate::cli::display::{self, Line, Shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::color;

/// Standard output, buffered.
pub struct Out {
    to: io::BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Out {
    /// Writes the whole output of a command.
    pub fn print(write: impl FnOnce(&mut Out) -> Result<(), Error>) -> Result<Exit, Failure> {
        let mut out = Out::stdout();
        write(&mut out)?;
        out.finish()?;
        Ok(Exit::Ok)
    }

    /// Writes the report of a command, as JSON or in words.
    pub fn report(
        json: bool,
        report: &impl Serialize,
        words: impl FnOnce(&mut Out) -> Result<(), Error>,
    ) -> Result<Exit, Failure> {
        Out::print(|out| if json { out.json(report) } else { words(out) })
    }

    /// Takes standard output for this command.
    pub fn stdout() -> Out {
        let stdout = io::stdout();
        Out {
            terminal: stdout.is_terminal(),
            to: io::BufWriter::with_capacity(1 << 16, stdout.lock()),
        }
    }

    /// Writes lines of text, each as a [`Line`].
    pub fn text(&mut self, text: std::fmt::Arguments<'_>) -> Result<(), Error> {
        let text = text.to_string();
        text.split_inclusive('\n').try_for_each(|line| match line.strip_suffix('\n') {
            Some(line) => writeln!(self.to, "{}", Line(line)).map_err(failed),
            None => write!(self.to, "{}", Line(line)).map_err(failed),
        })
    }

    /// Writes a state such as `verified`, in its colour, with blanks up to `width`.
    pub fn state(&mut self, state: &str, width: usize) -> Result<(), Error> {
        let style = if color::on_stdout() { color::of_state(state) } else { Style::new() };
        write!(self.to, "{style}{:<width$}{style:#}", Line(state).to_string()).map_err(failed)
    }

    /// Writes a name: escaped on a terminal, byte for byte elsewhere.
    pub fn name(&mut self, name: &[u8]) -> Result<(), Error> {
        if self.terminal { write!(self.to, "{}", Shown(name)) } else { self.to.write_all(name) }
            .map_err(failed)
    }

    /// Writes bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.to.write_all(bytes).map_err(failed)
    }

    /// Writes a value as JSON, and a newline.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(value).map_err(|error| failed(error.into()))?;
        self.bytes(display::json(&text).as_bytes())?;
        self.bytes(b"\n")
    }

    /// Flushes the buffer.
    pub fn finish(mut self) -> Result<(), Error> {
        self.to.flush().map_err(failed)
    }
}

fn failed(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::BrokenPipe => Error::NobodyReads,
        _ => Error::Os { op: "write to stdout", source },
    }
}
