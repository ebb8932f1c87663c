//! The control files of a share: making them, and getting from them to the folder keys.
//!
//! Rules that hold here
//! * What proves that a share is the one it claims to be is decided here, before any key of it is used: the founder is the identity that
//!   opens it. Any other share is refused.
//! * Control files of rosters are made with O_EXCL and never rewritten.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::core::{list, read_control};
use super::error::{Error, Fault, Inner, Result};
use crate::backing::{Access, Dir};
use crate::crypto::{Random, Suite};
use crate::format::manifest::MAX_LEN as MANIFEST_MAX;
use crate::format::share::{DESCRIPTOR_LEN, ShareDescriptor};
use crate::format::{FormatErrorKind, slots};
use crate::sharing::{FolderKeys, FoundParams, Identity, Roster, RosterError, found};

/// The share's descriptor.
pub(crate) const DESCRIPTOR: &[u8] = b"+share";
/// Manifests begin with this.
const MANIFEST: &[u8] = b"+manifest-";
/// The vault's own identity.
pub const IDENTITY_FILE: &str = "+identity";
/// Manifests that are read at the most.
const MANIFESTS_MAX: usize = 65536;

/// How a vault is made.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// Cipher suite, for the vault's whole life.
    pub suite: Suite,
    /// `log2` of the chunk size, 12 to 22.
    pub chunk_log2: u8,
}

fn write_new(dir: &dyn Dir, name: &[u8], bytes: &[u8]) -> Inner<()> {
    let file = dir.create_file(name, 0o600)?;
    file.write_at(bytes, 0)?;
    Ok(file.sync_all()?)
}

fn share_error(name: &[u8], source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Share { path: PathBuf::from(String::from_utf8_lossy(name).into_owned()), source: Box::new(source) }
}

/// Writes the control files of a new vault whose owner is `owner`. The directory must hold nothing but, perhaps, control files of an
/// identity. The descriptor comes last: without it the directory is no vault.
pub(crate) fn create(store: &Arc<dyn Dir>, options: &CreateOptions, owner: &Identity, random: &dyn Random) -> Result<()> {
    let at = |fault: Fault| fault.at("create vault", PathBuf::new);
    let entries = list(&**store).map_err(at)?;
    if entries.iter().any(|e| *e.name != *IDENTITY_FILE.as_bytes()) {
        return Err(at(Fault::Os(libc::ENOTEMPTY)));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let params =
        FoundParams { suite: options.suite, signed: false, isolated: false, chunk_log2: options.chunk_log2, name: "owner", others: &[] };
    let founded = found(owner, &params, random, now).map_err(|e| share_error(DESCRIPTOR, e))?;
    (|| {
        write_new(&**store, founded.change.slots_name.as_bytes(), &founded.change.slots)?;
        write_new(&**store, founded.change.manifest_name.as_bytes(), &founded.change.manifest)?;
        store.sync()?;
        write_new(&**store, DESCRIPTOR, &founded.descriptor)?;
        Ok(store.sync()?)
    })()
    .map_err(at)
}

/// Reads the descriptor: what is public of a vault.
pub(crate) fn descriptor(store: &dyn Dir, shown: &Path) -> Result<ShareDescriptor> {
    let bytes = match read_control(store, DESCRIPTOR, 4096) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(Error::NotAVault { path: shown.to_path_buf() }),
        Err(fault) => return Err(fault.at("read", || shown.join("+share"))),
    };
    ShareDescriptor::decode(&bytes).map_err(|e| match e.kind() {
        FormatErrorKind::Version(found) if found > crate::format::share::VERSION => {
            Error::NewerVersion { path: shown.join("+share"), found, known: crate::format::share::VERSION }
        }
        FormatErrorKind::Magic => Error::NotAVault { path: shown.to_path_buf() },
        _ => Error::Corrupt { op: "read", path: shown.join("+share"), what: format!("{e} (length {}, not {DESCRIPTOR_LEN})", bytes.len()) },
    })
}

/// Verifies the roster and opens the identity's slot.
pub(crate) fn unlock(store: &Arc<dyn Dir>, descriptor: &ShareDescriptor, identity: &Identity, shown: &Path) -> Result<FolderKeys> {
    let mut manifests = Vec::new();
    let names = list(&**store).map_err(|f| f.at("list", || shown.to_path_buf()))?;
    for entry in names.iter().filter(|e| e.name.starts_with(MANIFEST)).take(MANIFESTS_MAX) {
        match read_control(&**store, &entry.name, MANIFEST_MAX) {
            Ok(Some(bytes)) => manifests.push(bytes),
            Ok(None) => {}
            Err(fault) => return Err(fault.at("read", || shown.join(String::from_utf8_lossy(&entry.name).into_owned()))),
        }
    }
    if descriptor.founder != identity.public() {
        return Err(Error::NoAccess { path: shown.to_path_buf() });
    }
    let standing = Roster::assemble(descriptor, &manifests, None).map_err(|e| share_error(MANIFEST, e))?;
    for (_, reason) in &standing.ignored {
        tracing::warn!("a manifest is ignored: {reason}");
    }
    let roster = standing.only().map_err(|e| share_error(MANIFEST, e))?;
    roster
        .open(identity, &mut |block, at, buf| {
            let file = store.open_file(slots::file_name(&block.root).as_bytes(), Access::Read)?;
            if file.read_at(buf, at)? == buf.len() { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
        })
        .map_err(|e| match e {
            RosterError::NotMember => Error::NoAccess { path: shown.to_path_buf() },
            other => share_error(b"+slots", other),
        })
}
