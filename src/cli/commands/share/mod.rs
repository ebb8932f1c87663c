//! `kithfs share`, `kithfs who-can-read`
//!
//! Rules: a change of the membership names the share's own folder, so that nobody shares a whole
//! vault instead of a folder in it. Keys are taken only from the contacts, never from a name in a
//! roster. If the vault is mounted for writing, its daemon performs the change. Otherwise it is
//! opened here, without its lock if only new control files are written.

mod reseal;

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::args::OpenArgs;
use crate::cli::args::share::{
    ShareAdd, ShareCommand, ShareInvite, ShareList, ShareLog, ShareRemove, ShareSettle,
};
use crate::cli::control::{self, Connection};
use crate::cli::display::{Shown, path as shown, utc, word};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local;
use crate::cli::local::os_str;
use crate::cli::local::replace::replace;
use crate::cli::report::{Failure, note};
use crate::cli::terminal::stdout::Out;
use crate::cli::user::{contacts, own_name};
use crate::cli::vaults::open::Purpose;
use crate::roster::contacts::Trust;
use crate::roster::{Contacts, Member, Pin, PublicIdentity, Role, base32};
use crate::vault::{LogEntry, LogKind, Pending, ShareInfo};

/// Runs one of the commands.
pub fn run(command: &ShareCommand) -> Result<Exit, Failure> {
    match command {
        ShareCommand::Create(args) => reseal::create(args),
        ShareCommand::Rekey(args) => reseal::rekey(args),
        ShareCommand::Add(args) => add(args),
        ShareCommand::Remove(args) => remove(args),
        ShareCommand::List(args) => list(args),
        ShareCommand::Log(args) => log(args),
        ShareCommand::Settle(args) => settle(args),
        ShareCommand::Invite(args) => invite(args),
    }
}

/// Connects to a share that is to be changed: the path must be its own folder.
fn to_change(
    path: &Path,
    args: &OpenArgs,
    purpose: Purpose,
) -> Result<(Connection, ShareInfo), Failure> {
    let connection = Connection::to(path, args, purpose)?;
    let share = connection.share()?;
    if share.path == connection.path {
        Ok((connection, share))
    } else {
        Err(Error::NotAShare { path: path.to_owned(), vault: connection.vault }.into())
    }
}

/// Returns the path that `VAULT FOLDER` or `VAULT/FOLDER` names.
fn place(path: &Path, folder: Option<&OsStr>) -> PathBuf {
    folder.map_or_else(|| path.to_owned(), |folder| path.join(folder))
}

/// Separates the share from the names of people. A vault that is not signed has no member but its
/// owner, so the first of several names is that of a folder in it.
fn place_and_names<'a>(
    path: &Path,
    names: &'a [String],
) -> Result<(PathBuf, &'a [String]), Failure> {
    match names {
        [folder, names @ ..] if !names.is_empty() && control::is_unsigned_vault(path)? => {
            Ok((path.join(folder), names))
        }
        _ => Ok((path.to_owned(), names)),
    }
}

/// A member under this user's name for them.
struct Acquainted {
    name: String,
    state: &'static str,
}

/// This user and the people that they know.
struct People {
    contacts: Contacts,
    me: PublicIdentity,
    /// This user's name if the share is not signed: it then has no list of members with the name.
    own_name: Option<String>,
}

impl People {
    fn of(info: &ShareInfo) -> Result<People, Failure> {
        let own_name = if info.signed { None } else { Some(own_name::or_chosen(None)?) };
        Ok(People { contacts: contacts::load()?, me: info.me, own_name })
    }

    /// Returns this user's name for a member, else the name that the share's admin chose.
    fn known(&self, member: &Member) -> Acquainted {
        if member.public == self.me {
            let name = self.own_name.as_ref().unwrap_or(&member.name);
            return Acquainted { name: name.clone(), state: "you" };
        }
        match (self.contacts.by_key(&member.public), self.contacts.get(&member.name)) {
            (Some(contact), _) => {
                Acquainted { name: contact.name.clone(), state: contact.trust().name() }
            }
            // Another person's key under the name of a contact.
            (None, Some(_)) => {
                Acquainted { name: member.name.clone(), state: Trust::Changed.name() }
            }
            (None, None) => Acquainted { name: member.name.clone(), state: "unknown" },
        }
    }

