//! `--lock-on`: events of the session lock the vault. python-dbusmock imitates logind and screen
//! lockers, on buses that the test starts.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zbus::{OwnedObjectPath, Variant};

use super::lock::{Daemon, Writer};
use crate::support::bus::{Bus, Restarted, can_mock};
use crate::support::mounted::{Scratch, can_mount, ends_within, expect_code, is_mounted};
use crate::support::people::wait_until;

const LOGIND: &str = "org.freedesktop.login1";
const MAIN: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SESSION: &str = "org.freedesktop.login1.Session";

/// A machine with a system bus and a session bus.
struct Desktop {
    system: Bus,
    session: Bus,
    scratch: Scratch,
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn session_path(id: &str) -> String {
    format!("/org/freedesktop/login1/session/{id}")
}

impl Desktop {
    /// Starts both buses without any service; `None` if that is not possible.
    fn bare() -> Option<Desktop> {
        if !can_mount() || !can_mock() {
            return None;
        }
        let scratch = Scratch::new(&[]);
        let system = Bus::start(scratch.path(), "system-bus");
        let session = Bus::start(scratch.path(), "session-bus");
        Some(Desktop { system, session, scratch })
    }

    /// Starts both buses with logind, two sessions of this user, c1 and c2, and one of another
    /// user.
    fn new() -> Option<Desktop> {
        let mut desktop = Desktop::bare()?;
        desktop.system.mock(&["--system", "--template", "logind"], LOGIND);
        for (id, user) in [("c1", uid()), ("c2", uid()), ("c3", 4321)] {
            let body = (id, "seat0", user, "somebody", true);
            let _: String = desktop.system.control(LOGIND, MAIN, "AddSession", &body);
        }
        Some(desktop)
    }

    fn kithfs(&self, sub: &str) -> Command {
        let mut command = self.scratch.kithfs(sub);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", self.system.address());
        command.env("DBUS_SESSION_BUS_ADDRESS", self.session.address());
        command.env_remove("XDG_SESSION_ID");
        command
    }

    /// Starts a mount in the foreground, from the session `own` if that is not empty.
    fn mount(&self, events: &str, own: &str) -> Daemon {
        let mut command = self.kithfs("mount");
        if !own.is_empty() {
            command.env("XDG_SESSION_ID", own);
        }
        Daemon::start(command, &self.scratch, &[&format!("--lock-on={events}")])
    }

    /// Makes logind announce that the machine is about to sleep.
    fn sleep(&self) {
        prepare_for_sleep(&self.system, true);
    }

