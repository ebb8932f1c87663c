//! The transport for `/dev/fuse`: the library `fuser` 0.18 reads the requests and runs the threads.
//!
//! Rules that hold here
//! * No decision about files is taken here. Every request becomes a [`Call`], and the
//!   [`Dispatcher`] answers it.
//! * Answers are sent in the bytes of the protocol on our own duplicate of the device, because
//!   `fuser` can neither encode all of them nor report whether the kernel took them (see
//!   [`wire`](crate::fuse::protocol::wire)). `fuser`'s reply object is then *forgotten*: dropping
//!   it would answer a second time. This leaks a reference to `fuser`'s descriptor, which
//!   [`mod@super::serve`] closes when the session has ended.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ::fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::pool::Pool;
use crate::fuse::dispatch::dispatcher::Dispatcher;
use crate::fuse::dispatch::reply::{Answer, Patience, Undo};
use crate::fuse::ops::{FileRange, OpenRequest, Operations, SetAttr};
use crate::fuse::protocol::abi::opcode;
use crate::fuse::protocol::init;
use crate::fuse::protocol::request::{Call, Header, Range};
use crate::fuse::protocol::wire::Device;
use crate::fuse::settings::ServeOptions;
use crate::store::{SetTime, Timestamp};

thread_local! {
    /// The data of READ. It grows to the size of the thread's largest request (at most 1 MiB).
    static DATA: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The bodies of all other answers.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A filesystem as `fuser` expects it.
pub struct Adapter {
    dispatcher: Arc<Dispatcher>,
    options: ServeOptions,
    /// Runs calls that wait until the kernel has written back its dirty pages.
    patient: Pool,
}

fn errno(error: crate::fuse::ops::Errno) -> ::fuser::Errno {
    ::fuser::Errno::from_i32(error.get())
}

/// Reverses what `fuser` 0.18 does to times before 1970: it reads (secs, nanos) with secs < 0 as
/// -(|secs| + nanos). That mapping is one to one, so its inverse is the true time.
fn timestamp(time: SystemTime) -> Timestamp {
    let (secs, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i128::from(after.as_secs()), after.subsec_nanos()),
        Err(before) => (-i128::from(before.duration().as_secs()), before.duration().subsec_nanos()),
    };
    Timestamp { secs: secs.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64, nanos }
}

fn set_time(time: Option<TimeOrNow>) -> SetTime {
    match time {
        None => SetTime::Omit,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => SetTime::At(timestamp(time)),
    }
}

/// Returns the size of the buffer that the kernel has for a listing. `fuser` shows it only in the
/// `Debug` text of the reply object. If the text lacks it, the size is one page: no kernel asks for
/// less, and an answer may always be shorter.
fn capacity(reply: &impl Debug) -> usize {
    const KEY: &str = "max_size: ";
    const PAGE: usize = 4096;
    const MOST: usize = 1 << 20;
    let text = format!("{reply:?}");
    let digits = text.find(KEY).map_or("", |at| &text[at + KEY.len()..]);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().map_or(PAGE, |size: usize| size.min(MOST))
}

