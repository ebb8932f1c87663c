//! `kithfs completion`, `kithfs man`, `kithfs exit-codes`: generated from the command line's
//! definition.

pub mod completion;

use std::fs;

use clap::CommandFactory;

use crate::cli::args::{Cli, Completion, Man, help};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::stdout::Out;

/// Prints a completion script.
pub fn completion(args: &Completion) -> Result<Exit, Failure> {
    Out::print(|out| out.bytes(completion::script(args.shell).as_bytes()))
}

/// Files of the program, for the manual pages.
const FILES: &[(&str, &str)] = &[
    ("~/.config/kithfs/identity", "your identity; XDG_CONFIG_HOME moves the directory"),
    ("~/.config/kithfs/name", "the name that members of your shares see"),
    ("~/.config/kithfs/contacts", "the public keys of others"),
    ("~/.config/kithfs/vaults.toml", "your named vaults"),
    (
        "~/.config/kithfs/former-identities",
        "the former identities of vaults that `identity adopt` took over",
    ),
    (
        "~/.local/state/kithfs",
        "what this machine has seen of vaults and shares, and the journals of synced vaults; XDG_STATE_HOME moves it",
    ),
    ("VAULT/+identity", "the identity of a vault that has one of its own"),
    ("VAULT/+share", "the file by which a directory is a vault"),
];

/// Environment variables that the program uses, for the manual pages.
const VARIABLES: &[(&str, &str)] = &[
    ("KITHFS_PASSPHRASE_FILE", "a file with the passphrase"),
    ("KITHFS_AGE_IDENTITY", "as --age-identity, for identities that have an age slot"),
    (
        "KITHFS_PROMPT",
        "a program that asks for a passphrase where there is no terminal, such as systemd-ask-password or pinentry-gnome3",
    ),
    ("KITHFS_NO_ROLLBACK_MEMORY", "with 1, as --no-rollback-memory"),
    (
        "KITHFS_ALLOW_KDF_COST",
        "with 1, unlock an identity that asks for an unusual amount of memory or time",
    ),
    (
        "KITHFS_STORE_PATIENCE",
        "seconds without an answer of the store after which `lock` gives it up and `umount` fails; 120 without it",
    ),
    ("KITHFS_TRANSPORT", "as mount --transport"),
    ("NO_COLOR", "with any value but an empty one, use no colours, unless --color is given"),
    ("XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR", "where files of the user are"),
];

/// The syntax of `mount.kithfs`, for the page of `kithfs mount`, which is also the page of that
/// name.
const HELPER: &[(&str, &str)] = &[
    (
        "mount -t kithfs VAULT MOUNTPOINT -o passphrase_file=FILE",
        "mounts as mount(8) does, and so does a line of /etc/fstab with the type kithfs; the options are those of -o above and the following ones",
    ),
    (
        "passphrase_file=FILE, passphrase_command=CMD, key_file=FILE, age_identity=FILE, identity=FILE, lock_on=EVENT, log_level=LEVEL",
        "as the options above with these names",
    ),
    ("setuid=USER", "gives a mount by root to this user, by name or number"),
    (
        "allow_dev, allow_suid",
        "as dev and suid above, which mount(8) takes for itself and does not pass on",
    ),
];

/// Writes one manual page for each command.
pub fn man(args: &Man) -> Result<Exit, Failure> {
    let failed = |source| Error::Io { op: "write manual pages to", path: args.dir.clone(), source };
    fs::create_dir_all(&args.dir).map_err(failed)?;
    let mut built = Cli::command();
    built.build();
    let command = with_usage(Cli::command(), &mut built);
    clap_mangen::generate_to(command, &args.dir).map_err(failed)?;
    pages(&Cli::command(), "", &mut |name| {
        let file = args.dir.join(format!("kithfs {name}").trim_end().replace(' ', "-") + ".1");
        let page = fs::read_to_string(&file)?;
        fs::write(&file, complete(&page, name))
    })
    .map_err(failed)?;
    Ok(Exit::Ok)
}

/// Gives each command the usage line of its help. clap_mangen lists options without their values,
/// and arguments that can be repeated as if they could not. `built` is the same command after
/// `build`, which makes the usage lines, but also adds `help` commands.
fn with_usage(command: clap::Command, built: &mut clap::Command) -> clap::Command {
    let usage = built.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    command.override_usage(usage).mut_subcommands(|sub| {
        let built = built.find_subcommand_mut(sub.get_name()).expect("build removes no command");
        with_usage(sub, built)
    })
}

