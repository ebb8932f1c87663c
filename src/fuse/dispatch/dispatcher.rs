//! Turns a decoded request into the bytes of its answer, in the same way for every transport: calls
//! the operation and encodes its result.
//!
//! Rules that hold here
//! * The dispatcher makes no decision about files. It only calls operations and translates the terms
//!   of the protocol.
//! * An answer that the kernel did not take must be undone: lookups that it counted and files that
//!   it opened are given back ([`Undo`]).
//! * A panic of an operation is answered with `EIO`; the thread goes on.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::{self, Write};
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::held::Held;
use super::reply::{Answer, Patience, Undo};
use crate::fuse::dispatch::prefetch::Prefetch;
use crate::fuse::dispatch::seek::{Question, Said, Seeker};
use crate::fuse::dispatch::waiters::{TryLock, Waiters};
use crate::fuse::listing::Listing;
use crate::fuse::ops::{
    self, Attr, DirCache, Errno, FileRange, NodeId, OpenRequest, Opened, OpenedDir, Operations,
    Result,
};
use crate::fuse::permission::access::Gate;
use crate::fuse::permission::privilege;
use crate::fuse::protocol::abi::{self, forget_one, opcode, put, statfs_out, u64_at};
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::protocol::request::{Call, Header, Range};
use crate::fuse::protocol::wire::{self, Device};
use crate::fuse::settings::ServeOptions;
use crate::store::{Lock, Space};
use crate::vault::{Handle, LockRequest};

/// Maximum number of bytes that one copy_file_range copies. For more, the caller calls again.
const COPY_AT_ONCE: u64 = 64 << 20;
/// Bytes that are copied between two checks for an interrupt.
const COPY_STEP: u64 = 4 << 20;
/// Maximum length of a listing in bytes, however much the kernel asks for.
const MOST_LISTED: usize = 1 << 20;

/// Answers requests by calling [`Operations`].
pub struct Dispatcher {
    ops: Arc<dyn Operations>,
    gate: Gate,
    prefetch: Prefetch,
    options: ServeOptions,
    device: Device,
    /// The generation of all nodes but the root. It is random, so that a file handle of an earlier
    /// mount does not lead to the object that has its number in this one.
    generation: u32,
    seeker: Seeker,
    held: Held,
    waiters: Waiters,
    /// Copies in progress, by the number of the request, and whether the caller was interrupted.
    copies: Mutex<HashMap<u64, bool>>,
    /// Bytes that are copied between two checks for an interrupt.
    copy_step: u64,
}

/// Arguments of SETLK and SETLKW.
#[derive(Clone, Copy, Debug)]
pub struct LockCall {
    /// The handle of the program that locks.
    pub handle: Handle,
    /// The lock.
    pub request: LockRequest,
    /// SETLKW: the program waits for the lock.
    pub wait: bool,
}

/// The operations that [`Waiters`] call.
struct Locks {
    ops: Arc<dyn Operations>,
    kernel: Notifier,
}

impl TryLock for Locks {
    fn try_lock(&self, call: &LockCall) -> Result<bool> {
        guarded(|| "SetLk".into(), || self.ops.lock(call.handle, &call.request))
    }

    fn drop_pages(&self, node: NodeId, handle: Handle) {
        let run = || {
            if let Some(state) = self.ops.pages_to_drop(handle) {
                match self.kernel.inval_inode(node, 0, 0) {
                    // `ENOENT`: the kernel has no inode of the file any more, and no pages of it.
                    Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                        tracing::debug!(%error, "the kernel does not drop pages");
                    }
                    _ => self.ops.pages_dropped(handle, state),
                }
            }
            Ok(())
        };
        let _ = guarded(|| "SetLk".into(), run);
    }
}

/// Runs an operation; a panic in it becomes `EIO`. `name` is evaluated only for that.
fn guarded<T>(name: impl FnOnce() -> String, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        tracing::error!(
            operation = name(),
            "panic in an operation, answered with an input/output error"
        );
        Err(Errno::EIO)
    })
}

