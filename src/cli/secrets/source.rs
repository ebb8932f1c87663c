//! The sources of passphrases, recovery codes and key files.
//!
//! Rules that hold here
//! * A secret is read completely, into memory that is wiped. It is never shown, logged or
//!   included in an error.
//! * One newline at the end of a passphrase is ignored, as editors and `echo` add it; every other
//!   byte counts.
//! * Order: options, then the variable KITHFS_PASSPHRASE_FILE, then the variable
//!   KITHFS_AGE_IDENTITY if the identity has age slots, then the systemd credential
//!   `kithfs.passphrase`, then the keyring of the session, then a prompt.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use zeroize::Zeroizing;

use crate::cli::args::slots::NewSecret;
use crate::cli::args::{PassphraseArgs, PresentSecret};
use crate::cli::daemon::signals;
use crate::cli::display::{self, short_path};
use crate::cli::error::Error;
use crate::cli::local::fifo;
use crate::cli::report::note;
use crate::cli::secrets::strength;
use crate::cli::terminal::ask;

/// Length limit of a passphrase or key file, in bytes.
pub const SECRET_MAX: usize = 64 * 1024;

/// Variable with the path of a passphrase file.
pub const PASSPHRASE_FILE_VARIABLE: &str = "KITHFS_PASSPHRASE_FILE";

/// Variable with the path of an age identity.
pub const AGE_IDENTITY_VARIABLE: &str = "KITHFS_AGE_IDENTITY";

/// Name of the systemd credential (systemd.exec(5), LoadCredential=).
pub const CREDENTIAL: &str = "kithfs.passphrase";

/// Secret bytes: wiped on drop, without `Debug`.
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// Takes the bytes.
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> SecretBytes {
        SecretBytes(bytes)
    }

    /// Returns the bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes, still wiped on drop.
    pub fn into_inner(self) -> Zeroizing<Vec<u8>> {
        self.0
    }
}

/// A secret and its kind.
pub enum Given {
    /// A passphrase. If it was typed at a prompt, it may also be a recovery code.
    Passphrase {
        /// The bytes.
        bytes: SecretBytes,
        /// The prompt at which it was typed, for another attempt; `None` if it was not typed.
        typed: Option<Prompt>,
    },
    /// A recovery code.
    RecoveryCode(SecretBytes),
    /// The contents of a key file.
    KeyFile(SecretBytes),
}

impl Given {
    /// Returns the prompt at which the secret was typed.
    pub fn prompt(&self) -> Option<Prompt> {
        match self {
            Given::Passphrase { typed, .. } => typed.clone(),
            Given::RecoveryCode(_) | Given::KeyFile(_) => None,
        }
    }

    /// Returns a copy of the passphrase.
    pub fn passphrase(&self) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Given::Passphrase { bytes, .. } => Some(bytes.0.clone()),
            _ => None,
        }
    }
}

/// What a secret opens, as a prompt names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opens {
    /// A vault, by its own identity.
    Vault(PathBuf),
    /// An identity file that the user named.
    Identity(PathBuf),
    /// The user's identity, under the name that others see, or its path.
    YourIdentity(String),
}

impl fmt::Display for Opens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opens::Vault(path) => write!(f, "the vault {}", short_path(path)),
            Opens::Identity(path) => write!(f, "the identity {}", short_path(path)),
            Opens::YourIdentity(name) => write!(f, "your identity ({name})"),
        }
    }
}

/// A question for a secret, at the terminal or by the user's prompt program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt(Opens);

impl Prompt {
    /// Returns the question for the secret that opens `opens`.
    pub fn new(opens: Opens) -> Prompt {
        Prompt(opens)
    }

    /// Asks for the passphrase, without echo.
    ///
    /// # Errors
    /// Those of [`ask::secret`]; nothing was typed, [`ATTEMPTS`] times.
    pub fn ask(self) -> Result<Given, Error> {
        let bytes = ask_for(&format!("Passphrase of {}: ", self.0), &mut ask_secret)?;
        Ok(Given::Passphrase { bytes, typed: Some(self) })
    }
}

/// How often a secret can be typed at the terminal before a command gives up.
pub const ATTEMPTS: u32 = 3;

