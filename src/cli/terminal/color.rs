//! Whether output has colours: decided by `--color`, then by NO_COLOR and the other usual
//! variables, then by whether the output is a terminal.

use std::ffi::OsString;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Also elsewhere
    Always,
    /// Never
    Never,
}

/// The name of the program before an error.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// `hint:`
pub const HINT: Style = AnsiColor::Cyan.on_default().bold();
/// `note:`
pub const NOTE: Style = Style::new().bold();

/// Sets when colours are used, for this process.
pub fn choose(color: Color) {
    match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    }
    .write_global();
}

/// Returns the value of `--color` before the command line is parsed, as parse errors have colours
/// too.
pub fn of_arguments(arguments: impl Iterator<Item = OsString>) -> Color {
    let arguments: Vec<OsString> = arguments.take_while(|argument| argument != "--").collect();
    let value = |i: usize| match arguments[i].to_str()?.strip_prefix("--color")? {
        "" => arguments.get(i + 1)?.to_str(),
        value => value.strip_prefix('='),
    };
    match (0..arguments.len()).rev().find_map(value) {
        Some("always") => Color::Always,
        Some("never") => Color::Never,
        _ => Color::Auto,
    }
}

/// Returns whether standard output gets colours.
pub fn on_stdout() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// Returns the colour of a state of a contact, a member or a share.
pub fn of_state(state: &str) -> Style {
    match state {
        "verified" => AnsiColor::Green.on_default(),
        "new" | "unknown" => AnsiColor::Yellow.on_default(),
        "CHANGED" | "FORKED" => AnsiColor::Red.on_default().bold(),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_found_before_the_rest_is_understood() {
        let of = |line: &str| of_arguments(line.split(' ').map(OsString::from));
        assert_eq!(of("kithfs --color always ls"), Color::Always);
        assert_eq!(of("kithfs ls --color=never v"), Color::Never);
        assert_eq!(of("kithfs ls v --color"), Color::Auto);
        assert_eq!(of("kithfs cat v -- --color=always"), Color::Auto);
        assert_eq!(of("kithfs --colour=never"), Color::Auto);
    }
}
