//! Secrets that are wrapped to an age recipient: native age keys, SSH keys, and plugins for
//! hardware tokens.
//!
//! Rules that hold here
//! * An age file in a slot comes from the storage host. It is decrypted only with identities that
//!   the user has named, and only their plugins are started.
//! * A passphrase of an identity file is asked for once, before any slot is tried: the number of
//!   prompts does not depend on what the host has stored.
//! * No passphrase is tried on the age file of a slot, so an `scrypt` stanza costs nothing.

use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use age::secrecy::SecretString;
use age::{Callbacks, Decryptor, Encryptor};
use zeroize::Zeroizing;

use crate::cli::display::{Line, path as shown};
use crate::cli::error::Error;
use crate::cli::report::note;
use crate::cli::secrets::source::{self, SecretBytes};
use crate::cli::terminal::ask;
use crate::crypto::random::Random;
use crate::format::identity::AGE_MAGIC;
use crate::roster::Secret;
use crate::vault::OsRandom;

/// First bytes of an SSH private key.
const SSH_KEY: &[u8] = b"-----BEGIN ";

/// Age identities that the user has named.
pub struct AgeIdentities(Vec<Box<dyn age::Identity>>);

impl AgeIdentities {
    /// Reads identities from files: lines of native and plugin identities, an SSH private key, or
    /// lines that are encrypted with a passphrase. No plugin is started. Each is a fallback for the
    /// others: a file that cannot be used is reported, and is an error only if no other one can be.
    ///
    /// # Errors
    /// A file cannot be read or is none of these; the passphrase of one is wrong; a plugin is not
    /// installed.
    pub fn read(files: &[PathBuf]) -> Result<AgeIdentities, Error> {
        let mut all = Vec::new();
        let mut failed: Option<Error> = None;
        for file in files {
            let read = source::from_file("read age identity", file)
                .and_then(|bytes| read_one(&bytes, file, &mut all));
            if let Err(error) = read
                && let Some(before) = failed.replace(error)
            {
                note(before);
            }
        }
        match failed {
            Some(error) if all.is_empty() => return Err(error),
            Some(error) => note(error),
            None => {}
        }
        Ok(AgeIdentities(all))
    }

