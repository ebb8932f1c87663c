//! The control files of a share: their creation, and the way from them to the folder keys.
//!
//! Rules that hold here
//! * The identity of a share is verified here, before any key of it is used (see [`Trust`]).
//! * Manifests are verified as they are read; only valid ones stay in memory.
//! * Control files of rosters appear with all of their bytes, under names that were free, and are
//!   never rewritten.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::crypto::{Random, Suite};
use crate::format::inventory::{self, InventoryList};
use crate::format::manifest::{BlockRef, MAX_LEN as MANIFEST_MAX, Manifest};
use crate::format::share::{DESCRIPTOR_LEN, ShareDescriptor};
use crate::format::slots::BlockError;
use crate::format::{FormatErrorKind, slots};
use crate::roster::{
    Assembly, Change, FolderKeys, FoundParams, Founded, Identity, Member, Members, Pin,
    RosterError, Standing, VerifiedRoster, found,
};
use crate::store::{Access, Dir};
use crate::vault::error::{Corruption, Error, Fault, Inner, Result};
use crate::vault::keyring::signing::Rights;
use crate::vault::share::control_files::{
    entries, is_missing, read_control, write_control, write_new,
};
use crate::vault::share::descriptor::copy_of;
use crate::vault::share::trust::Trust;

/// [`DESCRIPTOR_FILE`] as bytes.
pub(crate) const DESCRIPTOR: &[u8] = DESCRIPTOR_FILE.as_bytes();
/// Name of the share descriptor: a directory that holds such a file is a vault, or a share.
pub const DESCRIPTOR_FILE: &str = "+share";
/// Prefix of the names of manifests.
pub(crate) const MANIFEST: &[u8] = b"+manifest-";
/// Name of the file with the vault's own identity.
pub const IDENTITY_FILE: &str = "+identity";
/// Maximum number of manifests that are read.
pub(crate) const MANIFESTS_MAX: usize = 65536;

/// Options for creating a vault.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Cipher suite, for the vault's whole life.
    pub suite: Suite,
    /// `log2` of the chunk size, 12 to 22.
    pub chunk_log2: u8,
}

/// Options for creating a signed share.
#[derive(Clone, Debug, Default)]
pub struct CreateShare {
    /// The parent's admins are not made members.
    pub isolated: bool,
    /// The founder's name in the list of members.
    pub name: String,
    /// The first members besides the founder.
    pub others: Vec<Member>,
}

pub(crate) fn share_error(
    name: &[u8],
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::Share {
        path: PathBuf::from(String::from_utf8_lossy(name).into_owned()),
        source: Box::new(source),
    }
}

/// Writes the control files of a new vault whose owner is `owner`. The directory must contain
/// nothing but [`IDENTITY_FILE`]. The descriptor comes last: without it the directory is not a
/// vault.
pub(crate) fn create(
    store: &Arc<dyn Dir>,
    options: &CreateOptions,
    owner: &Identity,
    random: &dyn Random,
) -> Result<()> {
    let at = |fault: Fault| fault.at("create vault", PathBuf::new);
    refuse_full(&**store).map_err(at)?;
    let params = FoundParams {
        suite: options.suite,
        signed: false,
        isolated: false,
        chunk_log2: options.chunk_log2,
        name: "owner",
        others: &[],
    };
    found_in(&**store, owner, &params, random).map(|_| ())
}

/// Fails with `ENOTEMPTY` if a directory contains anything but [`IDENTITY_FILE`].
fn refuse_full(store: &dyn Dir) -> Inner<()> {
    let other = entries(store)?.find(|entry| {
        entry.as_ref().map_or(true, |entry| *entry.name != *IDENTITY_FILE.as_bytes())
    });
    match other.transpose()? {
        Some(_) => Err(Fault::Os(libc::ENOTEMPTY)),
        None => Ok(()),
    }
}

/// Like [`create`], for a signed share with members.
pub(crate) fn create_signed(
    store: &Arc<dyn Dir>,
    options: &CreateOptions,
    owner: &Identity,
    share: &CreateShare,
    random: &dyn Random,
) -> Result<()> {
    let at = |fault: Fault| fault.at("create share", PathBuf::new);
    refuse_full(&**store).map_err(at)?;
    let CreateShare { isolated, name, others } = share;
    let params = FoundParams {
        suite: options.suite,
        signed: true,
        isolated: *isolated,
        chunk_log2: options.chunk_log2,
        name,
        others,
    };
    found_in(&**store, owner, &params, random).map(|_| ())
}

