//! Reads the bytes of a scenario as its structure and returns its contents, field by field.

use std::collections::BTreeMap;

use kithfs::crypto::{FileKey, Hctr2, NamesKey, RecordCipher, Suite};
use kithfs::format::FormatError;
use kithfs::format::header::{Header, HeaderContext};
use kithfs::format::identity::{IdentityRecord, PublicIdentity, SlotKind};
use kithfs::format::inventory::{self, InventoryList};
use kithfs::format::invitation::InvitationRecord;
use kithfs::format::journal::{JournalHead, RECORD_HEAD, open_record, record_head};
use kithfs::format::junction::Junction;
use kithfs::format::layout::Layout;
use kithfs::format::manifest::Manifest;
use kithfs::format::members;
use kithfs::format::moved::{self, Moved};
use kithfs::format::name::{NameCipher, Opened, Parts, is_long, long_path, parse};
use kithfs::format::record::{RecordContext, RecordKind, Xattrs, link_record};
use kithfs::format::share::ShareDescriptor;
use kithfs::format::signature::Authorship;
use kithfs::format::slots::{self, SlotHeader};
use kithfs::format::suffix;
use kithfs::format::table::{IndexBlock, Segment, Table, index_hash, segment_aad, table_hash};
use kithfs::roster::{IdentityError, IdentityFile, Invitation, InvitationError, Secret};
use zeroize::Zeroizing;

use super::scenario::Scenario;

/// All structures that have vectors.
pub const STRUCTURES: [&str; 19] = [
    "chunk-table",
    "evidence",
    "file-header",
    "identity-file",
    "index-block",
    "inventory",
    "invitation",
    "journal-head",
    "journal-record",
    "junction",
    "long-name",
    "manifest",
    "members",
    "name",
    "segment",
    "share-descriptor",
    "slot-block",
    "symlink",
    "xattrs",
];

type Fields = BTreeMap<String, String>;
type Outcome = Result<Fields, String>;

/// Returns the word for the kind of an error, as the vectors spell it: without the value that was
/// found.
fn kind(error: FormatError) -> String {
    let kind = format!("{:?}", error.kind()).to_lowercase();
    kind.split('(').next().unwrap_or_default().to_owned()
}