    /// Returns this user's name for the owner of a signing key, else the first digits of the key.
    fn signer(&self, sign: &[u8; 32], members: &[Member]) -> String {
        match members.iter().find(|member| member.public.sign == *sign) {
            Some(member) => self.known(member).name,
            None => self
                .contacts
                .by_signing_key(sign)
                .map_or_else(|| hex::encode(&sign[..8]), |contact| contact.name.clone()),
        }
    }
}

/// Returns the member with this fingerprint, in any spelling.
fn by_fingerprint<'a>(info: &'a ShareInfo, text: &str) -> Option<&'a Member> {
    let told = base32::values(text)?;
    info.members.iter().find(|member| {
        base32::values(&member.public.fingerprint()).is_some_and(|values| *values == *told)
    })
}

/// Returns the member with a name or fingerprint. A contact's key takes precedence over the names
/// that the share's admins chose.
fn member<'a>(
    info: &'a ShareInfo,
    contacts: &Contacts,
    name: &str,
    path: &Path,
) -> Result<&'a Member, Error> {
    let by_key = contacts
        .get(name)
        .and_then(|contact| info.members.iter().find(|member| member.public == contact.public));
    let mut by_name =
        info.members.iter().filter(|member| member.name == name && contacts.get(name).is_none());
    match (by_fingerprint(info, name), by_key, by_name.next(), by_name.next()) {
        (Some(member), ..) | (None, Some(member), ..) | (None, None, Some(member), None) => {
            Ok(member)
        }
        _ => Err(Error::NoSuchMember { path: path.to_owned(), name: name.to_owned() }),
    }
}

/// Returns the signing key of a member to remove. A name with several keys in the list, or with a
/// key other than the contact's, is not enough: the member with the other key would stay and be
/// believed removed.
fn sign_to_remove(
    info: &ShareInfo,
    people: &People,
    name: &str,
    path: &Path,
) -> Result<[u8; 32], Error> {
    if let Some(member) = by_fingerprint(info, name) {
        return Ok(member.public.sign);
    }
    let contact = people.contacts.get(name);
    let shown: Vec<&Member> =
        info.members.iter().filter(|member| people.known(member).name == name).collect();
    match (&shown[..], contact) {
        // The member may be gone from here, and still be in a nested share.
        ([], Some(contact)) => Ok(contact.public.sign),
        ([], None) => Err(Error::NoSuchMember { path: path.to_owned(), name: name.to_owned() }),
        ([only], _)
            if contact.is_none_or(|contact| contact.public == only.public)
                || only.public == info.me =>
        {
            Ok(only.public.sign)
        }
        _ => {
            let keys = shown.iter().map(|member| member.public.fingerprint()).collect();
            Err(Error::WhichMember { path: path.to_owned(), name: name.to_owned(), keys })
        }
    }
}