/// Returns the name of a call without its arguments, which may contain plain names of files.
fn name_of(call: &Call<'_>) -> String {
    let mut name = Leading(String::new());
    let _ = write!(name, "{call:?}"); // fails where the name ends
    name.0
}

/// Keeps the letters at the beginning of a text and refuses the rest, which may be plaintext.
struct Leading(String);

impl fmt::Write for Leading {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            if !letter.is_ascii_alphabetic() {
                return Err(fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}

fn put_opened(out: &mut Vec<u8>, opened: Opened, options: &ServeOptions) {
    let keep = if opened.keep_cache { abi::FOPEN_KEEP_CACHE } else { 0 };
    let direct = if options.direct_io || opened.direct { abi::FOPEN_DIRECT_IO } else { 0 };
    wire::put_open(out, opened.handle, keep | direct);
}

/// Appends the answer to OPENDIR. A kernel that may not cache entries caches no listing either.
fn put_opened_dir(out: &mut Vec<u8>, opened: OpenedDir, options: &ServeOptions) {
    let flags = match opened.cache {
        _ if options.entry_ttl.is_zero() => 0,
        DirCache::No => 0,
        DirCache::Fill => abi::FOPEN_CACHE_DIR,
        DirCache::Keep => abi::FOPEN_CACHE_DIR | abi::FOPEN_KEEP_CACHE,
    };
    wire::put_open(out, opened.handle, flags);
}

fn put_statfs(out: &mut Vec<u8>, space: &Space) {
    use statfs_out as at;
    out.resize(statfs_out::LEN, 0);
    let numbers = [
        (at::blocks, space.blocks),
        (at::bfree, space.free),
        (at::bavail, space.available),
        (at::files, space.files),
    ];
    for (at, number) in numbers.into_iter().chain([(at::ffree, space.files_free)]) {
        put(out, at, &number.to_ne_bytes());
    }
    let block = u32::try_from(space.block_size).unwrap_or(4096);
    let name_max = u32::try_from(space.name_max).unwrap_or(255);
    for (at, number) in [(at::bsize, block), (at::namelen, name_max), (at::frsize, block)] {
        put(out, at, &number.to_ne_bytes());
    }
}

/// Appends an extended attribute or a list of them: its length if `size` is 0, otherwise its value
/// if that fits.
fn put_xattr(out: &mut Vec<u8>, size: usize, value: Vec<u8>) -> Result<Undo> {
    if size == 0 {
        let len = u32::try_from(value.len()).map_err(|_| Errno::ERANGE)?;
        out.extend_from_slice(&len.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
    } else if value.len() > size {
        return Err(Errno::ERANGE);
    } else {
        *out = value;
    }
    Ok(Undo::Nothing)
}

fn position(found: u64) -> Result<i64> {
    i64::try_from(found).map_err(|_| Errno::new(libc::EOVERFLOW))
}

/// Appends the answer to WRITE or COPY_FILE_RANGE.
fn put_written(out: &mut Vec<u8>, len: u32) -> Undo {
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    Undo::Nothing
}

impl Dispatcher {
    /// Creates a dispatcher that calls `ops`, for a session of `device`. `interrupts`: the
    /// transport passes INTERRUPT on, so long copies are done in steps.
    pub fn new(
        ops: Arc<dyn Operations>,
        options: ServeOptions,
        device: Device,
        interrupts: bool,
    ) -> Dispatcher {
        let copy_step = if interrupts { COPY_STEP } else { COPY_AT_ONCE };
        let seeker = Seeker::new(ops.clone(), Notifier::new(device.clone()));
        let gate = Gate::new(ops.clone(), &options, Notifier::new(device.clone()));
        let prefetch = Prefetch::new(ops.clone(), &options, Notifier::new(device.clone()));
        let held = Held::new(ops.clone(), Notifier::new(device.clone()));
        let waiters = Waiters::new(Box::new(Locks {
            ops: ops.clone(),
            kernel: Notifier::new(device.clone()),
        }));
        Dispatcher {
            ops,
            gate,
            prefetch,
            options,
            device,
            generation: RandomState::new().hash_one(()) as u32,
            seeker,
            held,
            waiters,
            copies: Mutex::default(),
            copy_step,
        }
    }

    /// Executes `call` and puts the body of the answer into `out`, which is emptied first.
    pub fn answer(
        &self,
        header: &Header,
        call: &Call<'_>,
        patience: Patience,
        out: &mut Vec<u8>,
    ) -> Answer {
        out.clear();
        match guarded(|| name_of(call), || self.call(header, call, patience, out)) {
            Ok(undo) => Answer { error: None, undo },
            Err(error) => {
                out.clear();
                Answer::refusal(error)
            }
        }
    }

    /// Reads a file into `buf`, whose length is that of the request; returns the number of bytes.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn read(&self, range: Range, buf: &mut [u8]) -> Result<usize> {
        guarded(|| "Read".into(), || self.ops.read(range.handle, range.offset, buf))
            .map(|read| read.min(buf.len()))
    }

    /// Answers SETLK and SETLKW: calls `reply`, later and on another thread if the program waits
    /// for another one's lock, or if the kernel first has to drop pages that are older than the
    /// lock.
    pub fn lock_later(
        &self,
        header: &Header,
        call: LockCall,
        reply: impl FnOnce(Answer) + Send + 'static,
    ) {
        let LockCall { handle, request, wait } = call;
        let reply = |result: Result<()>| {
            reply(match result {
                Ok(()) => Answer { error: None, undo: Undo::Nothing },
                Err(error) => Answer::refusal(error),
            })
        };
        match guarded(|| "SetLk".into(), || self.ops.lock(handle, &request)) {
            Ok(true) => {
                if request.lock != Some(Lock::Exclusive) {
                    // A lock may have been removed, or an exclusive one have become a shared one.
                    self.waiters.poke();
                }
                if request.lock.is_some() && self.ops.pages_to_drop(handle).is_some() {
                    return self.waiters.wait(header.into(), call, true, Box::new(reply));
                }
                reply(Ok(()));
            }
            Ok(false) if wait => self.waiters.wait(header.into(), call, false, Box::new(reply)),
            Ok(false) => reply(Err(Errno::new(libc::EAGAIN))),
            Err(error) => reply(Err(error)),
        }
    }

    /// Ends all waits for locks, because the session has ended.
    pub fn end_waits(&self) {
        self.waiters.end();
    }

    /// Sends an answer over the device, and undoes it if the kernel does not take it.
    pub fn send(&self, header: &Header, answer: Answer, body: &[u8]) {
        let sent = match answer.error {
            None => self.device.reply(header.unique, body),
            Some(error) => self.device.refuse(header.unique, error),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "an answer was not taken");
            self.undo(answer.undo);
        }
    }

