//! Passphrases in the keyring of the user's session (the Secret Service, as GNOME Keyring, KWallet
//! and KeePassXC offer it).
//!
//! Rules that hold here
//! * A passphrase is stored only if the user asked for that, and after it has unlocked the
//!   identity.
//! * The keyring is optional: without a session bus or a keyring, commands ask for the passphrase.
//! * An item belongs to the public keys of an identity, not to a path, which others may change.
//! * A passphrase crosses the bus in a process of its own: the messages of a bus are not wiped, and
//!   a daemon would keep them as long as its mount.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{Command, ExitCode, Stdio};
use std::task::Poll;
use std::time::Duration;

use zbus::connection::Builder;
use zbus::export::futures_core::Stream;
use zbus::{Connection, ObjectPath, OwnedObjectPath, OwnedVariant, Proxy, Variant, block_on};
use zeroize::Zeroizing;

use crate::cli::daemon::{fork, signals};
use crate::cli::desktop::bus;
use crate::cli::error::Error;
use crate::cli::secrets::source;
use crate::roster::PublicIdentity;

const SERVICE: &str = "org.freedesktop.secrets";
const ROOT: &str = "/org/freedesktop/secrets";
const DEFAULT: &str = "/org/freedesktop/secrets/aliases/default";

/// How long the keyring may take to answer a call. A question to its user can take longer, but the
/// keyring answers that call at once and sends a signal when the user has decided.
const PATIENCE: Duration = Duration::from_secs(25);

/// A secret as the service transfers it: session, parameters, bytes, content type.
type Transfer = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

/// Returns whether there is a session bus, on which there may be a keyring.
pub fn is_offered() -> bool {
    bus::has_session()
}

/// Returns the passphrase of an identity, if it was stored. A locked keyring asks its user.
///
/// # Errors
/// There is no keyring, or its user declines.
pub fn passphrase(public: &PublicIdentity) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    by_helper(&["get", &public.fingerprint()], &[])
}

/// Does [`passphrase`]; without a session bus, returns `None`.
///
/// # Errors
/// As [`passphrase`].
pub fn stored(public: &PublicIdentity) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    if is_offered() { passphrase(public) } else { Ok(None) }
}

/// Stores the passphrase of an identity, in the place of one that was stored before. `of` names it
/// in the keyring.
///
/// # Errors
/// As [`passphrase`].
pub fn remember(public: &PublicIdentity, passphrase: &[u8], of: &str) -> Result<(), Error> {
    by_helper(&["set", &public.fingerprint(), of], passphrase).map(drop)
}

/// Removes the passphrase of an identity. Returns whether there was one.
///
/// # Errors
/// As [`passphrase`].
pub fn forget(public: &PublicIdentity) -> Result<bool, Error> {
    block_on(async { Keyring::open().await?.forget(&public.fingerprint()).await })
}

/// Name under which the program passes one passphrase from or to the keyring.
const HELPER: &str = "kithfs-keyring";

/// Exit codes of the helper.
const FOUND: u8 = 0;
const NONE: u8 = 1;
const FAILED: u8 = 2;

/// Runs the helper, which gets `input` and prints a passphrase, or why it failed.
fn by_helper(args: &[&str], input: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let failed = |source: io::Error| Error::Keyring(source.to_string());
    let _unblocked = signals::unblocked();
    let mut child = Command::new("/proc/self/exe")
        .arg0(HELPER)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // A helper that has failed already reads no more. Its reason is read below.
    let _ = child.stdin.take().expect("was asked for").write_all(input);
    let printed = source::read_all(&mut child.stdout.take().expect("was asked for"));
    let status = child.wait().map_err(failed)?;
    let printed = printed.map_err(failed)?.into_inner();
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(FOUND) => Ok(Some(printed)),
        Some(NONE) => Ok(None),
        Some(FAILED) => Err(Error::Keyring(String::from_utf8_lossy(&printed).into_owned())),
        _ => Err(Error::Keyring(format!("the process that asks it has ended with {status}"))),
    }
}

/// Runs the helper if the process was started under its name; `None` if it was not.
pub fn run_as_helper() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    if args.next()? != OsStr::new(HELPER) {
        return None;
    }
    let args: Vec<String> = args.filter_map(|arg| arg.into_string().ok()).collect();
    let (code, printed) = match helped(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(Some(passphrase)) => (FOUND, passphrase),
        Ok(None) => (NONE, Zeroizing::default()),
        Err(Error::Keyring(why)) => (FAILED, Zeroizing::new(why.into_bytes())),
        Err(error) => (FAILED, Zeroizing::new(error.to_string().into_bytes())),
    };
    let is_told = io::stdout().write_all(&printed).and_then(|()| io::stdout().flush());
    Some(ExitCode::from(if is_told.is_ok() { code } else { FAILED }))
}

fn helped(args: &[&str]) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    fork::keep_memory_private()?;
    match *args {
        ["get", identity] => block_on(async { Keyring::open().await?.passphrase(identity).await }),
        ["set", identity, of] => {
            let passphrase = source::read_all(&mut io::stdin().lock())
                .map_err(|error| Error::Keyring(error.to_string()))?;
            block_on(async {
                Keyring::open().await?.remember(identity, passphrase.expose(), of).await
            })
            .map(|()| None)
        }
        _ => Err(Error::Keyring("the helper was called wrongly".into())),
    }
}

