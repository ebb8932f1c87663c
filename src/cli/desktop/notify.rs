//! Notifications on the user's desktop.
//!
//! Rules that hold here
//! * Notifications are sent only if the user has requested them. A desktop shows them on a locked
//!   screen, so they name no vault and no person, unless the user has requested that too.
//! * A desktop that is slow or absent delays only the end of the process, by at most three times
//!   `PATIENCE` for each notification that is queued then.
//! * Names may be chosen by others: they are shown without control characters and markup.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use zbus::connection::Builder;
use zbus::{Variant, block_on};

use super::bus;
use crate::cli::args::Notify;
use crate::cli::display::{Shown, path as shown};
use crate::vault::Event;

const SERVICE: &str = "org.freedesktop.Notifications";
const PATH: &str = "/org/freedesktop/Notifications";

/// How long the bus may take to accept the connection, and the desktop to answer each of two calls.
const PATIENCE: Duration = Duration::from_secs(2);
/// A full store is reported at most this often: every write fails in it.
const FULL_EVERY: Duration = Duration::from_secs(600);

/// What a notification is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The vault was locked, for this reason.
    Locked(String),
    /// The vault was closed because it was not used.
    Unused,
    /// Something happened in the vault.
    In(Event),
}

/// A notification: title, text, and whether it stays until the user has seen it.
#[derive(Debug, PartialEq, Eq)]
struct Text(&'static str, String, bool);

/// Sends notifications about one vault, from a thread of its own.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Sending>>);

struct Sending {
    queue: Mutex<Option<mpsc::Sender<What>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Notices {
    /// Sends notifications about `vault` from now on, if the user wants them.
    pub fn start(wanted: Notify, vault: &Path) -> Notices {
        if wanted == Notify::Off {
            return Notices::default();
        }
        let vault = (wanted == Notify::Names).then(|| vault.to_owned());
        let (queue, told) = mpsc::channel();
        let send = move || send_all(&told, vault.as_ref());
        match std::thread::Builder::new().name("kithfs-notify".into()).spawn(send) {
            Ok(thread) => Notices(Some(Arc::new(Sending {
                queue: Mutex::new(Some(queue)),
                thread: Mutex::new(Some(thread)),
            }))),
            Err(error) => {
                tracing::warn!("the desktop is not notified: {error}");
                Notices::default()
            }
        }
    }

    /// Queues a notification.
    pub fn tell(&self, what: What) {
        if let Some(sending) = &self.0
            && let Some(queue) = &*sending.queue.lock()
        {
            let _ = queue.send(what);
        }
    }

    /// Waits until each notification was sent or has failed.
    pub fn finish(&self) {
        if let Some(sending) = &self.0 {
            sending.queue.lock().take();
            if let Some(thread) = sending.thread.lock().take() {
                let _ = thread.join();
            }
        }
    }
}

fn send_all(told: &mpsc::Receiver<What>, vault: Option<&PathBuf>) {
    let mut last_full: Option<Instant> = None;
    for what in told {
        if what == What::In(Event::Full) {
            if last_full.is_some_and(|last| last.elapsed() < FULL_EVERY) {
                continue;
            }
            last_full = Some(Instant::now());
        }
        if let Err(error) = block_on(send(text(&what, vault))) {
            tracing::info!("the desktop cannot be notified: {error}");
        }
    }
}

/// Returns the notification. Without `vault` it names nothing.
fn text(what: &What, vault: Option<&PathBuf>) -> Text {
    let the_vault = vault.map_or("A vault".to_owned(), |vault| shown(vault).to_string());
    let in_it = vault.map(|vault| format!(" of {}", shown(vault))).unwrap_or_default();
    match what {
        What::Locked(why) => Text("Vault locked", format!("{the_vault} was locked: {why}."), false),
        What::Unused => {
            Text("Vault closed", format!("{the_vault} was closed because nobody used it."), false)
        }
        What::In(Event::NewMembers(names)) => {
            let who = match (vault, &names[..]) {
                (None, [_]) => "A person was".to_owned(),
                (None, names) => format!("{} persons were", names.len()),
                (Some(_), [name]) => format!("{} was", Shown(name.as_bytes())),
                (Some(_), names) => {
                    let names = names.iter().map(|name| Shown(name.as_bytes()).to_string());
                    format!("{} were", names.collect::<Vec<_>>().join(", "))
                }
            };
            let text = format!(
                "{who} added to a share{in_it}, and can read it now. `kithfs share log` shows which admin did it."
            );
            Text("New member", text, false)
        }
        What::In(Event::Forked) => {
            let text = format!(
                "The members of a share{in_it} were changed in two conflicting ways. It is read-only until `kithfs share settle` decides."
            );
            Text("Conflicting members", text, true)
        }
        What::In(Event::RolledBack(count)) => {
            let text = format!(
                "{count} files or directories{in_it} are older than they were, gone, or cannot be compared. `kithfs rollback` lists them."
            );
            Text("Older files in a vault", text, true)
        }
        What::In(Event::Full) => {
            let text = format!(
                "{the_vault} has no room for what was written: the disk is full. Free some space."
            );
            Text("No room left", text, true)
        }
    }
}

async fn send(Text(title, body, stays): Text) -> zbus::Result<()> {
    let bus = bus::connect(Builder::session().method_timeout(PATIENCE), PATIENCE)?;
    let call =
        async |method: &str| bus.call_method(Some(SERVICE), PATH, Some(SERVICE), method, &()).await;
    let capabilities: Vec<String> = call("GetCapabilities").await?.body().deserialize()?;
    let body = match capabilities.iter().any(|capability| capability == "body-markup") {
        true => body.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
        false => body,
    };
    let urgency: u8 = if stays { 2 } else { 1 };
    let hints = HashMap::from([("urgency", Variant::from(urgency))]);
    let actions: &[&str] = &[];
    let notification = ("kithfs", 0u32, "", title, body, actions, hints, -1i32);
    bus.call_method(Some(SERVICE), PATH, Some(SERVICE), "Notify", &notification).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_were_asked_for_are_shown() {
        let vault = PathBuf::from("/home/ann/diary");
        let member = |names: &[&str]| {
            What::In(Event::NewMembers(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        for what in [
            What::Locked("the screen was locked".into()),
            What::Unused,
            member(&["Bob"]),
            member(&["Bob", "Cem"]),
            What::In(Event::Forked),
            What::In(Event::RolledBack(3)),
            What::In(Event::Full),
        ] {
            let quiet = text(&what, None).1;
            let hides = |word| !quiet.contains(word);
            assert!(["diary", "/home", "Bob", "Cem"].into_iter().all(hides), "{quiet}");
            let open = text(&what, Some(&vault)).1;
            assert!(open.contains("/home/ann/diary"), "{open}");
        }
        assert!(text(&member(&["Bob", "Cem"]), Some(&vault)).1.starts_with("Bob, Cem were added"));
        let hostile = text(&member(&["Bob\n\u{1b}[2J"]), Some(&vault)).1;
        assert!(!hostile.contains(char::is_control), "{hostile}");
    }
}
