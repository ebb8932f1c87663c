//! Mount options: what follows `-o`.
//!
//! Rules that hold here
//! * An option that is not known is an error, never passed on.
//! * Commas separate the options. In a value, a comma is written `\,` and a backslash `\\`.
//! * A value never becomes an option: `mount(2)` takes the source as a separate argument, and for
//!   `fusermount3` commas and backslashes are escaped again.

use std::time::Duration;

use rustix::mount::MountFlags;

use crate::fuse::settings::Permissions;

/// Type that the mount shows in `/proc/mounts` after `fuse.`.
pub const SUBTYPE: &str = "kithfs";

/// Largest READ in bytes.
const MAX_READ: u32 = 1 << 20;

/// Owners and permission bits that are shown instead of the stored ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Show this user as the owner of everything.
    pub uid: Option<u32>,
    /// Show this group.
    pub gid: Option<u32>,
    /// Hide these permission bits.
    pub umask: u32,
}

impl View {
    /// Returns whether everything is shown as it is stored.
    pub fn is_plain(&self) -> bool {
        *self == View::default()
    }
}

/// An unknown or invalid mount option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown mount option {0:?}")]
    Unknown(String),
    /// The option exists, but its value or the combination is not allowed.
    #[error("mount option {option:?}: {why}")]
    Bad {
        /// As it was given.
        option: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Source that `/proc/mounts` shows, otherwise [`SUBTYPE`]; usually the path of the vault.
    pub fsname: Option<String>,
    /// Type that `/proc/mounts` shows after `fuse.`, otherwise [`SUBTYPE`].
    pub subtype: Option<String>,
    /// Users other than the mounting one may use the mount.
    pub allow_other: bool,
    /// `allow_other` is permitted even if another user owns the store or may write to it.
    pub allow_foreign_store: bool,
    /// Whether the kernel checks permissions; `None` if no option sets it (see
    /// [`MountOptions::permissions`]).
    pub default_permissions: Option<bool>,
    /// The mount allows no changes.
    pub read_only: bool,
    /// suid and sgid bits work.
    pub suid: bool,
    /// Device nodes work.
    pub dev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Writes go to the disk at once.
    pub sync: bool,
    /// Directory changes go to the disk at once.
    pub dirsync: bool,
    /// Reading does not change access times of files. FUSE leaves access times to the daemon, which
    /// shows those of the store.
    pub noatime: bool,
    /// Passed on to the kernel, and without effect: FUSE leaves access times to the daemon.
    pub nodiratime: bool,
    /// The mount point may have entries, which the mount hides.
    pub nonempty: bool,
    /// Other daemons may have the vault mounted for writing at the same time.
    pub shared: bool,
    /// How owners and modes are shown.
    pub view: View,
    /// Whether requests come over io_uring if the kernel offers it; `None` without `uring` and
    /// `nouring`.
    pub uring: Option<bool>,
    /// Over io_uring: the limit on memory for requests in progress, in MiB.
    pub uring_memory: Option<u32>,
    /// How long the mount may be unused before it is unmounted.
    pub idle: Option<Duration>,
}

/// Splits a list at its commas and removes the escapes. A backslash before any other character is
/// kept.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ',' => options.push(String::new()),
            '\\' => options
                .last_mut()
                .expect("never empty")
                .push(chars.next_if(|next| matches!(next, ',' | '\\')).unwrap_or('\\')),
            c => options.last_mut().expect("never empty").push(c),
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

/// Puts a backslash before each comma and backslash, as `fusermount3` expects.
fn escape(value: &str) -> String {
    value
        .chars()
        .flat_map(|c| matches!(c, ',' | '\\').then_some('\\').into_iter().chain([c]))
        .collect()
}

/// Parses a time such as `10m` or `1h 30m`, or a number of seconds. Returns `None` for 0, which
/// means never.
///
/// # Errors
/// The text is no such time, or the time is shorter than a second.
pub fn parse_idle(text: &str) -> Result<Option<Duration>, &'static str> {
    let parsed = text.parse().map(Duration::from_secs).or_else(|_| humantime::parse_duration(text));
    match parsed {
        Ok(Duration::ZERO) => Ok(None),
        Ok(time) if time >= Duration::from_secs(1) => Ok(Some(time)),
        Ok(_) => Err("less than a second"),
        Err(_) => Err("not a time such as 10m, 1h30m, or a number of seconds"),
    }
}

impl MountOptions {
    /// Applies the options of one `-o`. A later option overrides an earlier one.
    pub fn parse(&mut self, list: &str) -> Result<(), OptionError> {
        split(list).iter().try_for_each(|option| self.set(option))
    }

    /// Checks that the options may be combined. The kernel opens devices without asking the daemon.
    /// If it leaves permission checks to the daemon, every user who can reach a device can open it.
    ///
    /// # Errors
    /// `dev` is set in a mount with `allow_other` in which the daemon checks permissions.
    pub fn check(&self) -> Result<(), OptionError> {
        if self.dev && self.allow_other && !self.kernel_decides() {
            let why =
                "with allow_other and no_default_permissions every user could open every device";
            return Err(OptionError::Bad { option: "dev".to_owned(), why });
        }
        Ok(())
    }

