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

/// Examples by command: a command line, and what it does.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "",
        &[
            ("kithfs init ~/vault", "make a vault"),
            ("kithfs mount ~/vault ~/plain", "show it as plain files"),
            ("kithfs umount ~/plain", "unmount it, with everything written"),
        ],
    ),
    (
        "init",
        &[
            ("kithfs init ~/vault", "a vault of your identity, or with one of its own"),
            ("kithfs init --signed --name Ann ~/team", "a vault that can have members itself"),
            ("kithfs init --own-identity ~/vault", "a vault with a passphrase of its own"),
        ],
    ),
    (
        "mount",
        &[
            ("kithfs mount ~/vault ~/plain", "in the background; ~/plain may be missing"),
            ("kithfs mount --idle 10m ~/vault ~/plain", "unmount after ten minutes without use"),
            ("kithfs mount --lock-on suspend ~/vault ~/plain", "lock it before the machine sleeps"),
            ("kithfs mount --read-only ~/vault ~/plain", "allow no writes"),
            (
                "kithfs mount --guard ~/vault ~/plain",
                "an existing ~/plain, in which nothing lands while unmounted",
            ),
            ("kithfs mount -f --log-level debug ~/vault ~/plain", "in the foreground, with a log"),
        ],
    ),
    (
        "umount",
        &[
            ("kithfs umount ~/plain", "wait until everything is written"),
            ("kithfs umount --lazy ~/plain", "hide a busy mount at once"),
        ],
    ),
    ("mounts", &[("kithfs mounts --json", "for scripts")]),
    (
        "vaults",
        &[
            ("kithfs vaults add photos ~/vault ~/plain", "then: kithfs open photos"),
            ("kithfs vaults list", "all names"),
        ],
    ),
    ("vaults list", &[("kithfs vaults list", "names, paths and options")]),
    (
        "vaults add",
        &[("kithfs vaults add photos --idle 1h ~/vault ~/plain", "with options of `mount`")],
    ),
    ("vaults remove", &[("kithfs vaults remove photos", "forgets the name, not the vault")]),
    (
        "vaults set",
        &[
            ("kithfs vaults set photos --idle 10m", "all other options stay"),
            ("kithfs vaults set photos --unset idle", "removes an option"),
            (
                "kithfs vaults set photos --lock-on screen,suspend --notify on",
                "also locks by itself",
            ),
        ],
    ),
    ("open", &[("kithfs open photos", "a name that `vaults add` has stored")]),
    (
        "close",
        &[
            ("kithfs close photos", "wait until everything is written"),
            ("kithfs close --all", "everything that is open"),
        ],
    ),
    (
        "lock",
        &[
            ("kithfs lock", "everything that is open, at once"),
            ("kithfs lock photos", "one vault, by name or mount point"),
        ],
    ),
    ("status", &[("kithfs status", "what is open, and what needs attention")]),
    (
        "passphrase",
        &[
            ("kithfs passphrase change ~/vault", "also with the recovery code, if it is lost"),
            ("kithfs passphrase add ~/vault --new-recovery-code", "print another recovery code"),
            ("kithfs passphrase list ~/vault", "all ways in"),
        ],
    ),
    ("passphrase add", &[("kithfs passphrase add ~/vault --new-key-file ~/usb/key", "a key file")]),
    (
        "passphrase change",
        &[("kithfs passphrase change ~/vault", "asks for the old and the new one")],
    ),
    ("passphrase remove", &[("kithfs passphrase remove ~/vault --slot 3", "as `list` numbers it")]),
    ("passphrase remember", &[("kithfs passphrase remember ~/vault", "in the session's keyring")]),
    ("passphrase forget", &[("kithfs passphrase forget ~/vault", "from the session's keyring")]),
    ("passphrase list", &[("kithfs passphrase list ~/vault", "passphrases, codes, key files")]),
    (
        "identity",
        &[
            ("kithfs identity new --name Ann", "once, before you share"),
            ("kithfs identity export > ann.key", "the public key, for others"),
            ("kithfs identity show", "the fingerprint, to read out to them"),
            ("kithfs identity adopt ~/vault", "take over a vault with an identity of its own"),
        ],
    ),
    ("identity new", &[("kithfs identity new --name Ann", "members will see Ann")]),
    ("identity show", &[("kithfs identity show", "fingerprint, key, and a QR code")]),
    ("identity export", &[("kithfs identity export > ann.key", "to send to others")]),
    ("identity name", &[("kithfs identity name Ann", "what members of new shares see")]),
    ("identity adopt", &[("kithfs identity adopt ~/vault", "asks for both passphrases")]),
    ("identity passphrase", &[("kithfs identity passphrase change", "of your identity")]),
    (
        "identity passphrase add",
        &[("kithfs identity passphrase add --new-recovery-code", "print another recovery code")],
    ),
    (
        "identity passphrase change",
        &[("kithfs identity passphrase change", "asks for the old and the new one")],
    ),
    (
        "identity passphrase remove",
        &[("kithfs identity passphrase remove --slot 3", "as `list` numbers it")],
    ),
    (
        "identity passphrase remember",
        &[("kithfs identity passphrase remember", "in the session's keyring")],
    ),
    (
        "identity passphrase forget",
        &[("kithfs identity passphrase forget", "from the session's keyring")],
    ),
    (
        "identity passphrase list",
        &[("kithfs identity passphrase list", "passphrases, codes, key files")],
    ),
    (
        "contact",
        &[
            ("kithfs contact add Bob - < bob.key", "record a public key"),
            ("kithfs contact verify Bob", "after you have compared fingerprints"),
        ],
    ),
    ("contact add", &[("kithfs contact add Bob kith1...", "the line of `identity export`")]),
    ("contact list", &[("kithfs contact list", "who is new, verified or CHANGED")]),
    ("contact verify", &[("kithfs contact verify Bob", "shows the fingerprint, and asks")]),
    ("contact remove", &[("kithfs contact remove Bob", "shares are unchanged")]),
    ("accept", &[("kithfs accept bob.invitation", "then mount the folder of the share")]),
    (
        "share",
        &[
            ("kithfs share create ~/vault/projects", "turn a folder into a share"),
            ("kithfs share add ~/vault/projects Bob --role writer", "a verified contact"),
            ("kithfs share invite ~/vault/projects Bob -o bob.invitation", "to send to Bob"),
            ("kithfs share remove ~/vault/projects Bob", "with a new folder key"),
        ],
    ),
    ("share create", &[("kithfs share create ~/vault/projects", "makes the folder if needed")]),
    (
        "share add",
        &[("kithfs share add ~/vault/projects Bob --role reader", "or changes the role")],
    ),
    ("share remove", &[("kithfs share remove ~/vault/projects Bob", "by name or fingerprint")]),
    ("share list", &[("kithfs share list ~/vault/projects", "members and their roles")]),
    ("share log", &[("kithfs share log ~/vault/projects", "who changed what, and when")]),
    ("share rekey", &[("kithfs share rekey --eager ~/vault/projects", "seal all contents again")]),
    ("share settle", &[("kithfs share settle ~/vault/projects", "shows the heads of a fork")]),
    (
        "share invite",
        &[("kithfs share invite ~/vault/projects Bob -o bob.invitation", "holds no secret")],
    ),
    ("who-can-read", &[("kithfs who-can-read ~/vault/projects/plan.txt", "everybody with a key")]),
    (
        "set",
        &[
            ("kithfs set --synced ~/vault", "a sync tool keeps it equal on several machines"),
            ("kithfs set --shared /srv/vault", "several machines or users mount it at a time"),
        ],
    ),
    ("info", &[("kithfs info ~/vault", "needs no passphrase")]),
    (
        "fsck",
        &[
            ("kithfs fsck ~/vault", "verify every byte"),
            ("kithfs fsck --repair --dry-run ~/vault", "what a repair would do"),
            ("kithfs fsck --repair --salvage ~/good ~/vault", "save the good bytes first"),
        ],
    ),
    (
        "rollback",
        &[
            ("kithfs rollback ~/vault", "what is older than this machine has seen it"),
            ("kithfs rollback --export ~/old ~/vault", "keep a copy of those files"),
        ],
    ),
    ("accept-rollback", &[("kithfs accept-rollback ~/vault", "after you have restored a backup")]),
    (
        "ls",
        &[
            ("kithfs ls -l ~/vault letters", "a folder"),
            ("kithfs ls ~/vault/letters", "the same in one word"),
        ],
    ),
    ("cat", &[("kithfs cat ~/vault letters/ann.txt", "to stdout")]),
    (
        "get",
        &[
            ("kithfs get ~/vault letters/ann.txt", "to the current directory"),
            ("kithfs get ~/vault/letters/ann.txt ~/ann.txt", "to another place"),
        ],
    ),
    (
        "put",
        &[
            ("kithfs put ~/vault letters ann.txt", "into a folder"),
            ("date | kithfs put ~/vault/now.txt", "from stdin"),
        ],
    ),
    ("rm", &[("kithfs rm -r ~/vault letters", "a folder and its contents")]),
    ("mkdir", &[("kithfs mkdir -p ~/vault notes/2026", "with its parents")]),
    ("import", &[("kithfs import ~/pictures ~/vault/pictures", "run it again to continue")]),
    (
        "export",
        &[
            ("kithfs export ~/vault ~/backup", "all of it"),
            ("kithfs export ~/vault pictures ~/pictures", "one folder"),
        ],
    ),
    (
        "map",
        &[
            ("kithfs map ~/vault letters", "where its ciphertext is"),
            ("kithfs map --reverse ~/vault CIPHERPATH", "what a file of ciphertext is"),
        ],
    ),
    ("bench", &[("kithfs bench --quick ~", "a first impression of this disk")]),
    (
        "completion",
        &[
            (
                "kithfs completion bash > ~/.local/share/bash-completion/completions/kithfs",
                "bash; create the directory first",
            ),
            (
                "kithfs completion zsh > ~/.zfunc/_kithfs",
                "zsh, with `fpath=(~/.zfunc $fpath)` before `compinit` in ~/.zshrc",
            ),
            ("kithfs completion fish > ~/.config/fish/completions/kithfs.fish", "fish"),
        ],
    ),
    ("man", &[("kithfs man ~/.local/share/man/man1", "then: man kithfs-mount")]),
    ("exit-codes", &[("kithfs exit-codes", "a table in Markdown")]),
];

const HEADING: Style = Style::new().effects(Effects::BOLD.insert(Effects::UNDERLINE));
const LITERAL: Style = Style::new().bold();

/// Returns the definition of the command line, with its help.
pub fn command() -> Command {
    let command = with_examples(Cli::command(), "");
    let overview = overview(&command);
    let codes = format!("{}\n{}", text(examples(""), true), Exit::text_table());
    command.help_template(overview).after_long_help(codes)
}

/// Returns the examples of the command with this name, such as `identity new`.
pub fn examples(name: &str) -> &'static [(&'static str, &'static str)] {
    EXAMPLES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, examples)| examples)
}

/// Returns the name of a subcommand as in [`examples`].
pub fn below(name: &str, sub: &str) -> String {
    if name.is_empty() { sub.to_owned() } else { format!("{name} {sub}") }
}

fn with_examples(command: Command, name: &str) -> Command {
    let command = match examples(name) {
        [] => command,
        some => command.after_help(text(some, true)),
    };
    command.mut_subcommands(|sub| {
        let name = below(name, sub.get_name());
        with_examples(sub, &name)
    })
}

/// Writes examples as a block of text.
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
        for (line, _) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
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
