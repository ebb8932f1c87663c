//! Identities, share descriptors, manifests, slot blocks and member lists, and the texts that
//! people type.

use std::sync::LazyLock;

use bech32::{Bech32m, Hrp};
use kithfs::crypto::{Argon2Params, Suite};
use kithfs::format::identity::{HEADER_LEN as IDENTITY_HEADER_LEN, IdentityRecord};
use kithfs::format::invitation::InvitationRecord;
use kithfs::format::manifest::{BLOCK_LEN, FIXED_LEN, Manifest};
use kithfs::format::members;
use kithfs::format::share::ShareDescriptor;
use kithfs::format::slots::{self, HEADER_LEN, SLOT_LEN, Slot, SlotHeader, TAG_LEN, slice_reader};
use kithfs::roster::{
    Contacts, Identity, IdentityFile, Invitation, Member, NewSlot, Pin, PinnedShare, Proof,
    PublicIdentity, RecoveryCode, Role, Secret,
};
use zeroize::Zeroizing;

use super::roster::FIXTURE;
use super::{Seeded, chosen};

/// `+share`.
pub fn share_descriptor(data: &[u8]) {
    if let Ok(descriptor) = ShareDescriptor::decode(data) {
        assert_eq!(descriptor.encode(), data);
        assert!((4096..=4 << 20).contains(&descriptor.chunk_size()));
    }
}

pub fn share_descriptor_seeds() -> Vec<Vec<u8>> {
    let first = FIXTURE.descriptor;
    let owner_only = ShareDescriptor {
        suite: Suite::ChaCha20Poly1305,
        signed: false,
        isolated: false,
        chunk_log2: 22,
        longest_name: 152,
        ..first
    };
    vec![first.encode(), owner_only.encode()]
}

/// An invitation: an accepted one was signed unchanged, for the person who accepts it.
pub fn invitation(data: &[u8]) {
    if let Ok(record) = InvitationRecord::decode(data) {
        assert_eq!(record.encode(), data);
        assert!(record.descriptor.signed && record.sequence > 0);
        let verified = Invitation::verify(data, &record.invited);
        if verified.is_ok_and(|invitation| *invitation.admin() == INVITING.public()) {
            assert_eq!(data, invitation_bytes(), "only the admin can sign");
        }
    }
}

static INVITING: LazyLock<Identity> = LazyLock::new(|| Identity::generate(&Seeded::new(41)));

fn invitation_bytes() -> Vec<u8> {
    let invited = Identity::generate(&Seeded::new(42)).public();
    let head = Pin { sequence: 3, hash: [9; 32] };
    Invitation::sign(&FIXTURE.descriptor, &head, &INVITING, &invited, 1_700_000_000)
        .expect("a signed share")
}

pub fn invitation_seeds() -> Vec<Vec<u8>> {
    vec![invitation_bytes()]
}

/// The user's own texts: contacts, and the memory of a share.
pub fn people_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(contacts) = Contacts::parse(text) {
        assert_eq!(contacts.to_text(), text);
    }
    if let Ok(memory) = PinnedShare::parse(text) {
        assert_eq!(memory.to_text(), text);
    }
}

pub fn people_text_seeds() -> Vec<Vec<u8>> {
    let key = |n: u8| PublicIdentity { sign: [n; 32], exchange: [n + 1; 32] };
    let mut contacts = Contacts::default();
    for (n, name) in [(1, "Ann"), (3, "Bob \u{e9}"), (5, "Cem")] {
        contacts.add(name, &key(n)).expect("a new contact");
    }
    contacts.verify("Ann").expect("she is there");
    contacts.add("Cem", &key(7)).expect("a changed key");
    let memory = |proof| {
        PinnedShare { share: [1; 32], proof, head: Pin { sequence: 12, hash: [2; 32] } }.to_text()
    };
    [contacts.to_text(), memory(Proof::Visit), memory(Proof::Invitation(key(1)))]
        .map(String::into_bytes)
        .to_vec()
}

