//! Every label under which something is derived, hashed, sealed or signed. No other module defines
//! one.
//!
//! All labels begin with `kithfs v1 ` and end with a zero byte that no label contains, so none is a
//! prefix of another, and an input that begins with a label can be parsed in one way only. A label
//! never changes its meaning; a new purpose gets a new label.

/// A label: it enters a derivation, hash, MAC, signature or associated data, and names its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(&'static [u8]);

impl Label {
    /// Its bytes, with the zero byte at the end.
    #[must_use]
    pub const fn as_bytes(&self) -> &'static [u8] {
        self.0
    }
}

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {
        $($(#[$doc])* pub const $name: Label = Label(concat!("kithfs v1 ", $text, "\0").as_bytes());)+

        /// All labels, by the name of their constant.
        pub const ALL: &[(&str, Label)] = &[$((stringify!($name), $name)),+];
    };
}

labels! {
    // From a folder key, by epoch and suite.

    /// Key of names: HCTR2.
    NAMES = "names";
    /// Key that file keys come from.
    CONTENT = "content";
    /// Key that seals file headers.
    HEADERS = "headers";
    /// Key that seals records: symlink targets, xattrs, junctions, rename evidence.
    RECORDS = "records";
    /// Key that seals earlier folder keys; also part of their associated data.
    HISTORY = "history";
    /// What a manifest shows of a folder key, to prove that a slot held the right one.
    COMMITMENT = "commitment";
    /// Key that seals the member list of a slot block, from the records key.
    MEMBERS = "members";

    // From the folder key of the first epoch, for all epochs.

    /// Key that the tags of directories come from.
    DIRECTORIES = "directories";

    // Under derived keys.

    /// Key of a file, from the content key.
    FILE = "file";
    /// Tag of the root directory of a share.
    ROOT_TAG = "root tag";
    /// Tag of a directory, from the tag and the name that are sealed in its stored name.
    TAG = "tag";
    /// Tag of a directory with a long name, from the hash in its stored name.
    LONG_TAG = "long tag";
    /// Keys of a client's rollback database of a share.
    ROLLBACK_MEMORY = "rollback memory";
    /// Hash of a place in a directory, by which its junction is found.
    PLACE = "place";
    /// Name under which the evidence of renames to a directory is found.
    MOVED = "moved";
    /// Id and nonce of a record of rename evidence.
    MOVED_RECORD = "moved record";

    // Identities.

    /// Ed25519 seed of an identity.
    IDENTITY_SIGNING = "identity signing";
    /// X25519 secret of an identity.
    IDENTITY_EXCHANGE = "identity exchange";
    /// Key of an identity's journals.
    IDENTITY_JOURNAL = "identity journal";
    /// Mark by which the owner of a journal knows it.
    JOURNAL_OWNER = "journal owner";
    /// Distinguishes machines with the same host name in the names of journals.
    MACHINE = "machine";
    /// Associated data of the slots of an identity.
    IDENTITY_SLOT = "identity slot";
    /// Slot key of a recovery code.
    RECOVERY_CODE = "recovery code";
    /// Slot key of a key file.
    KEY_FILE = "key file";
    /// Slot key of the secret in an age file.
    AGE_RECIPIENT = "age recipient";

    /// Key file by which one identity opens another.
    IDENTITY_LINK = "identity link";

    /// Checksum of a recovery code.
    RECOVERY_CHECK = "recovery check";
    /// Fingerprint of a public identity.
    FINGERPRINT = "fingerprint";

    // Shares and rosters.

    /// Id of a share: hash of the fixed part of its first manifest.
    SHARE_ID = "share id";
    /// Secrets of a roster slot, from the exchange with its recipient.
    ROSTER_SLOT = "roster slot";
    /// Lookup tag of a roster slot.
    ROSTER_SLOT_TAG = "roster slot tag";
    /// Key of a roster slot.
    ROSTER_SLOT_KEY = "roster slot key";
    /// Hash of a slot block.
    SLOT_BLOCK = "slot block";
    /// Hash of a page of slots.
    SLOT_PAGE = "slot page";
    /// Hash of two nodes of the tree over the pages.
    SLOT_NODE = "slot node";
    /// Hash of a sealed member list.
    MEMBER_LIST_HASH = "member list hash";
    /// Hash of a manifest.
    MANIFEST_HASH = "manifest hash";
    /// Signature of a manifest.
    MANIFEST_SIGNATURE = "manifest signature";
    /// Signature of an invitation.
    INVITATION_SIGNATURE = "invitation signature";

    // Signed shares.

    /// Signature of a file header.
    FILE_SIGNATURE = "file signature";
    /// Signature of a symbolic link's target.
    SYMLINK_SIGNATURE = "symlink signature";
    /// Signature of a record of rename evidence.
    MOVED_SIGNATURE = "moved signature";
    /// Signature of a junction.
    JUNCTION_SIGNATURE = "junction signature";
    /// Leaf of an inventory's tree.
    INVENTORY_PAGE = "inventory page";
    /// Node of an inventory's tree.
    INVENTORY_NODE = "inventory node";
    /// Hash of an inventory's file.
    INVENTORY_HASH = "inventory hash";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_distinct_and_none_is_a_prefix_of_another() {
        for (i, (name, label)) in ALL.iter().enumerate() {
            for (other_name, other) in ALL.iter().skip(i + 1) {
                assert!(
                    !label.0.starts_with(other.0) && !other.0.starts_with(label.0),
                    "{name} and {other_name}"
                );
            }
        }
    }

    #[test]
    fn labels_have_their_form() {
        for (name, label) in ALL {
            let text = label
                .0
                .strip_prefix(b"kithfs v1 ")
                .and_then(|rest| rest.strip_suffix(b"\0"))
                .unwrap_or_else(|| panic!("{name}"));
            assert!(
                !text.is_empty()
                    && text.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b' '),
                "{name}"
            );
        }
    }
}
