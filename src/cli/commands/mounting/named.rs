//! `kithfs open`, `close` and `vaults`: vaults by their names.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Parser};
use serde::Serialize;

use super::open_vaults::{each, mounted};
use super::{mount, umount};
use crate::cli::args::named::{AddVault, Close, Open, SetVault, VaultsCommand};
use crate::cli::args::{Cli, Command, LogLevel, Mount, MountSettings, Umount, help};
use crate::cli::daemon::registry::Registry;
use crate::cli::display::{JsonPath, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note};
use crate::cli::terminal::stdout::Out;
use crate::cli::user::named::{self, Named, OPTIONS, Setting};
use crate::cli::vaults::open::locate;
use crate::fuse::MountOptions;

/// Opens a named vault. One that is open already stays as it is.
pub fn open(args: &Open, level: LogLevel) -> Result<Exit, Failure> {
    let named = named::find(&args.name)?;
    if let Some(entry) = mounted(&named) {
        note(format_args!("{} is already open on {}", args.name, shown(&entry.mountpoint.0)));
        return Ok(Exit::Ok);
    }
    check_stored(&named)?;
    if let Err(error @ Error::VaultMissing(_)) = locate(&named.vault) {
        return Err(Failure::from(error).hint(format_args!(
            "connect its disk, or say where it is now: kithfs vaults set {} --vault VAULT",
            args.name
        )));
    }
    let given = given(&own_matches())?;
    let mount = Mount { foreground: args.foreground, ..mount_arguments(&named, &given)? };
    mount::run(&mount, level)
}

/// Closes named vaults, or all open ones.
pub fn close(args: &Close) -> Result<Exit, Failure> {
    let failed = |source| Error::Os { op: "read the list of mounts", source };
    let mut points: Vec<PathBuf> = Vec::new();
    if args.all {
        let mut live = Registry::open().and_then(|registry| registry.live()).map_err(failed)?;
        // A vault inside the mount of another one is closed first.
        live.reverse();
        points.extend(live.into_iter().map(|entry| entry.mountpoint.0));
    }
    for name in &args.names {
        let named = named::find(name)?;
        // Its stored mount point may have changed since it was mounted.
        points.push(mounted(&named).map_or(named.mountpoint, |entry| entry.mountpoint.0));
    }
    each(points, |mountpoint| umount::run(&Umount { lazy: args.lazy, mountpoint }))
}

/// Lists, adds, removes or changes named vaults.
pub fn vaults(command: &VaultsCommand) -> Result<Exit, Failure> {
    match command {
        VaultsCommand::List(args) => return list(args.json),
        VaultsCommand::Add(AddVault { name, vault, mountpoint, .. }) => {
            let named = Named {
                name: name.clone(),
                vault: named::absolute(vault)?,
                mountpoint: named::absolute(mountpoint)?,
                settings: given(&own_matches())?,
            };
            mount_arguments(&named, &[])?;
            named::add(&named)?;
            note(format_args!("open it: kithfs open {name}"));
        }
        VaultsCommand::Remove(args) => named::remove(&args.names)?,
        VaultsCommand::Set(args) => set(args)?,
    }
    Ok(Exit::Ok)
}

fn set(args: &SetVault) -> Result<(), Failure> {
    let over = given(&own_matches())?;
    named::update(&args.name, |named| {
        if let Some(vault) = &args.vault {
            named.vault = named::absolute(vault)?;
        }
        if let Some(mountpoint) = &args.mountpoint {
            named.mountpoint = named::absolute(mountpoint)?;
        }
        for option in &args.unset {
            let key = option.trim_start_matches('-');
            let key = if key == "o" { OPTIONS } else { key };
            let before = named.settings.len();
            named.settings.retain(|(other, _)| other != key);
            if named.settings.len() == before {
                let name = &args.name;
                return Err(Error::Usage(format!("set {name}: it has no option {key}")).into());
            }
        }
        let mut settings = kept(named, &over);
        check_stored(&Named { settings: settings.clone(), ..named.clone() })?;
        settings.extend(over);
        named.settings = settings;
        mount_arguments(named, &[])?;
        Ok(())
    })
}

/// A named vault. The names of the fields are stable.
#[derive(Serialize)]
struct Line {
    name: String,
    vault: JsonPath,
    mountpoint: JsonPath,
    options: Vec<String>,
}

fn list(json: bool) -> Result<Exit, Failure> {
    let line = |named: Named| Line {
        options: options(&named, &[]),
        vault: JsonPath(named.vault),
        mountpoint: JsonPath(named.mountpoint),
        name: named.name,
    };
    let all = named::load()?;
    report_wrong_options(&all);
    let lines: Vec<Line> = all.into_iter().map(line).collect();
    Out::report(json, &lines, |out| {
        lines.iter().try_for_each(|line| {
            let (vault, mountpoint) = (shown(&line.vault.0), shown(&line.mountpoint.0));
            let options: String = line.options.iter().map(|option| format!(" {option}")).collect();
            out.text(format_args!("{}: {vault} on {mountpoint}{options}\n", line.name))
        })
    })
}

/// Returns the arguments of `kithfs mount` that open a named vault. The settings `over` replace its
/// own.
fn arguments(named: &Named, over: &[Setting]) -> Vec<OsString> {
    let mut arguments = vec![OsString::from("mount")];
    arguments.extend(options(named, over).into_iter().map(OsString::from));
    arguments.extend(["--".into(), named.vault.clone().into(), named.mountpoint.clone().into()]);
    arguments
}