    /// Answers LSEEK; `None` if that has to wait until the kernel has written back its pages.
    ///
    /// # Errors
    /// Those of the operation; `EOVERFLOW` for a position that does not fit.
    pub fn seek_at_once(
        &self,
        node: NodeId,
        handle: Handle,
        offset: i64,
        whence: i32,
    ) -> Result<Option<i64>> {
        let seek = || match self.seeker.at_once(&Question::new(node, handle, offset, whence)?)? {
            Said::Answer(found) => position(found).map(Some),
            Said::Depends(_) => Ok(None),
        };
        guarded(|| "Seek".into(), seek)
    }

    /// Returns whether the answer to a request, through a handle or not, may have to wait until the
    /// kernel has written back its pages.
    pub fn may_wait(&self, operation: u32, through_handle: bool) -> bool {
        match operation {
            opcode::LSEEK => true,
            opcode::GETATTR => through_handle && self.options.writeback,
            _ => false,
        }
    }

    /// Takes back what an answer handed out, if the kernel did not take that answer.
    pub fn undo(&self, undo: Undo) {
        let run = || {
            match undo {
                Undo::Nothing => {}
                Undo::Nodes(nodes) => nodes.into_iter().for_each(|node| self.ops.forget(node, 1)),
                Undo::Node(node) => self.ops.forget(node, 1),
                // No caller is left to receive the error.
                Undo::File(handle) => {
                    let _ = self.ops.release(handle);
                }
                Undo::Created(node, handle) => {
                    let _ = self.ops.release(handle);
                    self.ops.forget(node, 1);
                }
                Undo::Dir(handle) => self.ops.releasedir(handle),
            }
            Ok(())
        };
        let _ = guarded(|| "undo".into(), run);
    }