/// Returns the present time, in seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Founds a share and writes its control files, the descriptor last.
pub(crate) fn found_in(
    store: &dyn Dir,
    founder: &Identity,
    params: &FoundParams<'_>,
    random: &dyn Random,
) -> Result<Founded> {
    let founded =
        found(founder, params, random, unix_now()).map_err(|e| share_error(DESCRIPTOR, e))?;
    (|| {
        put_change(store, &founded.change, random)?;
        write_control(store, random, DESCRIPTOR, &founded.descriptor)?;
        Ok(store.sync()?)
    })()
    .map_err(|fault: Fault| fault.at("create share", PathBuf::new))?;
    Ok(founded)
}

/// Writes a change of the roster: the slot block first, both durable on return.
pub(crate) fn put_change(store: &dyn Dir, change: &Change, random: &dyn Random) -> Inner<()> {
    write_new(store, random, change.slots_name.as_bytes(), &change.slots)?;
    store.sync()?;
    write_new(store, random, change.manifest_name.as_bytes(), &change.manifest)?;
    Ok(store.sync()?)
}

/// Makes the files of a head's chain beyond `known` durable, also those of other authors. A head
/// must not be remembered if a crash can remove it: every client that remembers it would reject the
/// share for ever.
fn flush_chain(store: &dyn Dir, roster: &VerifiedRoster, known: Option<&Pin>) -> Inner<()> {
    // The pinned one may have lost a fork: then the other branch was never flushed.
    let since = known.filter(|pin| roster.contains(pin)).map_or(0, |pin| pin.sequence);
    for (manifest, _) in roster.history().filter(|(manifest, _)| manifest.sequence > since) {
        let mut names = vec![manifest.file_name()];
        names.extend(manifest.blocks.iter().map(|block| slots::file_name(&block.root)));
        names.extend(
            (manifest.inventory_file != [0; 32])
                .then(|| inventory::file_name(&manifest.inventory_file)),
        );
        for name in names {
            match store.open_file(name.as_bytes(), Access::Read) {
                // The slots and inventories of former epochs may have been removed.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                file => file?.sync_all()?,
            }
        }
    }
    Ok(store.sync()?)
}

/// Reads the descriptor: the public information of a vault.
pub(crate) fn descriptor(store: &dyn Dir, shown: &Path) -> Result<ShareDescriptor> {
    let bytes = match read_control(store, DESCRIPTOR, 4096) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(Error::NotAVault { path: shown.to_path_buf() }),
        Err(fault) => return Err(fault.at("read", || shown.join("+share"))),
    };
    ShareDescriptor::decode(&bytes).map_err(|e| match e.kind() {
        FormatErrorKind::Version(found) if found > crate::format::share::VERSION => {
            Error::NewerVersion {
                path: shown.join("+share"),
                found,
                known: crate::format::share::VERSION,
            }
        }
        FormatErrorKind::Magic => Error::NotAVault { path: shown.to_path_buf() },
        _ => Error::Corrupt {
            op: "read",
            path: shown.join("+share"),
            what: format!("{e} (length {}, not {DESCRIPTOR_LEN})", bytes.len()),
        },
    })
}

/// A share that was entered: its roster is verified, its keys are available.
pub(crate) struct Entered {
    pub descriptor: ShareDescriptor,
    /// The heads that count and that this identity can open, the highest sequence first.
    pub heads: Vec<Head>,
    /// The heads that count and that this identity cannot open.
    pub unopened: Vec<Pin>,
    /// Several heads count, whether this identity can open them or not.
    pub forked: bool,
    /// An inventory is missing or incomplete.
    pub incomplete: bool,
    /// See [`Roster::unread`].
    pub unread: Vec<Box<[u8]>>,
}

/// The manifests of a share.
pub(crate) struct Roster {
    pub standing: Standing,
    /// Names of manifests whose files have other contents than their names state. A sync tool may
    /// still be writing such a file.
    pub unread: Vec<Box<[u8]>>,
}

/// A head with the contents of the identity's slot.
pub(crate) struct Head {
    pub roster: VerifiedRoster,
    pub keys: FolderKeys,
    pub members: Members,
    /// The inventories of its chain.
    pub kept: Vec<Arc<InventoryList>>,
}

impl Entered {
    /// Returns the head to remember; `None` while there is a fork.
    pub fn head(&self) -> Option<Pin> {
        (!self.forked).then(|| self.heads[0].roster.head())
    }