/// The source of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file with a passphrase; `-` is stdin.
    File(PathBuf),
    /// An open file descriptor with a passphrase.
    Descriptor(i32),
    /// A command that prints a passphrase.
    Command(OsString),
    /// A file whose contents are the secret.
    KeyFile(PathBuf),
    /// A file with a recovery code.
    RecoveryCodeFile(PathBuf),
    /// A prompt at the terminal, or without one by the user's prompt program.
    Terminal,
}

/// The environment variables that name sources of secrets.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// KITHFS_PASSPHRASE_FILE.
    pub passphrase_file: Option<OsString>,
    /// KITHFS_AGE_IDENTITY.
    pub age_identity: Option<OsString>,
    /// CREDENTIALS_DIRECTORY.
    pub credentials_directory: Option<OsString>,
}

impl Environment {
    /// Returns the variables of this process; an empty one counts as not set.
    pub fn of_process() -> Environment {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Environment {
            passphrase_file: variable(PASSPHRASE_FILE_VARIABLE),
            age_identity: variable(AGE_IDENTITY_VARIABLE),
            credentials_directory: variable("CREDENTIALS_DIRECTORY"),
        }
    }

    fn source(&self) -> Source {
        if let Some(file) = &self.passphrase_file {
            return Source::File(file.into());
        }
        match self.credentials_directory.as_ref().map(|dir| Path::new(dir).join(CREDENTIAL)) {
            Some(credential) if credential.exists() => Source::File(credential),
            _ => Source::Terminal,
        }
    }
}

impl Source {
    /// Returns the source of the passphrase for something new.
    pub fn choose(args: &PassphraseArgs, environment: &Environment) -> Source {
        let PassphraseArgs { passphrase_file, passphrase_fd, passphrase_command, key_file } = args;
        match (passphrase_file, passphrase_fd, passphrase_command, key_file) {
            (Some(file), ..) => Source::File(file.clone()),
            (_, Some(descriptor), ..) => Source::Descriptor(*descriptor),
            (_, _, Some(command), _) => Source::Command(command.clone()),
            (_, _, _, Some(file)) => Source::KeyFile(file.clone()),
            (None, None, None, None) => environment.source(),
        }
    }

    /// Returns the source of the secret for something that exists.
    pub fn choose_present(args: &PresentSecret, environment: &Environment) -> Source {
        match &args.recovery_code_file {
            Some(file) => Source::RecoveryCodeFile(file.clone()),
            None => Source::choose(&args.passphrase, environment),
        }
    }

    /// Returns the age identities to use for something that exists, if these come before every
    /// other source.
    pub fn choose_age(
        args: &PresentSecret,
        environment: &Environment,
        has_age_slots: bool,
    ) -> Option<Vec<PathBuf>> {
        if !args.age.age_identity.is_empty() {
            return Some(args.age.age_identity.clone());
        }
        let is_given = args.passphrase != PassphraseArgs::default()
            || args.recovery_code_file.is_some()
            || args.remember;
        if is_given || !has_age_slots || environment.passphrase_file.is_some() {
            return None;
        }
        environment.age_identity.as_ref().map(|file| vec![file.into()])
    }

    /// Returns the source of a passphrase that replaces another one. The environment is ignored, as
    /// it names the old one.
    pub fn choose_new(args: &NewSecret) -> Source {
        match (&args.new_passphrase_file, args.new_passphrase_fd, &args.new_passphrase_command) {
            (Some(file), ..) => Source::File(file.clone()),
            (_, Some(descriptor), _) => Source::Descriptor(descriptor),
            (_, _, Some(command)) => Source::Command(command.clone()),
            (None, None, None) => Source::Terminal,
        }
    }

    /// Gets the secret of something that exists; a prompt names it as `opens`.
    ///
    /// # Errors
    /// Those of the source; the secret is empty.
    pub fn read(&self, opens: &Opens) -> Result<Given, Error> {
        self.read_with(|| Prompt(opens.clone()).ask())
    }

    /// Gets the secret of something new, and warns of a weak passphrase. The terminal asks twice.
    ///
    /// # Errors
    /// Those of the source; the secret is empty; what was typed differed three times.
    pub fn read_new(&self, opens: &Opens) -> Result<Given, Error> {
        let given = self.read_with(|| {
            let typed = ask_twice(&opens.to_string(), &mut ask_secret, &mut strength::report)?;
            Ok(Given::Passphrase { bytes: typed, typed: Some(Prompt(opens.clone())) })
        })?;
        if let Given::Passphrase { bytes, typed: None } = &given {
            strength::warn_if_weak(bytes.expose());
        }
        Ok(given)
    }