fn fields<const N: usize>(list: [(&str, String); N]) -> Fields {
    list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn suite(scenario: &Scenario) -> Suite {
    Suite::from_byte(scenario.number("suite") as u8).expect("a known suite")
}

fn layout(scenario: &Scenario) -> Layout {
    Layout::new(scenario.number("chunk-log2") as u8, is_signed(scenario)).expect("a chunk size")
}

/// Returns whether the share is signed.
fn is_signed(scenario: &Scenario) -> bool {
    scenario.inputs.contains_key("signed")
}

/// Adds author and signer; the signature was verified.
fn authors(mut all: Fields, by: Option<Authorship>) -> Fields {
    all.extend(by.into_iter().flat_map(|by| {
        fields([("author", hex::encode(by.author)), ("signer", hex::encode(by.signer))])
    }));
    all
}

fn public(public: &PublicIdentity) -> String {
    hex::encode(public.to_bytes())
}

/// Reads the scenario's bytes as `structure`.
pub fn read(structure: &str, scenario: &Scenario) -> Outcome {
    match structure {
        "file-header" => file_header(scenario),
        "invitation" => invitation(scenario),
        "inventory" => inventory(scenario),
        "junction" => junction(scenario),
        "chunk-table" => chunk_table(scenario),
        "index-block" => index_block(scenario),
        "segment" => segment(scenario),
        "name" => name(scenario),
        "evidence" => evidence(scenario),
        "long-name" => long_name(scenario),
        "symlink" => symlink(scenario),
        "xattrs" => xattrs(scenario),
        "journal-head" => journal_head(scenario),
        "journal-record" => journal_record(scenario),
        "identity-file" => identity_file(scenario),
        "share-descriptor" => share_descriptor(scenario),
        "manifest" => manifest(scenario),
        "slot-block" => slot_block(scenario),
        "members" => member_list(scenario),
        _ => panic!("{structure} is not a structure"),
    }
}

fn file_header(scenario: &Scenario) -> Outcome {
    let cipher = RecordCipher::new(suite(scenario), &scenario.key("header-key"));
    let share = scenario.key("share");
    let context = HeaderContext { share: &share, layout: layout(scenario), cipher: &cipher };
    let (header, data, by) = Header::open(&context, &scenario.bytes).map_err(kind)?;
    let all = fields([
        ("form", if header.public.small.is_some() { "small" } else { "large" }.to_owned()),
        ("epoch", header.public.epoch.to_string()),
        ("commitment", hex::encode(header.public.commitment)),
        ("file-id", hex::encode(header.public.file_id)),
        ("size", header.size.to_string()),
        ("version", header.version.to_string()),
        ("root", hex::encode(header.root)),
        ("oldest-epoch", header.oldest_epoch.to_string()),
        ("hint-tag", hex::encode(header.hint.tag)),
        ("hint-name", hex::encode(header.hint.name)),
        ("data", hex::encode(&*data)),
    ]);
    Ok(authors(all, by))
}

fn chunk_table(scenario: &Scenario) -> Outcome {
    if table_hash(&scenario.bytes) != scenario.key("hash") {
        return Err("unauthentic".to_owned());
    }
    let table = Table::decode(&layout(scenario), suite(scenario), &scenario.bytes).map_err(kind)?;
    let mut all = fields([
        ("salt", hex::encode(table.salt)),
        ("epoch", table.epoch.to_string()),
        ("seals", table.seals.to_string()),
    ]);
    for (s, segment) in table.segments.iter().enumerate() {
        let text = if *segment == Segment::HOLE {
            "hole".to_owned()
        } else {
            format!(
                "nonce {} tag {} length {}",
                hex::encode(segment.nonce),
                hex::encode(segment.tag),
                segment.len
            )
        };
        all.insert(format!("segment-{s}"), text);
    }
    Ok(all)
}

fn index_block(scenario: &Scenario) -> Outcome {
    let bytes = <&[u8; 4096]>::try_from(&scenario.bytes[..]).map_err(|_| "truncated".to_owned())?;
    if index_hash(scenario.number("level") as u8, bytes) != scenario.key("hash") {
        return Err("unauthentic".to_owned());
    }
    let block = IndexBlock::decode(bytes);
    let children = block.0.iter().enumerate().filter(|(_, hash)| **hash != [0; 32]);
    Ok(children.map(|(i, hash)| (format!("child-{i}"), hex::encode(hash))).collect())
}

fn segment(scenario: &Scenario) -> Outcome {
    let suite = suite(scenario);
    let salt: [u8; 16] = scenario.bytes_input("salt").try_into().unwrap();
    let nonce: [u8; 12] = scenario.bytes_input("nonce").try_into().unwrap();
    let tag: [u8; 16] = scenario.bytes_input("tag").try_into().unwrap();
    let key = kithfs::crypto::ChunkKeys::new(suite, &FileKey::from_bytes(scenario.key("file-key")))
        .derive(&salt);
    let (share, file) = (scenario.key("share"), scenario.key("file-id"));
    let (chunk, number) = (scenario.number("chunk"), scenario.number("segment") as u32);
    let aad = segment_aad(
        &share,
        &file,
        chunk,
        number,
        scenario.bytes.len() as u16,
        scenario.number("epoch") as u32,
        suite,
    );
    let mut plain = scenario.bytes.clone();
    key.open(&nonce, &aad, &mut plain, &tag).map_err(|_| "unauthentic".to_owned())?;
    Ok(fields([("plain", hex::encode(plain))]))
}

/// Calls `act` with the cipher of the names of the share.
fn with_names<T>(scenario: &Scenario, act: impl FnOnce(&NameCipher) -> T) -> T {
    let hctr2 = Hctr2::new(&NamesKey::from_bytes(scenario.key("names-key")));
    act(&NameCipher::new(&hctr2, scenario.number("longest") as usize))
}

/// Reads a whole stored name, of a short name or a long one.
fn name(scenario: &Scenario) -> Outcome {
    let stored = &scenario.bytes[..];
    let foreign = || "foreign".to_owned();
    match parse(stored, scenario.number("longest") as usize) {
        Parts::Short { sealed, suffix } => with_names(scenario, |names| {
            let Opened { tag, name } = names.open(&sealed).ok_or_else(foreign)?;
            let again = names.encode(&tag, &name).expect("a name");
            assert_eq!([again.entry(), suffix].concat(), stored, "what a writer makes of it");
            let shown = [&name[..], &suffix::shown(suffix)].concat();
            assert!(
                suffix.is_empty()
                    || suffix::splits(&shown).any(|split| split == (&name[..], suffix)),
                "a shown name can be taken apart"
            );
            Ok(fields([
                ("kind", "plain".to_owned()),
                ("tag", hex::encode(tag)),
                ("name", hex::encode(name)),
                ("suffix", hex::encode(suffix)),
                ("marked", hex::encode(suffix::marked(&shown, &suffix::mark_of(stored)))),
                ("shown", hex::encode(shown)),
            ]))
        }),
        Parts::Long { hash, suffix } => {
            let (group, file) = long_path(&hash);
            let path = [b"+long/", &group[..], b"/", &file].concat();
            Ok(fields([
                ("kind", "long".to_owned()),
                ("path", String::from_utf8(path).unwrap()),
                ("hash", hex::encode(hash)),
                ("suffix", hex::encode(suffix)),
            ]))
        }
        Parts::Control => Ok(fields([("kind", "control".to_owned())])),
        Parts::Foreign => Err(foreign()),
    }
}

/// Reads the file with the sealed name of a long-named entry.
fn long_name(scenario: &Scenario) -> Outcome {
    let longest = scenario.number("longest") as usize;
    if !is_long(&scenario.bytes, &scenario.key("hash"), longest) {
        return Err("unauthentic".to_owned());
    }
    let opened = with_names(scenario, |names| names.open(&scenario.bytes));
    let Opened { tag, name } = opened.ok_or_else(|| "unauthentic".to_owned())?;
    Ok(fields([("tag", hex::encode(tag)), ("name", hex::encode(name))]))
}

fn record(
    scenario: &Scenario,
    of: RecordKind,
    bound: &[u8],
    bytes: &[u8],
) -> Result<Vec<u8>, String> {
    Ok(record_by(scenario, of, bound, bytes)?.0)
}

fn record_by(
    scenario: &Scenario,
    of: RecordKind,
    bound: &[u8],
    bytes: &[u8],
) -> Result<(Vec<u8>, Option<Authorship>), String> {
    let suite = suite(scenario);
    let cipher = RecordCipher::new(suite, &scenario.key("records-key"));
    let share = scenario.key("share");
    let (signed, epoch) = (is_signed(scenario), scenario.number("epoch") as u32);
    let context = RecordContext { share: &share, suite, signed, epoch, cipher: &cipher };
    let (plain, by) = context.open(of, bound, bytes).map_err(kind)?;
    Ok((plain.to_vec(), by))
}

fn junction(scenario: &Scenario) -> Outcome {
    let bound = [scenario.bytes_input("tag"), scenario.bytes_input("hash")].concat();
    let (plain, by) = record_by(scenario, RecordKind::Junction, &bound, &scenario.bytes)?;
    let Junction { share, isolated, coming, name } = Junction::decode(&plain).map_err(kind)?;
    let all = fields([
        ("leads-to", hex::encode(share)),
        ("isolated", isolated.to_string()),
        ("coming", coming.to_string()),
        ("name", hex::encode(name)),
    ]);
    Ok(authors(all, by))
}

fn inventory(scenario: &Scenario) -> Outcome {
    let list = InventoryList::decode(&scenario.bytes).map_err(kind)?;
    let hash = inventory::file_hash(&scenario.bytes);
    let mut all = fields([
        ("root", hex::encode(list.root())),
        ("file-hash", hex::encode(hash)),
        ("file-name", inventory::file_name(&hash)),
    ]);
    all.extend(
        list.hashes().iter().enumerate().map(|(i, hash)| (format!("entry-{i}"), hex::encode(hash))),
    );
    Ok(all)
}

fn evidence(scenario: &Scenario) -> Outcome {
    let (plain, by) = record_by(scenario, RecordKind::Moved, b"", &scenario.bytes)?;
    let Moved { from, to } = Moved::decode(&plain).map_err(kind)?;
    let names = NamesKey::from_bytes(scenario.key("names-key"));
    let place = moved::place_name(&kithfs::crypto::moved_place(&names, &to));
    let path = [b"+moved/", &place[..], b"/", &moved::file_name(&scenario.bytes)].concat();
    let all = fields([
        ("from", hex::encode(from)),
        ("to", hex::encode(to)),
        ("path", String::from_utf8(path).unwrap()),
    ]);
    Ok(authors(all, by))
}

/// The bytes are the text of the store's link; with an input `reference` they are the control file
/// of a long target.
fn symlink(scenario: &Scenario) -> Outcome {
    if scenario.inputs.contains_key("reference") {
        let (target, by) = record_by(
            scenario,
            RecordKind::LongSymlink,
            &scenario.bytes_input("reference"),
            &scenario.bytes,
        )?;
        return Ok(authors(fields([("target", hex::encode(target))]), by));
    }
    let (text, bound, field): (_, &[u8], _) = match scenario.bytes.strip_prefix(b"+") {
        Some(text) => (text, b"+", "reference"),
        None => (&scenario.bytes[..], b"", "target"),
    };
    let sealed = link_record(text).map_err(kind)?;
    let (plain, by) = record_by(scenario, RecordKind::Symlink, bound, &sealed)?;
    Ok(authors(fields([(field, hex::encode(plain))]), by))
}

/// The bytes are the store's attribute; with an input `reference` they are the control file of a
/// long list.
fn xattrs(scenario: &Scenario) -> Outcome {
    if let Some(sealed) = scenario.bytes.strip_prefix(b"+") {
        return Ok(fields([(
            "reference",
            hex::encode(record(scenario, RecordKind::Xattrs, b"+", sealed)?),
        )]));
    }
    let bound = if scenario.inputs.contains_key("reference") {
        scenario.bytes_input("reference")
    } else {
        Vec::new()
    };
    let plain = record(scenario, RecordKind::Xattrs, &bound, &scenario.bytes)?;
    let attributes = Xattrs::decode(&plain).map_err(kind)?;
    Ok(attributes
        .0
        .iter()
        .map(|(name, value)| (format!("attribute-{}", hex::encode(name)), hex::encode(value)))
        .collect())
}

fn journal_head(scenario: &Scenario) -> Outcome {
    let head = JournalHead::decode(&scenario.bytes).map_err(kind)?;
    Ok(fields([
        ("suite", head.suite.as_byte().to_string()),
        ("share", hex::encode(head.share)),
        ("id", hex::encode(head.id)),
        ("owner", hex::encode(head.owner)),
    ]))
}

fn journal_record(scenario: &Scenario) -> Outcome {
    let id = scenario.bytes_input("journal-id").try_into().unwrap();
    let head = JournalHead {
        suite: suite(scenario),
        share: scenario.key("share"),
        id,
        owner: [0; 16],
        births: [None; 2],
    };
    let cipher = RecordCipher::new(head.suite, &scenario.key("journal-key"));
    let (start, rest) = scenario.bytes.split_first_chunk::<RECORD_HEAD>().ok_or("truncated")?;
    let (generation, sequence, len) = record_head(start).ok_or("magic")?;
    let record =
        open_record(&head, &cipher, generation, sequence, rest.get(..len).ok_or("truncated")?)
            .map_err(kind)?;
    let mut all = fields([
        ("generation", generation.to_string()),
        ("sequence", sequence.to_string()),
        ("path", hex::encode(&record.path)),
        ("file-id", hex::encode(record.file_id)),
        ("base", hex::encode(record.base)),
        ("result", hex::encode(record.result)),
        ("cipher-length", record.cipher_len.to_string()),
        ("mtime", format!("{} s {} ns", record.mtime.0, record.mtime.1)),
    ]);
    for (i, patch) in record.patches.iter().enumerate() {
        all.insert(
            format!("patch-{i}"),
            format!("at {} bytes {}", patch.offset, hex::encode(&patch.bytes)),
        );
    }
    Ok(all)
}

/// With an input `key-file`, `passphrase` or `age-secret` the file must also be unlocked.
fn identity_file(scenario: &Scenario) -> Outcome {
    let record = IdentityRecord::decode(&scenario.bytes).map_err(kind)?;
    let secret = |name: &str| {
        scenario.inputs.get(name).map(|value| Zeroizing::new(hex::decode(value).unwrap()))
    };
    let age = |contents: Zeroizing<Vec<u8>>| {
        let slot = record.slots.iter().find(|slot| slot.kind == SlotKind::Age).unwrap();
        let secret = Zeroizing::new(<[u8; 32]>::try_from(&contents[..]).unwrap());
        Secret::Age { file: slot.age_file.clone(), secret }
    };
    let secret = secret("key-file")
        .map(Secret::KeyFile)
        .or(secret("passphrase").map(Secret::Passphrase))
        .or(secret("age-secret").map(age));
    if let Some(secret) = secret {
        match IdentityFile::decode(&scenario.bytes).unwrap().unlock(&secret) {
            Ok(identity) => assert_eq!(identity.public(), record.public),
            Err(IdentityError::WrongSecret(_)) => return Err("unauthentic".to_owned()),
            Err(other) => panic!("{other}"),
        }
    }
    let mut all =
        fields([("suite", record.suite.as_byte().to_string()), ("public", public(&record.public))]);
    for slot in &record.slots {
        let how = match slot.kind {
            SlotKind::Passphrase(p) => {
                format!("passphrase memory {} passes {} lanes {}", p.memory_kib, p.passes, p.lanes)
            }
            SlotKind::Age => format!("age recipient [{}]", hex::encode(&slot.age_file)),
            other => other.name().to_owned(),
        };
        all.insert(
            format!("slot-{}", slot.id),
            format!("{how}, created {}, label [{}]", slot.created, hex::encode(&slot.label)),
        );
    }
    Ok(all)
}

fn share_descriptor(scenario: &Scenario) -> Outcome {
    let descriptor = ShareDescriptor::decode(&scenario.bytes).map_err(kind)?;
    Ok(fields([
        ("suite", descriptor.suite.as_byte().to_string()),
        ("signed", descriptor.signed.to_string()),
        ("isolated", descriptor.isolated.to_string()),
        ("chunk-log2", descriptor.chunk_log2.to_string()),
        ("longest-name", descriptor.longest_name.to_string()),
        ("founder", public(&descriptor.founder)),
        ("random", hex::encode(descriptor.random)),
        ("share-id", hex::encode(descriptor.share_id())),
    ]))
}

/// Verifies the signature, and that the invitation is for this person.
fn invitation(scenario: &Scenario) -> Outcome {
    let record = InvitationRecord::decode(&scenario.bytes).map_err(kind)?;
    match Invitation::verify(&scenario.bytes, &record.invited) {
        Ok(_) => {}
        Err(InvitationError::BadSignature) => return Err("unauthentic".to_owned()),
        Err(other) => panic!("{other}"),
    }
    Ok(fields([
        ("share-id", hex::encode(record.descriptor.share_id())),
        ("sequence", record.sequence.to_string()),
        ("head", hex::encode(record.head)),
        ("admin", public(&record.admin)),
        ("invited", public(&record.invited)),
        ("time", record.time.to_string()),
        ("signature", hex::encode(record.signature)),
    ]))
}

fn manifest(scenario: &Scenario) -> Outcome {
    let m = Manifest::decode(&scenario.bytes).map_err(kind)?;
    let mut all = fields([
        ("suite", m.suite.as_byte().to_string()),
        ("sequence", m.sequence.to_string()),
        ("epoch", m.epoch.to_string()),
        ("time", m.time.to_string()),
        ("share", hex::encode(m.share)),
        ("previous", hex::encode(m.previous)),
        ("second-parent", hex::encode(m.second_parent)),
        ("commitment", hex::encode(m.commitment)),
        ("inventory-root", hex::encode(m.inventory_root)),
        ("inventory-file", hex::encode(m.inventory_file)),
        ("signer", hex::encode(m.signer)),
        ("signature", hex::encode(m.signature)),
        ("hash", hex::encode(m.hash())),
        ("file-name", m.file_name()),
    ]);
    for (i, admin) in m.admins.iter().enumerate() {
        all.insert(format!("admin-{i}"), hex::encode(admin));
    }
    for (i, block) in m.blocks.iter().enumerate() {
        all.insert(
            format!("block-{i}"),
            format!("root {} slots {}", hex::encode(block.root), block.count),
        );
    }
    for (i, entry) in m.history.iter().enumerate() {
        let (commitment, sealed) = (hex::encode(entry.commitment), hex::encode(entry.sealed));
        all.insert(
            format!("history-{i}"),
            format!("epoch {} commitment {commitment} sealed {sealed}", entry.epoch),
        );
    }
    Ok(all)
}

fn slot_block(scenario: &Scenario) -> Outcome {
    let header = slots::check(&scenario.bytes).map_err(kind)?;
    let read = SlotHeader::read(&scenario.key("root"), &mut slots::slice_reader(&scenario.bytes));
    if read.is_err() {
        return Err("unauthentic".to_owned());
    }
    let mut all = fields([
        ("suite", header.suite.as_byte().to_string()),
        ("epoch", header.epoch.to_string()),
        ("share", hex::encode(header.share)),
        ("ephemeral", hex::encode(header.ephemeral)),
        ("slots", header.count.to_string()),
        ("tree-top", hex::encode(header.tree_top)),
        ("members-digest", hex::encode(header.members_digest)),
        ("file-name", slots::file_name(&header.root())),
    ]);
    if let Some(tag) = scenario.inputs.get("find") {
        let tag: [u8; 16] = hex::decode(tag).unwrap().try_into().unwrap();
        let slot = header
            .find(&tag, &mut slots::slice_reader(&scenario.bytes))
            .map_err(|_| "unauthentic")?;
        all.insert("found".into(), slot.map_or("nothing".into(), hex::encode));
    }
    Ok(all)
}

fn member_list(scenario: &Scenario) -> Outcome {
    let list = members::decode(&scenario.bytes).map_err(kind)?;
    let text = |m: &members::Member| {
        format!("{} {} name [{}]", public(&m.public), m.role.name(), hex::encode(&m.name))
    };
    Ok(list.iter().enumerate().map(|(i, member)| (format!("member-{i}"), text(member))).collect())
}
