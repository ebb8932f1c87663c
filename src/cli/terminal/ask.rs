//! Questions to the user: yes or no, a line of text, a secret.
//!
//! Rules that hold here
//! * A question that cannot be asked counts as a refusal, never as a yes.
//! * Without a terminal, a secret is asked for by the program in the variable KITHFS_PROMPT. A
//!   program whose name begins with `pinentry` speaks the protocol of pinentry; every other one
//!   gets the question as its argument and prints the secret, as systemd-ask-password and
//!   ssh-askpass do.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use zeroize::{Zeroize, Zeroizing};

use crate::cli::daemon::signals;
use crate::cli::display::Line;
use crate::cli::error::Error;
use crate::cli::terminal::echo;

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

/// Variable with the program that asks for secrets where there is no terminal.
pub const PROMPT_VARIABLE: &str = "KITHFS_PROMPT";

/// Longest answer of a prompt program, in bytes.
const ANSWER_MAX: usize = 64 << 10;

/// Asks a yes-or-no question at the terminal. With `yes`, the answer was given in advance.
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

/// Asks for a secret, without echo.
///
/// # Errors
/// [`Error::NoTerminal`] without a terminal and a prompt program; the program fails.
pub fn secret(prompt: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
    let Ok(terminal) = open() else {
        return match std::env::var_os(PROMPT_VARIABLE).filter(|program| !program.is_empty()) {
            Some(program) => by_program(Path::new(&program), &Line(prompt).to_string()),
            None => Err(Error::NoTerminal),
        };
    };
    let _restored = echo::restored_at_signals(&terminal);
    let _unblocked = signals::unblocked();
    let mut typed = rpassword::prompt_password(Line(prompt).to_string())
        .map_err(|source| Error::Os { op: "read passphrase from the terminal", source })?;
    let bytes = Zeroizing::new(typed.as_bytes().to_vec());
    typed.zeroize();
    Ok(bytes)
}

fn by_program(program: &Path, prompt: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
    let failed = |source| Error::Secret { op: "run prompt program", path: program.into(), source };
    let is_pinentry =
        program.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"pinentry"));
    let mut command = Command::new(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if !is_pinentry {
        command.arg(prompt.trim_end_matches([' ', ':'])).stdin(Stdio::null());
    }
    let mut child = command.spawn().map_err(failed)?;
    // Nothing of the answer is buffered where it would not be wiped.
    let mut output = BufReader::with_capacity(1, child.stdout.take().expect("was asked for"));
    let secret = match child.stdin.take() {
        Some(input) => by_pinentry(input, &mut output, prompt, &pinentry_options()),
        None => answer_line(&mut output).map(|line| line.map_or(Answer::Nothing, Answer::Secret)),
    };
    // A pinentry answers the last command too. SIGPIPE would end it if that answer were not read.
    io::copy(&mut output, &mut io::sink()).map_err(failed)?;
    drop(output);
    let status = child.wait().map_err(failed)?;
    let secret = secret.map_err(failed)?;
    let ended = |why: String| Error::PromptProgram { path: program.into(), why };
    match secret {
        Answer::Secret(secret) if status.success() => Ok(secret),
        Answer::Refused(why) => Err(ended(why)),
        _ => Err(ended(format!("it gave no passphrase, and ended with {status}"))),
    }
}

/// What a prompt program has answered.
enum Answer {
    Secret(Zeroizing<Vec<u8>>),
    /// Why there is no secret.
    Refused(String),
    Nothing,
}

/// Reads one line, which may be a secret, into memory that is wiped; without its line end.
fn answer_line(output: &mut impl BufRead) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    // Longer than any answer, so that the buffer never moves and leaves no copy.
    let mut line = Zeroizing::new(Vec::with_capacity(ANSWER_MAX));
    if output.take(ANSWER_MAX as u64).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        line.pop();
    }
    Ok(Some(line))
}

