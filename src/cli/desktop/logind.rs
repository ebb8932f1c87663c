//! Sleep, sessions, and requests to lock them, as logind announces them on the system bus.
//!
//! Rules that hold here
//! * Signals count only from the owner of logind's name: every user may send signals on this bus.
//! * A session ends with its leader, the process that has opened it. logind itself keeps a session
//!   for as long as a process is left in it, and a mount may be that process.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use zbus::connection::Builder;
use zbus::{Message, OwnedObjectPath, OwnedVariant};

use super::bus::{Bus, DBUS};
use super::events::{Happened, Lock, LockOn};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/login1";
const SESSION: &str = "org.freedesktop.login1.Session";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// A session as logind lists it: id, user, user's name, seat, path.
type Listed = (String, u32, String, String, OwnedObjectPath);

/// The sessions whose end is waited for.
#[derive(Default)]
pub struct Sessions {
    /// The session of this process. If the process is in no session, all sessions of its user
    /// count.
    own: Option<String>,
    live: Mutex<HashSet<String>>,
    /// Called when none is left. Set when the vault is open.
    lock: Mutex<Option<Lock>>,
}

impl Sessions {
    fn end(&self, session: &str) {
        let is_last = {
            let mut live = self.live.lock();
            live.remove(session) && live.is_empty()
        };
        if is_last {
            self.lock_if_none();
        }
    }

    /// Calls `lock` from now on when the last session has ended, also if it has ended already.
    fn start(&self, lock: Lock) {
        *self.lock.lock() = Some(lock);
        self.lock_if_none();
    }

    fn lock_if_none(&self) {
        let lock = self.lock.lock().clone();
        if let Some(lock) = lock
            && self.live.lock().is_empty()
        {
            lock("the session has ended");
        }
    }

    /// Waits for the end of a session's leader in a thread of its own.
    fn watch(self: &Arc<Self>, session: &str, leader: u32) {
        let pid = i32::try_from(leader).ok().and_then(Pid::from_raw);
        let leader = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(leader)) => leader,
            Some(Err(Errno::SRCH)) => return self.end(session),
            // logind still announces the end of the session.
            Some(Err(error)) => return tracing::debug!("a session's leader: {error}"),
            None => return,
        };
        let (sessions, session) = (self.clone(), session.to_owned());
        let wait = move || {
            let mut ended = [PollFd::new(&leader, PollFlags::IN)];
            while poll(&mut ended, None) == Err(Errno::INTR) {}
            sessions.end(&session);
        };
        if let Err(error) = std::thread::Builder::new().name("kithfs-session".into()).spawn(wait) {
            tracing::warn!("the end of a session may not be noticed: {error}");
        }
    }
}

