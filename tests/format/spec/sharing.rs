//! Byte tables of identities, shares and rosters. Slots, member lists, histories and signatures are
//! opened by the page's rules, without code of the roster room.

use kithfs::crypto::exchange::ExchangeSecret;
use kithfs::crypto::{Argon2Params, IdentitySeed, RecordCipher, Suite, stretch, verify};
use kithfs::format::identity::{IdentityRecord, PublicIdentity, SlotKind, SlotRecord};
use kithfs::format::invitation::InvitationRecord;
use kithfs::format::manifest::{BlockRef, HistoryEntry, Manifest};
use kithfs::format::members::{self, Member, Role};
use kithfs::format::share::ShareDescriptor;
use kithfs::format::slots;
use kithfs::roster::{
    Acting, FoundParams, Identity, IdentityFile, Invitation, NewSlot, RecoveryCode, Roster, Secret,
    found,
};
use zeroize::Zeroizing;

use super::byhand::{digest, expand, extract, label};
use super::bytes::{Structure, count, structure};

use crate::support::counting::Counting;

fn public(byte: u8) -> PublicIdentity {
    PublicIdentity { sign: [byte; 32], exchange: [byte + 1; 32] }
}

fn person(byte: u8) -> Identity {
    Identity::from_seed(IdentitySeed::from_bytes([byte; 32]))
}