/// A connection to the keyring.
struct Keyring {
    bus: Connection,
    /// Secrets cross the bus unencrypted: it is a socket of this user, and a program that could
    /// listen there could as well ask the keyring.
    session: OwnedObjectPath,
}

/// Returns the attributes by which an item is found. GNOME Keyring replaces the schema of an item
/// in a keyring that was not unlocked yet, so the schema is not among them.
fn wanted(identity: &str) -> HashMap<&'static str, String> {
    HashMap::from([("identity", identity.to_owned())])
}

fn attributes(identity: &str) -> HashMap<&'static str, String> {
    let mut attributes = wanted(identity);
    attributes.insert("xdg:schema", "kithfs.identity".to_owned());
    attributes
}

fn failed(error: zbus::Error) -> Error {
    Error::Keyring(error.to_string())
}

impl Keyring {
    async fn open() -> Result<Keyring, Error> {
        let bus = bus::connect(Builder::session().method_timeout(PATIENCE), bus::ACCEPTS)
            .map_err(failed)?;
        let (_, session): (OwnedVariant, OwnedObjectPath) = proxy(&bus, ROOT, "Service")
            .await?
            .call("OpenSession", &("plain", Variant::from("")))
            .await
            .map_err(failed)?;
        Ok(Keyring { bus, session })
    }

    async fn passphrase(&self, identity: &str) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let Some(item) = self.items(identity).await?.into_iter().next() else { return Ok(None) };
        let (secret,): (Transfer,) = proxy(&self.bus, item.as_str(), "Item")
            .await?
            .call("GetSecret", &(&self.session,))
            .await
            .map_err(failed)?;
        Ok(Some(Zeroizing::new(secret.2)))
    }

    async fn remember(&self, identity: &str, passphrase: &[u8], of: &str) -> Result<(), Error> {
        let default: ObjectPath<'_> = DEFAULT.try_into().expect("a path");
        self.unlock(&[default.into()]).await?;
        let properties = HashMap::from([
            ("org.freedesktop.Secret.Item.Label", Variant::from(format!("kithfs: {of}"))),
            ("org.freedesktop.Secret.Item.Attributes", Variant::from(attributes(identity))),
        ]);
        let empty: &[u8] = &[];
        let secret = (&self.session, empty, passphrase, "text/plain");
        let (_, prompt): (OwnedObjectPath, OwnedObjectPath) =
            proxy(&self.bus, DEFAULT, "Collection")
                .await?
                .call("CreateItem", &(properties, secret, true))
                .await
                .map_err(failed)?;
        self.prompt(&prompt).await
    }

    async fn forget(&self, identity: &str) -> Result<bool, Error> {
        let items = self.items(identity).await?;
        for item in &items {
            let prompt: OwnedObjectPath = proxy(&self.bus, item.as_str(), "Item")
                .await?
                .call("Delete", &())
                .await
                .map_err(failed)?;
            self.prompt(&prompt).await?;
        }
        Ok(!items.is_empty())
    }

    /// Returns the items of an identity, unlocked.
    async fn items(&self, identity: &str) -> Result<Vec<OwnedObjectPath>, Error> {
        let (mut found, locked): (Vec<OwnedObjectPath>, Vec<OwnedObjectPath>) =
            proxy(&self.bus, ROOT, "Service")
                .await?
                .call("SearchItems", &(wanted(identity),))
                .await
                .map_err(failed)?;
        if !locked.is_empty() {
            self.unlock(&locked).await?;
            found.extend(locked);
        }
        Ok(found)
    }

    async fn unlock(&self, objects: &[OwnedObjectPath]) -> Result<(), Error> {
        let (_, prompt): (Vec<OwnedObjectPath>, OwnedObjectPath) =
            proxy(&self.bus, ROOT, "Service")
                .await?
                .call("Unlock", &(objects,))
                .await
                .map_err(failed)?;
        self.prompt(&prompt).await
    }

    /// Has the keyring show a question to its user, such as one for its password. Waits for the
    /// answer, or for the end of the keyring.
    async fn prompt(&self, prompt: &OwnedObjectPath) -> Result<(), Error> {
        if prompt.as_str() == "/" {
            return Ok(());
        }
        let prompt = proxy(&self.bus, prompt.as_str(), "Prompt").await?;
        let mut completed = pin!(prompt.receive_signal("Completed").await.map_err(failed)?);
        let mut ended = pin!(prompt.receive_owner_changed().await.map_err(failed)?);
        prompt.call::<_, _, ()>("Prompt", &("",)).await.map_err(failed)?;
        let answer = poll_fn(|context| match completed.as_mut().poll_next(context) {
            Poll::Pending => ended.as_mut().poll_next(context).map(|_| None),
            answer => answer,
        })
        .await;
        let answer = answer.ok_or(Error::Keyring("it has ended".into()))?;
        let (dismissed, _): (bool, OwnedVariant) = answer.body().deserialize().map_err(failed)?;
        if dismissed { Err(Error::Keyring("its question was declined".into())) } else { Ok(()) }
    }
}

async fn proxy<'a>(bus: &Connection, path: &'a str, interface: &str) -> Result<Proxy<'a>, Error> {
    let interface = format!("org.freedesktop.Secret.{interface}");
    Proxy::new(bus, SERVICE, path, interface).await.map_err(failed)
}
