//! The help: commands in groups, and examples for each of them.

use std::fmt::Write as _;

use anstyle::{Effects, Style};
use clap::{Command, CommandFactory};

use super::Cli;
use crate::cli::exit::Exit;

/// The commands by what they are for. One that is not listed is shown in the last group.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Make a vault and use it",
        &["init", "mount", "umount", "mounts", "vaults", "open", "close", "lock", "status"],
    ),
    (
        "Files without a mount",
        &["ls", "cat", "get", "put", "rm", "mkdir", "import", "export", "map"],
    ),
    ("Share with others", &["identity", "contact", "share", "accept", "who-can-read"]),
    ("Keep a vault safe", &["passphrase", "info", "set", "fsck", "rollback", "accept-rollback"]),
    ("Other", &["bench", "completion", "man", "exit-codes", "help"]),
];

/// Examples by command, in paragraphs: the command in brackets, then lines with a command line and
/// what it does.
const EXAMPLES: &str = include_str!("examples.txt");

const HEADING: Style = Style::new().effects(Effects::BOLD.insert(Effects::UNDERLINE));
const LITERAL: Style = Style::new().bold();

/// Returns the definition of the command line, with its help.
pub fn command() -> Command {
    let command = with_examples(Cli::command(), "");
    let overview = overview(&command);
    let codes = format!("{}\n{}", text(&examples(""), true), Exit::text_table());
    command.help_template(overview).after_long_help(codes)
}

/// Returns the examples of the command with this name, such as `identity new`.
pub fn examples(name: &str) -> Vec<(&'static str, &'static str)> {
    let title = format!("[{name}]");
    let mut paragraphs = EXAMPLES.split("\n\n").filter_map(|text| text.split_once('\n'));
    let found = paragraphs.find(|(of, _)| *of == title);
    found.into_iter().flat_map(|(_, lines)| lines.lines()).filter_map(example).collect()
}

fn example(line: &str) -> Option<(&str, &str)> {
    line.split_once("  # ")
}

/// Returns the name of a subcommand as in [`examples`].
pub fn below(name: &str, sub: &str) -> String {
    if name.is_empty() { sub.to_owned() } else { format!("{name} {sub}") }
}

fn with_examples(command: Command, name: &str) -> Command {
    let command = match &examples(name)[..] {
        [] => command,
        some => command.after_help(text(some, true)),
    };
    command.mut_subcommands(|sub| {
        let name = below(name, sub.get_name());
        with_examples(sub, &name)
    })
}

/// Formats examples as a block of text.
fn text(examples: &[(&str, &str)], is_styled: bool) -> String {
    let (heading, literal) =
        if is_styled { (HEADING, LITERAL) } else { (Style::new(), Style::new()) };
    let mut text = format!("{heading}Examples:{heading:#}\n");
    for (line, what) in examples {
        let _ = writeln!(text, "  {literal}{line}{literal:#}\n          {what}");
    }
    text
}

/// Returns the template of the first page: the commands in their groups.
fn overview(command: &Command) -> String {
    let listed = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let about = |sub: &Command| sub.get_about().map_or_else(String::new, ToString::to_string);
    let width = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or(0);
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (i, (group, names)) in GROUPS.iter().enumerate() {
        let _ = writeln!(text, "\n{HEADING}{group}:{HEADING:#}");
        let mut line = |name: &str, about: &str| {
            let _ = writeln!(text, "  {LITERAL}{name:<width$}{LITERAL:#}  {about}");
        };
        for name in *names {
            match command.find_subcommand(name) {
                Some(sub) => line(name, &about(sub)),
                None if *name == "help" => line(name, "Explain a command"),
                None => {}
            }
        }
        if i == GROUPS.len() - 1 {
            command
                .get_subcommands()
                .filter(|sub| !listed(sub.get_name()))
                .for_each(|sub| line(sub.get_name(), &about(sub)));
        }
    }
    let _ = write!(text, "\n{HEADING}Options:{HEADING:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_a_group_and_has_an_example() {
        fn look(command: &Command, name: &str) {
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                let name = below(name, sub.get_name());
                assert!(!examples(&name).is_empty(), "no example of `kithfs {name}`");
                look(sub, &name);
            }
        }
        let command = command();
        look(&command, "");
        for sub in command.get_subcommands() {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&sub.get_name()));
            assert_eq!(groups.count(), 1, "{} is in one group", sub.get_name());
        }
    }

    #[test]
    fn each_example_is_understood() {
        for (line, _) in EXAMPLES.lines().filter_map(example) {
            let line = line.split(" < ").next().unwrap().split(" > ").next().unwrap();
            let line = line.strip_prefix("date | ").unwrap_or(line);
            let parsed = command().try_get_matches_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }

    #[test]
    fn the_first_page_has_groups_options_and_examples() {
        let help = command().render_help().to_string();
        for part in ["Files without a mount:", "  import ", "Explain a command", "--log-level"] {
            assert!(help.contains(part), "{part} is missing in {help}");
        }
        assert!(help.contains("kithfs mount ~/vault ~/plain"), "{help}");
        let mount = command().find_subcommand_mut("mount").unwrap().render_help().to_string();
        assert!(mount.contains("Examples:") && mount.contains("--idle 10m"), "{mount}");
    }
}