    /// Returns whether the share has members besides this identity.
    pub fn has_other_members(&self) -> bool {
        self.heads.iter().any(|head| head.members.all().len() > 1)
    }

    /// Returns the rights of signers.
    pub fn rights(&self) -> Rights {
        Rights::new(
            self.heads.iter().map(|head| (head.members.clone(), head.kept.clone())),
            self.forked,
        )
    }
}

/// Why a share was not entered.
#[derive(Debug)]
pub(crate) enum Unentered {
    /// The head that counts is unknown, so the epoch may have ended: a manifest cannot be read, a
    /// head that counts cannot be opened, or there are more manifests and heads than the limit.
    Unknown(Error),
    /// The same, because a slot block that a head names is not there: a sync tool may not have
    /// delivered it yet.
    Late(Error),
    /// Any other reason.
    Other(Error),
}

impl From<Error> for Unentered {
    fn from(error: Error) -> Self {
        Unentered::Other(error)
    }
}

impl From<Unentered> for Error {
    fn from(unentered: Unentered) -> Self {
        match unentered {
            Unentered::Unknown(error) | Unentered::Late(error) | Unentered::Other(error) => error,
        }
    }
}

impl Unentered {
    /// Converts an error. The result names the one of these manifests that the error is about, or
    /// all of them.
    fn of_roster(error: RosterError, numbered: &[(u32, Box<[u8]>)]) -> Self {
        let is_named = |(number, _): &&(u32, Box<[u8]>)| Some(*number) == error.manifest();
        let all = [MANIFEST, b"*"].concat();
        let name = numbered.iter().find(is_named).map_or(&all[..], |(_, name)| name);
        let is_unknown = matches!(error, RosterError::TooLong | RosterError::TooMany(_));
        let error = share_error(name, error);
        if is_unknown { Unentered::Unknown(error) } else { Unentered::Other(error) }
    }
}

/// Returns the number in the name of a manifest; `None` for any other name.
pub(crate) fn number(name: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(name.strip_prefix(MANIFEST)?).ok()?;
    text.split_once('-')?.0.parse().ok()
}

/// Reads and verifies the manifests of a share, one at a time, and returns the heads that count.
/// Manifests under a wrong name, or without a valid signature, are not kept in memory.
pub(crate) fn standing(
    store: &dyn Dir,
    descriptor: &ShareDescriptor,
    pin: Option<&Pin>,
    shown: &Path,
) -> std::result::Result<Roster, Unentered> {
    let at = |name: &[u8]| shown.join(String::from_utf8_lossy(name).into_owned());
    let listed = entries(store).and_then(|entries| {
        let numbered =
            entries.filter_map(|entry| entry.map(|e| Some((number(&e.name)?, e.name))).transpose());
        numbered.take(MANIFESTS_MAX + 1).collect::<Inner<Vec<(u32, Box<[u8]>)>>>()
    });
    let mut numbered = listed.map_err(|f| f.at("list", || shown.to_path_buf()))?;
    if numbered.len() > MANIFESTS_MAX {
        // Omitting some would let a writer of the directory choose which: for example, the removal
        // of a member.
        return Err(Unentered::of_roster(RosterError::TooLong, &numbered));
    }
    numbered.sort_unstable();
    let mut assembly = Assembly::new(descriptor);
    let (mut ignored, mut unread) = (Vec::new(), Vec::new());
    for (_, name) in &numbered {
        let bytes = match read_control(store, name, MANIFEST_MAX) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                unread.push(name.clone());
                continue;
            }
            Err(Fault::Corrupt(_)) => {
                tracing::warn!("{}: too large for a manifest, skipped", at(name).display());
                unread.push(name.clone());
                continue;
            }
            // Not a regular file. (An unreadable file may be the removal of a member, so it is an
            // error.)
            Err(fault) if matches!(fault.errno(), libc::EISDIR | libc::ELOOP | libc::ENXIO) => {
                tracing::warn!(
                    "{}: not a regular file, and so not a manifest; skipped",
                    at(name).display()
                );
                unread.push(name.clone());
                continue;
            }
            Err(fault) => return Err(Unentered::Unknown(fault.at("read", || at(name)))),
        };
        let named = Manifest::decode(&bytes).map_err(RosterError::from).and_then(|manifest| {
            match manifest.file_name().as_bytes() == &**name {
                true => Ok(manifest),
                false => Err(RosterError::BrokenChain(manifest.sequence)),
            }
        });
        if named.is_err() {
            unread.push(name.clone());
        }
        match named.and_then(|manifest| assembly.take(manifest)) {
            Ok(()) => {}
            Err(RosterError::TooLong) => {
                return Err(Unentered::of_roster(RosterError::TooLong, &numbered));
            }
            Err(error) => ignored.push(error),
        }
    }
    let Standing { heads, ignored: rivals, pinned } =
        assembly.finish(pin).map_err(|error| Unentered::of_roster(error, &numbered))?;
    ignored.extend(rivals);
    Ok(Roster { standing: Standing { heads, ignored, pinned }, unread })
}

