//! `mount.kithfs`: mount(8) and systemd run the program under this name for `mount -t kithfs VAULT
//! MOUNTPOINT -o ...` and for lines of /etc/fstab. `mount.fuse.kithfs` is the same, for the type
//! that the mount table shows.
//!
//! Rules that hold here
//! * An option is for this helper, for mount(8) alone, or for `kithfs mount -o`, which refuses
//!   unknown ones. `\,` is a comma in a value.
//! * `setuid=USER` takes effect before anything of the vault is touched.
//! * Exit codes are those of mount(8): 1 usage, 2 system error, 32 mount failure.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::unistd::{Uid, User, initgroups, setgid, setuid};
use rustix::fs::OFlags;
use rustix::mount::MountFlags;

use crate::cli::display::{Line, Shown, word};
use crate::fuse::{mounts, place, uring};

/// The names under which the program is this helper.
const NAMES: [&str; 2] = ["mount.kithfs", "mount.fuse.kithfs"];

/// Exit codes of mount(8).
const USAGE: u8 = 1;
const SYSTEM: u8 = 2;
const MOUNT_FAILED: u8 = 32;

/// Where `fusermount3` and passphrase commands are searched for: mount(8) and systemd may start a
/// helper with a nearly empty PATH.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Options that mount(8), fstab and systemd use themselves.
const OF_MOUNT: &[&str] = &[
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "users",
    "nouser",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "nolazytime",
    "loud",
    "silent",
];

/// Options of the kernel that a remount can change: the flag of each, and whether the option sets
/// it.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
];

/// A failure: the exit code and the message.
type Failed = (u8, String);

fn usage() -> Failed {
    let options = "[-sfnv] [-o OPTION[,OPTION...]]";
    (USAGE, format!("usage: mount.kithfs VAULT MOUNTPOINT {options}"))
}