    /// Returns the options for an answer about `node`. The kernel may cache the answer only if
    /// [`Operations::caching`] still returns `before`, its value when the operation began.
    fn options(&self, node: NodeId, before: Option<u64>) -> ServeOptions {
        if before.is_some() && self.ops.caching(node) == before {
            self.options
        } else {
            self.options.uncached()
        }
    }

    /// Appends an entry of the directory `parent`, for which `before` was [`Operations::caching`]
    /// when the operation began. The entry may be the root of a nested share, whose value can
    /// differ; its attributes are then not cached.
    fn entry(
        &self,
        attr: &Attr,
        out: &mut Vec<u8>,
        (parent, before): (NodeId, Option<u64>),
    ) -> Undo {
        let entry_ttl = self.options(parent, before).entry_ttl;
        let attr_ttl = self.options(attr.node, before).attr_ttl;
        wire::put_entry(out, attr, self.generation, entry_ttl, attr_ttl);
        Undo::Node(attr.node)
    }

    fn call(
        &self,
        header: &Header,
        call: &Call<'_>,
        patience: Patience,
        out: &mut Vec<u8>,
    ) -> Result<Undo> {
        let (node, by) = (header.node, header.requester());
        self.gate.check(by, node, call)?;
        let before = self.ops.caching(node);
        match *call {
            // The kernel has a file handle, and no inode that belongs to it.
            Call::Lookup { name: b"." } => {
                return Ok(self.entry(&self.ops.lookup_again(node)?, out, (node, before)));
            }
            Call::Lookup { name: b".." } => {
                return Ok(self.entry(&self.ops.lookup_parent(node)?, out, (node, before)));
            }
            Call::Lookup { name } => match self.ops.lookup(node, name) {
                Ok(attr) => return Ok(self.entry(&attr, out, (node, before))),
                Err(Errno::ENOENT) => {
                    let ttl = self.options(node, before).negative_ttl;
                    if ttl.is_zero() {
                        return Err(Errno::ENOENT);
                    }
                    wire::put_no_entry(out, 0, 0, ttl);
                }
                Err(error) => return Err(error),
            },
            Call::GetAttr { handle } => {
                if let Some(handle) = handle.filter(|_| self.options.writeback) {
                    self.held.before_write(node, handle, patience)?;
                }
                let attr = self.ops.getattr(node)?;
                wire::put_attr_out(out, &attr, self.options(node, before).attr_ttl);
            }
            Call::SetAttr { ref set, .. } => {
                let _turn = set.size.map(|_| self.prefetch.turn(node));
                privilege::before_setattr(&*self.ops, node, set, by)?;
                let set = self.gate.given(by, node, *set)?;
                let outcome = self.ops.setattr(node, &set);
                self.gate.changed(by, node, &set, &outcome);
                // The kernel keeps these attributes even if it was told to drop them meanwhile.
                let lasts = before.filter(|before| *before == ops::ALONE);
                wire::put_attr_out(out, &outcome?, self.options(node, lasts).attr_ttl);
            }
            Call::ReadLink => *out = self.ops.readlink(node)?,
            Call::Symlink { name, target } => {
                let attr = self.ops.symlink(&header.caller(0), node, name, target)?;
                return Ok(self.entry(&attr, out, (node, before)));
            }
            Call::MkNod { name, mode, umask, rdev } => {
                let attr =
                    self.ops.mknod(&header.caller(umask), node, name, mode, u64::from(rdev))?;
                return Ok(self.entry(&attr, out, (node, before)));
            }
            Call::MkDir { name, mode, umask } => {
                let attr = self.ops.mkdir(&header.caller(umask), node, name, mode & 0o7777)?;
                return Ok(self.entry(&attr, out, (node, before)));
            }
            Call::Unlink { name } => self.ops.unlink(node, name)?,
            Call::RmDir { name } => self.ops.rmdir(node, name)?,
            Call::Rename { name, new_parent, new_name, flags } => {
                self.ops.rename(node, name, new_parent, new_name, ops::rename_mode(flags)?)?;
            }
            Call::Link { node: linked, name } => {
                let attr = self.ops.link(linked, node, name)?;
                return Ok(self.entry(&attr, out, (node, before)));
            }
            Call::Open { flags, kill } => {
                let request = OpenRequest::from_flags(flags, !kill);
                let turn = self.prefetch.turn(node);
                let open = || {
                    let opened = self.ops.open(node, request)?;
                    match self.options(node, before).direct_io {
                        true => Ok(opened),
                        false => Ok(self.prefetch.give(&turn, request, opened)),
                    }
                };
                let opened =
                    privilege::killing(&*self.ops, &self.device, node, kill.then_some(by), open)?;
                put_opened(out, opened, &self.options(node, before));
                return Ok(Undo::File(opened.handle));
            }
            Call::Create { name, mode, umask, flags, kill } => {
                let request = OpenRequest::from_flags(flags, !kill);
                let create = |request| {
                    self.ops.create(&header.caller(umask), node, name, mode & 0o7777, request)
                };
                let (attr, opened) = self.gate.creating(request, create)?;
                self.entry(&attr, out, (node, before));
                put_opened(out, opened, &self.options(node, before));
                return Ok(Undo::Created(attr.node, opened.handle));
            }
            Call::Read(range) => {
                out.resize(range.size.min(self.options.max_write.max(1 << 20) as usize), 0);
                let read = self.ops.read(range.handle, range.offset, out)?;
                out.truncate(read);
            }
            Call::Write { handle, offset, data, kill, held } => {
                let write = || match held {
                    true => self.ops.write_pages(handle, offset, data, kill),
                    false => self.ops.write(handle, offset, data, kill),
                };
                privilege::killing(&*self.ops, &self.device, node, kill.then_some(by), write)?;
                put_written(out, data.len() as u32); // the request states the length as a u32
            }
            Call::StatFs => put_statfs(out, &self.ops.statfs()?),
            Call::Release { handle } => {
                let released = self.ops.release(handle);
                self.waiters.poke();
                released?;
            }
            Call::Fsync { handle, data_only } => self.ops.fsync(handle, data_only)?,
            Call::SetXattr { name, value, flags } => {
                let kill_sgid = privilege::kills_sgid(&*self.ops, node, name, by)?;
                let outcome =
                    self.ops.setxattr(node, name, value, ops::xattr_mode(flags)?, kill_sgid);
                self.gate.changed_xattr(by, node, name);
                outcome?;
            }
            Call::GetXattr { name, size } => {
                return put_xattr(out, size, self.ops.getxattr(node, name)?);
            }
            Call::ListXattr { size } => {
                let names = self.ops.listxattr(node, header.uid == 0)?;
                return put_xattr(
                    out,
                    size,
                    names.into_iter().flat_map(|name| [name, vec![0]]).flatten().collect(),
                );
            }
            Call::RemoveXattr { name } => {
                let outcome = self.ops.removexattr(node, name);
                self.gate.changed_xattr(by, node, name);
                outcome?;
            }
            Call::Flush { handle, owner } => {
                let flushed = self.ops.flush(handle);
                self.ops.unlock_owner(handle, owner);
                self.waiters.poke();
                flushed?;
            }
            Call::GetLk { handle, ref request } => {
                wire::put_lock(out, self.ops.find_lock(handle, request)?);
            }
            Call::SetLk { handle, ref request, .. } => {
                if request.lock.is_some() {
                    // This thread must not wait; `lock_later` is for that.
                    return Err(Errno::new(libc::ENOLCK));
                }
                self.ops.lock(handle, request)?;
                self.waiters.poke();
            }
            Call::OpenDir => {
                let opened = self.ops.opendir(node)?;
                put_opened_dir(out, opened, &self.options(node, before));
                return Ok(Undo::Dir(opened.handle));
            }
            Call::ReadDir { range, plus } => {
                let ServeOptions { entry_ttl, attr_ttl, .. } = self.options(node, before);
                let with_nodes = plus && self.gate.may_know_entries(by, node);
                let listing = Listing {
                    ops: &*self.ops,
                    node,
                    handle: range.handle,
                    plus,
                    with_nodes,
                    generation: self.generation,
                    entry_ttl,
                    attr_ttl,
                };
                return Ok(Undo::Nodes(listing.fill(
                    range.offset as i64,
                    range.size.min(MOST_LISTED),
                    out,
                )?));
            }
            Call::ReleaseDir { handle } => self.ops.releasedir(handle),
            Call::FsyncDir { handle, data_only } => self.ops.fsyncdir(handle, data_only)?,
            Call::Access { .. } => {}
            Call::Allocate { handle, offset, len, mode } => {
                let kill = header.uid != 0;
                let allocate =
                    || self.ops.fallocate(handle, offset, len, ops::allocate_mode(mode)?, kill);
                privilege::killing(&*self.ops, &self.device, node, kill.then_some(by), allocate)?;
            }
            Call::Seek { handle, offset, whence } => {
                let question = Question::new(node, handle, offset, whence)?;
                let found = match (self.seeker.at_once(&question)?, patience) {
                    (Said::Answer(found), _) => found,
                    (Said::Depends(range), Patience::Some) => {
                        self.seeker.ask_kernel(&question, range)?
                    }
                    // The kernel answers by itself for all files from now on: everything is data.
                    (Said::Depends(_), Patience::None) => return Err(Errno::ENOSYS),
                };
                out.extend_from_slice(&position(found)?.to_ne_bytes());
            }
            Call::Copy { from, to_node, to, len } => {
                let kill = header.uid != 0;
                let copy = || self.copy(header.unique, from, to, len.min(COPY_AT_ONCE), kill);
                let copied = privilege::killing(
                    &*self.ops,
                    &self.device,
                    to_node,
                    kill.then_some(by),
                    copy,
                )?;
                put_written(out, copied as u32); // at most COPY_AT_ONCE
            }
            Call::Forget { count } => self.ops.forget(node, count),
            Call::BatchForget { pairs } => {
                for pair in pairs.chunks_exact(forget_one::LEN) {
                    self.ops.forget(
                        u64_at(pair, forget_one::nodeid),
                        u64_at(pair, forget_one::nlookup),
                    );
                }
            }
            Call::Interrupt { unique } => match self.copies.lock().get_mut(&unique) {
                Some(interrupted) => *interrupted = true,
                None => self.waiters.interrupt(unique),
            },
            Call::Destroy | Call::NotifyReply => {}
            Call::Unknown => return Err(Errno::ENOSYS),
        }
        Ok(Undo::Nothing)
    }

    /// Copies in steps and stops between two of them if the caller was interrupted; returns the
    /// number of bytes copied until then.
    fn copy(
        &self,
        unique: u64,
        from: FileRange,
        to: FileRange,
        len: u64,
        kill_suid_sgid: bool,
    ) -> Result<u64> {
        self.copies.lock().insert(unique, false);
        // The number is removed even if an operation panics: the kernel reuses numbers.
        let done = guarded(
            || "Copy".into(),
            || {
                let mut done = 0;
                while done < len {
                    let step = self.copy_step.min(len - done);
                    let behind =
                        |range: FileRange| FileRange { offset: range.offset + done, ..range };
                    match self.ops.copy_file_range(behind(from), behind(to), step, kill_suid_sgid) {
                        Ok(copied) => {
                            done += copied.min(step);
                            // Fewer bytes than requested: the end of the file.
                            if copied < step {
                                break;
                            }
                        }
                        Err(_) if done > 0 => break,
                        Err(error) => return Err(error),
                    }
                    if self.copies.lock().get(&unique) == Some(&true) {
                        break;
                    }
                }
                Ok(done)
            },
        );
        self.copies.lock().remove(&unique);
        done
    }
}
