//! `kithfs contact`
//!
//! Rule: no answer is assumed. A key that is offered under a known name is stored beside the known
//! one, and the command fails.

use std::io::Read;
use std::path::Path;

use serde::Serialize;

use crate::cli::args::people::{
    Comparison, ContactAdd, ContactCommand, ContactList, ContactRemove, ContactVerify,
};
use crate::cli::display::{Shown, word};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note, warn};
use crate::cli::secrets::source;
use crate::cli::terminal::ask::confirm;
use crate::cli::terminal::stdout::Out;
use crate::cli::user::contacts::{self, failed};
use crate::cli::user::ssh_voucher;
use crate::roster::contacts::{Added, Trust};
use crate::roster::{Contact, ContactError, PublicIdentity, base32};

/// Runs one of the commands.
pub fn run(command: &ContactCommand) -> Result<Exit, Failure> {
    match command {
        ContactCommand::Add(args) => add(args),
        ContactCommand::List(args) => list(args),
        ContactCommand::Verify(args) => verify(args),
        ContactCommand::Remove(args) => remove(args),
    }
}

fn add(args: &ContactAdd) -> Result<Exit, Failure> {
    let public = key(&args.key)?;
    let (added, look_alike) = contacts::update(|contacts| {
        Ok((
            contacts.add(&args.name, &public).map_err(failed)?,
            contacts::look_alike(contacts, &args.name),
        ))
    })?;
    let (name, word) = (Shown(args.name.as_bytes()), word(&args.name));
    if let Some(why) = look_alike {
        warn(format_args!("the name {name} could be mistaken for another one: {why}"));
    }
    match added {
        Added::New => note(format_args!(
            "added {name}, fingerprint {}. Compare it with its owner, then: kithfs contact verify {word}",
            public.fingerprint()
        )),
        Added::Known => note(format_args!("{name} already has this key")),
        Added::OfferDropped => {
            note(format_args!("{name} keeps this key; the other one is dropped"))
        }
        Added::Changed => return Err(Error::KeyChanged(args.name.clone()).into()),
    }
    Ok(Exit::Ok)
}

/// Reads a public key from the command line or stdin.
fn key(given: &str) -> Result<PublicIdentity, Failure> {
    let mut text = given.to_owned();
    if given == "-" {
        text.clear();
        // Far more than a key, so that a longer text is refused and not truncated.
        let read = std::io::stdin().lock().take(4096).read_to_string(&mut text);
        read.map_err(|source| Error::Os { op: "read public key from stdin", source })?;
    }
    Ok(text.parse().map_err(Error::PublicKey)?)
}

/// One contact. The names of the fields are stable.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    state: &'static str,
    fingerprint: String,
    key: String,
    offered_fingerprint: Option<String>,
    offered_key: Option<String>,
}

impl Row<'_> {
    fn of(contact: &Contact) -> Row<'_> {
        Row {
            name: &contact.name,
            state: contact.trust().name(),
            fingerprint: contact.public.fingerprint(),
            key: contact.public.to_string(),
            offered_fingerprint: contact.offered.map(|offered| offered.fingerprint()),
            offered_key: contact.offered.map(|offered| offered.to_string()),
        }
    }
}

fn list(args: &ContactList) -> Result<Exit, Failure> {
    let contacts = contacts::load()?;
    let rows: Vec<Row<'_>> = contacts.all().iter().map(Row::of).collect();
    Out::report(args.json, &rows, |out| {
        for Row { name, state, fingerprint, offered_fingerprint, .. } in &rows {
            out.state(state, 8)?;
            out.text(format_args!("  {fingerprint}  {}\n", Shown(name.as_bytes())))?;
            if let Some(offered) = offered_fingerprint {
                out.text(format_args!(
                    "{:<8}  {offered}  {}\n",
                    "offered",
                    Shown(name.as_bytes())
                ))?;
            }
        }
        Ok(())
    })
}

fn verify(args: &ContactVerify) -> Result<Exit, Failure> {
    let contacts = contacts::load()?;
    let contact =
        contacts.get(&args.name).ok_or_else(|| failed(ContactError::Unknown(args.name.clone())))?;
    let name = Shown(args.name.as_bytes());
    let asked = *contact.in_question();
    if contact.trust() == Trust::Changed {
        note(format_args!(
            "{name} has a new key. The known one has the fingerprint {}",
            contact.public.fingerprint()
        ));
    }
    match (&args.ssh, &args.signature) {
        (Some(keys), Some(signature)) => {
            let key = vouched(&asked, &args.name, keys, signature)?;
            note(format_args!("{name} has signed this key with the SSH key {key}"));
        }
        _ => compare(&asked, &args.name, &args.comparison)?,
    }
    contacts::update(|contacts| {
        // Another key may have been offered while the question was open.
        match contacts.get(&args.name) {
            Some(contact) if *contact.in_question() == asked => {}
            Some(_) => return Err(Error::KeyChanged(args.name.clone()).into()),
            None => return Err(failed(ContactError::Unknown(args.name.clone())).into()),
        }
        contacts.verify(&args.name).map_err(failed)?;
        Ok(())
    })?;
    note(format_args!("{name} is verified, fingerprint {}", asked.fingerprint()));
    Ok(Exit::Ok)
}

/// Returns the fingerprint of the SSH key in `keys` that has signed the key of `name`.
fn vouched(
    public: &PublicIdentity,
    name: &str,
    keys: &Path,
    signature: &Path,
) -> Result<String, Error> {
    let keys = source::from_file("read SSH keys", keys)?;
    let signature = source::from_file("read signature", signature)?;
    let keys = String::from_utf8_lossy(keys.expose());
    ssh_voucher::vouching_key(&keys, signature.expose(), public)
        .map(|key| key.to_string())
        .map_err(|source| Error::Voucher { name: name.to_owned(), source })
}

/// Checks that the key belongs to `name`: by the given fingerprint, by `--yes`, else by asking.
///
/// # Errors
/// The fingerprint differs; the answer is no; there is no terminal.
pub fn compare(public: &PublicIdentity, name: &str, comparison: &Comparison) -> Result<(), Error> {
    let fingerprint = public.fingerprint();
    match &comparison.fingerprint {
        // Case, hyphens and look-alike characters are normalized.
        Some(told) => match base32::values(told) {
            Some(values)
                if Some(values.to_vec())
                    == base32::values(&fingerprint).map(|values| values.to_vec()) =>
            {
                Ok(())
            }
            _ => Err(Error::OtherFingerprint { name: name.to_owned(), has: fingerprint }),
        },
        None => {
            let name = Shown(name.as_bytes());
            confirm(
                &format!("The fingerprint is {fingerprint}. Is it the one that {name} gave you?"),
                comparison.yes,
            )
        }
    }
}

fn remove(args: &ContactRemove) -> Result<Exit, Failure> {
    contacts::update(|contacts| Ok(contacts.remove(&args.name).map(drop).map_err(failed)?))?;
    note(format_args!(
        "removed {}; shares with this member are unchanged",
        Shown(args.name.as_bytes())
    ));
    Ok(Exit::Ok)
}
