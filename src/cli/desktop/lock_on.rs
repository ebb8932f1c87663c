//! Locks a vault when the machine sleeps, the screen is locked, or the session ends.
//!
//! Rules that hold here
//! * An event that nobody would announce is refused, before any passphrase is asked for.
//! * Sleep waits for this process: the inhibitor is closed when it ends, and the keys are wiped
//!   before.
//! * If a bus is lost, this process connects to it again at once. If that fails, the vault is
//!   locked: its user relies on events that could no longer be noticed.
//! * Nothing polls.

use std::io;

use zbus::block_on;

use super::events::{Happened, Lock, LockOn};
use super::logind::Logind;
use super::screen::Screen;
use crate::cli::error::Error;
use crate::cli::report::note;

/// Subscriptions to the events.
pub struct Watch {
    logind: Option<Logind>,
    screen: Option<Screen>,
}

fn refused(event: &'static str) -> impl Fn(zbus::Error) -> Error {
    move |why| Error::LockOn { event, why: why.to_string() }
}

impl LockOn {
    /// Subscribes to the events.
    ///
    /// # Errors
    /// One of them would never be announced.
    pub fn subscribe(self) -> Result<Watch, Error> {
        block_on(self.find()).map(|(watch, _)| watch)
    }

    /// Checks that all events would be announced, and tells the user what else they have to know.
    ///
    /// # Errors
    /// One of them would never be announced.
    pub fn check(self) -> Result<(), Error> {
        let (_, has_locker) = block_on(self.find())?;
        if self.screen && !has_locker {
            note(
                "no screen locker is on the session bus now; until one is, only `loginctl lock-session` locks the vault",
            );
        }
        Ok(())
    }

    /// Subscribes to the events. Also returns whether a screen locker is known.
    async fn find(self) -> Result<(Watch, bool), Error> {
        let mut logind = None;
        if self.suspend || self.logout {
            let event = if self.suspend { "suspend" } else { "logout" };
            let found = Logind::subscribe(self).await.map_err(refused(event))?;
            if self.logout && !found.knows_end() {
                let why = "logind knows no login session of this user".to_owned();
                return Err(Error::LockOn { event: "logout", why });
            }
            logind = Some(found);
        } else if self.screen {
            logind = Logind::subscribe(self).await.ok();
        }
        let (mut screen, mut has_locker) = (None, false);
        if self.screen {
            screen = Screen::subscribe().await.ok();
            if let Some(screen) = &screen {
                has_locker = screen.has_locker().await.map_err(refused("screen"))?;
            }
            let by_logind = match &logind {
                Some(logind) => logind.has_session().await.map_err(refused("screen"))?,
                None => false,
            };
            if !has_locker && !by_logind {
                let why = "no screen locker is on the session bus, and logind knows no session of this user";
                return Err(Error::LockOn { event: "screen", why: why.to_owned() });
            }
        }
        Ok((Watch { logind, screen }, has_locker))
    }
}

impl Watch {
    /// Calls `lock` at the first event.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self, lock: Lock) -> io::Result<()> {
        let thread = || std::thread::Builder::new().name("kithfs-lock-on".into());
        if let Some(logind) = self.logind {
            let lock = lock.clone();
            thread().spawn(move || follow_logind(logind, &lock))?;
        }
        if let Some(screen) = self.screen {
            thread().spawn(move || follow_screen(screen, &lock))?;
        }
        Ok(())
    }
}

fn follow_logind(mut logind: Logind, lock: &Lock) {
    logind.start(lock);
    loop {
        match block_on(logind.next()) {
            Happened::Lock(why) => {
                lock(why);
                // `logind` holds the inhibitor, so sleep waits until this process ends.
                loop {
                    std::thread::park();
                }
            }
            Happened::Lost => match block_on(logind.again()) {
                Ok(again) => {
                    tracing::warn!("the system bus was lost, and is connected to again");
                    logind = again;
                }
                Err(error) => {
                    tracing::error!("the system bus is gone: {error}");
                    return lock("events of logind cannot be noticed any more");
                }
            },
        }
    }
}

fn follow_screen(mut screen: Screen, lock: &Lock) {
    loop {
        match block_on(screen.next()) {
            Happened::Lock(why) => return lock(why),
            Happened::Lost => match block_on(Screen::subscribe()) {
                Ok(again) => {
                    tracing::warn!("the session bus was lost, and is connected to again");
                    screen = again;
                }
                Err(error) => {
                    tracing::error!("the session bus is gone: {error}");
                    return lock("the lock of the screen cannot be noticed any more");
                }
            },
        }
    }
}