    fn set(&mut self, option: &str) -> Result<(), OptionError> {
        let bad = |why| OptionError::Bad { option: option.to_owned(), why };
        if let Some((name, value)) = option.split_once('=') {
            let id = || {
                value
                    .parse::<u32>()
                    .ok()
                    .filter(|&id| id != u32::MAX)
                    .ok_or_else(|| bad("not the number of a user or group"))
            };
            match name {
                "fsname" if value.contains(['\n', '\0']) => {
                    return Err(bad("has a line end or a zero byte"));
                }
                "fsname" => self.fsname = Some(value.to_owned()),
                "subtype"
                    if value.is_empty()
                        || !value
                            .bytes()
                            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) =>
                {
                    return Err(bad("not a type of letters, digits, `.`, `_` and `-`"));
                }
                "subtype" => self.subtype = Some(value.to_owned()),
                "uid" => self.view.uid = Some(id()?),
                "gid" => self.view.gid = Some(id()?),
                "uring_memory" => {
                    let mib = value.parse().ok().filter(|mib| (1..=65536).contains(mib));
                    self.uring_memory =
                        Some(mib.ok_or_else(|| bad("not a number of MiB from 1 to 65536"))?);
                }
                "idle" => self.idle = parse_idle(value).map_err(bad)?,
                "umask" => {
                    let umask = u32::from_str_radix(value, 8).ok().filter(|&umask| umask <= 0o777);
                    self.view.umask = umask.ok_or_else(|| bad("not an octal number up to 777"))?;
                }
                _ => return Err(OptionError::Unknown(option.to_owned())),
            }
            return Ok(());
        }
        match option {
            "defaults" => {}
            "allow_other" => self.allow_other = true,
            "allow_foreign_store" => self.allow_foreign_store = true,
            "default_permissions" => self.default_permissions = Some(true),
            "no_default_permissions" => self.default_permissions = Some(false),
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "noatime" => self.noatime = true,
            "atime" => self.noatime = false,
            "nodiratime" => self.nodiratime = true,
            "diratime" => self.nodiratime = false,
            "nonempty" => self.nonempty = true,
            "shared" => self.shared = true,
            "uring" => self.uring = Some(true),
            "nouring" => self.uring = Some(false),
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }

    /// Returns whether the kernel checks permissions, and not the daemon. By default the daemon
    /// does so in a mount that only root may enter: there is nothing to refuse.
    fn kernel_decides(&self) -> bool {
        self.default_permissions
            .unwrap_or(self.allow_other || !rustix::process::geteuid().is_root())
    }

    /// Returns whether the kernel or the daemon checks permissions.
    pub fn permissions(&self) -> Permissions {
        if self.kernel_decides() { Permissions::Kernel } else { Permissions::Daemon }
    }

    /// Returns the source for mount(2).
    pub fn source(&self) -> &str {
        self.fsname.as_deref().unwrap_or(SUBTYPE)
    }

    /// Returns the filesystem type for mount(2).
    pub fn fstype(&self) -> String {
        format!("fuse.{}", self.subtype())
    }

    fn subtype(&self) -> &str {
        self.subtype.as_deref().unwrap_or(SUBTYPE)
    }