pub fn structures() -> Vec<Structure> {
    let slot = SlotRecord {
        id: 0x0102,
        kind: SlotKind::Passphrase(Argon2Params { memory_kib: 0x0001_0203, passes: 4, lanes: 5 }),
        label: "home".into(),
        created: 0x0203_0405,
        salt: [6; 32],
        sealed: [7; 72],
        age_file: Vec::new(),
    };
    let age_file = b"age-encryption.org/v1\nrest".to_vec();
    let age_slot = SlotRecord { kind: SlotKind::Age, age_file: age_file.clone(), ..slot.clone() };
    let record =
        |slots| IdentityRecord { suite: Suite::ChaCha20Poly1305, public: public(0x30), slots };
    let (identity, with_age) = (record(vec![slot]), record(vec![age_slot]));
    let both: [u8; 64] = std::array::from_fn(|i| if i < 32 { 0x30 } else { 0x31 });
    let slot_fields: [&[u8]; 11] = [
        &[2, 1],
        &[1],
        &[4],
        &[5, 4, 3, 2, 0, 0, 0, 0],
        &[3, 2, 1, 0],
        &[4, 0, 0, 0],
        &[5, 0, 0, 0],
        &[6; 32],
        &[7; 72],
        b"home",
        b"",
    ];
    let mut age_fields = slot_fields;
    (age_fields[1], age_fields[4]) = (&[4], &[26, 0, 0, 0]);
    (age_fields[5], age_fields[6], age_fields[10]) = (&[0; 4], &[0; 4], &age_file);

    let descriptor = ShareDescriptor {
        suite: Suite::Aes256Gcm,
        signed: true,
        isolated: true,
        chunk_log2: 18,
        longest_name: 152,
        founder: public(0x30),
        random: [9; 32],
    };

    let slots: Vec<slots::Slot> = (1..=17u8).map(|i| [i; 64]).collect();
    let sealed_members = vec![0x77; 40 + 4 + 17 * 66];
    let header = slots::SlotHeader {
        suite: Suite::ChaCha20Poly1305,
        epoch: 0x0304_0506,
        share: [0x51; 32],
        ephemeral: [0x52; 32],
        count: 0,
        members_len: 0,
        tree_top: [0; 32],
        members_digest: [0; 32],
    };
    let (_, block) = slots::build(header, slots.clone(), &sealed_members).unwrap();
    let leaves = [
        digest("slot page", &[&[0; 4], slots[..16].as_flattened()]),
        digest("slot page", &[&[1, 0, 0, 0], &slots[16]]),
    ];
    let block_fields: [&[u8]; 13] = [
        b"kithslot",
        &[1, 0],
        &[2],
        &[0],
        &[6, 5, 4, 3],
        &[0x51; 32],
        &[0x52; 32],
        &[17, 0, 0, 0],
        &(sealed_members.len() as u32).to_le_bytes(),
        &digest("slot node", &[&leaves[0], &leaves[1]]),
        &digest("member list hash", &[&sealed_members]),
        slots.as_flattened(),
        &leaves.concat(),
    ];
    let block_fields = [&block_fields[..], &[&sealed_members]].concat();

    let member = Member { public: public(0x30), role: Role::Writer, name: "Ann".into() };
    let list = members::encode(std::slice::from_ref(&member));
    let member_fields: [&[u8]; 4] = [&both, &[2], &[3], b"Ann"];

    let history = HistoryEntry { epoch: 0x0102_0304, commitment: [0x21; 32], sealed: [0x22; 72] };
    let history_fields: [&[u8]; 3] = [&[4, 3, 2, 1], &[0x21; 32], &[0x22; 72]];
    let manifest = Manifest {
        suite: Suite::ChaCha20Poly1305,
        sequence: 0x0405_0607,
        epoch: 0x0203_0405,
        time: 0x0102_0304_0506,
        share: [1; 32],
        previous: [2; 32],
        second_parent: [3; 32],
        commitment: [4; 32],
        inventory_root: [5; 32],
        inventory_file: [6; 32],
        signer: [7; 32],
        admins: vec![[8; 32], [9; 32]],
        blocks: vec![BlockRef { root: [10; 32], count: 3 }],
        history: vec![history],
        signature: [11; 64],
    };
    let manifest_fields: Vec<&[u8]> = vec![
        b"kithmani",
        &[1, 0],
        &[2],
        &[0],
        &[7, 6, 5, 4],
        &[5, 4, 3, 2],
        &[6, 5, 4, 3, 2, 1, 0, 0],
        &[1; 32],
        &[2; 32],
        &[3; 32],
        &[4; 32],
        &[5; 32],
        &[6; 32],
        &[7; 32],
        &[2, 0],
        &[1, 0],
        &[1],
        &[0; 3],
    ];
    let (admins, block_ref, history) = (
        [[8; 32], [9; 32]].concat(),
        [&[10; 32][..], &[3, 0, 0, 0]].concat(),
        history_fields.concat(),
    );
    let manifest_fields =
        [&manifest_fields[..], &[&admins, &block_ref, &history, &[11; 64]]].concat();

    let invitation = InvitationRecord {
        descriptor,
        sequence: 0x0102_0304,
        head: [0x61; 32],
        admin: public(0x62),
        invited: public(0x64),
        time: 0x0506,
        signature: [0x66; 64],
    };
    let pair = |byte: u8| -> [u8; 64] { std::array::from_fn(|i| byte + u8::from(i >= 32)) };
    let invitation_fields: [&[u8]; 9] = [
        b"kithinvi",
        &[1, 0],
        &descriptor.encode(),
        &[4, 3, 2, 1],
        &[0x61; 32],
        &pair(0x62),
        &pair(0x64),
        &[6, 5, 0, 0, 0, 0, 0, 0],
        &[0x66; 64],
    ];

    let slot_of_block: [&[u8]; 3] = [&[1; 16], &[1; 32], &[1; 16]];
    vec![
        structure(
            "identity file",
            identity.encode(),
            &[b"kithiden", &[1, 0], &[2], &[1], &both, &slot_fields.concat()],
        ),
        structure("slot of an identity", &identity.encode()[76..], &slot_fields),
        structure("slot of an identity", &with_age.encode()[76..], &age_fields),
        structure(
            "share descriptor",
            descriptor.encode(),
            &[b"kithshar", &[1, 0], &[1], &[3], &[18], &[152], &[0; 2], &both, &[9; 32]],
        ),
        structure("invitation", invitation.encode(), &invitation_fields),
        structure("slot block", block, &block_fields),
        structure("slot of a slot block", slots[0], &slot_of_block),
        structure("member list", list.clone(), &[&[1, 0, 0, 0], &member_fields.concat()]),
        structure("member", &list[4..], &member_fields),
        structure("history entry", history.clone(), &history_fields),
        structure("manifest", manifest.encode(), &manifest_fields),
    ]
}

fn record_open(suite: Suite, key: &[u8; 32], aad: &[u8], sealed: &[u8]) -> Vec<u8> {
    let (nonce, rest) = sealed.split_first_chunk::<24>().unwrap();
    let (body, tag) = rest.split_last_chunk::<16>().unwrap();
    let mut plain = body.to_vec();
    RecordCipher::new(suite, key).open(nonce, aad, &mut plain, tag).unwrap();
    plain
}

