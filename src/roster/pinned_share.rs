//! The memory of a share, which a client stores locally: why the share is the intended one, and the
//! pin, the highest head that was seen. Text, one small file for each share.
//!
//! Rules: one spelling for each value; the number of the head never decreases; the file is written
//! only by this user's clients.

use super::chain::Pin;
use super::public::PublicTextError;
use crate::format::identity::PublicIdentity;

/// First line of the text.
const FIRST_LINE: &str = "kithfs share memory 1";
/// Longest text: far more than the lines can need.
pub const MAX_LEN: usize = 1024;

/// Why a share is the intended one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// An invitation, signed by this admin.
    Invitation(PublicIdentity),
    /// It was entered before: this user founded it, a share around it vouched for it, or the user
    /// confirmed it when it was first seen.
    Visit,
}

/// The memory of one share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedShare {
    /// The share's id.
    pub share: [u8; 32],
    /// Why it is trusted.
    pub proof: Proof,
    /// The highest head that was seen.
    pub head: Pin,
}

/// Why a text is not the memory of a share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinnedShareError {
    /// The first line is another one.
    #[error("is not a record of a share")]
    NotOne,
    /// A newer program wrote it.
    #[error("was written by a newer kithfs")]
    Newer,
    /// A line is wrong.
    #[error("line {0} is damaged")]
    Line(usize),
    /// The key of the admin is wrong.
    #[error(transparent)]
    Key(#[from] PublicTextError),
}

/// Parses 32 bytes in hexadecimal.
fn unhex(text: &str) -> Option<[u8; 32]> {
    hex::decode(text).ok()?.try_into().ok()
}

impl PinnedShare {
    /// Returns the name of its file: the share's id in hexadecimal.
    pub fn file_name(share: &[u8; 32]) -> String {
        hex::encode(share)
    }

    /// Returns its text.
    pub fn to_text(&self) -> String {
        let proof = match &self.proof {
            Proof::Invitation(admin) => format!("invitation {admin}"),
            Proof::Visit => "visit".to_owned(),
        };
        format!(
            "{FIRST_LINE}\nshare {}\nproof {proof}\nhead {} {}\n",
            hex::encode(self.share),
            self.head.sequence,
            hex::encode(self.head.hash)
        )
    }

    /// Parses a text that [`PinnedShare::to_text`] has made.
    ///
    /// # Errors
    /// Every other spelling.
    pub fn parse(text: &str) -> Result<Self, PinnedShareError> {
        let mut lines = text.split('\n');
        match lines.next() {
            Some(FIRST_LINE) => {}
            Some(first) if first.starts_with("kithfs share memory ") => {
                return Err(PinnedShareError::Newer);
            }
            _ => return Err(PinnedShareError::NotOne),
        }
        let mut field = |number, name: &str| {
            let rest = lines
                .next()
                .and_then(|line| line.strip_prefix(name))
                .and_then(|rest| rest.strip_prefix(' '));
            rest.ok_or(PinnedShareError::Line(number))
        };
        let share = unhex(field(2, "share")?).ok_or(PinnedShareError::Line(2))?;
        let proof = match field(3, "proof")? {
            "visit" => Proof::Visit,
            other => Proof::Invitation(
                other.strip_prefix("invitation ").ok_or(PinnedShareError::Line(3))?.parse()?,
            ),
        };
        let (sequence, hash) =
            field(4, "head")?.split_once(' ').ok_or(PinnedShareError::Line(4))?;
        let sequence = sequence
            .parse()
            .ok()
            .filter(|sequence| *sequence > 0)
            .ok_or(PinnedShareError::Line(4))?;
        let memory = Self {
            share,
            proof,
            head: Pin { sequence, hash: unhex(hash).ok_or(PinnedShareError::Line(4))? },
        };
        // bytes after the end, and second spellings of a number or a key
        if memory.to_text() == text { Ok(memory) } else { Err(PinnedShareError::Line(5)) }
    }

    /// Advances to a head that descends from the pinned one. It has a higher number, also if it
    /// settles a fork in which the pinned one lost. A head that is not further is ignored: another
    /// process of this user may have seen more by now. Returns whether something changed.
    pub fn advance(&mut self, head: Pin) -> bool {
        let further = head.sequence > self.head.sequence;
        if further {
            self.head = head;
        }
        further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(proof: Proof) -> PinnedShare {
        PinnedShare { share: [0xab; 32], proof, head: Pin { sequence: 12, hash: [0x0c; 32] } }
    }

    const ADMIN: PublicIdentity = PublicIdentity { sign: [1; 32], exchange: [2; 32] };

    #[test]
    fn each_proof_comes_back() {
        for proof in [Proof::Visit, Proof::Invitation(ADMIN)] {
            let text = sample(proof).to_text();
            assert_eq!(PinnedShare::parse(&text), Ok(sample(proof)));
            assert!(text.len() <= MAX_LEN);
        }
        let text = sample(Proof::Visit).to_text();
        let (ab, c) = ("ab".repeat(32), "0c".repeat(32));
        assert_eq!(text, format!("kithfs share memory 1\nshare {ab}\nproof visit\nhead 12 {c}\n"));
        assert_eq!(PinnedShare::file_name(&[0xab; 32]), ab);
    }

    #[test]
    fn a_text_that_was_cut_or_changed_is_refused() {
        let text = sample(Proof::Invitation(ADMIN)).to_text();
        for len in 0..text.len() {
            assert!(PinnedShare::parse(&text[..len]).is_err(), "cut at {len}");
        }
        for (from, to) in [
            ("head 12", "head 012"),
            ("head 12", "head +12"),
            ("head 12", "head 0"),
            ("ab", "AB"),
            ("\nproof", "\n\nproof"),
        ] {
            assert!(PinnedShare::parse(&text.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
        assert!(PinnedShare::parse(&format!("{text}\n")).is_err());
        assert_eq!(
            PinnedShare::parse(&text.replace("memory 1", "memory 2")),
            Err(PinnedShareError::Newer)
        );
        assert_eq!(PinnedShare::parse("kithfs contacts 1\n"), Err(PinnedShareError::NotOne));
    }

    #[test]
    fn the_head_never_falls() {
        let mut memory = sample(Proof::Visit);
        assert!(!memory.advance(Pin { sequence: 11, hash: [1; 32] }));
        assert!(
            !memory.advance(Pin { sequence: 12, hash: [1; 32] }),
            "another head of the same number is a fork and no progress"
        );
        assert_eq!(memory, sample(Proof::Visit));
        assert!(memory.advance(Pin { sequence: 13, hash: [1; 32] }));
        assert_eq!(memory.head.sequence, 13);
    }
}