    fn remove(&self, session: &str) {
        let path = OwnedObjectPath::try_from(session_path(session)).unwrap();
        let _: () = self.system.control(LOGIND, MAIN, "RemoveObject", &(session_path(session),));
        let args = [Variant::from(session), Variant::from(path)];
        self.system.emit(LOGIND, MAIN, (MANAGER, "SessionRemoved", "so"), &args);
    }
}

/// Asserts that the daemon locks the vault and ends, with this reason in its log.
fn assert_locked(mut daemon: Daemon, why: &str) {
    daemon.says(&format!("locking: {why}"));
    let log = daemon.ended();
    assert!(log.iter().any(|line| line.contains("its keys are wiped")), "{log:#?}");
}

fn prepare_for_sleep(bus: &Bus, begins: bool) {
    bus.emit(LOGIND, MAIN, (MANAGER, "PrepareForSleep", "b"), &[Variant::from(begins)]);
}

/// An inhibitor: what it holds up, the program, its reason, its mode, user and process.
type Inhibitor = (String, String, String, String, u32, u32);

/// Returns the inhibitors that logind lists.
fn inhibitors(bus: &Bus) -> Vec<Inhibitor> {
    bus.call(LOGIND, MAIN, MANAGER, "ListInhibitors", &())
}

#[test]
fn sleep_waits_until_the_vault_is_locked() {
    let Some(desktop) = Desktop::new() else { return };
    let daemon = desktop.mount("suspend", "");
    let delays = inhibitors(&desktop.system);
    let ("sleep", "kithfs", "delay") = (&*delays[0].0, &*delays[0].1, &*delays[0].3) else {
        panic!("{delays:?}");
    };
    assert_eq!(delays.len(), 1, "the check before the passphrase holds none");
    let mut writer = Writer::start(&desktop.scratch.point());
    // A lock takes a while if much data is not written yet.
    std::fs::write(desktop.scratch.point().join("large"), vec![7; 64 << 20]).unwrap();
    prepare_for_sleep(&desktop.system, false);
    assert_eq!(writer.write("more"), "ok");
    desktop.sleep();
    wait_until("sleep may begin", || inhibitors(&desktop.system).is_empty());
    assert!(!is_mounted(&desktop.scratch.point()), "the machine would sleep with an open vault");
    assert_locked(daemon, "the machine is about to sleep");
    assert_eq!(writer.write("late"), "refused");
    writer.end();
    let scratch = &desktop.scratch;
    let file = expect_code(scratch.kithfs("cat").arg(scratch.vault()).arg("file"), 0);
    assert_eq!(file.stdout, b"written\nmore\n");
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

/// Every user may send signals on the system bus, also to one connection.
#[test]
fn signals_that_logind_did_not_send_lock_nothing() {
    let Some(desktop) = Desktop::new() else { return };
    let daemon = desktop.mount("suspend,screen,logout", "c1");
    desktop.system.forge(MAIN, (MANAGER, "PrepareForSleep"), &(true,));
    let own = OwnedObjectPath::try_from(session_path("c1")).unwrap();
    desktop.system.forge(MAIN, (MANAGER, "SessionRemoved"), &("c1", own));
    desktop.system.forge(&session_path("c1"), (SESSION, "Lock"), &());
    desktop.remove("c1");
    assert_locked(daemon, "the session has ended");
}

#[test]
fn the_lock_of_the_screen_locks_the_vault() {
    let Some(mut desktop) = Desktop::new() else { return };
    // `loginctl lock-session` locks the session, without a desktop. A lock of another user's session
    // does not lock the vault.
    let daemon = desktop.mount("screen,suspend", "");
    let _: () = desktop.system.call(LOGIND, &session_path("c3"), SESSION, "Lock", &());
    desktop.sleep();
    assert_locked(daemon, "the machine is about to sleep");
    // The end of sleep does not count either.
    let daemon = desktop.mount("screen,suspend", "");
    prepare_for_sleep(&desktop.system, false);
    let _: () = desktop.system.call(LOGIND, &session_path("c2"), SESSION, "Lock", &());
    assert_locked(daemon, "the session was locked");

    let (gnome, path) = ("org.gnome.ScreenSaver", "/org/gnome/ScreenSaver");
    desktop.session.mock(&["--session", "--template", "gnome_screensaver"], gnome);
    let daemon = desktop.mount("screen", "");
    let _: () = desktop.session.call(gnome, path, gnome, "SetActive", &(true,));
    assert_locked(daemon, "the screen was locked");
    // A screen locker of KDE and others, which is started after the mount.
    let daemon = desktop.mount("screen", "");
    let (other, path) = ("org.freedesktop.ScreenSaver", "/ScreenSaver");
    desktop.session.mock(&["--session", other, path, other], other);
    let active = [Variant::from(true)];
    desktop.session.emit(other, path, (other, "ActiveChanged", "b"), &active);
    assert_locked(daemon, "the screen was locked");
}

#[test]
fn the_end_of_the_session_locks_the_vault() {
    let Some(desktop) = Desktop::new() else { return };
    // For a mount from a session, the end of that session counts, and that of another one does not.
    let daemon = desktop.mount("logout,suspend", "c1");
    desktop.remove("c2");
    desktop.sleep();
    assert_locked(daemon, "the machine is about to sleep");
    let daemon = desktop.mount("logout", "c1");
    desktop.remove("c1");
    assert_locked(daemon, "the session has ended");

    // For a mount that belongs to no session, for example one by a user service, the end of the
    // user's last session counts, even if that session began after the mount.
    let body = |id| (id, "seat0", uid(), "somebody", true);
    let _: String = desktop.system.control(LOGIND, MAIN, "AddSession", &body("c1"));
    let daemon = desktop.mount("logout,suspend", "");
    let _: String = desktop.system.control(LOGIND, MAIN, "AddSession", &body("c4"));
    let other = ("c5", "seat0", 4321, "somebody", true);
    let _: String = desktop.system.control(LOGIND, MAIN, "AddSession", &other);
    let path = OwnedObjectPath::try_from(session_path("c4")).unwrap();
    let args = [Variant::from("c4"), Variant::from(path)];
    desktop.system.emit(LOGIND, MAIN, (MANAGER, "SessionNew", "so"), &args);
    desktop.remove("c1");
    desktop.remove("c5");
    desktop.sleep();
    assert_locked(daemon, "the machine is about to sleep");
    // c3, of another user, is still there.
    let daemon = desktop.mount("logout", "");
    desktop.remove("c4");
    assert_locked(daemon, "the session has ended");
}

/// logind keeps a session for as long as a process is left in it ("logged out, waiting for
/// processes to exit"), and the daemon of a mount is such a process: the end of the session was
/// never announced. So the leader of the session is watched too.
#[test]
fn a_session_kept_by_the_mount_itself_ends_with_its_leader() {
    let Some(desktop) = Desktop::new() else { return };
    let mut leader = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let properties = std::collections::HashMap::from([("Leader", Variant::from(leader.id()))]);
    let body = (SESSION, properties);
    let path = session_path("c1");
    let _: () = desktop.system.control(LOGIND, &path, "UpdateProperties", &body);
    let daemon = desktop.mount("logout", "c1");
    drop(leader.stdin.take());
    leader.wait().unwrap();
    assert_locked(daemon, "the session has ended");
}

#[test]
fn a_bus_that_is_gone_locks_the_vault() {
    let Some(mut desktop) = Desktop::new() else { return };
    let daemon = desktop.mount("suspend", "");
    desktop.system.end();
    assert_locked(daemon, "events of logind cannot be noticed any more");
    let gnome = "org.gnome.ScreenSaver";
    desktop.session.mock(&["--session", "--template", "gnome_screensaver"], gnome);
    let daemon = desktop.mount("screen", "");
    // A signal that the screen was unlocked does not lock the vault. Otherwise the reason below
    // would be a different one.
    let path = "/org/gnome/ScreenSaver";
    let inactive = [Variant::from(false)];
    desktop.session.emit(gnome, path, (gnome, "ActiveChanged", "b"), &inactive);
    desktop.session.end();
    assert_locked(daemon, "the lock of the screen cannot be noticed any more");
}

/// Replaces a socket by a bus that accepts connections and never answers.
fn hang(socket: &Path) -> UnixListener {
    let aside = socket.with_extension("hangs");
    let hanging = UnixListener::bind(&aside).unwrap();
    fs::rename(aside, socket).unwrap();
    hanging
}

/// kithfs waited for a bus that accepted a connection and never answered: `mount --lock-on` never
/// asked for the passphrase, and a vault whose bus began to hang was not locked.
#[test]
fn a_bus_that_hangs_is_not_waited_for() {
    let Some(mut desktop) = Desktop::new() else { return };
    let daemon = desktop.mount("suspend", "");
    let hanging = hang(&PathBuf::from(desktop.system.address().split_once('=').unwrap().1));
    desktop.system.end();
    assert_locked(daemon, "events of logind cannot be noticed any more");
    let mut command = desktop.kithfs("mount");
    command.arg("--lock-on=suspend").arg(desktop.scratch.vault()).arg(desktop.scratch.point());
    let said = expect_code(&mut ends_within(30, &command), 1);
    assert!(String::from_utf8_lossy(&said.stderr).contains("the bus does not answer"), "{said:?}");
    drop(hanging);
}

#[test]
fn a_bus_that_is_restarted_is_connected_to_again() {
    if !can_mount() || !can_mock() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut bus = Restarted::start(scratch.path(), "bus", "--system --template logind", LOGIND);
    let mut command = scratch.kithfs("mount");
    command.env("DBUS_SYSTEM_BUS_ADDRESS", bus.address());
    let daemon = Daemon::start(command, &scratch, &["--lock-on=suspend"]);
    bus.restart();
    daemon.says("the system bus was lost, and is connected to again");
    std::fs::write(scratch.point().join("file"), "written after the restart").unwrap();
    let bus = Bus::at(bus.address());
    // An attempt to connect that failed while the bus was starting may have left an inhibitor too;
    // logind drops it when it sees that the daemon has closed it.
    wait_until("the daemon has one inhibitor", || inhibitors(&bus).len() == 1);
    prepare_for_sleep(&bus, true);
    assert_locked(daemon, "the machine is about to sleep");
}

/// The mount is refused before it asks for the passphrase, which without a terminal would fail with
/// exit code 3.
#[test]
fn an_event_that_nothing_would_announce_is_refused() {
    let Some(mut desktop) = Desktop::bare() else { return };
    let refused = |desktop: &Desktop, event: &str, prepare: &dyn Fn(&mut Command)| {
        let mut command = desktop.kithfs("mount");
        command.env_remove("KITHFS_PASSPHRASE_FILE").env("KITHFS_PROMPT", "");
        prepare(&mut command);
        command.arg(format!("--lock-on={event}"));
        command.arg(desktop.scratch.vault()).arg(desktop.scratch.point());
        let said = expect_code(command.stdin(Stdio::null()), 1);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.starts_with(&format!("kithfs: mount with --lock-on {event}: ")), "{said}");
        assert!(said.contains("\nhint: "), "{said}");
        assert!(!is_mounted(&desktop.scratch.point()));
    };
    let nowhere = |command: &mut Command| {
        let none = format!("unix:path={}", Path::new("/nonexistent/bus").display());
        command.env("DBUS_SYSTEM_BUS_ADDRESS", &none).env("DBUS_SESSION_BUS_ADDRESS", &none);
    };
    for event in ["suspend", "logout", "screen"] {
        refused(&desktop, event, &nowhere);
        // The buses exist, without any service.
        refused(&desktop, event, &|_| {});
    }
    desktop.system.mock(&["--system", "--template", "logind"], LOGIND);
    for event in ["logout", "screen"] {
        // logind runs, and has no session.
        refused(&desktop, event, &|_| {});
    }
    let daemon = desktop.mount("suspend", "");
    desktop.sleep();
    assert_locked(daemon, "the machine is about to sleep");
}

/// A named vault can have events as a setting; an option of `open` overrides it.
#[test]
fn a_named_vault_keeps_the_events() {
    let Some(desktop) = Desktop::new() else { return };
    let (vault, point) = (desktop.scratch.vault(), desktop.scratch.point());
    expect_code(desktop.kithfs("vaults").args(["add", "photos"]).arg(&vault).arg(&point), 0);
    let set = ["set", "photos", "--lock-on", "suspend,logout"];
    expect_code(desktop.kithfs("vaults").args(set), 0);
    let listed = expect_code(desktop.kithfs("vaults").args(["list"]), 0);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.trim().ends_with("--lock-on=suspend --lock-on=logout"), "{listed}");
    for (over, why) in [
        (&[][..], "the machine is about to sleep"),
        (&["--lock-on=logout"], "the session has ended"),
    ] {
        let mut open = desktop.kithfs("open");
        open.args(["--foreground", "--log-level=info"]).args(over).arg("photos");
        open.env("XDG_SESSION_ID", "c1");
        let daemon = Daemon::serving(open, &desktop.scratch);
        desktop.sleep();
        if !over.is_empty() {
            desktop.remove("c1");
        }
        assert_locked(daemon, why);
    }
}

/// `su` without a terminal opens a session of the class "background". A mount from it was refused:
/// "logind knows no login session of this user". Only a test with the real logind showed this.
#[test]
fn a_session_for_a_background_job_counts_for_its_own_mounts() {
    let Some(desktop) = Desktop::new() else { return };
    for id in ["c1", "c2"] {
        let class = std::collections::HashMap::from([("Class", Variant::from("background"))]);
        let (path, body) = (session_path(id), (SESSION, class));
        let _: () = desktop.system.control(LOGIND, &path, "UpdateProperties", &body);
    }
    let daemon = desktop.mount("logout", "c1");
    desktop.remove("c1");
    assert_locked(daemon, "the session has ended");
    // Such a session is not a login session for a mount that is started outside of it, so `logout`
    // is refused.
    let mut command = desktop.kithfs("mount");
    command.arg("--lock-on=logout").arg(desktop.scratch.vault()).arg(desktop.scratch.point());
    let said = expect_code(&mut command, 1);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("logind knows no login session of this user"), "{said}");
}