/// One manifest; its signature is not verified.
pub fn manifest(data: &[u8]) {
    if let Ok(manifest) = Manifest::decode(data) {
        assert_eq!(manifest.encode(), data);
        assert_eq!(manifest.signed_bytes(), data[..data.len() - 64]);
        assert!(!manifest.admins.is_empty() && !manifest.blocks.is_empty());
        assert!(data.len() >= FIXED_LEN + 32 + BLOCK_LEN + 64);
    }
}

pub fn manifest_seeds() -> Vec<Vec<u8>> {
    FIXTURE.manifests.clone()
}

/// A slot block, by itself and as the one named by a verified manifest.
pub fn slot_block(data: &[u8]) {
    if let Ok(header) = slots::check(data) {
        let (list, _) =
            data[HEADER_LEN..][..header.count as usize * SLOT_LEN].as_chunks::<SLOT_LEN>();
        let sealed = &data[data.len() - header.members_len as usize..];
        let (built, again) = slots::build(header.clone(), list.to_vec(), sealed)
            .expect("what was checked can be built");
        assert_eq!((built, &again[..]), (header.clone(), data));
        let mut read = slice_reader(data);
        let header = SlotHeader::read(&header.root(), &mut read).expect("its own root");
        for slot in list {
            assert_eq!(header.find(&tag_of(slot), &mut read).expect("proven"), Some(*slot));
        }
        assert_eq!(header.read_members(&mut read).expect("the digest was checked"), sealed);
    }
    // A hostile header without a signature: the search only has to end, within bounds.
    if let Ok(header) = SlotHeader::decode(data.get(..HEADER_LEN).unwrap_or(data)) {
        assert_eq!(header.encode(), data[..HEADER_LEN]);
        let _ = header.find(&[0x80; TAG_LEN], &mut slice_reader(data));
    }
    let original = FIXTURE.head_block();
    let header = SlotHeader::decode(&original[..HEADER_LEN]).expect("the fixture's header");
    let (list, _) =
        original[HEADER_LEN..][..header.count as usize * SLOT_LEN].as_chunks::<SLOT_LEN>();
    let mut read = slice_reader(data);
    let Ok(read_header) = SlotHeader::read(&header.root(), &mut read) else { return };
    assert_eq!(read_header, header);
    for slot in list.iter().step_by(7) {
        if let Ok(Some(found)) = read_header.find(&tag_of(slot), &mut read) {
            assert_eq!(found, *slot);
        }
    }
    if let Ok(sealed) = read_header.read_members(&mut read) {
        assert_eq!(sealed, original[original.len() - header.members_len as usize..]);
    }
}

fn tag_of(slot: &Slot) -> [u8; TAG_LEN] {
    slot[..TAG_LEN].try_into().expect("a slot begins with its tag")
}

pub fn slot_block_seeds() -> Vec<Vec<u8>> {
    FIXTURE.blocks.iter().map(|(_, block)| block.clone()).collect()
}

/// The list of members, in its plain form.
pub fn member_list(data: &[u8]) {
    if let Ok(list) = members::decode(data) {
        assert_eq!(members::encode(&list), data);
        assert!(list.is_sorted_by(|a, b| a.public.sign < b.public.sign));
    }
}

pub fn member_list_seeds() -> Vec<Vec<u8>> {
    let member = |n: u8, role, name: &str| Member {
        public: PublicIdentity { sign: [n; 32], exchange: [n; 32] },
        role,
        name: name.to_owned(),
    };
    let list = [
        member(1, Role::Admin, "Ann"),
        member(2, Role::Writer, ""),
        member(3, Role::Reader, "Bob \u{e9}"),
    ];
    vec![members::encode(&list), members::encode(&[])]
}

struct IdentityFixture {
    public: PublicIdentity,
    code: RecoveryCode,
    bytes: Vec<u8>,
}

const KEY_FILE: [u8; 40] = [6; 40];
const CHEAP: Argon2Params = Argon2Params::MIN;