    fn read_with(&self, terminal: impl FnOnce() -> Result<Given, Error>) -> Result<Given, Error> {
        let passphrase =
            |bytes: SecretBytes| Ok(Given::Passphrase { bytes: line(bytes)?, typed: None });
        match self {
            Source::File(file) => passphrase(from_file("read passphrase file", file)?),
            Source::Descriptor(number) => passphrase(from_descriptor(*number)?),
            Source::Command(command) => passphrase(from_command(command)?),
            Source::KeyFile(file) => {
                let bytes = from_file("read key file", file)?;
                if bytes.expose().is_empty() {
                    Err(Error::EmptySecret("key file"))
                } else {
                    Ok(Given::KeyFile(bytes))
                }
            }
            Source::RecoveryCodeFile(file) => {
                Ok(Given::RecoveryCode(line(from_file("read recovery code file", file)?)?))
            }
            Source::Terminal => terminal(),
        }
    }
}

/// Asks for a passphrase, again if nothing was typed.
fn ask_for(
    prompt: &str,
    ask: &mut dyn FnMut(&str) -> Result<SecretBytes, Error>,
) -> Result<SecretBytes, Error> {
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        match non_empty(ask(prompt)?) {
            Err(error) if left > 0 => note(format_args!("{error}; {}", display::left(left))),
            typed => return typed,
        }
    }
}

/// Asks for a new passphrase and for its repetition. An empty repetition begins again, so that
/// the user can choose another one after the judgement of the first.
fn ask_twice(
    of: &str,
    ask: &mut dyn FnMut(&str) -> Result<SecretBytes, Error>,
    judge: &mut dyn FnMut(&[u8]),
) -> Result<SecretBytes, Error> {
    let mut left = ATTEMPTS;
    loop {
        let first = ask_for(&format!("New passphrase of {of}: "), ask)?;
        judge(first.expose());
        let again = ask("Repeat it (or press Enter to choose another one): ")?;
        if first.expose() == again.expose() {
            return Ok(first);
        }
        if again.expose().is_empty() {
            continue;
        }
        left -= 1;
        if left == 0 {
            return Err(Error::PassphrasesDiffer);
        }
        note(format_args!("{}; {}", Error::PassphrasesDiffer, display::left(left)));
    }
}

/// Removes one newline at the end (`\n` or `\r\n`), and refuses an empty secret.
fn line(SecretBytes(mut bytes): SecretBytes) -> Result<SecretBytes, Error> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    non_empty(SecretBytes(bytes))
}

fn non_empty(secret: SecretBytes) -> Result<SecretBytes, Error> {
    if secret.expose().is_empty() { Err(Error::EmptySecret("passphrase")) } else { Ok(secret) }
}

/// Reads a file completely; `-` is stdin.
///
/// # Errors
/// It cannot be read, is longer than [`SECRET_MAX`], or is a FIFO that no program writes to.
pub fn from_file(op: &'static str, file: &Path) -> Result<SecretBytes, Error> {
    let failed = |source| Error::Secret { op, path: file.to_owned(), source };
    if file == Path::new("-") {
        return read_all(&mut io::stdin().lock()).map_err(failed);
    }
    read_all(&mut *fifo::open(file).map_err(failed)?).map_err(failed)
}

struct Descriptor<'a>(BorrowedFd<'a>);

impl Read for Descriptor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, buf)?)
    }
}

fn from_descriptor(number: i32) -> Result<SecretBytes, Error> {
    let failed = |source| Error::Secret {
        op: "read passphrase from descriptor",
        path: number.to_string().into(),
        source,
    };
    // A negative number is not a descriptor; clap refuses it. BorrowedFd forbids -1.
    if number < 0 {
        return Err(failed(io::Error::from_raw_os_error(libc::EBADF)));
    }
    // SAFETY: the number is not -1. The parent process opened the descriptor and passed it to be
    // read. It is used during this call only, and no other thread closes it; a closed one fails
    // with EBADF.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    read_all(&mut Descriptor(descriptor)).map_err(failed)
}

