//! What a repair would do about a fault.

use crate::crypto::Tag;

/// The remedy for a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy(pub(crate) Action);

/// See [`Remedy`]. The object is the one at the stored path of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes the sealed name of a long-named entry.
    LongName { sealed: Vec<u8> },
    /// Gives an entry its name back, for the directory with the tag `directory`.
    Name { directory: Tag, name: Vec<u8> },
    /// Moves the object to `lost+found` under `name`. If it is a directory, `entries` is the tag of
    /// the entries in it.
    Keep { name: Vec<u8>, entries: Option<Tag> },
    /// Removes a file with an empty ciphertext and without attributes. If the file has attributes,
    /// or its ciphertext is all zeros, applies `keep`. Does nothing if it has contents by now.
    Void { keep: Box<Action> },
    /// Puts a conflict copy of a share's descriptor in its place.
    Descriptor { copy: Box<[u8]> },
    /// Completes the removal of a directory.
    Trash,
    /// Copies attributes that cannot be opened to `lost+found`, and removes them.
    Attributes { name: Vec<u8> },
    /// Copies the bytes beyond the end of a file to `lost+found`, and cuts them off.
    Surplus { name: Vec<u8>, length: u64 },
}

impl Remedy {
    /// Describes the remedy for people.
    pub fn describe(&self) -> &'static str {
        match &self.0 {
            Action::LongName { .. } => {
                "write its long name again, from the name that is sealed inside it"
            }
            Action::Name { .. } => "give it the name that is sealed inside it",
            Action::Keep { .. } => "move it to lost+found",
            Action::Void { .. } => {
                "remove it, or move it to lost+found if it has zeros or attributes"
            }
            Action::Descriptor { .. } => {
                "give it the descriptor of the share that is entered here, and keep the other one"
            }
            Action::Trash => "complete the removal",
            Action::Attributes { .. } => "move its attributes to lost+found",
            Action::Surplus { .. } => "move those bytes to lost+found",
        }
    }
}