#[test]
fn slots_of_an_identity_open_as_the_page_says() {
    let seed = [3; 32];
    let identity = person(3);
    let prk = extract(b"", &seed);
    assert_eq!(
        identity.public().exchange,
        ExchangeSecret::from_bytes(&expand(&prk, "identity exchange", &[])).public()
    );
    assert_eq!(
        identity.journal_key(&[4; 32]).expose(),
        &expand(&prk, "identity journal", &[&[4; 32]])
    );

    let code = RecoveryCode::generate(&Counting::from(0));
    let code_bytes: [u8; 20] = count(0);
    let key_file = [5u8; 40];
    let age_file = b"age-encryption.org/v1\nrest";
    let secrets = [
        Secret::Passphrase(Zeroizing::new(b"open".to_vec())),
        Secret::RecoveryCode(code),
        Secret::KeyFile(Zeroizing::new(key_file.to_vec())),
        Secret::Age { file: age_file.to_vec(), secret: Zeroizing::new([9; 32]) },
    ];
    for suite in Suite::ALL {
        for (kind, secret) in (1u8..).zip(&secrets) {
            let new = NewSlot { secret, params: Argon2Params::MIN, label: "mine", created: 7 };
            let bytes =
                IdentityFile::new(suite, &identity, &new, &Counting::from(0)).unwrap().encode();
            let slot = &bytes[76..];
            assert_eq!(slot[2], kind);
            let salt = &slot[24..56];
            let key = match kind {
                1 => *stretch(&Argon2Params::MIN, salt, b"open").unwrap().expose(),
                2 => expand(&extract(salt, &code_bytes), "recovery code", &[]),
                3 => expand(&extract(salt, &key_file), "key file", &[]),
                _ => expand(&extract(salt, &[9; 32]), "age recipient", &[]),
            };
            let behind = if kind == 4 { &age_file[..] } else { b"" };
            assert_eq!(&slot[128..], [b"mine", behind].concat());
            let aad = [
                &label("identity slot")[..],
                &bytes[..11],
                &identity.public().to_bytes(),
                &slot[..56],
                b"mine",
                behind,
            ]
            .concat();
            assert_eq!(record_open(suite, &key, &aad, &slot[56..128]), seed);
        }
    }
}

/// A recovery code and a fingerprint are spelled as SPEC.md defines.
#[test]
fn recovery_codes_and_fingerprints_are_spelled_as_specified() {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let spell = |bytes: &[u8], symbols: usize| -> String {
        let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
        let symbol = |i: usize| {
            ALPHABET[(0..5).fold(0, |value, k| value << 1 | bit(5 * i + k)) as usize] as char
        };
        let text: Vec<char> = (0..symbols).map(symbol).collect();
        text.chunks(4).map(|group| group.iter().collect::<String>()).collect::<Vec<_>>().join("-")
    };
    let code: [u8; 20] = count(0);
    let checked = [&code[..], &digest("recovery check", &[&code])].concat();
    assert_eq!(**RecoveryCode::generate(&Counting::from(0)).text(), spell(&checked, 36));
    let public = person(3).public();
    assert_eq!(
        public.fingerprint(),
        spell(&digest("fingerprint", &[&public.sign, &public.exchange]), 20)
    );
    assert_eq!(public.to_string().len(), 115);
}