    /// Returns the flags for mount(2).
    pub fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags.set(MountFlags::NOATIME, self.noatime);
        flags.set(MountFlags::NODIRATIME, self.nodiratime);
        flags
    }

    /// Returns the data string for mount(2). Numbers are the only values of the user in it.
    pub fn data(&self, fd: i32, root_mode: u32, uid: u32, gid: u32) -> String {
        let ids = format!("fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid}");
        self.with_words(ids, &[])
    }

    /// Returns the list for `fusermount3 -o`.
    pub fn for_fusermount(&self) -> String {
        let names = format!("fsname={},subtype={}", escape(self.source()), self.subtype());
        let words = [
            (self.read_only, "ro"),
            (self.suid, "suid"),
            (!self.suid, "nosuid"),
            (self.dev, "dev"),
            (!self.dev, "nodev"),
            (self.noexec, "noexec"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.noatime, "noatime"),
            (self.nodiratime, "nodiratime"),
        ];
        self.with_words(names, &words)
    }

    /// Adds to a list the options of every mount, and the words that are on.
    fn with_words(&self, list: String, words: &[(bool, &str)]) -> String {
        let always =
            [(self.kernel_decides(), "default_permissions"), (self.allow_other, "allow_other")];
        let words = always.iter().chain(words).filter(|(on, _)| *on).map(|(_, word)| *word);
        words.fold(format!("{list},max_read={MAX_READ}"), |list, word| list + "," + word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.parse(list).map(|()| options)
    }

    #[test]
    fn the_usual_options() {
        let options = parsed("ro,allow_other,dev,suid,noexec,noatime,fsname=/v,subtype=x.y,uid=7,gid=8,umask=027,,defaults").unwrap();
        assert!(
            options.read_only
                && options.allow_other
                && options.dev
                && options.suid
                && options.noexec
                && options.noatime
        );
        assert_eq!((options.source(), options.fstype().as_str()), ("/v", "fuse.x.y"));
        assert_eq!(options.view, View { uid: Some(7), gid: Some(8), umask: 0o27 });
        assert!(!parsed("ro,rw,suid,nosuid").unwrap().read_only);
        assert_eq!(options.flags(), MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOATIME);
    }

    #[test]
    fn the_kernel_checks_permissions_unless_only_root_may_enter() {
        let is_root = rustix::process::geteuid().is_root();
        for (list, kernel) in [
            ("", !is_root),
            ("allow_other", true),
            ("default_permissions", true),
            ("allow_other,no_default_permissions", false),
            ("no_default_permissions,default_permissions", true),
        ] {
            let options = parsed(list).unwrap();
            assert_eq!(options.permissions() == Permissions::Kernel, kernel, "{list}");
            assert_eq!(
                options.data(3, 0o40000, 0, 0).contains("default_permissions"),
                kernel,
                "{list}"
            );
            assert_eq!(options.for_fusermount().contains("default_permissions"), kernel, "{list}");
        }
    }

    #[test]
    fn dev_with_allow_other_requires_the_kernels_checks() {
        // The kernel opens devices without asking the daemon. Without `default_permissions` every
        // user who can reach a device of mode 0600 could open it.
        for (list, fits) in [
            ("allow_other,no_default_permissions,dev", false),
            ("allow_other,no_default_permissions,dev,nodev", true),
            ("allow_other,dev", true),
            ("no_default_permissions,dev", true),
        ] {
            assert_eq!(parsed(list).unwrap().check().is_ok(), fits, "{list}");
        }
    }

    #[test]
    fn io_uring_options_are_not_passed_to_the_kernel() {
        let options = parsed("uring,uring_memory=16").unwrap();
        assert_eq!((options.uring, options.uring_memory), (Some(true), Some(16)));
        assert!(
            !options.for_fusermount().contains("uring")
                && !options.data(3, 0o40000, 0, 0).contains("uring")
        );
        assert_eq!(parsed("uring,nouring").unwrap().uring, Some(false));
    }

    #[test]
    fn idle_takes_a_time_or_a_number_of_seconds() {
        for (list, idle) in
            [("idle=10m", 600), ("idle=1h30m", 5400), ("idle=90", 90), ("idle=5m,idle=2h", 7200)]
        {
            let options = parsed(list).unwrap();
            assert_eq!(options.idle, Some(Duration::from_secs(idle)), "{list}");
            assert!(
                !options.for_fusermount().contains("idle")
                    && !options.data(3, 0o40000, 0, 0).contains("idle")
            );
        }
        assert_eq!(
            (parsed("idle=5m,idle=0").unwrap().idle, parsed("").unwrap().idle),
            (None, None)
        );
        for bad in ["idle=", "idle=-1", "idle=10ms", "idle=m", "idle=99999999999999999999h"] {
            assert!(matches!(parsed(bad), Err(OptionError::Bad { .. })), "{bad}");
        }
    }

    #[test]
    fn unknown_and_malformed_options_are_refused() {
        assert_eq!(parsed("ro,user_xyz").unwrap_err(), OptionError::Unknown("user_xyz".into()));
        assert_eq!(parsed("fd=3").unwrap_err(), OptionError::Unknown("fd=3".into()));
        assert_eq!(parsed("ro=1").unwrap_err(), OptionError::Unknown("ro=1".into()));
        for bad in [
            "uid=-1",
            "uid=4294967295",
            "gid=",
            "umask=8",
            "umask=1777",
            "subtype=a b",
            "subtype=",
            "fsname=a\nb",
            "uring_memory=0",
        ] {
            assert!(matches!(parsed(bad), Err(OptionError::Bad { .. })), "{bad}");
        }
    }

    /// fuser 0.18 passes `fsname` on without escaping it, so `FSName("x,allow_other,suid")` sets
    /// two more options.
    #[test]
    fn a_comma_in_the_name_of_the_source_adds_no_option() {
        let options = parsed(r"fsname=/v\,allow_other\,suid\\,default_permissions").unwrap();
        assert_eq!(options.source(), r"/v,allow_other,suid\");
        assert!(!options.allow_other && !options.suid);
        assert!(!options.data(3, 0o40000, 0, 0).contains("allow_other"));
        let list = options.for_fusermount();
        assert!(
            list.starts_with(r"fsname=/v\,allow_other\,suid\\,subtype=kithfs,max_read=1048576,default_permissions,nosuid,nodev"),
            "{list}"
        );
    }

    proptest! {
        #[test]
        fn any_name_of_the_source_survives_escaping(name in "[^\n\0]+") {
            let mut options = MountOptions::default();
            options.parse(&format!("fsname={},ro", escape(&name))).unwrap();
            prop_assert_eq!(options.source(), name);
            prop_assert!(options.read_only && !options.allow_other);
        }
    }
}