/// Returns the header of a request. Its operation is 0, because `fuser` does not expose it.
fn header(request: &Request, node: INodeNo) -> Header {
    Header {
        opcode: 0,
        unique: request.unique().0,
        node: node.0,
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

impl Adapter {
    /// Serves `ops`. `device` is a duplicate of the descriptor that the session reads from.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(
        ops: Arc<dyn Operations>,
        device: Device,
        options: ServeOptions,
    ) -> io::Result<Adapter> {
        // `fuser` does not pass interrupts on.
        let dispatcher = Arc::new(Dispatcher::new(ops, options, device, false));
        Ok(Adapter { dispatcher, options, patient: Pool::patient()? })
    }

    /// Answers `call` in place of `reply`.
    fn answer<R>(&self, request: &Request, node: INodeNo, call: &Call<'_>, reply: R) {
        mem::forget(reply);
        let header = header(request, node);
        BODY.with_borrow_mut(|body| {
            let answer = self.dispatcher.answer(&header, call, Patience::None, body);
            self.dispatcher.send(&header, answer, body);
        });
    }

    /// Answers `call` in place of `reply`, on a thread that no other request waits for.
    fn answer_later<R>(&self, request: &Request, node: INodeNo, call: Call<'static>, reply: R) {
        mem::forget(reply);
        let (header, dispatcher) = (header(request, node), self.dispatcher.clone());
        self.patient.run(move || {
            let mut body = Vec::new();
            let answer = dispatcher.answer(&header, &call, Patience::Some, &mut body);
            dispatcher.send(&header, answer, &body);
        });
    }
}

/// Returns whether an open for this request clears the suid and sgid bits: `fuser` hides
/// FUSE_OPEN_KILL_SUIDGID.
fn kills(by: &Request, flags: i32) -> bool {
    OpenRequest::from_flags(flags, by.uid() == 0).kill_suid_sgid
}

/// Defines methods of the trait that only translate their arguments to a [`Call`]: the request, the
/// node, the other arguments; the type of the reply.
macro_rules! translate {
    ($($method:ident($by:ident, $node:ident $(, $arg:ident: $type:ty)*; $reply:ty) => $call:expr;)*) => {$(
        fn $method(&self, $by: &Request, $node: INodeNo, $($arg: $type,)* reply: $reply) {
            self.answer($by, $node, &$call, reply);
        }
    )*};
}

impl ::fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::from_bits_truncate(init::wanted(&self.options));
        // The vault relies on it: whether the kernel or the vault maintains modification times is
        // fixed before the session begins. Every kernel since 3.15 offers it.
        if self.options.writeback
            && !config.capabilities().contains(InitFlags::FUSE_WRITEBACK_CACHE)
        {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        // A capability that the kernel lacks is not used; `nearest` is a value that `fuser`
        // accepts.
        let offered = config.capabilities() & wanted;
        let _ = config.add_capabilities(offered);
        if let Err(nearest) = config.set_max_write(self.options.max_write) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(self.options.max_readahead) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(self.options.max_background);
        tracing::debug!(abi = ?config.kernel_abi(), capabilities = ?offered, "session begins");
        Ok(())
    }

    fn forget(&self, request: &Request, node: INodeNo, count: u64) {
        // Nothing is sent and nothing can be undone.
        self.dispatcher.answer(
            &header(request, node),
            &Call::Forget { count },
            Patience::None,
            &mut Vec::new(),
        );
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let handle = handle.map(|handle| handle.0);
        let call = Call::GetAttr { handle };
        if self.dispatcher.may_wait(opcode::GETATTR, handle.is_some()) {
            self.answer_later(request, node, call, reply);
        } else {
            self.answer(request, node, &call, reply);
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // HANDLE_KILLPRIV_V2: `fuser` hides FATTR_KILL_SUIDGID. The kernel sets it if a caller
        // without CAP_FSETID truncates. A change of owner clears both bits for every caller; the
        // kernel leaves that to the daemon altogether.
        let truncates = size.is_some() && request.uid() != 0;
        let chowns = uid.is_some() || gid.is_some();
        let perm = mode.map(|mode| mode & 0o7777);
        let set = SetAttr {
            perm,
            uid,
            gid,
            size,
            atime: set_time(atime),
            mtime: set_time(mtime),
            kill_suid_sgid: perm.is_none() && (truncates || chowns),
        };
        self.answer(request, node, &Call::SetAttr { set, opened: handle.is_some() }, reply);
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: ::fuser::OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        mem::forget(reply);
        let range = Range { handle: handle.0, offset, size: size as usize };
        DATA.with_borrow_mut(|data| {
            if data.len() < range.size {
                data.resize(range.size, 0);
            }
            let (answer, len) = match self.dispatcher.read(range, &mut data[..range.size]) {
                Ok(read) => (Answer { error: None, undo: Undo::Nothing }, read),
                Err(error) => (Answer::refusal(error), 0),
            };
            self.dispatcher.send(&header(request, node), answer, &data[..len]);
        });
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.answer(
            request,
            new_parent,
            &Call::Link { node: node.0, name: new_name.as_bytes() },
            reply,
        );
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let range = Range { handle: handle.0, offset, size: capacity(&reply) };
        self.answer(request, node, &Call::ReadDir { range, plus: false }, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let range = Range { handle: handle.0, offset, size: capacity(&reply) };
        self.answer(request, node, &Call::ReadDir { range, plus: true }, reply);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        // Language runtimes ask of every file that they open whether it is a terminal.
        reply.error(::fuser::Errno::ENOTTY);
    }

    fn poll(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _notify: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel asks once and answers by itself from then on: files are always ready.
        reply.error(::fuser::Errno::ENOSYS);
    }

    fn lseek(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let handle = handle.0;
        match self.dispatcher.seek_at_once(node.0, handle, offset, whence) {
            Ok(Some(found)) => reply.offset(found),
            Ok(None) => {
                self.answer_later(request, node, Call::Seek { handle, offset, whence }, reply);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    translate! {
        lookup(by, parent, name: &OsStr; ReplyEntry) => Call::Lookup { name: name.as_bytes() };
        readlink(by, node; ReplyData) => Call::ReadLink;
        mknod(by, parent, name: &OsStr, mode: u32, umask: u32, rdev: u32; ReplyEntry) =>
            Call::MkNod { name: name.as_bytes(), mode, umask, rdev };
        mkdir(by, parent, name: &OsStr, mode: u32, umask: u32; ReplyEntry) =>
            Call::MkDir { name: name.as_bytes(), mode, umask };
        unlink(by, parent, name: &OsStr; ReplyEmpty) => Call::Unlink { name: name.as_bytes() };
        rmdir(by, parent, name: &OsStr; ReplyEmpty) => Call::RmDir { name: name.as_bytes() };
        symlink(by, parent, name: &OsStr, target: &Path; ReplyEntry) =>
            Call::Symlink { name: name.as_bytes(), target: target.as_os_str().as_bytes() };
        rename(by, parent, name: &OsStr, to: INodeNo, new: &OsStr, flags: RenameFlags; ReplyEmpty) =>
            Call::Rename {
                name: name.as_bytes(),
                new_parent: to.0,
                new_name: new.as_bytes(),
                flags: flags.bits(),
            };
        open(by, node, flags: ::fuser::OpenFlags; ReplyOpen) =>
            Call::Open { flags: flags.0, kill: kills(by, flags.0) };
        create(by, parent, name: &OsStr, mode: u32, umask: u32, flags: i32; ReplyCreate) =>
            Call::Create { name: name.as_bytes(), mode, umask, flags, kill: kills(by, flags) };
        write(by, node, handle: FileHandle, offset: u64, data: &[u8], how: WriteFlags,
              _flags: ::fuser::OpenFlags, _owner: Option<LockOwner>; ReplyWrite) =>
            Call::Write {
                handle: handle.0,
                offset,
                data,
                kill: how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
                held: how.contains(WriteFlags::FUSE_WRITE_CACHE),
            };
        flush(by, node, handle: FileHandle, owner: LockOwner; ReplyEmpty) =>
            Call::Flush { handle: handle.0, owner: owner.0 };
        release(by, node, handle: FileHandle, _flags: ::fuser::OpenFlags, _owner: Option<LockOwner>,
                _flush: bool; ReplyEmpty) => Call::Release { handle: handle.0 };
        fsync(by, node, handle: FileHandle, data_only: bool; ReplyEmpty) =>
            Call::Fsync { handle: handle.0, data_only };
        opendir(by, node, _flags: ::fuser::OpenFlags; ReplyOpen) => Call::OpenDir;
        releasedir(by, node, handle: FileHandle, _flags: ::fuser::OpenFlags; ReplyEmpty) =>
            Call::ReleaseDir { handle: handle.0 };
        fsyncdir(by, node, handle: FileHandle, data_only: bool; ReplyEmpty) =>
            Call::FsyncDir { handle: handle.0, data_only };
        statfs(by, node; ReplyStatfs) => Call::StatFs;
        setxattr(by, node, name: &OsStr, value: &[u8], flags: i32, _position: u32; ReplyEmpty) =>
            Call::SetXattr { name: name.as_bytes(), value, flags };
        getxattr(by, node, name: &OsStr, size: u32; ReplyXattr) =>
            Call::GetXattr { name: name.as_bytes(), size: size as usize };
        listxattr(by, node, size: u32; ReplyXattr) => Call::ListXattr { size: size as usize };
        removexattr(by, node, name: &OsStr; ReplyEmpty) =>
            Call::RemoveXattr { name: name.as_bytes() };
        access(by, node, mask: AccessFlags; ReplyEmpty) => Call::Access { mask: mask.bits() };
        fallocate(by, node, handle: FileHandle, offset: u64, len: u64, mode: i32; ReplyEmpty) =>
            Call::Allocate { handle: handle.0, offset, len, mode };
        copy_file_range(by, node, from: FileHandle, from_offset: u64, to_node: INodeNo,
                        to: FileHandle, to_offset: u64, len: u64,
                        _flags: CopyFileRangeFlags; ReplyWrite) =>
            Call::Copy {
                from: FileRange { handle: from.0, offset: from_offset },
                to_node: to_node.0,
                to: FileRange { handle: to.0, offset: to_offset },
                len,
            };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_listings_size_is_from_the_debug_text_or_a_page() {
        #[derive(Debug)]
        #[expect(dead_code)]
        struct Reply {
            max_size: usize,
        }
        assert_eq!(capacity(&Reply { max_size: 32768 }), 32768);
        assert_eq!(capacity(&Reply { max_size: usize::MAX }), 1 << 20);
        assert_eq!(capacity(&"no such field"), 4096);
    }

    #[test]
    fn times_before_1970_survive_the_way_in() {
        // utimensat(-1.5 s) reaches fuser as (-2 s, 500,000,000 ns), which it turns into 2.5 s
        // before the epoch.
        let distorted = UNIX_EPOCH - Duration::new(2, 500_000_000);
        assert_eq!(timestamp(distorted), Timestamp { secs: -2, nanos: 500_000_000 });
        assert_eq!(
            timestamp(UNIX_EPOCH - Duration::from_secs(7)),
            Timestamp { secs: -7, nanos: 0 }
        );
        assert_eq!(timestamp(UNIX_EPOCH + Duration::new(7, 9)), Timestamp { secs: 7, nanos: 9 });
    }
}
