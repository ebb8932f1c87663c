//! Mount options: what follows `-o`.
//!
//! Rules that hold here
//! * An option that is not known is an error, never passed on.
//! * The list is separated by commas; `\,` and `\\` stand for a comma and a backslash in a value. A
//!   value never becomes an option: for `mount(2)` the name of the source is an argument of its
//!   own, for `fusermount3` both characters are escaped again.

use std::time::Duration;

use rustix::mount::MountFlags;

use crate::fuse::settings::Permissions;

/// Type that the mount shows in `/proc/mounts` after `fuse.`.
pub const SUBTYPE: &str = "kithfs";

/// How owners and modes are shown, whatever the store says.
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
    /// True where everything is shown as it is.
    pub fn is_plain(&self) -> bool {
        *self == View::default()
    }
}

/// An option that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown mount option {0:?}")]
    Unknown(String),
    /// The option exists, but not like this.
    #[error("mount option {option:?}: {why}")]
    Bad {
        /// As it was given.
        option: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Source that `/proc/mounts` shows; usually the path of the vault.
    pub fsname: String,
    /// Type that `/proc/mounts` shows, after `fuse.`.
    pub subtype: String,
    /// Users other than the one that mounts may use it.
    pub allow_other: bool,
    /// Also where another user owns the store, or may write to it.
    pub allow_foreign_store: bool,
    /// Whether the kernel checks permissions; `None` where it is not said: see
    /// [`MountOptions::permissions`].
    pub default_permissions: Option<bool>,
    /// No changes.
    pub read_only: bool,
    /// suid and sgid bits work.
    pub suid: bool,
    /// Device nodes work.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Writes go to the disk at once.
    pub sync: bool,
    /// Directory changes go to the disk at once.
    pub dirsync: bool,
    /// Access times of files are not changed by reading. FUSE leaves them to the daemon, and they
    /// are those of the store.
    pub noatime: bool,
    /// For the kernel; what FUSE does anyway.
    pub nodiratime: bool,
    /// The mount point may have entries, which the mount hides.
    pub nonempty: bool,
    /// Others have the vault mounted for writing at the same time.
    pub shared: bool,
    /// How owners and modes are shown.
    pub view: View,
    /// Largest READ in bytes.
    pub max_read: u32,
    /// Requests are to come over io_uring where the kernel offers it.
    pub uring: bool,
    /// Then: the most memory for requests under way, in MiB.
    pub uring_memory: Option<u32>,
    /// How long the mount may be unused before it is unmounted.
    pub idle: Option<Duration>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            fsname: SUBTYPE.to_owned(),
            subtype: SUBTYPE.to_owned(),
            allow_other: false,
            allow_foreign_store: false,
            default_permissions: None,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            sync: false,
            dirsync: false,
            noatime: false,
            nodiratime: false,
            nonempty: false,
            shared: false,
            view: View::default(),
            max_read: 1 << 20,
            uring: false,
            uring_memory: None,
            idle: None,
        }
    }
}

/// Splits a list at its commas and takes the escapes away. A backslash before anything else stands
/// for itself.
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

/// Puts a backslash before each comma and backslash, as `fusermount3` wants it.
fn escape(value: &str) -> String {
    value
        .chars()
        .flat_map(|c| matches!(c, ',' | '\\').then_some('\\').into_iter().chain([c]))
        .collect()
}

