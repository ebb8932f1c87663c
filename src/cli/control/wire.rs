//! Messages on the socket: four bytes of length, little-endian, then JSON.
//!
//! Rules that hold here
//! * A length is checked before any allocation, and memory grows only with the received bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Limit of a message, in bytes: many times the longest list of members.
const MESSAGE_MAX: u32 = 64 << 20;

/// Sends a message.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let len = u32::try_from(text.len()).ok().filter(|len| *len <= MESSAGE_MAX);
    let len =
        len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the message is too long"))?;
    to.write_all(&[&len.to_le_bytes()[..], &text].concat())
}

/// Receives a message; `UnexpectedEof` if the peer has ended.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    let mut text = Vec::new();
    if from.take(u64::from(len)).read_to_end(&mut text)? < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&text)?)
}

/// Calls `with` with a short path of `socket`, by a descriptor of its directory: a socket address
/// holds only 108 bytes, and a state directory may have a longer path.
///
/// # Errors
/// The directory cannot be opened, or those of `with`.
pub fn by_short_path<T>(socket: &Path, with: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = File::open(dir)?;
    with(&Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

/// Refuses a peer that belongs to another user.
pub fn check_peer(socket: impl AsFd) -> io::Result<()> {
    if socket_peercred(socket)?.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer belongs to another user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_others_are_refused() {
        let mut bytes = Vec::new();
        send(&mut bytes, &("a", 7)).unwrap();
        assert_eq!(receive::<(String, u8)>(&mut &bytes[..]).unwrap(), ("a".to_owned(), 7));
        for cut in 0..bytes.len() {
            assert_eq!(
                receive::<(String, u8)>(&mut &bytes[..cut]).unwrap_err().kind(),
                io::ErrorKind::UnexpectedEof,
                "cut at {cut}"
            );
        }
        assert_eq!(
            receive::<u8>(&mut &bytes[..]).unwrap_err().kind(),
            io::ErrorKind::InvalidData,
            "something else"
        );
        let long = (MESSAGE_MAX + 1).to_le_bytes();
        assert_eq!(
            receive::<u8>(&mut &long[..]).unwrap_err().kind(),
            io::ErrorKind::InvalidData,
            "too long"
        );
    }

    #[test]
    fn a_socket_with_a_long_path_is_reached() {
        // An address has 108 bytes. In a home directory with a long path, the socket could be
        // neither created nor used.
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("x".repeat(200)).join("socket");
        std::fs::create_dir(socket.parent().unwrap()).unwrap();
        assert!(std::os::unix::net::UnixListener::bind(&socket).is_err());
        let _listener =
            by_short_path(&socket, |path| std::os::unix::net::UnixListener::bind(path)).unwrap();
        assert!(socket.symlink_metadata().is_ok());
        by_short_path(&socket, |path| std::os::unix::net::UnixStream::connect(path)).unwrap();
    }

    #[test]
    fn the_own_user_is_let_in() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        check_peer(&a).unwrap();
        check_peer(&b).unwrap();
    }
}