/// Returns a function that reads bytes of a slot block at an offset.
pub(crate) fn block_reader(
    store: &dyn Dir,
) -> impl FnMut(&BlockRef, u64, &mut [u8]) -> std::io::Result<()> + '_ {
    move |block, at, buf| {
        let file = store.open_file(slots::file_name(&block.root).as_bytes(), Access::Read)?;
        if file.read_at(buf, at)? == buf.len() {
            Ok(())
        } else {
            Err(std::io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Returns the inventories to which the chain of a head commits, and whether any is missing. A
/// missing or wrong inventory is left out: the files that it lists are then rejected, one by one.
fn inventories(store: &dyn Dir, roster: &VerifiedRoster) -> (Vec<Arc<InventoryList>>, bool) {
    let (mut kept, mut missing) = (Vec::new(), false);
    for (manifest, _) in roster.history().filter(|(m, _)| m.inventory_file != [0; 32]) {
        match inventory_of(store, manifest) {
            Ok(list) => kept.push(Arc::new(list)),
            Err(fault) => {
                drop(
                    fault.at("read", || {
                        PathBuf::from(inventory::file_name(&manifest.inventory_file))
                    }),
                );
                missing = true;
            }
        }
    }
    (kept, missing)
}

/// Returns the inventory that a manifest names. Its hash is computed piece by piece first: no
/// memory of its size is allocated for data that an admin did not sign.
pub(crate) fn inventory_of(store: &dyn Dir, manifest: &Manifest) -> Inner<InventoryList> {
    const MAX: usize = inventory::MAX_ENTRIES * 32;
    let name = inventory::file_name(&manifest.inventory_file);
    let other = Fault::Corrupt(Corruption::Other("is not the inventory that its manifest names"));
    let file = match store.open_file(name.as_bytes(), Access::Read) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
            return Err(Fault::Corrupt(Corruption::Other("is missing")));
        }
        file => file?,
    };
    let size = file.stat()?.size;
    if size > MAX as u64
        || inventory::file_hash_of(size, |at, buf| file.read_at(buf, at))?
            != Some(manifest.inventory_file)
    {
        return Err(other);
    }
    let bytes = read_control(store, name.as_bytes(), MAX)?
        .ok_or(Fault::Corrupt(Corruption::Other("is missing")))?;
    // Verified again: it may have been replaced meanwhile.
    let list = InventoryList::decode(&bytes)?;
    if inventory::file_hash(&bytes) != manifest.inventory_file
        || list.root() != manifest.inventory_root
    {
        return Err(other);
    }
    Ok(list)
}

/// The evidence for a share besides the caller's trust store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vouched {
    /// The id that a signed junction names, or that was entered before.
    pub share: Option<[u8; 32]>,
    /// The head that was seen last while it was open.
    pub head: Option<Pin>,
}