#[test]
fn a_roster_opens_as_the_page_says() {
    for suite in Suite::ALL {
        let (ann, bob) = (person(1), person(2));
        let others = [Member { public: bob.public(), role: Role::Reader, name: "Bob".into() }];
        let params = FoundParams {
            suite,
            signed: true,
            isolated: false,
            chunk_log2: 18,
            name: "Ann",
            others: &others,
        };
        let founded = found(&ann, &params, &Counting::from(0), 9).unwrap();
        let share = digest("share id", &[&founded.descriptor]);
        assert_eq!(&share, founded.roster.share_id());

        let block = &founded.change.slots;
        let root = digest("slot block", &[&block[..152]]);
        assert_eq!(founded.change.slots_name, format!("+slots-{}", hex::encode(&root[..16])));
        let hash = digest("manifest hash", &[&founded.change.manifest]);
        assert_eq!(
            founded.change.manifest_name,
            format!("+manifest-1-{}", hex::encode(&hash[..16]))
        );
        let (signed, signature) = founded.change.manifest.split_last_chunk::<64>().unwrap();
        verify(&ann.public().sign, &[&label("manifest signature"), signed].concat(), signature)
            .unwrap();

        // Bob's slot, from his seed alone.
        let ephemeral: [u8; 32] = block[48..80].try_into().unwrap();
        let secret =
            ExchangeSecret::from_bytes(&expand(&extract(b"", &[2; 32]), "identity exchange", &[]));
        let dh = secret.diffie_hellman(&ephemeral).unwrap();
        let prk = extract(&[&label("roster slot")[..], &share].concat(), &*dh);
        let (suite_byte, epoch) = ([suite.as_byte()], 1u32.to_le_bytes());
        let context: [&[u8]; 5] =
            [&suite_byte, &ephemeral, &bob.public().sign, &bob.public().exchange, &epoch];
        let tag: [u8; 16] = expand(&prk, "roster slot tag", &context)[..16].try_into().unwrap();
        let slot = block[152..152 + 2 * 64].chunks(64).find(|slot| slot[..16] == tag).unwrap();
        let mut folder: [u8; 32] = slot[16..48].try_into().unwrap();
        let key = expand(&prk, "roster slot key", &context);
        RecordCipher::new(suite, &key)
            .open(&[0; 24], &tag, &mut folder, slot[48..].try_into().unwrap())
            .unwrap();
        let secret = extract(&share, &folder);
        let manifest = Manifest::decode(&founded.change.manifest).unwrap();
        assert_eq!(manifest.commitment, expand(&secret, "commitment", &[&epoch, &suite_byte]));

        // The member list.
        let records = expand(&secret, "records", &[&epoch, &suite_byte]);
        let members_key = expand(&records, "members", &[&ephemeral]);
        let list = record_open(suite, &members_key, &block[..84], &block[152 + 2 * 64..]);
        let list = members::decode(&list).unwrap();
        assert_eq!(list.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().len(), 2);
        assert!(
            list.iter()
                .any(|m| m.public == bob.public() && m.role == Role::Reader && m.name == "Bob")
        );

        // The folder key of epoch 1, from the history of epoch 2.
        let mut read = |_: &BlockRef, at: u64, buf: &mut [u8]| slots::slice_reader(block)(at, buf);
        let members = founded.roster.members(&founded.keys, &mut read).unwrap();
        let random = Counting::from(100);
        let acting =
            Acting { by: &ann, keys: &founded.keys, members: &members, random: &random, now: 10 };
        let change = founded.roster.rekey(&acting).unwrap();
        let next = Manifest::decode(&change.manifest).unwrap();
        let descriptor = ShareDescriptor::decode(&founded.descriptor).unwrap();
        let roster =
            Roster::verify(&descriptor, &[&founded.change.manifest, &change.manifest]).unwrap();
        let keys = roster
            .open(&ann, &mut |_, at, buf| slots::slice_reader(&change.slots)(at, buf))
            .unwrap();
        let second = 2u32.to_le_bytes();
        let history = expand(
            &extract(&share, keys.current().key.expose()),
            "history",
            &[&second, &suite_byte],
        );
        let aad = [
            &label("history")[..],
            &share,
            &second,
            &next.commitment,
            &epoch,
            &manifest.commitment,
        ]
        .concat();
        assert_eq!(record_open(suite, &history, &aad, &next.history[0].sealed), folder);
    }
}

#[test]
fn an_invitation_is_signed_as_the_page_says() {
    let (ann, bob) = (person(1), person(2));
    let descriptor = ShareDescriptor {
        suite: Suite::Aes256Gcm,
        signed: true,
        isolated: false,
        chunk_log2: 18,
        longest_name: 152,
        founder: ann.public(),
        random: [9; 32],
    };
    let head = kithfs::roster::Pin { sequence: 5, hash: [8; 32] };
    let bytes = Invitation::sign(&descriptor, &head, &ann, &bob.public(), 7).unwrap();
    let (signed, signature) = bytes.split_last_chunk::<64>().unwrap();
    verify(&ann.public().sign, &[&label("invitation signature"), signed].concat(), signature)
        .unwrap();
}
