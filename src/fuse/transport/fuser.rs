//! `fuser` 0.18 as the transport under [`Operations`]: call, match, reply.
//!
//! Rules that hold here
//! * No decision about files is taken here; what a method does beyond calling is to translate the
//!   terms of the protocol.
//! * Replies that carry attributes are encoded by [`crate::fuse::protocol::wire`] and sent on our own duplicate of
//!   the device; `fuser`'s reply object is then *forgotten*, because dropping it would answer a
//!   second time. What that leaks is a reference to `fuser`'s descriptor, which
//!   [`mod@crate::fuse::transport::serve`] takes back when the session has ended.
//! * Where such a reply did not reach the kernel (the caller was killed), what it counted or opened
//!   is given back.
//! * A panic of an operation is answered with `EIO` and costs no thread.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ::fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, FopenFlags, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

use crate::fuse::dispatch::dispatcher::put_opened_dir;
use crate::fuse::dispatch::held::Held;
use crate::fuse::dispatch::prefetch::Prefetch;
use crate::fuse::dispatch::reply::Patience;
use crate::fuse::dispatch::seek::{Question, Said, Seeker};
use crate::fuse::listing::Listing;
use crate::fuse::ops::{
    self, AllocateMode, Attr, Caller, Errno, FileRange, OpenRequest, Opened, Operations, Result,
    SetAttr, XattrMode,
};
use crate::fuse::permission::access::Gate;
use crate::fuse::permission::privilege::{self, Requester};
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::protocol::request::Call;
use crate::fuse::protocol::wire::{self, Device};
use crate::fuse::settings::{Permissions, ServeOptions};
use crate::fuse::transport::pool::Pool;
use crate::store::{SetTime, Timestamp};

/// The most that one copy_file_range does before the caller, who may want to interrupt it, is asked
/// to call again.
const COPY_AT_ONCE: u64 = 64 << 20;

/// Capabilities that are asked for where the kernel has them. Not among them: `SETXATTR_EXT`, which
/// makes `fuser` 0.18 panic; POSIX and BSD locks, which the kernel then does by itself;
/// `ASYNC_DIO`, for the reason that stands in `init.rs`; `NO_OPENDIR_SUPPORT`, since listings need
/// a handle.
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_MAX_PAGES);

thread_local! {
    /// What READ and the listings are answered from; grows to the largest request (1 MiB) once a
    /// thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An [`Operations`] as `fuser` wants to see it.
pub struct Adapter {
    ops: Arc<dyn Operations>,
    gate: Gate,
    prefetch: Prefetch,
    device: Device,
    options: ServeOptions,
    seeker: Seeker,
    held: Held,
    /// Asks the kernel where the answer to LSEEK is not known, and for its pages before it takes in
    /// more of a file.
    patient: Pool,
}

/// The errno in `fuser`'s type.
fn refusal(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.get())
}

/// Runs an operation; a panic in it becomes `EIO`.
fn guarded<T>(name: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| {
        tracing::error!(
            operation = name,
            "panic in an operation, answered with an input/output error"
        );
        Err(Errno::EIO)
    })
}

fn caller(request: &Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), umask: umask & 0o777 }
}

fn requester(request: &Request) -> Requester {
    Requester { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// Undoes what `fuser` 0.18 does to times before 1970 on their way in: it reads (secs, nanos) with
/// secs < 0 as -(|secs| + nanos). That is one to one, so reading it backwards gives the true time.
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

fn open_flags(opened: Opened, options: &ServeOptions) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, options.direct_io || opened.direct);
    flags
}

/// Size of the buffer that the kernel has for a listing. `fuser` shows it nowhere but in the
/// `Debug` text of the reply object; where that says nothing, a page: no kernel asks for less, and
/// an answer may always be shorter.
fn capacity(reply: &impl Debug) -> usize {
    const KEY: &str = "max_size: ";
    const PAGE: usize = 4096;
    const MOST: usize = 1 << 20;
    let text = format!("{reply:?}");
    let digits = text.find(KEY).map_or("", |at| &text[at + KEY.len()..]);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().map_or(PAGE, |size: usize| size.min(MOST))
}