/// A time such as `10m` or `1h 30m`, or a number of seconds; `None` for 0, which means never.
///
/// # Errors
/// It is no such time, or less than a second.
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
    /// Takes the options of one `-o`; later ones win over earlier ones.
    pub fn parse(&mut self, list: &str) -> Result<(), OptionError> {
        split(list).iter().try_for_each(|option| self.set(option))
    }

    /// Checks that the options fit together. The kernel alone decides whether a device may be
    /// opened: if it leaves permissions to the daemon, every user who reaches a device can open it.
    ///
    /// # Errors
    /// `dev` in a mount that others may enter and where the daemon decides.
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
                "fsname" => self.fsname = value.to_owned(),
                "subtype"
                    if value.is_empty()
                        || !value
                            .bytes()
                            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) =>
                {
                    return Err(bad("not a type of letters, digits, `.`, `_` and `-`"));
                }
                "subtype" => self.subtype = value.to_owned(),
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
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "noatime" => self.noatime = true,
            "atime" => self.noatime = false,
            "nodiratime" => self.nodiratime = true,
            "diratime" => self.nodiratime = false,
            "nonempty" => self.nonempty = true,
            "shared" => self.shared = true,
            "uring" => self.uring = true,
            "nouring" => self.uring = false,
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }

    /// Whether the kernel checks permissions, rather than the daemon. Where nobody may enter but
    /// root, there is nothing to refuse.
    fn kernel_decides(&self) -> bool {
        self.default_permissions
            .unwrap_or(self.allow_other || !rustix::process::geteuid().is_root())
    }

    /// Whether the kernel or the daemon checks permissions.
    pub fn permissions(&self) -> Permissions {
        if self.kernel_decides() { Permissions::Kernel } else { Permissions::Daemon }
    }

    /// Type for mount(2).
    pub fn fstype(&self) -> String {
        format!("fuse.{}", self.subtype)
    }

    /// Flags for mount(2).
    pub fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags.set(MountFlags::NOATIME, self.noatime);
        flags.set(MountFlags::NODIRATIME, self.nodiratime);
        flags
    }

    /// The data string for mount(2). No value in it comes from the user but numbers.
    pub fn data(&self, fd: i32, root_mode: u32, uid: u32, gid: u32) -> String {
        let mut data = format!(
            "fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid},max_read={}",
            self.max_read
        );
        for (name, on) in
            [("default_permissions", self.kernel_decides()), ("allow_other", self.allow_other)]
        {
            if on {
                data.push(',');
                data.push_str(name);
            }
        }
        data
    }

    /// The list for `fusermount3 -o`.
    pub fn for_fusermount(&self) -> String {
        let mut list = format!(
            "fsname={},subtype={},max_read={}",
            escape(&self.fsname),
            self.subtype,
            self.max_read
        );
        let words = [
            (self.kernel_decides(), "default_permissions"),
            (self.allow_other, "allow_other"),
            (self.read_only, "ro"),
            (self.suid, "suid"),
            (!self.suid, "nosuid"),
            (self.dev, "dev"),
            (!self.dev, "nodev"),
            (!self.exec, "noexec"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.noatime, "noatime"),
            (self.nodiratime, "nodiratime"),
        ];
        for word in words.iter().filter_map(|&(on, word)| on.then_some(word)) {
            list.push(',');
            list.push_str(word);
        }
        list
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
                && !options.exec
                && options.noatime
        );
        assert_eq!((options.fsname.as_str(), options.fstype().as_str()), ("/v", "fuse.x.y"));
        assert_eq!(options.view, View { uid: Some(7), gid: Some(8), umask: 0o27 });
        assert!(!parsed("ro,rw,suid,nosuid").unwrap().read_only);
        assert_eq!(options.flags(), MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOATIME);
    }

    #[test]
    fn who_decides_hangs_on_who_may_enter_unless_it_is_said() {
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
    fn devices_are_not_for_everybody() {
        // The kernel does not ask the daemon about them: without `default_permissions` every user
        // who reached a device of mode 0600 could open it.
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
    fn io_uring_is_our_own_business() {
        let options = parsed("uring,uring_memory=16").unwrap();
        assert!(options.uring && options.uring_memory == Some(16));
        assert!(
            !options.for_fusermount().contains("uring")
                && !options.data(3, 0o40000, 0, 0).contains("uring")
        );
        assert!(!parsed("uring,nouring").unwrap().uring);
    }

    #[test]
    fn how_long_it_may_be_idle() {
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
    fn what_is_not_known_is_refused_by_name() {
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

    /// fuser 0.18 hands `fsname` on as it is, so that `FSName("x,allow_other,suid")` set two more
    /// options.
    #[test]
    fn a_comma_in_the_name_of_the_source_adds_no_option() {
        let options = parsed(r"fsname=/v\,allow_other\,suid\\,default_permissions").unwrap();
        assert_eq!(options.fsname, r"/v,allow_other,suid\");
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
            prop_assert_eq!(options.fsname, name);
            prop_assert!(options.read_only && !options.allow_other);
        }
    }
}
