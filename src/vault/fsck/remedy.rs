//! What a repair would do about a fault.

use crate::vault::keyring::keys::DirectoryId;

/// What a repair would do about a fault. Made by the check alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy(pub(crate) Action);

/// See [`Remedy`]. The object is the one at the stored path of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes the record of a directory that stands at (`parent`, `name`).
    Record { id: DirectoryId, parent: DirectoryId, name: Vec<u8> },
    /// Sets a record aside that does not fit; the directory does without.
    Unrecord,
    /// Writes the sealed name of a long-named entry of `directory`.
    Sidecar { directory: DirectoryId, name: Vec<u8> },
    /// Gives an entry of `directory` its name back. `inside` is the id of the entry where it is a
    /// directory.
    Name { directory: DirectoryId, name: Vec<u8>, inside: Option<DirectoryId> },
    /// Moves the object to `lost+found` under `name`. `directory` is its id where it is a
    /// directory, `place` that of the one it stands in.
    Keep { name: Vec<u8>, directory: Option<DirectoryId>, place: Option<DirectoryId> },
    /// Removes a file that has neither a byte of ciphertext nor attributes; does what `keep` says
    /// with one that has any by now.
    Void { keep: Box<Action> },
    /// Ends the removal of a directory.
    Trash,
    /// Copies attributes that cannot be opened to `lost+found`, and takes them off.
    Attributes { name: Vec<u8> },
    /// Copies what stands behind the end of a file to `lost+found`, and cuts it off.
    Surplus { name: Vec<u8>, length: u64 },
}

impl Remedy {
    /// What would be done, for people.
    pub fn describe(&self) -> &'static str {
        match &self.0 {
            Action::Record { .. } => {
                "write its directory record anew, from what its files and names say"
            }
            Action::Unrecord => "move its directory record to lost+found",
            Action::Sidecar { .. } => "write its long name anew, from what is sealed inside it",
            Action::Name { .. } => "give it the name that is sealed inside it",
            Action::Keep { .. } => "move it to lost+found",
            Action::Void { .. } => "remove it, for nothing is in it",
            Action::Trash => "end the removal",
            Action::Attributes { .. } => "move its attributes to lost+found",
            Action::Surplus { .. } => "move those bytes to lost+found",
        }
    }
}