    /// Decrypts an age file. `None` if no identity is a recipient of it, or its contents are not
    /// those of a slot. An identity whose plugin fails does not keep the others from being tried.
    ///
    /// # Errors
    /// A plugin failed, or the token refused, and no other identity decrypts it.
    pub fn open(&self, file: &[u8]) -> Result<Option<Secret>, Error> {
        let mut failed = None;
        for identity in &self.0 {
            match open_with(&**identity, file) {
                Ok(None) => {}
                Err(error) => failed = Some(error),
                opened => return opened,
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

fn open_with(identity: &dyn age::Identity, file: &[u8]) -> Result<Option<Secret>, Error> {
    let failed = |why: String| Err(Error::Age { op: "open age slot", why });
    // The storage host or its disk may have damaged the slot. Another slot may be whole.
    let damaged = || failed("it is damaged".to_owned());
    let Ok(sealed) = Decryptor::new_buffered(file) else { return damaged() };
    let mut reader = match sealed.decrypt(std::iter::once(identity)) {
        Ok(reader) => reader,
        // An error of input or output is one of a plugin, too: nothing else reads or writes here.
        Err(
            error @ (age::DecryptError::Plugin(_)
            | age::DecryptError::PluginResolve(_)
            | age::DecryptError::Io(_)),
        ) => {
            return failed(line_of(&error));
        }
        Err(
            age::DecryptError::InvalidHeader
            | age::DecryptError::InvalidMac
            | age::DecryptError::DecryptionFailed,
        ) => return damaged(),
        Err(_) => return Ok(None),
    };
    // One byte more, so that longer contents are refused and not truncated.
    let mut contents = Zeroizing::new([0; 33]);
    let mut len = 0;
    while len < contents.len() {
        match reader.read(&mut contents[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(_) => return damaged(),
        }
    }
    if len != 32 {
        return Ok(None);
    }
    let mut secret = Zeroizing::new([0; 32]);
    secret.copy_from_slice(&contents[..32]);
    Ok(Some(Secret::Age { file: file.to_vec(), secret }))
}

/// Returns a message of the age library in one line, without the marks for right-to-left text that
/// the library puts around names.
fn line_of(why: &dyn std::fmt::Display) -> String {
    let text = why.to_string().replace(['\u{2068}', '\u{2069}'], "");
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn read_one(
    bytes: &SecretBytes,
    file: &Path,
    all: &mut Vec<Box<dyn age::Identity>>,
) -> Result<(), Error> {
    let failed = |why: &dyn std::fmt::Display| Error::AgeIdentity {
        path: file.to_owned(),
        why: line_of(why),
    };
    let lines = if bytes.expose().starts_with(AGE_MAGIC) {
        let sealed = Decryptor::new_buffered(bytes.expose()).map_err(|error| failed(&error))?;
        age::encrypted::EncryptedIdentity::new(sealed, Asking, None)
            .ok_or_else(|| failed(&"it is encrypted, and not with a passphrase"))?
            .decrypt(Some(&file.to_string_lossy()))
            .map_err(|error| failed(&error))?
    } else if bytes.expose().starts_with(SSH_KEY) {
        all.push(Box::new(ssh_key(bytes, file)?));
        return Ok(());
    } else {
        age::IdentityFile::from_buffer(bytes.expose())
            .map_err(|error| failed(&error))?
            .with_callbacks(Asking)
    };
    let before = all.len();
    for identity in lines.into_identities().map_err(|error| failed(&error))? {
        all.push(identity);
    }
    if all.len() == before { Err(failed(&"it has no identity")) } else { Ok(()) }
}

fn ssh_key(bytes: &SecretBytes, file: &Path) -> Result<age::ssh::Identity, Error> {
    let failed = |why: String| Error::AgeIdentity { path: file.to_owned(), why };
    let key = age::ssh::Identity::from_buffer(BufReader::new(bytes.expose()), None)
        .map_err(|error| failed(line_of(&error)))?;
    match key {
        age::ssh::Identity::Encrypted(key) => {
            let prompt = format!("Passphrase of the SSH key {}: ", shown(file));
            let passphrase = secret_string(ask::secret(&prompt)?.as_slice())
                .ok_or_else(|| failed("its passphrase is not UTF-8".into()))?;
            let key = key.decrypt(passphrase).map_err(|error| failed(line_of(&error)))?;
            Ok(key.into())
        }
        age::ssh::Identity::Unsupported(_) => Err(failed(
            "only SSH keys of type Ed25519 and RSA can decrypt; a FIDO2 key needs an age plugin"
                .into(),
        )),
        key @ age::ssh::Identity::Unencrypted(_) => Ok(key),
    }
}

/// Makes a secret that only the holder of `recipient` can open again.
///
/// # Errors
/// The text is no recipient, its plugin is not installed, or the plugin failed.
pub fn wrap(recipient: &str) -> Result<Secret, Error> {
    let mut secret = Zeroizing::new([0; 32]);
    OsRandom.fill(&mut *secret);
    let recipient = recipient_of(recipient.trim())?;
    let failed = |why: &dyn std::fmt::Display| Error::Age {
        op: "encrypt to age recipient",
        why: line_of(why),
    };
    let mut file = Vec::new();
    let encryptor =
        Encryptor::with_recipients(std::iter::once(&*recipient)).map_err(|error| failed(&error))?;
    encryptor
        .wrap_output(&mut file)
        .and_then(|mut writer| {
            writer.write_all(&*secret)?;
            writer.finish()
        })
        .map_err(|error| failed(&error))?;
    Ok(Secret::Age { file, secret })
}

fn recipient_of(text: &str) -> Result<Box<dyn age::Recipient>, Error> {
    if text.to_ascii_uppercase().starts_with("AGE-") {
        // Not quoted: it is a secret, and messages end up in logs.
        return Err(Error::AgeRecipient("it is an identity, which must stay secret".into()));
    }
    if let Ok(native) = text.parse::<age::x25519::Recipient>() {
        return Ok(Box::new(native));
    }
    if let Ok(tagged) = text.parse::<age::tag::Recipient>() {
        return Ok(Box::new(tagged));
    }
    if let Ok(tagged) = text.parse::<age::tagpq::Recipient>() {
        return Ok(Box::new(tagged));
    }
    if ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| text.starts_with(kind)) {
        let key = text.parse::<age::ssh::Recipient>().map_err(|_| {
            Error::AgeRecipient("only SSH keys of type Ed25519 and RSA can be recipients".into())
        })?;
        return Ok(Box::new(key));
    }
    let plugin: age::plugin::Recipient = text.parse().map_err(|_| {
        Error::AgeRecipient("it begins with `age1`, or is the line of an SSH public key".into())
    })?;
    let name = plugin.plugin().to_owned();
    let plugin = age::plugin::RecipientPluginV1::new(&name, &[plugin], &[], Asking)
        .map_err(|error| Error::AgeRecipient(error.to_string()))?;
    Ok(Box::new(plugin))
}

fn secret_string(bytes: &[u8]) -> Option<SecretString> {
    std::str::from_utf8(bytes).ok().map(|text| SecretString::from(text.to_owned()))
}

/// Passes a plugin's questions to the user. What a plugin shows is escaped like any other text.
#[derive(Clone)]
struct Asking;

impl Callbacks for Asking {
    fn display_message(&self, message: &str) {
        note(format_args!("{}", Line(message)));
    }

    fn confirm(&self, message: &str, yes: &str, no: Option<&str>) -> Option<bool> {
        let question = match no {
            Some(no) => format!("{message} (y: {yes}, n: {no})"),
            None => format!("{message} (y: {yes})"),
        };
        match ask::confirm(&question, false) {
            Ok(()) => Some(true),
            Err(Error::Declined) => Some(false),
            Err(_) => None,
        }
    }

    fn request_public_string(&self, description: &str) -> Option<String> {
        ask::line(&format!("{description}: ")).ok()
    }

    fn request_passphrase(&self, description: &str) -> Option<SecretString> {
        secret_string(&ask::secret(&format!("{description}: ")).ok()?)
    }
}
