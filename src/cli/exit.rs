//! Exit codes: how a command ended, for scripts.
//!
//! Rules that hold here
//! * A number never changes its meaning and is never reused.
//! * The tables in the man page, in `kithfs exit-codes` and in docs/TROUBLESHOOTING.md are made from
//!   [`Exit::ALL`].

/// How a command ended. The number is the exit status of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// Any failure without a number of its own.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The passphrase, recovery code or key file opens no slot.
    WrongSecret = 3,
    /// The vault does not exist.
    VaultMissing = 4,
    /// The directory is not a vault.
    NotAVault = 5,
    /// The vault was created by a newer kithfs.
    NewerVersion = 6,
    /// The mount point cannot be used.
    MountPoint = 7,
    /// FUSE is not available.
    NoFuse = 8,
    /// The vault is in use.
    InUse = 9,
    /// Something in the vault cannot be authenticated.
    Corrupt = 10,
    /// The vault or its store is read-only.
    ReadOnly = 11,
    /// The path, slot or mount does not exist.
    NotFound = 12,
    /// The mount is busy.
    Busy = 13,
    /// Nothing vouches for a key, an invitation or a share.
    NotTrusted = 14,
    /// `fsck` found faults.
    FaultsFound = 20,
    /// `fsck` could not run or not finish.
    CouldNotCheck = 21,
    /// Something in the vault is older than before, is gone, or could not be compared.
    RolledBack = 22,
    /// `fsck` found nothing but the residue of a crash.
    Residue = 23,
    /// A signal interrupted the command, which has printed how to continue.
    Interrupted = 130,
}

impl Exit {
    /// All codes, in ascending order.
    pub const ALL: [Exit; 20] = [
        Exit::Ok,
        Exit::Failure,
        Exit::Usage,
        Exit::WrongSecret,
        Exit::VaultMissing,
        Exit::NotAVault,
        Exit::NewerVersion,
        Exit::MountPoint,
        Exit::NoFuse,
        Exit::InUse,
        Exit::Corrupt,
        Exit::ReadOnly,
        Exit::NotFound,
        Exit::Busy,
        Exit::NotTrusted,
        Exit::FaultsFound,
        Exit::CouldNotCheck,
        Exit::RolledBack,
        Exit::Residue,
        Exit::Interrupted,
    ];

    /// Returns the number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the code with this number.
    pub fn from_code(code: u8) -> Option<Exit> {
        Exit::ALL.into_iter().find(|exit| exit.code() == code)
    }

    /// Returns its meaning, in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "done; for fsck: no fault found, or none left by the repair",
            Exit::Failure => {
                "failed for another reason than those below, or some of the files of an import or export failed"
            }
            Exit::Usage => "the command line is wrong",
            Exit::WrongSecret => {
                "wrong passphrase, recovery code or key file, or none was given; or the identity has no access"
            }
            Exit::VaultMissing => "the vault does not exist",
            Exit::NotAVault => "the directory is not a kithfs vault",
            Exit::NewerVersion => "the vault was made by a newer version of kithfs",
            Exit::MountPoint => {
                "the mount point cannot be used: missing, not empty, or one of vault and mount point is inside the other"
            }
            Exit::NoFuse => {
                "FUSE is not available: no /dev/fuse, no fusermount3, or one of them refuses what was asked for"
            }
            Exit::InUse => "the vault is already mounted or in use; the message names the process",
            Exit::Corrupt => {
                "the vault is damaged or was tampered with: something in it cannot be authenticated"
            }
            Exit::ReadOnly => "the vault, or the place where it is stored, can only be read",
            Exit::NotFound => {
                "no such path in the vault, no such slot, or nothing is mounted there"
            }
            Exit::Busy => "the mount is busy; the message names the processes",
            Exit::NotTrusted => {
                "nothing vouches for a key, an invitation or a share, or its key has changed; or the question about it was answered with no"
            }
            Exit::FaultsFound => "fsck: faults were found; with --repair: some are left",
            Exit::CouldNotCheck => "fsck: the check could not run, or not to its end",
            Exit::RolledBack => {
                "rollback: something in the vault is older than it was, or gone, or could not be compared"
            }
            Exit::Residue => {
                "fsck: no damage was found, but what a crash leaves behind, which --repair clears; with --repair: some of it is left"
            }
            Exit::Interrupted => "interrupted, such as by Ctrl-C; the message says how to continue",
        }
    }

    /// Returns the table of all codes in Markdown.
    pub fn markdown_table() -> String {
        let mut table = String::from("| code | meaning |\n|---:|---|\n");
        for exit in Exit::ALL {
            table.push_str(&format!("| {} | {} |\n", exit.code(), exit.meaning()));
        }
        table
    }

    /// Returns the table of all codes as indented text, for the help.
    pub fn text_table() -> String {
        let mut table = String::from("Exit codes:\n");
        for exit in Exit::ALL {
            table.push_str(&format!("  {:>3}  {}\n", exit.code(), exit.meaning()));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_that_scripts_rely_on() {
        let numbers: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert_eq!(
            numbers,
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 20, 21, 22, 23, 130]
        );
        assert_eq!(Exit::WrongSecret.code(), 3);
        assert_eq!(Exit::NoFuse.code(), 8);
        assert_eq!(Exit::Busy.code(), 13);
        assert_eq!(Exit::CouldNotCheck.code(), 21);
    }

    #[test]
    fn a_number_leads_back_to_its_code() {
        for exit in Exit::ALL {
            assert_eq!(Exit::from_code(exit.code()), Some(exit));
        }
        assert_eq!(Exit::from_code(15), None);
        assert_eq!(Exit::from_code(255), None);
    }

    #[test]
    fn the_table_has_a_row_for_each() {
        let table = Exit::markdown_table();
        assert_eq!(table.lines().count(), 2 + Exit::ALL.len());
        assert!(table.contains("| 13 | the mount is busy"));
    }
}