/// Runs the helper if the process was started under its name; `None` if it was not.
pub fn run_as_helper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = PathBuf::from(arguments.next()?);
    if !NAMES.iter().any(|known| name.file_name() == Some(OsStr::new(known))) {
        return None;
    }
    let ran = Asked::parse(arguments).and_then(|asked| asked.run());
    Some(ran.map_or_else(
        |(code, message)| {
            eprintln!("{}", Line(&message));
            ExitCode::from(code)
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// The arguments of the helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    vault: OsString,
    mountpoint: OsString,
    /// Each option with its escapes.
    options: Vec<Vec<u8>>,
    is_fake: bool,
    is_verbose: bool,
}

/// A call of `kithfs mount`, or a remount.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    /// The arguments of the program.
    arguments: Vec<OsString>,
    /// The user of `setuid=`.
    user: Option<String>,
    /// The options in [`FLAGS`] that were named.
    flags: Vec<&'static str>,
    is_remount: bool,
    uring: bool,
}

/// Splits a list at its commas; one after a backslash belongs to a value.
fn split(list: &[u8], into: &mut Vec<Vec<u8>>) {
    let (mut option, mut is_escaped) = (Vec::new(), false);
    for &byte in list {
        if byte == b',' && !is_escaped {
            into.push(std::mem::take(&mut option));
        } else {
            option.push(byte);
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    into.push(option);
    into.retain(|option| !option.is_empty());
}

/// Removes the escapes of commas and backslashes.
fn unescaped(value: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(value.len());
    let mut bytes = value.iter().peekable();
    while let Some(&byte) = bytes.next() {
        let next = (byte == b'\\').then(|| bytes.next_if(|next| matches!(next, b',' | b'\\')));
        plain.push(next.flatten().copied().unwrap_or(byte));
    }
    OsString::from_vec(plain)
}

/// Escapes commas and backslashes.
fn escaped(value: &OsStr) -> Vec<u8> {
    let escape =
        |&byte: &u8| matches!(byte, b',' | b'\\').then_some(b'\\').into_iter().chain([byte]);
    value.as_bytes().iter().flat_map(escape).collect()
}

impl Asked {
    fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Asked, Failed> {
        let mut asked = Asked::default();
        let mut operands = Vec::new();
        while let Some(argument) = arguments.next() {
            match argument.as_bytes() {
                b"--" => {}
                b"-o" => {
                    let list = arguments.next().ok_or_else(usage)?;
                    split(list.as_bytes(), &mut asked.options);
                }
                [b'-', b'o', list @ ..] => split(list, &mut asked.options),
                b"-t" | b"-N" => drop(arguments.next().ok_or_else(usage)?),
                [b'-', flags @ ..] if !flags.is_empty() => {
                    for flag in flags {
                        match flag {
                            b'f' => asked.is_fake = true,
                            b'v' => asked.is_verbose = true,
                            b'r' => asked.options.push(b"ro".to_vec()),
                            b'w' => asked.options.push(b"rw".to_vec()),
                            b's' | b'n' => {}
                            _ => return Err(usage()),
                        }
                    }
                }
                _ => operands.push(argument),
            }
        }
        let [vault, mountpoint] = operands.try_into().map_err(|_| usage())?;
        Ok(Asked { vault, mountpoint, ..asked })
    }

    /// Translates the options.
    fn call(&self) -> Result<Call, Failed> {
        let mut call = Call { arguments: vec!["mount".into()], ..Call::default() };
        let mut passed: Vec<Vec<u8>> = Vec::new();
        for option in &self.options {
            let mut parts = option.splitn(2, |&byte| byte == b'=');
            let name = String::from_utf8_lossy(parts.next().unwrap_or_default());
            let (name, value) = (&*name, parts.next().map(unescaped));
            if let Some((flag, ..)) = FLAGS.iter().find(|(flag, ..)| *flag == name) {
                call.flags.push(flag);
            }
            let own = match name {
                "passphrase_file" => Some("--passphrase-file"),
                "passphrase_command" => Some("--passphrase-command"),
                "key_file" => Some("--key-file"),
                "identity" => Some("--identity"),
                "log_level" => Some("--log-level"),
                "age_identity" => Some("--age-identity"),
                "lock_on" => Some("--lock-on"),
                _ => None,
            };
            match (name, value) {
                (_, Some(value)) if own.is_some() => {
                    call.arguments.extend([own.expect("checked").into(), value]);
                }
                ("setuid", Some(user)) => {
                    let unknown =
                        |user| (USAGE, format!("mount.kithfs: setuid={user:?}: no such user"));
                    call.user = Some(user.into_string().map_err(unknown)?);
                }
                ("remount", None) => call.is_remount = true,
                ("ro", None) => call.arguments.push("--read-only".into()),
                ("user", _) | ("comment", Some(_)) => {}
                (name, _) if OF_MOUNT.contains(&name) => {}
                (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
                // mount(8) takes these two for its own defaults and does not pass them on.
                ("allow_dev", None) => passed.push(b"dev".to_vec()),
                ("allow_suid", None) => passed.push(b"suid".to_vec()),
                (name, _) => {
                    call.uring |= name == "uring";
                    passed.push(option.clone());
                }
            }
        }
        if !passed.iter().any(|option| option.starts_with(b"fsname=")) {
            // As it is spelled in fstab, so that `mount -a` recognizes the mount.
            passed.push([b"fsname=", &*escaped(&self.vault)].concat());
        }
        let list = OsString::from_vec(passed.join(&b','));
        call.arguments.extend(["-o".into(), list, "--".into()]);
        call.arguments.extend([self.vault.clone(), self.mountpoint.clone()]);
        Ok(call)
    }

    fn run(&self) -> Result<(), Failed> {
        let call = self.call()?;
        if self.is_verbose {
            let words =
                call.arguments.iter().map(|argument| Shown(argument.as_bytes()).to_string());
            let words = words.collect::<Vec<_>>().join(" ");
            let what =
                if call.is_remount { format!("remount: {}", call.flags.join(",")) } else { words };
            eprintln!("kithfs {}", Line(&what));
        }
        if self.is_fake {
            return Ok(());
        }
        if call.is_remount {
            return remount(Path::new(&self.mountpoint), &call.flags).map_err(|error| {
                let shown = word(&self.mountpoint);
                (MOUNT_FAILED, format!("mount.kithfs: remount {shown}: {error}"))
            });
        }
        if call.uring {
            enable_uring(Path::new(uring::SWITCH));
        }
        // `kithfs mount` runs in a process of its own: a failure of any kind is one exit code of
        // mount(8).
        let mut command = Command::new("/proc/self/exe");
        command.arg0("kithfs").args(&call.arguments);
        let path = std::env::var("PATH").ok().filter(|path| !path.is_empty());
        command
            .env("PATH", path.map_or(SYSTEM_PATH.into(), |path| format!("{path}:{SYSTEM_PATH}")));
        if let Some(user) = &call.user {
            become_user(user, &mut command)?;
        }
        let status = command
            .status()
            .map_err(|error| (SYSTEM, format!("mount.kithfs: cannot run kithfs: {error}")))?;
        if status.success() { Ok(()) } else { std::process::exit(MOUNT_FAILED.into()) }
    }
}

/// Turns the kernel's switch for io_uring on if it is off. Without it the mount uses `/dev/fuse`.
fn enable_uring(switch: &Path) {
    if fs::read(switch).is_ok_and(|state| state.starts_with(b"N")) {
        let _ = fs::write(switch, "Y");
    }
}

/// Makes this process run as the user `name`, a name or a number, and gives `command` the
/// environment of that user.
fn become_user(name: &str, command: &mut Command) -> Result<(), Failed> {
    let system = |error| (SYSTEM, format!("mount.kithfs: setuid={name}: {error}"));
    let found = match name.parse() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(name),
    };
    let user = found
        .map_err(system)?
        .ok_or_else(|| (USAGE, format!("mount.kithfs: setuid={name}: no such user")))?;
    if Uid::effective() != user.uid {
        let login = CString::new(user.name.as_bytes()).expect("a name has no zero byte");
        initgroups(&login, user.gid)
            .and_then(|()| setgid(user.gid))
            .and_then(|()| setuid(user.uid))
            .map_err(system)?;
    }
    let language = std::env::vars_os().filter(|(name, _)| {
        name == "LANG" || name == "TERM" || name.as_bytes().starts_with(b"LC_")
    });
    command.env_clear().envs(language).env("PATH", SYSTEM_PATH);
    command.env("HOME", &user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
    let runtime = PathBuf::from(format!("/run/user/{}", user.uid));
    if runtime.is_dir() {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    Ok(())
}

/// Changes the options of the kernel in `named`; the mount keeps its other options in [`FLAGS`].
fn remount(mountpoint: &Path, named: &[&str]) -> io::Result<()> {
    let place = mounts::resolve(mountpoint)?;
    let entry = mounts::mount_at(&place)?.filter(|entry| entry.is_kithfs());
    let entry = entry.ok_or_else(|| io::Error::other("no kithfs is mounted there"))?;
    let flags = changed(&entry.options, named);
    let dir = place::open(&place, OFlags::PATH)?;
    Ok(rustix::mount::mount_remount(place::path_of(&dir), flags, c"")?)
}

/// Returns the flags of a mount that has the options `now`, changed by the options `named`. A
/// remount sets all flags again, so those that are not named must be repeated.
fn changed(now: &str, named: &[&str]) -> MountFlags {
    // The mount's own options come first. Those of the filesystem follow, such as `sync`, and begin
    // with `ro` or `rw` too.
    let mut words = now.split(',');
    let first = words.next();
    let kept = first.into_iter().chain(words.filter(|word| !matches!(*word, "ro" | "rw")));
    let mut flags = MountFlags::empty();
    for word in kept.chain(named.iter().copied()) {
        if let Some((_, flag, is_set)) = FLAGS.iter().find(|(name, ..)| *name == word) {
            flags.set(*flag, *is_set);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[&str]) -> Call {
        let asked = Asked::parse(arguments.iter().map(OsString::from)).unwrap();
        asked.call().unwrap()
    }

    fn arguments(given: &[&str]) -> Vec<String> {
        call(given).arguments.into_iter().map(|text| text.into_string().unwrap()).collect()
    }

    #[test]
    fn a_plain_mount_is_passed_on() {
        let plain = ["mount", "-o", "fsname=/vault", "--", "/vault", "/mnt"];
        assert_eq!(arguments(&["/vault", "/mnt"]), plain);
        assert_eq!(arguments(&["/vault", "/mnt", "-o", "rw"]), plain);
    }

    #[test]
    fn secrets_and_read_only_become_options() {
        let options = "ro,passphrase_file=/etc/a b,identity=/id,passphrase_command=pass show x=y,log_level=debug,key_file=/k";
        assert_eq!(
            arguments(&["/v", "/m", "-o", options]),
            [
                "mount",
                "--read-only",
                "--passphrase-file",
                "/etc/a b",
                "--identity",
                "/id",
                "--passphrase-command",
                "pass show x=y",
                "--log-level",
                "debug",
                "--key-file",
                "/k",
                "-o",
                "fsname=/v",
                "--",
                "/v",
                "/m"
            ]
        );
    }

    #[test]
    fn age_identities_and_events_become_options() {
        let options = r"age_identity=/root/key.txt,lock_on=suspend\,logout";
        assert_eq!(
            arguments(&["/v", "/m", "-o", options]),
            [
                "mount",
                "--age-identity",
                "/root/key.txt",
                "--lock-on",
                "suspend,logout",
                "-o",
                "fsname=/v",
                "--",
                "/v",
                "/m"
            ]
        );
    }

    /// Options that concern only mount(8) and fstab are dropped. All others are passed on.
    #[test]
    fn options_of_mount_are_dropped_others_passed_on() {
        let options = "defaults,noauto,nofail,_netdev,users,user=me,x-systemd.automount,x-gvfs-name=a,comment=b,relatime";
        let plain = ["mount", "-o", "fsname=/v", "--", "/v", "/m"];
        assert_eq!(arguments(&["/v", "/m", "-o", options]), plain);
        let options = "allow_other,nodev,nosuid,noexec,uid=1000,made_up";
        let list = "allow_other,nodev,nosuid,noexec,uid=1000,made_up,fsname=/v";
        let passed = ["mount", "-o", list, "--", "/v", "/m"];
        assert_eq!(arguments(&["/v", "/m", "-o", options]), passed);
    }

    /// mount(8) takes `dev` and `suid` for its own defaults and hands neither on: nobody could have
    /// them in fstab.
    #[test]
    fn device_nodes_and_suid_bits_can_be_enabled() {
        let passed = ["mount", "-o", "dev,suid,fsname=/v", "--", "/v", "/m"];
        assert_eq!(arguments(&["/v", "/m", "-o", "rw,allow_dev,allow_suid"]), passed);
    }

    #[test]
    fn lists_and_flags_come_in_any_place() {
        let given =
            ["-n", "/v", "-onodev", "/m", "-sr", "-o", "uid=1", "-t", "fuse.kithfs", "-N", "/n"];
        let passed = ["mount", "--read-only", "-o", "nodev,uid=1,fsname=/v", "--", "/v", "/m"];
        assert_eq!(arguments(&given), passed);
    }

    #[test]
    fn commas_backslashes_and_blanks_stay_in_their_values() {
        assert_eq!(
            arguments(&[r"/v,allow_other\", "/m n"]),
            ["mount", "-o", r"fsname=/v\,allow_other\\", "--", r"/v,allow_other\", "/m n"]
        );
        assert_eq!(
            arguments(&["/v", "/m", "-o", r"passphrase_file=/a\,b\\,ro,fsname=x\,y\\"]),
            [
                "mount",
                "--passphrase-file",
                r"/a,b\",
                "--read-only",
                "-o",
                r"fsname=x\,y\\",
                "--",
                "/v",
                "/m"
            ]
        );
        let odd = "$(touch x) * `y`";
        assert_eq!(
            arguments(&["/v", "/m", "-o", &format!("identity={odd}")]),
            ["mount", "--identity", odd, "-o", "fsname=/v", "--", "/v", "/m"]
        );
        let asked = Asked::parse(
            [&b"/v\xff"[..], b"/m"].map(|b| OsString::from_vec(b.to_vec())).into_iter(),
        );
        let call = asked.unwrap().call().unwrap();
        assert_eq!(call.arguments[2].as_bytes(), b"fsname=/v\xff", "a path that is not UTF-8");
    }

    #[test]
    fn a_user_and_the_transport_are_taken_out() {
        let call = call(&["/v", "/m", "-o", "setuid=ann,uring"]);
        assert_eq!((call.user.as_deref(), call.uring), (Some("ann"), true));
        assert_eq!(call.arguments[2], "uring,fsname=/v");
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in
            [&["/v"][..], &[], &["/v", "/m", "/x"], &["/v", "/m", "-o"], &["/v", "/m", "-z"]]
        {
            assert_eq!(
                Asked::parse(wrong.iter().map(OsString::from)).unwrap_err().0,
                USAGE,
                "{wrong:?}"
            );
        }
    }

    /// `mount -o remount,ro` dropped the flags that the mount had: set-user-ID programs and device
    /// nodes of the vault worked afterwards. Later `sync` and `nodiratime` were dropped.
    #[test]
    fn a_remount_keeps_what_it_does_not_name() {
        let now = "rw,nosuid,nodev,noexec,nodiratime,relatime,rw,sync,user_id=0,group_id=0";
        let kept = MountFlags::NOSUID
            | MountFlags::NODEV
            | MountFlags::NODIRATIME
            | MountFlags::RELATIME
            | MountFlags::SYNCHRONOUS;
        assert_eq!(changed(now, &["ro"]), kept | MountFlags::NOEXEC | MountFlags::RDONLY);
        assert_eq!(changed(now, &["exec", "ro", "rw"]), kept);
        let call = call(&["/v", "/m", "-o", "remount,ro,allow_other,passphrase_file=/p,nosuid"]);
        assert!(call.is_remount);
        assert_eq!(call.flags, ["ro", "nosuid"]);
    }

    #[test]
    fn the_switch_for_io_uring_is_only_turned_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (before, after) in [("N\n", "Y"), ("Y\n", "Y\n")] {
            fs::write(file.path(), before).unwrap();
            enable_uring(file.path());
            assert_eq!(fs::read_to_string(file.path()).unwrap(), after);
        }
        enable_uring(Path::new("/no/such/switch"));
    }
}
