//! Questions that the user answers with yes or no.
//!
//! Rule: a question that cannot be asked counts as a refusal, never as a yes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use crate::cli::display::Line;
use crate::cli::error::Error;

/// Asks for a line of text at the terminal, and returns it without white space around it.
///
/// # Errors
/// [`Error::NoTerminal`], and those of the terminal.
pub fn line(question: &str) -> Result<String, Error> {
    let mut terminal = open().map_err(|_| Error::NoTerminal)?;
    let failed = |source| Error::Os { op: "ask at the terminal", source };
    write!(terminal, "{}", Line(question)).and_then(|()| terminal.flush()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(terminal).read_line(&mut answer).map_err(failed)?;
    Ok(answer.trim().to_owned())
}

fn open() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/tty")
}

/// Asks at the terminal; `yes` is an answer given in advance.
///
/// # Errors
/// [`Error::CannotAsk`] without a terminal, [`Error::Declined`] if the answer is not yes.
pub fn confirm(question: &str, yes: bool) -> Result<(), Error> {
    if yes {
        return Ok(());
    }
    let mut terminal = open().map_err(|_| Error::CannotAsk(question.to_owned()))?;
    let failed = |source| Error::Os { op: "ask at the terminal", source };
    write!(terminal, "{} [y/N] ", Line(question))
        .and_then(|()| terminal.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(terminal).read_line(&mut answer).map_err(failed)?;
    if is_yes(&answer) { Ok(()) } else { Err(Error::Declined) }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_one() {
        assert!(is_yes("y\n") && is_yes(" Yes \n"));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("no\n") && !is_yes("yesterday\n"));
    }

    #[test]
    fn an_answer_that_was_given_is_not_asked_for() {
        assert!(confirm("is it so?", true).is_ok());
    }
}
