//! `kithfs accept`
//!
//! Rules: an invitation proves what the holder of a key has signed. A verified contact or a
//! compared fingerprint proves who the holder is. This user's own record of a share is never
//! replaced by an invitation.

use std::io::Read;
use std::path::Path;

use super::contact::compare;
use super::identity::public;
use crate::cli::args::people::Accept;
use crate::cli::display::Shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::fifo;
use crate::cli::report::{Failure, note};
use crate::cli::user::contacts;
use crate::cli::user::share_memory::Shares;
use crate::format::invitation::INVITATION_LEN;
use crate::roster::contacts::Trust;
use crate::roster::{Contacts, Invitation, PinnedShare, Proof, PublicIdentity};

/// Accepts an invitation.
pub fn run(args: &Accept) -> Result<Exit, Failure> {
    let me = public(&args.of.path()?, &args.secret)?;
    let refused = |source| Error::Invitation { path: args.file.clone(), source };
    let invitation = Invitation::verify(&read(&args.file)?, &me).map_err(refused)?;
    let admin = *invitation.admin();
    let name = inviter(&contacts::load()?, &admin, &args.file)?;
    match &name {
        Inviter::Verified(_) => {}
        Inviter::New(name) => {
            note(format_args!(
                "the invitation is signed with the key of {}, whose fingerprint has not been compared",
                Shown(name.as_bytes())
            ));
            compare(&admin, name, &args.comparison)?;
        }
        Inviter::Unknown => {
            note("the invitation is signed with a key that belongs to none of your contacts");
            compare(&admin, "the inviting admin", &args.comparison)?;
        }
    }
    let share = invitation.share_id();
    let new = PinnedShare { share, proof: Proof::Invitation(admin), head: invitation.head() };
    let remembered = Shares::of_user()?.update(new, |_| {})?;
    if remembered != new {
        note(format_args!(
            "share {} is already known; its record is unchanged",
            hex::encode(share)
        ));
    } else {
        let by = match &name {
            Inviter::Verified(name) | Inviter::New(name) => {
                format!("{} ({})", Shown(name.as_bytes()), admin.fingerprint())
            }
            Inviter::Unknown => admin.fingerprint(),
        };
        note(format_args!("accepted the invitation of {by} to share {}", hex::encode(share)));
        note("once the directory of its ciphertext is here: kithfs mount DIRECTORY ~/plain");
    }
    Ok(Exit::Ok)
}

enum Inviter {
    Verified(String),
    New(String),
    Unknown,
}

fn inviter(contacts: &Contacts, admin: &PublicIdentity, file: &Path) -> Result<Inviter, Error> {
    let offered = contacts.all().iter().find(|contact| contact.offered.as_ref() == Some(admin));
    match contacts.by_key(admin).or(offered) {
        None => Ok(Inviter::Unknown),
        Some(contact) => match contact.trust() {
            Trust::Verified => Ok(Inviter::Verified(contact.name.clone())),
            Trust::New => Ok(Inviter::New(contact.name.clone())),
            Trust::Changed => {
                Err(Error::InviterChanged { path: file.to_owned(), name: contact.name.clone() })
            }
        },
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io { op: "read invitation", path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // One byte more than an invitation, so that a longer file is refused and not truncated.
    let max = INVITATION_LEN as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(max).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        fifo::open(path).map_err(failed)?.take(max).read_to_end(&mut bytes).map_err(failed)?;
    }
    Ok(bytes)
}