/// The connection to logind.
pub struct Logind {
    on: LockOn,
    bus: Bus,
    /// The unique name of logind on the bus.
    owner: String,
    /// Delays sleep until this process has ended.
    _inhibitor: Option<OwnedFd>,
    sessions: Arc<Sessions>,
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Logind {
    /// Connects to the system bus and asks for the events.
    ///
    /// # Errors
    /// There is no system bus or no logind, or it refuses.
    pub async fn subscribe(on: LockOn) -> zbus::Result<Logind> {
        let mut logind = Logind::connect(on, Arc::default()).await?;
        if on.logout {
            let own = logind.own_session().await;
            logind.sessions = Arc::new(Sessions { own, ..Sessions::default() });
            logind.find_sessions().await?;
        }
        Ok(logind)
    }

    /// Connects again after the bus was lost.
    ///
    /// # Errors
    /// As [`Logind::subscribe`].
    pub async fn again(&self) -> zbus::Result<Logind> {
        let logind = Logind::connect(self.on, self.sessions.clone()).await?;
        if self.on.logout {
            logind.find_sessions().await?;
            logind.sessions.lock_if_none();
        }
        Ok(logind)
    }

    async fn connect(on: LockOn, sessions: Arc<Sessions>) -> zbus::Result<Logind> {
        let bus = Bus::connect(Builder::system())?;
        let of_logind = format!("type='signal',sender='{LOGIND}'");
        let owner = format!(
            "type='signal',sender='{DBUS}',interface='{DBUS}',member='NameOwnerChanged',arg0='{LOGIND}'"
        );
        bus.deliver(&owner).await?;
        bus.deliver(&format!("{of_logind},interface='{MANAGER}'")).await?;
        if on.screen {
            bus.deliver(&format!("{of_logind},interface='{SESSION}',member='Lock'")).await?;
        }
        // The first call starts a logind that is not running yet.
        let inhibitor = if on.suspend { Some(inhibit(&bus).await?) } else { None };
        if inhibitor.is_none() {
            list(&bus).await?;
        }
        let owner: String = bus.ask("GetNameOwner", &(LOGIND,)).await?;
        Ok(Logind { on, bus, owner, _inhibitor: inhibitor, sessions })
    }

    /// Returns whether this user has a session.
    ///
    /// # Errors
    /// logind does not answer.
    pub async fn has_session(&self) -> zbus::Result<bool> {
        Ok(list(&self.bus).await?.iter().any(|(_, user, ..)| *user == uid()))
    }

    /// Returns whether there is a session whose end locks the vault.
    pub fn knows_end(&self) -> bool {
        !self.sessions.live.lock().is_empty()
    }

    /// Locks from now on at the end of the session.
    pub fn start(&self, lock: &Lock) {
        if self.on.logout {
            self.sessions.start(lock.clone());
        }
    }

    /// Returns the session of this process: the one that logind knows it is in, or the one that its
    /// environment names.
    async fn own_session(&self) -> Option<String> {
        let pid = std::process::id();
        let by_pid = self.manager("GetSessionByPID", &(pid,)).await.ok();
        let found: Option<OwnedObjectPath> = match (by_pid, std::env::var("XDG_SESSION_ID")) {
            (None, Ok(id)) => self.manager("GetSession", &(id,)).await.ok(),
            (by_pid, _) => by_pid,
        };
        let found = found?.as_str().to_owned();
        let listed = list(&self.bus).await.ok()?;
        let is_ours = listed.iter().any(|(_, user, .., path)| *user == uid() && **path == *found);
        is_ours.then_some(found)
    }

    /// Notes the sessions that are there, and drops those that are gone.
    async fn find_sessions(&self) -> zbus::Result<()> {
        let listed = list(&self.bus).await?;
        let gone: Vec<String> = {
            let live = self.sessions.live.lock();
            let is_gone = |session: &&String| !listed.iter().any(|(.., path)| **path == ***session);
            live.iter().filter(is_gone).cloned().collect()
        };
        gone.iter().for_each(|session| self.sessions.end(session));
        for (_, user, .., path) in listed {
            if user == uid() {
                self.add(path.as_str()).await;
            }
        }
        Ok(())
    }

    /// Notes a session of this user, if its end counts.
    async fn add(&self, session: &str) {
        if self.sessions.own.as_ref().is_some_and(|own| own != session) {
            return;
        }
        let property = async |name: &str| {
            let body = (SESSION, name);
            self.bus.call::<_, OwnedVariant>(LOGIND, session, PROPERTIES, "Get", &body).await
        };
        let (Ok(class), Ok(leader)) = (property("Class").await, property("Leader").await) else {
            return tracing::debug!("a session has ended already");
        };
        // Sessions of the service manager and of background jobs are no logins. The session of this
        // process counts in any case: `su` without a terminal opens one of the class "background".
        let is_login = String::try_from(class).is_ok_and(|class| class.starts_with("user"));
        if (is_login || self.sessions.own.is_some())
            && self.sessions.live.lock().insert(session.to_owned())
        {
            self.sessions.watch(session, u32::try_from(leader).unwrap_or(0));
        }
    }

    async fn manager<B, R>(&self, method: &str, body: &B) -> zbus::Result<R>
    where
        B: serde::Serialize + zbus::Type,
        R: serde::de::DeserializeOwned + zbus::Type,
    {
        self.bus.call(LOGIND, MANAGER_PATH, MANAGER, method, body).await
    }

    /// Waits until the vault has to be locked, or the bus is lost.
    pub async fn next(&mut self) -> Happened {
        while let Some(message) = self.bus.signal().await {
            if let Some(why) = self.judge(&message).await {
                return Happened::Lock(why);
            }
        }
        Happened::Lost
    }

    /// Returns why a signal locks the vault, if it does.
    async fn judge(&mut self, message: &Message) -> Option<&'static str> {
        let header = message.header();
        let (sender, member) = (header.sender()?.as_str(), header.member()?.as_str());
        if sender == DBUS && member == "NameOwnerChanged" {
            let (name, _, new): (String, String, String) = message.body().deserialize().ok()?;
            if name == LOGIND && !new.is_empty() {
                self.owner = new;
                return self.take_over().await;
            }
            return None;
        }
        if sender != self.owner {
            return None;
        }
        match member {
            "PrepareForSleep" if self.on.suspend => {
                let begins: bool = message.body().deserialize().ok()?;
                begins.then_some("the machine is about to sleep")
            }
            "Lock" if self.on.screen => {
                let session = header.path()?.as_str();
                // If the session has ended meanwhile, it may have been one of this user.
                let is_ours = |(_, user, .., path): &Listed| *user == uid() || **path != *session;
                let listed = list(&self.bus).await.unwrap_or_default();
                listed.iter().all(is_ours).then_some("the session was locked")
            }
            "SessionNew" if self.on.logout => {
                let (id, path): (String, OwnedObjectPath) = message.body().deserialize().ok()?;
                let listed = list(&self.bus).await.unwrap_or_default();
                if listed.iter().any(|(other, user, ..)| *other == id && *user == uid()) {
                    self.add(path.as_str()).await;
                }
                None
            }
            "SessionRemoved" if self.on.logout => {
                let (_, path): (String, OwnedObjectPath) = message.body().deserialize().ok()?;
                self.sessions.end(path.as_str());
                None
            }
            _ => None,
        }
    }

    /// Makes a logind that was restarted wait for this mount too.
    async fn take_over(&mut self) -> Option<&'static str> {
        if !self.on.suspend {
            return None;
        }
        match inhibit(&self.bus).await {
            Ok(inhibitor) => self._inhibitor = Some(inhibitor),
            Err(error) => {
                tracing::error!(
                    "logind was started anew and does not wait for this mount: {error}"
                );
                return Some("sleep would not wait for it any more");
            }
        }
        None
    }
}

/// Has sleep wait until the returned descriptor is closed.
async fn inhibit(bus: &Bus) -> zbus::Result<OwnedFd> {
    let what = ("sleep", "kithfs", "locks a vault", "delay");
    let inhibitor: zbus::OwnedFd =
        bus.call(LOGIND, MANAGER_PATH, MANAGER, "Inhibit", &what).await?;
    Ok(inhibitor.into())
}

async fn list(bus: &Bus) -> zbus::Result<Vec<Listed>> {
    bus.call(LOGIND, MANAGER_PATH, MANAGER, "ListSessions", &()).await
}