impl Adapter {
    /// `device` is a duplicate of the descriptor that the session reads from.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(
        ops: Arc<dyn Operations>,
        device: Device,
        options: ServeOptions,
    ) -> io::Result<Adapter> {
        let seeker = Seeker::new(ops.clone(), Notifier::new(device.clone()));
        let gate = Gate::new(ops.clone(), &options, Notifier::new(device.clone()));
        let prefetch = Prefetch::new(ops.clone(), &options, Notifier::new(device.clone()));
        let held = Held::new(ops.clone(), Notifier::new(device.clone()));
        Ok(Adapter {
            ops,
            gate,
            prefetch,
            device,
            options,
            seeker,
            held,
            patient: Pool::patient()?,
        })
    }

    fn check(&self, request: &Request, node: INodeNo, call: &Call<'_>) -> Result<()> {
        self.gate.check(requester(request), node.0, call)
    }

    fn killing<T>(
        &self,
        request: &Request,
        node: INodeNo,
        kill: bool,
        operation: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        privilege::killing(
            &*self.ops,
            &self.device,
            node.0,
            kill.then(|| requester(request)),
            operation,
        )
    }

    /// Sends our own reply in the place of `fuser`'s, which is forgotten. False where the kernel
    /// did not want it any more.
    fn reply_raw<R>(&self, request: &Request, instead_of: R, payload: &[u8]) -> bool {
        mem::forget(instead_of);
        match self.device.reply(request.unique().0, payload) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "a reply was not taken");
                false
            }
        }
    }

    fn reply_attr(&self, request: &Request, reply: ReplyAttr, result: Result<Attr>) {
        match result {
            Ok(attr) => {
                let mut out = Vec::with_capacity(wire::ATTR_OUT);
                wire::put_attr_out(&mut out, &attr, self.options.attr_ttl);
                self.reply_raw(request, reply, &out);
            }
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn reply_entry(&self, request: &Request, reply: ReplyEntry, result: Result<Attr>) {
        match result {
            Ok(attr) => {
                let mut out = Vec::with_capacity(wire::ENTRY_OUT);
                wire::put_entry(&mut out, &attr, self.options.entry_ttl, self.options.attr_ttl);
                if !self.reply_raw(request, reply, &out) {
                    self.ops.forget(attr.node, 1);
                }
            }
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn reply_empty(reply: ReplyEmpty, result: Result<()>) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>>) {
        match result {
            Ok(value) if size == 0 => reply.size(value.len() as u32), // the kernel knows no value above 64 KiB
            Ok(value) if value.len() > size as usize => reply.error(refusal(Errno::ERANGE)),
            Ok(value) => reply.data(&value),
            Err(error) => reply.error(refusal(error)),
        }
    }

    /// Answers READDIR or READDIRPLUS; `refuse` replies with an error.
    fn reply_listing<R: Debug>(
        &self,
        request: &Request,
        listing: Listing<'_>,
        offset: u64,
        reply: R,
        refuse: impl FnOnce(R, fuser::Errno),
    ) {
        let size = capacity(&reply);
        BUFFER.with_borrow_mut(|out| {
            out.clear();
            match guarded("readdir", || listing.fill(offset as i64, size, out)) {
                Ok(counted) => {
                    if !self.reply_raw(request, reply, out) {
                        counted.into_iter().for_each(|node| self.ops.forget(node, 1));
                    }
                }
                Err(error) => refuse(reply, refusal(error)),
            }
        });
    }

    fn listing(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        plus: bool,
    ) -> Listing<'_> {
        let ServeOptions { entry_ttl, attr_ttl, .. } = self.options;
        let known = plus && self.gate.may_know_entries(requester(request), node.0);
        Listing {
            ops: &*self.ops,
            node: node.0,
            handle: handle.0,
            plus,
            known,
            entry_ttl,
            attr_ttl,
        }
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = WANTED;
        wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, self.options.writeback);
        // With ACLs the umask is ours to apply, for a directory's default ACL takes its place.
        wanted.set(InitFlags::FUSE_DONT_MASK, self.options.acls);
        wanted.set(
            InitFlags::FUSE_POSIX_ACL,
            self.options.acls && self.options.permissions == Permissions::Kernel,
        );
        // Files that are opened while there is little room are mapped like others.
        wanted.set(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, self.options.writeback);
        wanted.set(InitFlags::FUSE_CACHE_SYMLINKS, !self.options.attr_ttl.is_zero());
        // For handles past the cache of a mount that has one: a mapping keeps pages, which no other
        // daemon may change.
        wanted.set(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, !self.options.direct_io);
        // The vault relies on it: who keeps the times is settled before there is a session. Every
        // kernel since 3.15 offers it.
        if self.options.writeback
            && !config.capabilities().contains(InitFlags::FUSE_WRITEBACK_CACHE)
        {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        // Each of these is an offer: what the kernel lacks it does without, and the nearest value
        // is one that it takes.
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

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match guarded("lookup", || {
            self.check(request, parent, &Call::Lookup { name: name.as_bytes() })?;
            self.ops.lookup(parent.0, name.as_bytes())
        }) {
            Err(Errno::ENOENT) if !self.options.negative_ttl.is_zero() => {
                let mut out = Vec::with_capacity(wire::ENTRY_OUT);
                wire::put_no_entry(&mut out, 0, 0, self.options.negative_ttl);
                self.reply_raw(request, reply, &out);
            }
            result => self.reply_entry(request, reply, result),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        let _ = guarded("forget", || {
            self.ops.forget(node.0, count);
            Ok(())
        });
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let Some(handle) = handle.filter(|_| self.options.writeback) else {
            return self.reply_attr(
                request,
                reply,
                guarded("getattr", || self.ops.getattr(node.0)),
            );
        };
        let (ops, held, device, unique, ttl) = (
            self.ops.clone(),
            self.held.clone(),
            self.device.clone(),
            request.unique().0,
            self.options.attr_ttl,
        );
        self.patient.run(move || {
            let asked = guarded("getattr", || {
                held.before_write(node.0, handle.0, Patience::Some)?;
                ops.getattr(node.0)
            });
            match asked {
                Ok(attr) => {
                    let mut out = Vec::with_capacity(wire::ATTR_OUT);
                    wire::put_attr_out(&mut out, &attr, ttl);
                    mem::forget(reply);
                    if let Err(error) = device.reply(unique, &out) {
                        tracing::debug!(%error, "a reply was not taken");
                    }
                }
                Err(error) => reply.error(refusal(error)),
            }
        });
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
        // HANDLE_KILLPRIV_V2: fuser hides FATTR_KILL_SUIDGID. The kernel sets it where a caller
        // without CAP_FSETID truncates, and it leaves a change of owner, which clears both bits
        // whoever makes it, to us altogether.
        let truncates = size.is_some() && request.uid() != 0;
        let chowns = uid.is_some() || gid.is_some();
        let perm = mode.map(|mode| mode & 0o7777);
        let kill_suid_sgid = perm.is_none() && (truncates || chowns);
        let set = SetAttr {
            perm,
            uid,
            gid,
            size,
            atime: set_time(atime),
            mtime: set_time(mtime),
            kill_suid_sgid,
        };
        let change = || {
            self.check(request, node, &Call::SetAttr { set, opened: handle.is_some() })?;
            let _turn = set.size.map(|_| self.prefetch.turn(node.0));
            privilege::before_setattr(&*self.ops, node.0, &set, requester(request))?;
            let set = self.gate.given(requester(request), node.0, set)?;
            let outcome = self.ops.setattr(node.0, &set);
            self.gate.changed(requester(request), node.0, &set, &outcome);
            outcome
        };
        self.reply_attr(request, reply, guarded("setattr", change));
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match guarded("readlink", || self.ops.readlink(node.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let make = || {
            self.check(request, parent, &Call::MkNod { name, mode, umask, rdev })?;
            self.ops.mknod(&caller(request, umask), parent.0, name, mode, u64::from(rdev))
        };
        self.reply_entry(request, reply, guarded("mknod", make));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let make = || {
            self.check(request, parent, &Call::MkDir { name, mode, umask })?;
            self.ops.mkdir(&caller(request, umask), parent.0, name, mode & 0o7777)
        };
        self.reply_entry(request, reply, guarded("mkdir", make));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let remove = || {
            self.check(request, parent, &Call::Unlink { name })?;
            self.ops.unlink(parent.0, name)
        };
        Self::reply_empty(reply, guarded("unlink", remove));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let remove = || {
            self.check(request, parent, &Call::RmDir { name })?;
            self.ops.rmdir(parent.0, name)
        };
        Self::reply_empty(reply, guarded("rmdir", remove));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target) = (name.as_bytes(), target.as_os_str().as_bytes());
        let make = || {
            self.check(request, parent, &Call::Symlink { name, target })?;
            self.ops.symlink(&caller(request, 0), parent.0, name, target)
        };
        self.reply_entry(request, reply, guarded("symlink", make));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let rename = || {
            self.check(
                request,
                parent,
                &Call::Rename { name, new_parent: new_parent.0, new_name, flags: flags.bits() },
            )?;
            self.ops.rename(parent.0, name, new_parent.0, new_name, ops::rename_mode(flags.bits())?)
        };
        Self::reply_empty(reply, guarded("rename", rename));
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = new_name.as_bytes();
        let link = || {
            self.check(request, new_parent, &Call::Link { node: node.0, name })?;
            self.ops.link(node.0, new_parent.0, name)
        };
        self.reply_entry(request, reply, guarded("link", link));
    }

    fn open(&self, request: &Request, node: INodeNo, flags: fuser::OpenFlags, reply: ReplyOpen) {
        // FUSE_OPEN_KILL_SUIDGID is hidden by fuser as well.
        let asked = OpenRequest::from_flags(flags.0, request.uid() == 0);
        let kill = asked.kill_suid_sgid;
        let open = || {
            self.check(request, node, &Call::Open { flags: flags.0, kill })?;
            let turn = self.prefetch.turn(node.0);
            self.killing(request, node, kill, || {
                Ok(self.prefetch.give(&turn, asked, self.ops.open(node.0, asked)?))
            })
        };
        match guarded("open", open) {
            Ok(opened) => {
                let mut out = Vec::with_capacity(wire::OPEN_OUT);
                wire::put_open(&mut out, opened.handle, open_flags(opened, &self.options).bits());
                if !self.reply_raw(request, reply, &out) {
                    let _ = self.ops.release(opened.handle);
                }
            }
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let asked = OpenRequest::from_flags(flags, request.uid() == 0);
        let name = name.as_bytes();
        let create = || {
            self.check(
                request,
                parent,
                &Call::Create { name, mode, umask, flags, kill: asked.kill_suid_sgid },
            )?;
            let caller = caller(request, umask);
            self.gate.creating(asked, |asked| {
                self.ops.create(&caller, parent.0, name, mode & 0o7777, asked)
            })
        };
        match guarded("create", create) {
            Ok((attr, opened)) => {
                let mut out = Vec::with_capacity(wire::ENTRY_OUT + wire::OPEN_OUT);
                wire::put_entry(&mut out, &attr, self.options.entry_ttl, self.options.attr_ttl);
                wire::put_open(&mut out, opened.handle, open_flags(opened, &self.options).bits());
                if !self.reply_raw(request, reply, &out) {
                    let _ = self.ops.release(opened.handle);
                    self.ops.forget(attr.node, 1);
                }
            }
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size as usize;
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match guarded("read", || self.ops.read(handle.0, offset, &mut buffer[..size])) {
                Ok(read) => reply.data(&buffer[..read.min(size)]),
                Err(error) => reply.error(refusal(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: fuser::OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill_suid_sgid = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let write = || match write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => self.ops.write_pages(handle.0, offset, data, kill_suid_sgid),
            false => self.ops.write(handle.0, offset, data, kill_suid_sgid),
        };
        match guarded("write", || self.killing(request, node, kill_suid_sgid, write)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, guarded("flush", || self.ops.flush(handle.0)));
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: fuser::OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, guarded("release", || self.ops.release(handle.0)));
    }

    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, guarded("fsync", || self.ops.fsync(handle.0, data_only)));
    }

    fn opendir(
        &self,
        request: &Request,
        node: INodeNo,
        _flags: fuser::OpenFlags,
        reply: ReplyOpen,
    ) {
        let open = || {
            self.check(request, node, &Call::OpenDir)?;
            self.ops.opendir(node.0)
        };
        match guarded("opendir", open) {
            Ok(opened) => {
                let mut out = Vec::with_capacity(wire::OPEN_OUT);
                put_opened_dir(&mut out, opened, &self.options);
                if !self.reply_raw(request, reply, &out) {
                    self.ops.releasedir(opened.handle);
                }
            }
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.reply_listing(
            request,
            self.listing(request, node, handle, false),
            offset,
            reply,
            ReplyDirectory::error,
        );
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.reply_listing(
            request,
            self.listing(request, node, handle, true),
            offset,
            reply,
            ReplyDirectoryPlus::error,
        );
    }

    fn releasedir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        _flags: fuser::OpenFlags,
        reply: ReplyEmpty,
    ) {
        let close = || {
            self.ops.releasedir(handle.0);
            Ok(())
        };
        Self::reply_empty(reply, guarded("releasedir", close));
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, guarded("fsyncdir", || self.ops.fsyncdir(handle.0, data_only)));
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        match guarded("statfs", || self.ops.statfs()) {
            Ok(space) => {
                let block = u32::try_from(space.block_size).unwrap_or(4096);
                let name_max = u32::try_from(space.name_max).unwrap_or(255);
                reply.statfs(
                    space.blocks,
                    space.free,
                    space.available,
                    space.files,
                    space.files_free,
                    block,
                    name_max,
                    block,
                );
            }
            Err(error) => reply.error(refusal(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = || {
            let name = name.as_bytes();
            self.check(request, node, &Call::SetXattr { name, value, flags })?;
            let kill_sgid = privilege::kills_sgid(&*self.ops, node.0, name, requester(request))?;
            let outcome =
                self.ops.setxattr(node.0, name, value, XattrMode::from_flags(flags)?, kill_sgid);
            self.gate.changed_xattr(requester(request), node.0, name);
            outcome
        };
        Self::reply_empty(reply, guarded("setxattr", set));
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let name = name.as_bytes();
        let get = || {
            self.check(request, node, &Call::GetXattr { name, size: size as usize })?;
            self.ops.getxattr(node.0, name)
        };
        Self::reply_xattr(reply, size, guarded("getxattr", get));
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let list = || {
            let names = self.ops.listxattr(node.0, request.uid() == 0)?;
            Ok(names.into_iter().flat_map(|name| [name, vec![0]]).flatten().collect())
        };
        Self::reply_xattr(reply, size, guarded("listxattr", list));
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let remove = || {
            self.check(request, node, &Call::RemoveXattr { name })?;
            let outcome = self.ops.removexattr(node.0, name);
            self.gate.changed_xattr(requester(request), node.0, name);
            outcome
        };
        Self::reply_empty(reply, guarded("removexattr", remove));
    }

    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        Self::reply_empty(
            reply,
            guarded("access", || self.check(request, node, &Call::Access { mask: mask.bits() })),
        );
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let kill = request.uid() != 0;
        let allocate =
            || self.ops.fallocate(handle.0, offset, len, AllocateMode::from_mode(mode)?, kill);
        Self::reply_empty(
            reply,
            guarded("fallocate", || self.killing(request, node, kill, allocate)),
        );
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
        // Whoever opens a file for a language's streams asks whether it is a terminal.
        reply.error(refusal(Errno::new(libc::ENOTTY)));
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
        reply.error(refusal(Errno::ENOSYS));
    }

    fn lseek(
        &self,
        _request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let answer = |reply: ReplyLseek, found: Result<u64>| match found
            .and_then(|found| i64::try_from(found).map_err(|_| Errno::new(libc::EOVERFLOW)))
        {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(refusal(error)),
        };
        let asked = guarded("lseek", || {
            let question = Question::new(node.0, handle.0, offset, whence)?;
            Ok((question, self.seeker.at_once(&question)?))
        });
        match asked {
            Ok((_, Said::Answer(found))) => answer(reply, Ok(found)),
            Ok((question, Said::Depends(range))) => {
                let seeker = self.seeker.clone();
                let ask =
                    move || answer(reply, guarded("lseek", || seeker.ask_kernel(&question, range)));
                self.patient.run(ask);
            }
            Err(error) => answer(reply, Err(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _from_node: INodeNo,
        from: FileHandle,
        from_offset: u64,
        to_node: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let len = len.min(COPY_AT_ONCE);
        let from = FileRange { handle: from.0, offset: from_offset };
        let to = FileRange { handle: to.0, offset: to_offset };
        let kill = request.uid() != 0;
        let copy = || self.ops.copy_file_range(from, to, len, kill);
        match guarded("copy_file_range", || self.killing(request, to_node, kill, copy)) {
            Ok(copied) => reply.written(copied.min(len) as u32),
            Err(error) => reply.error(refusal(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_size_of_a_listing_is_read_from_the_debug_text_or_is_a_page() {
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
