//! Exit codes: how a command ended, for scripts.
//!
//! Rules that hold here
//! * A number never changes its meaning and is never reused.
//! * The tables in the man page, in `kithfs exit-codes` and in docs/TROUBLESHOOTING.md are made
//!   from [`Exit::ALL`].

/// Defines the codes, in ascending order, each with its number and its meaning in one line.
macro_rules! exits {
    ($($name:ident = $code:literal: $meaning:literal,)+) => {
        /// How a command ended. The number is the exit status of the process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Exit {
            $(#[doc = $meaning] $name = $code,)+
        }

        impl Exit {
            /// All codes with their meanings, in ascending order.
            pub const ALL: &[(Exit, &str)] = &[$((Exit::$name, $meaning)),+];
        }
    };
}

exits! {
    Ok = 0: "done; for fsck: no fault found, or none left by the repair",
    Failure = 1: "failed for another reason than those below, or some of the files of an import or export failed",
    Usage = 2: "the command line is wrong",
    WrongSecret = 3: "wrong passphrase, recovery code or key file, or none was given; or the identity has no access",
    VaultMissing = 4: "the vault does not exist",
    NotAVault = 5: "the directory is not a kithfs vault",
    NewerVersion = 6: "the vault was made by a newer version of kithfs",
    MountPoint = 7: "the mount point cannot be used: missing, not empty, or one of vault and mount point is inside the other",
    NoFuse = 8: "FUSE is not available: no /dev/fuse, no fusermount3, or one of them refuses what was asked for",
    InUse = 9: "the vault is already mounted or in use; the message names the process",
    Corrupt = 10: "the vault is damaged or was tampered with: something in it cannot be authenticated",
    ReadOnly = 11: "the vault, or the place where it is stored, can only be read",
    NotFound = 12: "no such path in the vault, no such slot, or nothing is mounted there",
    Busy = 13: "the mount is busy; the message names the processes",
    NotTrusted = 14: "nothing vouches for a key, an invitation or a share, or its key has changed; or the question about it was answered with no",
    FaultsFound = 20: "fsck: faults were found; with --repair: some are left",
    CouldNotCheck = 21: "fsck: the check could not run, or not to its end",
    RolledBack = 22: "rollback: something in the vault is older than it was, or gone, or could not be compared",
    Residue = 23: "fsck: no damage was found, but what a crash leaves behind, which --repair clears; with --repair: some of it is left",
    Interrupted = 130: "interrupted, such as by Ctrl-C; the message says how to continue",
}

impl Exit {
    /// Returns the number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the code with this number.
    pub fn from_code(code: u8) -> Option<Exit> {
        Exit::ALL.iter().map(|(exit, _)| *exit).find(|exit| exit.code() == code)
    }

    /// Returns the table of all codes in Markdown.
    pub fn markdown_table() -> String {
        let mut table = String::from("| code | meaning |\n|---:|---|\n");
        for (exit, meaning) in Exit::ALL {
            table.push_str(&format!("| {} | {meaning} |\n", exit.code()));
        }
        table
    }

    /// Returns the table of all codes as indented text, for the help.
    pub fn text_table() -> String {
        let mut table = String::from("Exit codes:\n");
        for (exit, meaning) in Exit::ALL {
            table.push_str(&format!("  {:>3}  {meaning}\n", exit.code()));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_that_scripts_rely_on() {
        let numbers: Vec<u8> = Exit::ALL.iter().map(|(exit, _)| exit.code()).collect();
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
        for (exit, _) in Exit::ALL {
            assert_eq!(Exit::from_code(exit.code()), Some(*exit));
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