fn options(named: &Named, over: &[Setting]) -> Vec<String> {
    let mut options = Vec::new();
    for (key, values) in kept(named, over).iter().chain(over) {
        if values.is_empty() {
            options.push(format!("--{key}"));
        }
        for value in values {
            let option = if key == OPTIONS { "-o".to_owned() } else { format!("--{key}=") };
            options.push(option + value);
        }
    }
    options
}

/// Parses the settings of a named vault as arguments of `kithfs mount`.
///
/// # Errors
/// One of them is not valid.
fn mount_arguments(named: &Named, over: &[Setting]) -> Result<Mount, Failure> {
    let invalid = |why| Error::Usage(format!("vault {}: {why}", named.name));
    Ok(parsed(named, over).map_err(invalid)?)
}

/// Parses the arguments of `mount`, or returns what is wrong with them.
fn parsed(named: &Named, over: &[Setting]) -> Result<Mount, String> {
    let words = [OsString::from("kithfs")].into_iter().chain(arguments(named, over));
    let mount = match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(Command::Mount(mount)) => mount,
        Ok(_) => unreachable!("the arguments begin with `mount`"),
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            return Err(line.strip_prefix("error: ").unwrap_or(line).to_owned());
        }
    };
    let mut options = MountOptions::default();
    let mut lists = mount.how.options.iter();
    lists.try_for_each(|list| options.parse(list)).map_err(|error| error.to_string())?;
    Ok(mount)
}

/// Reports for each vault the first option that `open` would refuse.
pub fn report_wrong_options(all: &[Named]) {
    all.iter().filter_map(|named| check_stored(named).err()).for_each(|failure| failure.print());
}

/// Checks the settings of a named vault that are stored in the file, each one and all together.
///
/// # Errors
/// The first setting that is not valid, with its line in the file.
fn check_stored(named: &Named) -> Result<(), Failure> {
    let command = MountSettings::augment_args(clap::Command::new("mount"));
    let is_option = |key: &str| {
        key == OPTIONS || command.get_arguments().any(|argument| argument.get_long() == Some(key))
    };
    let invalid = |key: &str, what| -> Failure {
        named::invalid_setting(&named.name, key, what).unwrap_or_else(|error| error).into()
    };
    for setting in &named.settings {
        let key = &setting.0;
        if !is_option(key) {
            let what = format!("{key} is not an option of `kithfs mount`");
            return Err(invalid(key, what));
        }
        let alone = Named { settings: vec![setting.clone()], ..named.clone() };
        parsed(&alone, &[]).map_err(|what| invalid(key, what))?;
    }
    let last = named.settings.last().map_or("", |(key, _)| key);
    parsed(named, &[]).map(drop).map_err(|what| invalid(last, what))
}

/// Returns the settings of a named vault that those in `over` do not replace. A setting replaces an
/// older one of the same name, and a source of the secret replaces every other source.
fn kept(named: &Named, over: &[Setting]) -> Vec<Setting> {
    let mut command = MountSettings::augment_args(clap::Command::new("mount"));
    // Collects the members of the groups.
    command.build();
    let secrets = command.get_groups().find(|group| group.get_id() == "secret");
    let is_secret = |key: &str| {
        let found = command.get_arguments().find(|argument| argument.get_long() == Some(key));
        let id = found.map(clap::Arg::get_id);
        secrets.is_some_and(|group| group.get_args().any(|other| Some(other) == id))
    };
    let is_replaced = |key: &str| {
        over.iter().any(|(other, _)| other == key || is_secret(other) && is_secret(key))
    };
    named.settings.iter().filter(|(key, _)| !is_replaced(key)).cloned().collect()
}

/// Returns the matches of the command that this process runs.
fn own_matches() -> ArgMatches {
    let mut matches = help::command().get_matches();
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    matches
}

/// Returns the options of `kithfs mount` that are on the command line, with absolute paths.
///
/// # Errors
/// A value is not UTF-8.
fn given(matches: &ArgMatches) -> Result<Vec<Setting>, Error> {
    let mut settings = Vec::new();
    for argument in MountSettings::augment_args(clap::Command::new("mount")).get_arguments() {
        let id = argument.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let text = |value: &OsStr| match Path::new(value) {
            path if is_path && value != "-" => named::checked(&named::absolute(path)?),
            path => named::checked(path),
        };
        let takes_values = argument.get_action().takes_values();
        let raw = matches.get_raw(id).into_iter().flatten().filter(|_| takes_values);
        let values = raw.map(text).collect::<Result<_, _>>()?;
        settings.push((argument.get_long().unwrap_or(OPTIONS).to_owned(), values));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &str, values: &[&str]) -> Setting {
        (key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect())
    }

    #[test]
    fn given_settings_replace_stored_ones() {
        let named = Named {
            name: "photos".into(),
            vault: "/v".into(),
            mountpoint: "/m".into(),
            settings: vec![
                setting("read-only", &[]),
                setting("idle", &["600"]),
                setting(OPTIONS, &["noatime", "nodev"]),
                setting("passphrase-command", &["pass show v"]),
            ],
        };
        let words = |over: &[Setting]| {
            let words = arguments(&named, over).into_iter();
            words.map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            words(&[]),
            "mount --read-only --idle=600 -onoatime -onodev --passphrase-command=pass show v -- /v /m"
        );
        // There is one source of the secret.
        let over = [setting("idle", &["1h"]), setting("key-file", &["/k"])];
        assert_eq!(
            words(&over),
            "mount --read-only -onoatime -onodev --idle=1h --key-file=/k -- /v /m"
        );
        assert!(mount_arguments(&named, &over).is_ok());
        let failure = mount_arguments(&named, &[setting("made-up", &["x"])]).err().unwrap();
        assert!(failure.message.starts_with("vault photos: unexpected argument"), "{failure:?}");
    }
}
