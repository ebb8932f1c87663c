//! Passphrases in the keyring of the user's session (the Secret Service, as GNOME Keyring, KWallet
//! and KeePassXC offer it).
//!
//! Rules that hold here
//! * A passphrase is stored only if the user asked for that, and after it has unlocked the identity.
//! * The keyring is optional: without a session bus or a keyring, commands ask for the passphrase.
//! * An item belongs to the public keys of an identity, not to a path, which others may change.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use zbus::connection::Builder;
use zbus::export::futures_core::Stream;
use zbus::{Connection, ObjectPath, OwnedObjectPath, OwnedVariant, Proxy, Variant, block_on};
use zeroize::Zeroizing;

use crate::cli::desktop::bus;
use crate::cli::error::Error;
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
    block_on(async { Keyring::open().await?.passphrase(public).await })
}

/// Returns the passphrase of an identity if there is a keyring that has it.
pub fn stored(public: &PublicIdentity) -> Option<Zeroizing<Vec<u8>>> {
    if is_offered() { passphrase(public).ok().flatten() } else { None }
}

/// Stores the passphrase of an identity, in the place of one that was stored before. `of` names it
/// in the keyring.
///
/// # Errors
/// As [`passphrase`].
pub fn remember(public: &PublicIdentity, passphrase: &[u8], of: &str) -> Result<(), Error> {
    block_on(async { Keyring::open().await?.remember(public, passphrase, of).await })
}

/// Removes the passphrase of an identity. Returns whether there was one.
///
/// # Errors
/// As [`passphrase`].
pub fn forget(public: &PublicIdentity) -> Result<bool, Error> {
    block_on(async { Keyring::open().await?.forget(public).await })
}

/// A connection to the keyring.
struct Keyring {
    bus: Connection,
    /// Secrets cross the bus unencrypted: it is a socket of this user, and a program that could
    /// listen there could as well ask the keyring.
    session: OwnedObjectPath,
}

fn attributes(public: &PublicIdentity) -> HashMap<&'static str, String> {
    HashMap::from([
        ("xdg:schema", "kithfs.identity".to_owned()),
        ("identity", public.fingerprint()),
    ])
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

    async fn passphrase(
        &self,
        public: &PublicIdentity,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let Some(item) = self.items(public).await?.into_iter().next() else { return Ok(None) };
        let (secret,): (Transfer,) = proxy(&self.bus, item.as_str(), "Item")
            .await?
            .call("GetSecret", &(&self.session,))
            .await
            .map_err(failed)?;
        Ok(Some(Zeroizing::new(secret.2)))
    }

    async fn remember(
        &self,
        public: &PublicIdentity,
        passphrase: &[u8],
        of: &str,
    ) -> Result<(), Error> {
        let default: ObjectPath<'_> = DEFAULT.try_into().expect("a path");
        self.unlock(&[default.into()]).await?;
        let properties = HashMap::from([
            ("org.freedesktop.Secret.Item.Label", Variant::from(format!("kithfs: {of}"))),
            ("org.freedesktop.Secret.Item.Attributes", Variant::from(attributes(public))),
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

    async fn forget(&self, public: &PublicIdentity) -> Result<bool, Error> {
        let items = self.items(public).await?;
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
    async fn items(&self, public: &PublicIdentity) -> Result<Vec<OwnedObjectPath>, Error> {
        let (mut found, locked): (Vec<OwnedObjectPath>, Vec<OwnedObjectPath>) =
            proxy(&self.bus, ROOT, "Service")
                .await?
                .call("SearchItems", &(attributes(public),))
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