/// Enters the share in `store`: decides whether it is the intended one, verifies its roster and
/// opens the identity's slot.
pub(crate) fn enter(
    store: &dyn Dir,
    identity: &Identity,
    trust: &Trust,
    vouched: &Vouched,
    shown: &Path,
) -> std::result::Result<Entered, Unentered> {
    let mut descriptor = descriptor(store, shown)?;
    if let Some(id) = vouched.share.filter(|id| *id != descriptor.share_id())
        && let Ok(Some((_, copy))) = copy_of(store, &id)
    {
        descriptor = copy;
    }
    let share = descriptor.share_id();
    let unknown =
        |source| Error::Io { op: "read the trust store for", path: shown.to_path_buf(), source };
    let untrusted =
        || Error::Untrusted { path: shown.to_path_buf(), share, founder: descriptor.founder };
    // An unsigned share has one owner, and needs no remembered head.
    let (remembered, inviter) = match descriptor.signed {
        true => (trust.pin(&share).map_err(unknown)?, trust.inviter(&share).map_err(unknown)?),
        false => (None, None),
    };
    // Another process of the same user may have seen a later head.
    let pin = match (vouched.head, remembered) {
        (Some(seen), Some(remembered)) if remembered.sequence > seen.sequence => Some(remembered),
        (seen, remembered) => seen.or(remembered),
    };
    let vouched = vouched.share;
    // Before whose it is: another descriptor in place of ours takes no rights away.
    if vouched.is_some_and(|id| id != share) {
        return Err(untrusted().into());
    }
    if !descriptor.signed && descriptor.founder != identity.public() {
        // Only the founder is let in to an unsigned share.
        return Err(Error::NoAccess { path: shown.to_path_buf() }.into());
    }
    let proven = vouched.is_some() || descriptor.founder == identity.public() || pin.is_some();
    if !proven && !trust.first_use {
        return Err(untrusted().into());
    }
    let Roster { standing: Standing { heads: rosters, ignored, pinned }, unread } =
        standing(store, &descriptor, pin.as_ref(), shown)?;
    if remembered == pin
        && let Some(inviter) = inviter
        && pinned.is_none_or(|manifest| manifest.admins.binary_search(&inviter).is_err())
    {
        tracing::error!(
            "{}: the signer of the invitation to this share was not an admin",
            shown.display()
        );
        return Err(untrusted().into());
    }
    for reason in &ignored {
        tracing::warn!("{}: a manifest is ignored: {reason}", shown.display());
    }
    let several = rosters.len() > 1;
    let (heads, unopened, incomplete) = open_heads(store, rosters, identity, shown)?;
    if several {
        tracing::error!(
            "{}: its membership was changed in two conflicting ways; it is read-only until that is settled",
            shown.display()
        );
    } else if descriptor.signed {
        let roster = &heads[0].roster;
        if trust.pins.is_some() && remembered != Some(roster.head()) {
            if let Err(fault) = flush_chain(store, roster, remembered.as_ref()) {
                // Remembered all the same: a store that refuses to flush must not be able to
                // prevent that.
                tracing::warn!(
                    errno = fault.errno(),
                    "{}: the roster of the share could not be made durable",
                    shown.display()
                );
            }
            trust.remember(&share, roster.head());
        }
    }
    Ok(Entered { descriptor, heads, unopened, forked: several, incomplete, unread })
}

/// Opens the heads that this identity can open; fails if it can open none. Returns them, the
/// others, and whether an inventory is missing.
fn open_heads(
    store: &dyn Dir,
    rosters: Vec<VerifiedRoster>,
    identity: &Identity,
    shown: &Path,
) -> std::result::Result<(Vec<Head>, Vec<Pin>, bool), Unentered> {
    let (mut heads, mut unopened) = (Vec::new(), Vec::new());
    let (mut incomplete, mut refused) = (false, None);
    // The file that was read last is the one that an error is about.
    let mut last = "+slots-*".to_owned();
    let mut read = |block: &BlockRef, at: u64, buf: &mut [u8]| {
        last = slots::file_name(&block.root);
        block_reader(store)(block, at, buf)
    };
    for roster in rosters {
        let opened = roster.open(identity, &mut read).and_then(|keys| {
            let members = roster.members(&keys, &mut read)?;
            Ok((keys, members))
        });
        match opened {
            Ok((keys, members)) => {
                let (kept, missing) = inventories(store, &roster);
                incomplete |= missing;
                heads.push(Head { roster, keys, members, kept });
            }
            // This identity may not be a member on the other side of a fork.
            Err(error) => {
                unopened.push(roster.head());
                refused = Some(error);
            }
        }
    }
    match refused {
        Some(RosterError::NotMember) if heads.is_empty() => {
            return Err(Error::NoAccess { path: shown.to_path_buf() }.into());
        }
        Some(other) if heads.is_empty() => {
            let is_late =
                matches!(&other, RosterError::Block(BlockError::Read(e)) if is_missing(e));
            let error = share_error(last.as_bytes(), other);
            return Err(if is_late { Unentered::Late(error) } else { Unentered::Unknown(error) });
        }
        Some(other) => {
            tracing::warn!("{}: one of its heads cannot be opened: {other}", shown.display())
        }
        None => {}
    }
    Ok((heads, unopened, incomplete))
}