fn add(args: &ShareAdd) -> Result<Exit, Failure> {
    let (path, names) = place_and_names(&args.path, &args.names)?;
    let contacts = contacts::load()?;
    let role = args.role;
    let mut people = Vec::new();
    for name in names {
        let unknown = || contacts::failed(crate::roster::ContactError::Unknown(name.clone()));
        let contact = contacts.get(name).ok_or_else(unknown)?;
        note(format_args!(
            "{}: {}, fingerprint {}",
            Shown(name.as_bytes()),
            contact.trust().name(),
            contact.public.fingerprint()
        ));
        match contact.trust() {
            Trust::Verified => {}
            Trust::New if args.open.trust_on_first_use => {}
            Trust::New => return Err(Error::ContactNotVerified(name.clone()).into()),
            Trust::Changed => return Err(Error::KeyChanged(name.clone()).into()),
        }
        people.push(Member { public: contact.public, role, name: name.clone() });
    }
    let (connection, info) = to_change(&path, &args.open, Purpose::Beside)?;
    let is_member =
        |person: &Member| info.members.iter().any(|member| member.public == person.public);
    let (present, new): (Vec<Member>, Vec<Member>) = people.into_iter().partition(is_member);
    if role == Role::Reader {
        tell_of_late_changes(&info, |member| {
            present.iter().any(|person| person.public == member.public)
        });
    }
    if !new.is_empty() {
        connection.add(&new)?;
    }
    for person in &present {
        let same =
            info.members.iter().any(|member| member.public == person.public && member.role == role);
        if !same {
            connection.set_role(&person.public.sign, role)?;
        }
    }
    connection.close()?;
    for Member { name, .. } in new.iter().chain(&present) {
        note(format_args!(
            "{} is {} {} of {}",
            Shown(name.as_bytes()),
            if role == Role::Admin { "an" } else { "a" },
            role.name(),
            shown(&path)
        ));
    }
    for Member { name, .. } in &new {
        let file = word(format!("{name}.invitation").replace('/', "-"));
        let (share, name) = (word(&path), word(name));
        note(format_args!("invite {name}: kithfs share invite {share} {name} -o {file}"));
    }
    Ok(Exit::Ok)
}

/// Tells the user of a synced share what happens to changes that arrive after those for whom
/// `loses` is true have lost the right to write: only what is here by then is listed as theirs.
fn tell_of_late_changes(info: &ShareInfo, loses: impl Fn(&Member) -> bool) {
    for member in info.members.iter().filter(|it| it.role != Role::Reader && loses(it)) {
        if info.synced {
            note(format_args!(
                "what {} has changed and the sync tool has yet to bring here is refused when it arrives, and stays refused; if you need it, give them the right to write again (share add --role writer), and take it away once everything has arrived",
                Shown(member.name.as_bytes())
            ));
        }
    }
}

fn remove(args: &ShareRemove) -> Result<Exit, Failure> {
    let purpose = if args.eager { Purpose::Write } else { Purpose::Beside };
    let (path, names) = place_and_names(&args.path, &args.names)?;
    let (mut connection, info) = to_change(&path, &args.open, purpose)?;
    if args.eager {
        connection = connection.recording(&args.memory);
    }
    let people = People::of(&info)?;
    let sign = |name: &String| sign_to_remove(&info, &people, name, &path);
    let signs = names.iter().map(sign).collect::<Result<Vec<[u8; 32]>, Error>>()?;
    tell_of_late_changes(&info, |member| signs.contains(&member.public.sign));
    let unread = connection.remove(&signs)?.unread;
    if unread > 0 {
        note(format_args!(
            "{unread} files or directories are not readable here: data in them that a removed member signed is refused from now on"
        ));
    }
    for name in names {
        note(format_args!(
            "removed {}. They may have kept copies of data that was readable until now",
            Shown(name.as_bytes())
        ));
    }
    if !args.eager {
        let share = word(path);
        note(format_args!(
            "what was written before stays under the old key until it is sealed again: kithfs share rekey --eager {share} (how much that is: kithfs share rekey --status {share})"
        ));
    }
    let left = if args.eager { Some(reseal::pass(&connection, true)?) } else { None };
    connection.close()?;
    Ok(left.map_or(Exit::Ok, |left| reseal::tell(&left, true)))
}

/// A member in JSON. The names of the fields are stable.
#[derive(Serialize)]
struct Row {
    name: String,
    role: &'static str,
    state: &'static str,
    fingerprint: String,
    key: String,
}

/// A share in JSON. The names of the fields are stable.
#[derive(Serialize)]
struct Listing {
    share: String,
    signed: bool,
    isolated: bool,
    epoch: u32,
    heads: Vec<Head>,
    signer: String,
    time: u64,
    role: &'static str,
    pending: reseal::Left,
    members: Vec<Row>,
}

#[derive(Serialize)]
struct Head {
    sequence: u32,
    hash: String,
}