/// Calls `each` with the name of each command that has a page, and `""` for the first page.
fn pages(
    command: &clap::Command,
    name: &str,
    each: &mut dyn FnMut(&str) -> std::io::Result<()>,
) -> std::io::Result<()> {
    each(name)?;
    command
        .get_subcommands()
        .try_for_each(|sub| pages(sub, &help::below(name, sub.get_name()), each))
}

/// Adds the sections that clap_mangen does not know.
fn complete(page: &str, name: &str) -> String {
    let entries = |title: &str, rows: &[(String, &str)]| {
        let row = |(term, what): &(String, &str)| format!(".TP\n{}\n{}\n", roff(term), roff(what));
        let rows: String = rows.iter().map(row).collect();
        if rows.is_empty() { rows } else { format!(".SH {title}\n{rows}") }
    };
    let owned = |rows: &[(&'static str, &'static str)]| -> Vec<(String, &'static str)> {
        rows.iter().map(|(term, what)| ((*term).to_owned(), *what)).collect()
    };
    let codes: Vec<(String, &str)> =
        Exit::ALL.iter().map(|(exit, meaning)| (exit.code().to_string(), *meaning)).collect();
    [
        page.to_owned(),
        entries("\"MOUNT(8) AND FSTAB\"", &owned(if name == "mount" { HELPER } else { &[] })),
        entries("EXAMPLES", &owned(&help::examples(name))),
        entries("FILES", &owned(FILES)),
        entries("ENVIRONMENT", &owned(VARIABLES)),
        entries("\"EXIT STATUS\"", &codes),
    ]
    .concat()
}

/// Escapes a line of text for a manual page.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Prints the table of exit codes.
pub fn exit_codes() -> Result<Exit, Failure> {
    Out::print(|out| out.bytes(Exit::markdown_table().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_the_first_has_the_exit_codes() {
        let dir = tempfile::tempdir().unwrap();
        man(&Man { dir: dir.path().join("man") }).unwrap();
        let page = |name: &str| fs::read_to_string(dir.path().join("man").join(name)).unwrap();
        // All codes were in one filled paragraph, below a heading that manual pages do not have.
        let first = page("kithfs.1");
        assert!(
            first.contains(".SH \"EXIT STATUS\"\n.TP\n0\n")
                && first.contains(".TP\n13\nthe mount is busy"),
            "{first}"
        );
        assert!(!first.contains("EXTRA") && first.contains(".SH VERSION"));
        assert!(page("kithfs-mount.1").contains("nosuid"));
        assert!(!dir.path().join("man/kithfs-help.1").exists());
        // The synopsis was `[-o ]` without the value, and `[PATH]` for any number of paths.
        for (name, usage) in [
            ("kithfs-mount.1", "[OPTIONS] <VAULT> <MOUNTPOINT>"),
            ("kithfs-cat.1", "[OPTIONS] <VAULT[/PATH]> [PATH]..."),
            ("kithfs-export.1", "[OPTIONS] <VAULT[/PATH]> [PATH] <DIR>"),
            ("kithfs-vaults-add.1", "[OPTIONS] <NAME> <VAULT> <MOUNTPOINT>"),
        ] {
            let page = page(name);
            let synopsis = page.split_once(".SH SYNOPSIS\n").unwrap().1.lines().next().unwrap();
            assert!(synopsis.replace('\\', "").ends_with(usage), "{synopsis}");
        }
        // mount.kithfs(8) is a link to this page, which did not name mount(8).
        assert!(page("kithfs-mount.1").contains("mount \\-t kithfs VAULT MOUNTPOINT"));
        assert!(!page("kithfs-open.1").contains("FSTAB"));
        assert!(page("kithfs-passphrase-change.1").contains("recovery"));
        // The manual had a variable that the pages had not.
        let manual = include_str!("../../../../docs/MANUAL.md");
        for word in manual.split(|c: char| !c.is_ascii_uppercase() && c != '_') {
            let is_listed = VARIABLES.iter().any(|(name, _)| *name == word);
            assert!(is_listed || !word.starts_with("KITHFS_"), "{word} is on no page");
        }
        for name in ["kithfs.1", "kithfs-mount.1", "kithfs-identity-new.1"] {
            for section in ["EXAMPLES", "FILES", "ENVIRONMENT"] {
                assert!(page(name).contains(&format!(".SH {section}\n.TP\n")), "{name}: {section}");
            }
        }
        assert!(page("kithfs-mount.1").contains("kithfs mount \\-\\-idle 10m ~/vault ~/plain"));
    }
}