static IDENTITY: LazyLock<IdentityFixture> = LazyLock::new(|| {
    let random = Seeded::new(20);
    let identity = Identity::generate(&random);
    let code = RecoveryCode::generate(&random);
    let copy = RecoveryCode::parse(&code.text()).expect("its own text");
    let secrets = [
        Secret::Passphrase(Zeroizing::new(b"correct horse".to_vec())),
        Secret::RecoveryCode(copy),
        Secret::KeyFile(Zeroizing::new(KEY_FILE.to_vec())),
        age_secret(),
    ];
    let slot = |secret| NewSlot { secret, params: CHEAP, label: "at home", created: 1_700_000_000 };
    let mut file = IdentityFile::new(Suite::Aes256Gcm, &identity, &slot(&secrets[0]), &random)
        .expect("a file");
    for secret in &secrets[1..] {
        file.add_slot(&identity, &slot(secret), &random).expect("another slot");
    }
    IdentityFixture { public: identity.public(), code, bytes: file.encode() }
});

fn age_secret() -> Secret {
    let file = b"age-encryption.org/v1\nopaque to this room".to_vec();
    Secret::Age { file, secret: Zeroizing::new([7; 32]) }
}

/// An identity file, parsed and unlocked with secrets that need no stretching.
pub fn identity_file(data: &[u8]) {
    if let Ok(record) = IdentityRecord::decode(data) {
        assert_eq!(record.encode(), data);
        assert!(
            record.work_is_bounded()
                && !record.slots.is_empty()
                && data.len() > IDENTITY_HEADER_LEN
        );
    }
    let Ok(file) = IdentityFile::decode(data) else { return };
    let code = RecoveryCode::parse(&IDENTITY.code.text()).expect("its own text");
    let key_file = Secret::KeyFile(Zeroizing::new(KEY_FILE.to_vec()));
    for secret in [Secret::RecoveryCode(code), key_file, age_secret()] {
        if let Ok(identity) = file.unlock(&secret) {
            assert_eq!(identity.public(), IDENTITY.public);
            assert_eq!(file.public(), IDENTITY.public);
        }
    }
}

pub fn identity_file_seeds() -> Vec<Vec<u8>> {
    vec![IDENTITY.bytes.clone()]
}

/// A `kith1...` line. By the first byte: a text unchanged, or any bytes with a correct checksum.
pub fn public_key_text(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let text = if choice % 2 == 0 {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        text.to_owned()
    } else {
        let Ok(text) = bech32::encode::<Bech32m>(Hrp::parse_unchecked("kith"), bytes) else {
            return;
        };
        text
    };
    if let Ok(public) = text.parse::<PublicIdentity>() {
        let again = public.to_string();
        assert!(again.eq_ignore_ascii_case(text.trim()), "{text:?} and {again:?} are the same key");
        assert!(choice % 2 == 0 || public.to_bytes() == bytes[1..]);
    }
}

pub fn public_key_text_seeds() -> Vec<Vec<u8>> {
    let text = IDENTITY.public.to_string();
    let capitals = format!(" {}\n", text.to_ascii_uppercase());
    let raw = [&[1], &IDENTITY.public.to_bytes()[..]].concat();
    vec![chosen(0, text.as_bytes()), chosen(0, capitals.as_bytes()), chosen(1, &raw)]
}

/// A recovery code as a user types it.
pub fn recovery_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(code) = RecoveryCode::parse(text) {
        let shown = code.text();
        let plain = |text: &str| -> String {
            let kept = text.chars().filter(|c| !c.is_whitespace() && *c != '-');
            kept.map(|c| c.to_ascii_uppercase())
                .map(|c| {
                    if c == 'O' {
                        '0'
                    } else if c == 'I' || c == 'L' {
                        '1'
                    } else {
                        c
                    }
                })
                .collect()
        };
        assert_eq!(plain(text), plain(&shown));
        assert_eq!(*RecoveryCode::parse(&shown).expect("its own text").text(), *shown);
    }
}

pub fn recovery_text_seeds() -> Vec<Vec<u8>> {
    let text = IDENTITY.code.text();
    vec![
        text.as_bytes().to_vec(),
        text.replace('-', " ").to_lowercase().into_bytes(),
        text.replace('-', "").into_bytes(),
    ]
}