fn rows(people: &People, members: &[Member]) -> Vec<Row> {
    let row = |member: &Member| {
        let Acquainted { name, state } = people.known(member);
        let (fingerprint, key) = (member.public.fingerprint(), member.public.to_string());
        Row { name, role: member.role.name(), state, fingerprint, key }
    };
    let mut rows: Vec<Row> = members.iter().map(row).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn list(args: &ShareList) -> Result<Exit, Failure> {
    let connection =
        Connection::to(&place(&args.path, args.folder.as_deref()), &args.open, Purpose::Beside)?;
    let info = connection.share()?;
    let people = People::of(&info)?;
    // In the first epoch, nothing is under an older key.
    let left = if info.epoch > 1 { connection.pending()? } else { Pending::default() };
    let head = |head: &Pin| Head { sequence: head.sequence, hash: hex::encode(head.hash) };
    let listing = Listing {
        share: hex::encode(info.share),
        signed: info.signed,
        isolated: info.isolated,
        epoch: info.epoch,
        heads: info.heads.iter().map(head).collect(),
        signer: people.signer(&info.signer, &info.members),
        time: info.time,
        role: info.own_role.name(),
        pending: reseal::Left::from(&left),
        members: rows(&people, &info.members),
    };
    Out::report(args.json, &listing, |out| {
        out.text(format_args!("share  {}\n", listing.share))?;
        out.text(format_args!("epoch  {}\n", info.epoch))?;
        let opened = info.heads.len() - info.unopened;
        for (n, head) in info.heads.iter().enumerate() {
            let why = if n < opened { "" } else { " (you cannot open it, or are no member there)" };
            out.text(format_args!(
                "head   {}-{}{why}\n",
                head.sequence,
                hex::encode(&head.hash[..16])
            ))?;
        }
        let time = utc(i64::try_from(info.time).unwrap_or(i64::MAX));
        out.text(format_args!("signed {time} by {}\n", Shown(listing.signer.as_bytes())))?;
        if info.epoch > 1 {
            out.text(format_args!("older  {}\n", reseal::in_words(&left)))?;
        }
        if info.heads.len() > 1 {
            out.state("FORKED", 0)?;
            out.text(format_args!(
                ": read-only until an admin in each list settles it with `kithfs share settle`\n"
            ))?;
        }
        out.text(format_args!("\n"))?;
        print(out, &listing.members)
    })
}

fn print(out: &mut Out, members: &[Row]) -> Result<(), Error> {
    for Row { name, role, state, fingerprint, .. } in members {
        out.text(format_args!("{role:<6}  "))?;
        out.state(state, 8)?;
        out.text(format_args!("  {fingerprint}  {}\n", Shown(name.as_bytes())))?;
    }
    Ok(())
}

/// Prints the members with a key for a path.
pub fn who_can_read(args: &ShareList) -> Result<Exit, Failure> {
    let path = place(&args.path, args.folder.as_deref());
    let info = Connection::to(&path, &args.open, Purpose::Beside)?.share()?;
    if info.unopened > 0 {
        note(
            "the share is forked, and one of its lists of members cannot be opened: it is not included",
        );
    }
    let members = rows(&People::of(&info)?, &[&info.members[..], &info.elsewhere].concat());
    Out::report(args.json, &members, |out| print(out, &members))
}

fn log(args: &ShareLog) -> Result<Exit, Failure> {
    let connection =
        Connection::to(&place(&args.path, args.folder.as_deref()), &args.open, Purpose::Beside)?;
    let log = connection.log()?;
    let people = People::of(&connection.share()?)?;
    // The signer may have been removed since.
    let mut seen: Vec<Member> = Vec::new();
    Out::print(|out| {
        log.iter().try_for_each(|entry| {
            for member in entry.changes.iter().flat_map(|changes| &changes.added) {
                if !seen.iter().any(|other| other.public == member.public) {
                    seen.push(member.clone());
                }
            }
            let time = utc(i64::try_from(entry.time).unwrap_or(i64::MAX));
            let by = people.signer(&entry.signer, &seen);
            out.text(format_args!(
                "{:>4}  {time}  epoch {:<3}  {}: {}\n",
                entry.head.sequence,
                entry.epoch,
                Shown(by.as_bytes()),
                what(entry, &people)
            ))
        })
    })
}

/// Describes a change.
fn what(entry: &LogEntry, people: &People) -> String {
    let mut parts: Vec<String> = Vec::new();
    let name = |member: &Member| Shown(people.known(member).name.as_bytes()).to_string();
    match entry.what {
        LogKind::Founded => parts.push("founded".to_owned()),
        LogKind::Settled => parts.push("settled a fork".to_owned()),
        LogKind::Members | LogKind::NewEpoch => {}
    }
    match &entry.changes {
        None => parts.push("changed members (some lists are not readable)".to_owned()),
        Some(changes) => {
            parts.extend(
                changes
                    .added
                    .iter()
                    .map(|member| format!("added {} as {}", name(member), member.role.name())),
            );
            parts.extend(changes.removed.iter().map(|member| format!("removed {}", name(member))));
            parts.extend(
                changes
                    .changed
                    .iter()
                    .map(|member| format!("made {} {}", name(member), member.role.name())),
            );
        }
    }
    if parts.is_empty() {
        parts.push("new folder key".to_owned());
    }
    parts.join(", ")
}

/// Minimum of digits of a hash that select a head.
const HASH_MIN: usize = 8;

fn settle(args: &ShareSettle) -> Result<Exit, Failure> {
    let path = place(&args.path, args.folder.as_deref());
    let (connection, info) = to_change(&path, &args.open, Purpose::Beside)?;
    let Some(keep) = &args.keep else {
        let heads: Vec<String> =
            info.heads.iter().map(|head| hex::encode(&head.hash[..16])).collect();
        return Err(Error::WhichHead { path, heads }.into());
    };
    let keep = keep.to_ascii_lowercase();
    let fits = |hash: &[u8; 32]| keep.len() >= HASH_MIN && hex::encode(hash).starts_with(&keep);
    let Some(head) = info.heads.iter().find(|head| fits(&head.hash)) else {
        return Err(Error::NoSuchHead { path, head: keep }.into());
    };
    connection.settle(&head.hash)?;
    connection.close()?;
    note(format_args!(
        "settled in favour of {}; repeat additions and removals that were made only on the other side",
        hex::encode(&head.hash[..16])
    ));
    Ok(Exit::Ok)
}

/// Mode of an invitation: it holds no secret, and the invited person has to read it.
const INVITATION_MODE: u32 = 0o644;

fn invite(args: &ShareInvite) -> Result<Exit, Failure> {
    let to_stdout = args.output == Path::new("-");
    let is_new = !to_stdout && !args.output.exists();
    if !to_stdout {
        local::check_writable(local::parent(&args.output))
            .map_err(Error::io("write invitation", &args.output))?;
    }
    let (path, names) = place_and_names(&args.path, &args.names)?;
    let [name] = names else {
        return Err(Error::Usage("an invitation is for one member".into()).into());
    };
    let (connection, info) = to_change(&path, &args.open, Purpose::Beside)?;
    let member = member(&info, &contacts::load()?, name, &path)?;
    let invitation = connection.invite(&member.public.sign)?;
    if to_stdout {
        Out::print(|out| out.bytes(&invitation))?;
    } else {
        replace(&args.output, &invitation, |written| {
            if written == invitation {
                Ok(())
            } else {
                Err(Failure::from(Error::NotReadBack(args.output.clone())))
            }
        })?;
        if is_new {
            let mode = Permissions::from_mode(INVITATION_MODE);
            std::fs::set_permissions(&args.output, mode)
                .map_err(Error::io("set the mode of", &args.output))?;
        }
    }
    note(format_args!(
        "invited {} ({}). They accept with: kithfs accept FILE. Tell them your fingerprint over another channel: {}",
        Shown(name.as_bytes()),
        member.public.fingerprint(),
        info.me.fingerprint()
    ));
    let vault = word(&connection.vault);
    if connection.path.is_empty() {
        note(format_args!(
            "they also need the vault's directory, by a sync tool or a copy: {vault}"
        ));
    } else {
        note(format_args!(
            "they also need the directory of its ciphertext, by a sync tool or a copy; see which: kithfs map {vault} {}",
            word(os_str(&connection.path))
        ));
    }
    Ok(Exit::Ok)
}