/// Asks by the protocol of pinentry (Assuan): each command is answered with lines up to `OK` or
/// `ERR`, and a line `D` holds the secret, with `%`, line ends and other bytes as `%XX`.
fn by_pinentry(
    mut input: impl Write,
    output: &mut impl BufRead,
    prompt: &str,
    options: &[String],
) -> io::Result<Answer> {
    let mut secret = Answer::Nothing;
    let text: String = prompt
        .trim_end_matches([' ', ':'])
        .chars()
        .map(|shown| match shown {
            '%' | '\0'..' ' => format!("%{:02X}", shown as u32),
            _ => shown.to_string(),
        })
        .collect();
    let mut commands: Vec<String> = vec![String::new()];
    commands.extend(options.iter().map(|option| format!("OPTION {option}")));
    commands.extend(["SETTITLE kithfs".into(), format!("SETDESC {text}")]);
    commands.extend(["SETPROMPT Passphrase:".into(), "GETPIN".into()]);
    for command in &commands {
        if !command.is_empty() {
            writeln!(input, "{command}")?;
            input.flush()?;
        }
        loop {
            let Some(line) = answer_line(output)? else { return Ok(secret) };
            match &line[..] {
                [b'O', b'K', ..] => break,
                // That the program does not know an option or a title is no refusal.
                [b'E', b'R', b'R', ..] if command != "GETPIN" => break,
                [b'E', b'R', b'R', why @ ..] => {
                    return Ok(Answer::Refused(refusal(&String::from_utf8_lossy(why))));
                }
                [b'D', b' ', data @ ..] => {
                    let mut data = unescaped(data);
                    if let Answer::Secret(before) = &secret {
                        data = Zeroizing::new([&before[..], &data[..]].concat());
                    }
                    secret = Answer::Secret(data);
                }
                _ => {}
            }
        }
    }
    writeln!(input, "BYE")?;
    Ok(secret)
}

/// Returns the options by which gpg-agent tells a pinentry its terminal, and the encoding of the
/// question.
fn pinentry_options() -> Vec<String> {
    let of = |option: &str, variables: &[&str]| {
        let set = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        variables.iter().find_map(set).map(|value| format!("{option}={value}"))
    };
    let tty = of("ttyname", &["GPG_TTY"]);
    let kind = tty.is_some().then(|| of("ttytype", &["TERM"])).flatten();
    let encoding = of("lc-ctype", &["LC_ALL", "LC_CTYPE", "LANG"]);
    [tty, kind, encoding].into_iter().flatten().collect()
}

/// Describes the error of a pinentry: a number, whose lower half is the reason, and a text.
fn refusal(error: &str) -> String {
    const CANCELLED: [u32; 2] = [99, 198];
    let (number, text) = error.trim().split_once(' ').unwrap_or((error.trim(), ""));
    match number.parse::<u32>() {
        Ok(number) if CANCELLED.contains(&(number & 0xFFFF)) => "it was cancelled".to_owned(),
        _ => format!("it gave no passphrase: {}", if text.is_empty() { number } else { text }),
    }
}

fn unescaped(data: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut plain = Zeroizing::new(Vec::with_capacity(data.len()));
    let mut rest = data;
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                plain.push(byte);
                rest = &tail[2..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    plain
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
    fn pinentry_is_spoken_to_line_by_line() {
        let said = |answers: &str| {
            let mut heard = Vec::new();
            let options = ["ttyname=/dev/pts/7".to_owned()];
            let answers = &mut answers.as_bytes();
            let prompt = "Passphrase of 100% d\u{e9}j\u{e0}: ";
            let secret = match by_pinentry(&mut heard, answers, prompt, &options).unwrap() {
                Answer::Secret(secret) => Some(secret.to_vec()),
                Answer::Refused(why) => Some(why.into_bytes()),
                Answer::Nothing => None,
            };
            (secret, String::from_utf8(heard).unwrap())
        };
        // A terminal's pinentry refuses an option that it does not know, and asks all the same.
        let unknown = "ERR 83886254 Unknown option <Pinentry>";
        let (secret, heard) =
            said(&format!("OK ready\n{unknown}\nOK\nOK\nOK\nS FOO\nD a%25b%0Ac%zz\nOK\n"));
        assert_eq!(secret.as_deref(), Some(&b"a%b\nc%zz"[..]));
        assert!(heard.starts_with("OPTION ttyname=/dev/pts/7\nSETTITLE"), "{heard}");
        assert!(heard.contains("SETDESC Passphrase of 100%25 d\u{e9}j\u{e0}\n"), "{heard}");
        assert!(heard.ends_with("GETPIN\nBYE\n"), "{heard}");
        let refused = |error: &str| {
            let (why, _) = said(&format!("OK\nOK\nOK\nOK\nOK\nERR {error}\n"));
            String::from_utf8(why.unwrap()).unwrap()
        };
        assert_eq!(refused("83886179 Operation cancelled <Pinentry>"), "it was cancelled");
        assert_eq!(
            refused("83886142 Timeout <Pinentry>"),
            "it gave no passphrase: Timeout <Pinentry>"
        );
        assert_eq!(said("").0, None);
        // A long answer comes in several lines.
        let (secret, _) = said("OK\nOK\nOK\nOK\nOK\nD new one\nD  horse staple\nOK\n");
        assert_eq!(secret.as_deref(), Some(&b"new one horse staple"[..]));
    }

    #[test]
    fn an_answer_that_was_given_is_not_asked_for() {
        assert!(confirm("is it so?", true).is_ok());
    }
}
