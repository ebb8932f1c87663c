//! Handing a vault that has an identity of its own over to a person.
//!
//! Rules that hold here
//! * Afterwards the person's identity opens the vault, and the shares in it belong to the person:
//!   members see the person's name and key.
//! * A vault that is not signed has one owner for good. There the person's identity gets a slot in
//!   the file of the vault's own identity, and enters and founds the shares in the vault itself.
//! * A signed vault gets the person as an admin, in the place of its own identity. All its shares
//!   must be there for that.
//! * The person opens the vault before anything is taken away. No key is destroyed: the former
//!   identity of a signed vault, which may be the only member of a share that was not delivered, is
//!   kept among the user's files.

use std::path::Path;

use super::nodes::{Node, names};
use super::open::{self, Found, Open, Purpose};
use crate::cli::args::{OpenArgs, PresentSecret};
use crate::cli::display::{Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::replace::{replace, replace_in};
use crate::cli::report::{Failure, in_vault, note, of_identity, warn};
use crate::cli::secrets::identity::{self, Locked, Place, Unlocked, link_label};
use crate::cli::secrets::source::Opens;
use crate::cli::user::{directories, own_name};
use crate::cli::vaults::paths::join;
use crate::roster::{Identity, IdentityFile, Member, Role, Secret};
use crate::vault::{self, OsRandom, ShareInfo, Vault};

/// A vault with an identity of its own, and the person who takes it over; both are locked.
pub struct HandOver {
    found: Found,
    own: Locked,
    person: Locked,
}

impl HandOver {
    /// Finds the vault and its identity. `person` is the identity file of the person.
    ///
    /// # Errors
    /// The vault has no identity of its own, or is mounted; a file cannot be read.
    pub fn find(vault: &Path, person: &Path) -> Result<HandOver, Failure> {
        let found = open::find(vault)?;
        found.refuse_mounted()?;
        let own = identity::own_of(&found.store, &found.dir)?
            .ok_or_else(|| Error::NothingToAdopt(found.dir.clone()))?;
        Ok(HandOver { person: identity::read(person)?, found, own })
    }

    /// Asks for both secrets, `own` and `person`, and hands the vault over. Returns the identities
    /// that open it from now on.
    ///
    /// # Errors
    /// A secret does not match; those of reading and writing the vault.
    pub fn run(self, own: &PresentSecret, person: &PresentSecret) -> Result<Unlocked, Failure> {
        let HandOver { found, own: file, person: locked } = self;
        let asked = file.ask(own, &Opens::Vault(found.dir.clone()))?;
        let (owner, _) = file.unlock(asked)?;
        let asked = locked.ask(person, &identity::opens(&locked.place.path))?;
        let (person, _) = locked.unlock(asked)?;
        let dir = found.dir.clone();
        if found.description.signed {
            let kept =
                directories::former_identities()?.join(hex::encode(&owner.public().sign[..8]));
            replace_admin(&dir, &owner, &person, true)?;
            keep(file, &kept)?;
            return Ok(Unlocked { identity: person, person: None });
        }
        if !file.is_linked_to(&locked) {
            link(file, &owner, &person)?;
        }
        replace_admin(&dir, &owner, &person, false)?;
        Ok(Unlocked { identity: owner, person: Some(person) })
    }
}

/// Returns whether shares in the vault would belong to its own identity, although the user has one.
///
/// # Errors
/// The vault cannot be read.
pub fn is_due(vault: &Path) -> Result<bool, Failure> {
    let Some(person) = identity::users() else { return Ok(false) };
    let found = open::find(vault)?;
    let Some(own) = identity::own_of(&found.store, &found.dir)? else { return Ok(false) };
    Ok(!own.is_linked_to(&identity::read(&person)?))
}

/// Hands the vault over to the user, and opens it for writing.
///
/// # Errors
/// Those of [`HandOver::run`]; the vault is signed, so that its members would have to be changed.
pub fn open_for_user(vault: &Path, args: &OpenArgs) -> Result<Open, Failure> {
    let person = identity::users().ok_or(Error::NoHome)?;
    let hand_over = HandOver::find(vault, &person)?;
    if hand_over.found.description.signed {
        return Err(Error::NotHandedOver(vault.to_owned()).into());
    }
    let unlocked = hand_over.run(&args.secret, &PresentSecret::default())?;
    note(format_args!(
        "{} opens {} from now on; its former secrets still do",
        identity::opens(&person),
        shown(vault)
    ));
    open::find(vault)?.open_with(unlocked, args, Purpose::Write)
}

/// Moves the identity file of a vault to `kept`, a file of the user.
fn keep(own: Locked, kept: &Path) -> Result<(), Failure> {
    let bytes = own.file.encode();
    directories::make_parent(kept)?;
    replace(kept, &bytes, |written| {
        let is_same = written == bytes;
        if is_same { Ok(()) } else { Err(Error::NotReadBack(kept.to_owned())) }
    })?;
    let Place { dir, name, path } = own.place;
    dir.unlink(&name).map_err(|source| Error::Io { op: "remove", path, source })?;
    note(format_args!(
        "the vault's former identity is kept in {}: its passphrase and recovery code still open it",
        shown(kept)
    ));
    Ok(())
}

/// Adds a slot that `person` opens to the file of the vault's own identity.
fn link(own: Locked, owner: &Identity, person: &Identity) -> Result<(), Failure> {
    let Locked { place, mut file, .. } = own;
    let failed = |error| of_identity(error, &place.path);
    let before = file.encode();
    let secret = Secret::KeyFile(person.link_to(&owner.public()).to_vec().into());
    let label = link_label(&person.public());
    let slot = identity::new_slot(&secret, Default::default(), &label);
    file.add_slot(owner, &slot, &OsRandom).map_err(failed)?;
    replace_in(&*place.dir, &place.name, &place.path, &file.encode(), |written| {
        let opened = IdentityFile::decode(written).and_then(|file| file.unlock(&secret));
        if !opened.is_ok_and(|identity| identity.public() == owner.public()) {
            return Err(Failure::from(Error::NotVerified(place.path.clone())));
        }
        let is_as_before = place.clone().read().is_ok_and(|now| now.file.encode() == before);
        if is_as_before { Ok(()) } else { Err(Error::IdentityChanged(place.path.clone()).into()) }
    })
}

/// Puts `person` in the place of `owner` in every share of which `owner` is an admin. Run again, it
/// continues where it was interrupted.
fn replace_admin(
    dir: &Path,
    owner: &Identity,
    person: &Identity,
    signed: bool,
) -> Result<(), Failure> {
    let args = OpenArgs::default();
    let name = own_name::or_chosen(None)?;
    let opened = Unlocked { identity: owner.duplicate(), person: None };
    match open::find(dir)?.open_with(opened, &args, Purpose::Write) {
        Ok(open) => add_admin(&open, dir, owner, person, &name, signed)?,
        // An earlier run has removed `owner` from the vault itself.
        Err(failure) if signed && failure.exit == Exit::WrongSecret => {}
        Err(failure) => return Err(failure),
    }
    let opened = if signed {
        Unlocked { identity: person.duplicate(), person: None }
    } else {
        Unlocked { identity: owner.duplicate(), person: Some(person.duplicate()) }
    };
    let open = open::find(dir)?.open_with(opened, &args, Purpose::Write)?;
    remove_admin(&open, dir, owner, person, &name)?;
    open.close()
}

/// Adds `person` to every share of which `owner`, who has opened the vault, is an admin. In a
/// signed vault nothing is changed unless all shares are there: `owner` cannot enter the vault
/// afterwards.
fn add_admin(
    open: &Open,
    dir: &Path,
    owner: &Identity,
    person: &Identity,
    name: &str,
    signed: bool,
) -> Result<(), Failure> {
    let in_dir = |error| in_vault(error, dir, None);
    let (paths, mut unseen) = shares_below(&open.vault);
    let mut shares = Vec::new();
    for path in paths {
        let share = open.vault.share_at(&path).map_err(in_dir)?;
        let info = share.info().map_err(in_dir)?;
        if role_of(&info, owner) != Some(Role::Admin) {
            continue;
        }
        if signed {
            let missing = share.missing_within(&[owner.public().sign]).map_err(in_dir)?;
            unseen.extend(missing.iter().map(|junction| {
                format!("{}: the nested share at this path is missing", shown(junction))
            }));
        }
        shares.push((share, info));
    }
    if signed && !unseen.is_empty() {
        return Err(Error::SharesUnseen { vault: dir.to_owned(), unseen }.into());
    }
    unseen.iter().for_each(|what| warn(format_args!("not looked at: {what}")));
    for (share, info) in shares.iter().filter(|(_, info)| info.signed) {
        if role_of(info, person).is_none() {
            let member =
                Member { public: person.public(), role: Role::Admin, name: name.to_owned() };
            share.add(&[member]).map_err(in_dir)?;
        }
    }
    drop(shares);
    open.close()
}

/// Removes `owner` from every share of which `person` is an admin.
fn remove_admin(
    open: &Open,
    dir: &Path,
    owner: &Identity,
    person: &Identity,
    name: &str,
) -> Result<(), Failure> {
    let in_dir = |error| in_vault(error, dir, None);
    let (mut paths, _) = shares_below(&open.vault);
    // Deeper shares first, so that `owner` leaves each one before the shares around it.
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in &paths {
        let share = open.vault.share_at(path).map_err(in_dir)?;
        let info = share.info().map_err(in_dir)?;
        let is_due = info.signed && role_of(&info, person) == Some(Role::Admin);
        if !is_due || role_of(&info, owner).is_none() {
            continue;
        }
        share.remove(&[owner.public().sign], &mut |_| {}).map_err(in_dir)?;
        note(format_args!(
            "{} belongs to {} now",
            Shown(if path.is_empty() { b"the vault" } else { path }),
            Shown(name.as_bytes())
        ));
    }
    Ok(())
}

fn role_of(info: &ShareInfo, identity: &Identity) -> Option<Role> {
    let is_theirs = |member: &&Member| member.public == identity.public();
    info.members.iter().find(is_theirs).map(|member| member.role)
}

/// Returns the folders of all shares in a vault, with its root, and the folders that cannot be
/// entered, with the reason. A share that this identity is no member of is in neither list.
fn shares_below(vault: &Vault) -> (Vec<Vec<u8>>, Vec<String>) {
    let (mut shares, mut unseen) = (Vec::new(), Vec::new());
    let mut left = vec![Vec::new()];
    while let Some(path) = left.pop() {
        let listed = (|| {
            if vault.share_at(&path)?.info()?.path == path {
                shares.push(path.clone());
            }
            let node = Node::at(vault, &path)?;
            for name in names(vault, node.id())? {
                if Node::child(vault, node.id(), &name)?.is_some_and(|node| node.is_dir()) {
                    left.push(join(&path, &name));
                }
            }
            crate::vault::Result::Ok(())
        })();
        match listed {
            Ok(()) | Err(vault::Error::NoAccess { .. }) => {}
            Err(error) => unseen.push(format!("{}: {error}", Shown(&path))),
        }
    }
    (shares, unseen)
}