fn from_command(command: &OsStr) -> Result<SecretBytes, Error> {
    let failed = |source| Error::Os { op: "run passphrase command", source };
    let _unblocked = signals::unblocked();
    let mut child =
        Command::new("sh").arg("-c").arg(command).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut output = child.stdout.take().expect("was asked for");
    let secret = read_all(&mut output);
    // A command that writes without end must not block on a full pipe.
    drop(output);
    let status = child.wait().map_err(failed)?;
    let secret = secret.map_err(failed)?;
    if status.success() { Ok(secret) } else { Err(Error::PassphraseCommand(status)) }
}

/// Reads to the end into one buffer that never moves, so that no copy of the secret remains.
pub(super) fn read_all(from: &mut dyn Read) -> io::Result<SecretBytes> {
    let mut bytes = Zeroizing::new(vec![0; SECRET_MAX + 1]);
    let mut len = 0;
    while len < bytes.len() {
        match from.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if len > SECRET_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("is longer than {SECRET_MAX} bytes"),
        ));
    }
    bytes.truncate(len);
    Ok(SecretBytes(bytes))
}

fn ask_secret(prompt: &str) -> Result<SecretBytes, Error> {
    ask::secret(prompt).map(SecretBytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    fn no_terminal() -> Result<Given, Error> {
        Err(Error::NoTerminal)
    }

    fn passphrase(source: &Source) -> Result<Vec<u8>, Error> {
        match source.read_with(no_terminal)? {
            Given::Passphrase { bytes, typed: None } => Ok(bytes.expose().to_vec()),
            _ => panic!("not a passphrase that was read"),
        }
    }

    fn file(contents: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(contents).unwrap();
        file
    }

    #[test]
    fn a_file_is_read_whole_but_for_one_newline() {
        for (contents, secret) in [
            (&b"secret"[..], &b"secret"[..]),
            (b"secret\n", b"secret"),
            (b"secret\r\n", b"secret"),
            (b"secret\n\n", b"secret\n"),
            (b" two\nlines \n", b" two\nlines "),
            (b"\xff\x00\n", b"\xff\x00"),
        ] {
            let file = file(contents);
            assert_eq!(passphrase(&Source::File(file.path().into())).unwrap(), secret);
        }
    }

    #[test]
    fn empty_and_endless_secrets_are_refused() {
        for contents in [&b""[..], b"\n", b"\r\n"] {
            let file = file(contents);
            assert!(matches!(
                passphrase(&Source::File(file.path().into())),
                Err(Error::EmptySecret(_))
            ));
        }
        assert!(matches!(passphrase(&Source::File("/dev/zero".into())), Err(Error::Secret { .. })));
        let longest = file(&vec![b'a'; SECRET_MAX]);
        assert_eq!(passphrase(&Source::File(longest.path().into())).unwrap().len(), SECRET_MAX);
    }

    #[test]
    fn a_missing_file_is_named() {
        let Err(Error::Secret { op, path, .. }) = passphrase(&Source::File("/no/such/file".into()))
        else {
            panic!("it exists")
        };
        assert_eq!((op, path.as_path()), ("read passphrase file", Path::new("/no/such/file")));
    }

    #[test]
    fn a_descriptor_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"from a pipe\n").unwrap();
        drop(writer);
        assert_eq!(passphrase(&Source::Descriptor(reader.as_raw_fd())).unwrap(), b"from a pipe");
        assert!(matches!(passphrase(&Source::Descriptor(1_000_000)), Err(Error::Secret { .. })));
        assert!(matches!(passphrase(&Source::Descriptor(-1)), Err(Error::Secret { .. })));
    }

    #[test]
    fn a_command_prints_it() {
        assert_eq!(passphrase(&Source::Command("printf '%s\\n' 'a b'".into())).unwrap(), b"a b");
        assert!(
            matches!(passphrase(&Source::Command("echo x; exit 3".into())), Err(Error::PassphraseCommand(status)) if status.code() == Some(3))
        );
        assert!(matches!(passphrase(&Source::Command("true".into())), Err(Error::EmptySecret(_))));
        assert!(matches!(
            passphrase(&Source::Command("cat /dev/zero".into())),
            Err(Error::Os { .. })
        ));
    }

    #[test]
    fn a_key_file_keeps_every_byte() {
        let file = file(b"key\n");
        let given = Source::KeyFile(file.path().into())
            .read_with(no_terminal)
            .unwrap_or_else(|_| panic!("it can be read"));
        assert!(matches!(given, Given::KeyFile(bytes) if bytes.expose() == b"key\n"));
        let empty = Source::KeyFile("/dev/null".into()).read_with(no_terminal);
        assert!(matches!(empty, Err(Error::EmptySecret("key file"))));
    }

    #[test]
    fn without_a_terminal_nothing_is_asked() {
        assert!(matches!(Source::Terminal.read_with(no_terminal), Err(Error::NoTerminal)));
    }

    #[test]
    fn a_new_passphrase_is_typed_twice() {
        let typed = |lines: &[&'static str]| {
            let (mut lines, mut judged) = (lines.iter().copied(), Vec::new());
            let outcome = ask_twice(
                "the vault v",
                &mut |_| Ok(SecretBytes(Zeroizing::new(lines.next().expect("a line").into()))),
                &mut |bytes| judged.push(bytes.to_vec()),
            );
            assert_eq!(lines.next(), None, "a line was not asked for");
            (outcome.map(|bytes| bytes.expose().to_vec()), judged.len())
        };
        assert_eq!(typed(&["one", "one"]).0.unwrap(), b"one");
        // Enter alone, pressed too early, ended the command.
        assert_eq!(typed(&["", "", "one", "one"]).0.unwrap(), b"one");
        assert!(matches!(typed(&["", "", ""]).0, Err(Error::EmptySecret(_))));
        // The user chooses another passphrase after a warning that the first one is weak.
        let (chosen, judged) = typed(&["weak", "", "strong", "strong"]);
        assert_eq!((chosen.unwrap(), judged), (b"strong".to_vec(), 2));
        assert_eq!(typed(&["one", "two", "one", "one"]).0.unwrap(), b"one");
        let differing = ["one", "two", "one", "two", "one", "two"];
        assert!(matches!(typed(&differing).0, Err(Error::PassphrasesDiffer)));
    }

    #[test]
    fn a_prompt_names_what_the_secret_opens() {
        let shown = |opens: Opens| opens.to_string();
        assert_eq!(shown(Opens::Vault("/srv/v".into())), "the vault /srv/v");
        assert_eq!(shown(Opens::Identity("/srv/i".into())), "the identity /srv/i");
        assert_eq!(shown(Opens::YourIdentity("Ann".into())), "your identity (Ann)");
    }

    #[test]
    fn option_variable_credential_terminal_in_this_order() {
        let dir = tempfile::tempdir().unwrap();
        let credential = dir.path().join(CREDENTIAL);
        let none = PresentSecret::default();
        let mut environment = Environment::default();
        assert_eq!(Source::choose_present(&none, &environment), Source::Terminal);
        environment.credentials_directory = Some(dir.path().into());
        assert_eq!(
            Source::choose_present(&none, &environment),
            Source::Terminal,
            "the directory holds no such credential"
        );
        std::fs::write(&credential, "secret").unwrap();
        assert_eq!(Source::choose_present(&none, &environment), Source::File(credential.clone()));
        assert_eq!(passphrase(&Source::File(credential)).unwrap(), b"secret");
        environment.passphrase_file = Some("/v".into());
        assert_eq!(Source::choose_present(&none, &environment), Source::File("/v".into()));
        let passphrase = |passphrase| PresentSecret { passphrase, ..PresentSecret::default() };
        let args =
            passphrase(PassphraseArgs { passphrase_fd: Some(3), ..PassphraseArgs::default() });
        assert_eq!(Source::choose_present(&args, &environment), Source::Descriptor(3));
        let args = passphrase(PassphraseArgs {
            passphrase_command: Some("c".into()),
            ..PassphraseArgs::default()
        });
        assert_eq!(Source::choose_present(&args, &environment), Source::Command("c".into()));
        let args =
            passphrase(PassphraseArgs { key_file: Some("k".into()), ..PassphraseArgs::default() });
        assert_eq!(Source::choose_present(&args, &environment), Source::KeyFile("k".into()));
        let args =
            PresentSecret { recovery_code_file: Some("r".into()), ..PresentSecret::default() };
        assert_eq!(
            Source::choose_present(&args, &environment),
            Source::RecoveryCodeFile("r".into())
        );
    }

    #[test]
    fn the_environment_does_not_name_the_new_passphrase() {
        assert_eq!(Source::choose_new(&NewSecret::default()), Source::Terminal);
        let args = NewSecret { new_passphrase_file: Some("n".into()), ..NewSecret::default() };
        assert_eq!(Source::choose_new(&args), Source::File("n".into()));
    }
}
