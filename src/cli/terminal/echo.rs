//! What a signal does at a prompt for a secret: it switches the echo of the terminal on again, and
//! Ctrl-C reports that nothing was done.

use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use rustix::fs::{Mode, OFlags};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// The signals that end a process at a prompt.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The state of the terminal before the first prompt. Its descriptor is not kept: a daemon would
/// keep the terminal open.
static BEFORE: OnceLock<Termios> = OnceLock::new();

/// Whether another process reports the end of this one.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Leaves the report of an interruption to the command that waits for this process.
pub fn leave_report_to_parent() {
    IS_REPORTED.store(true, Ordering::Relaxed);
}

/// The former actions of the signals, restored on drop.
pub struct Restored(Vec<(Signal, SigAction)>);

/// Restores the state that the terminal has now if one of the signals ends this process before the
/// returned value is dropped.
pub fn restored_at_signals(terminal: &File) -> Restored {
    if let Ok(state) = tcgetattr(terminal) {
        let _ = BEFORE.set(state);
    }
    // After one call the signal has its default action again, which is to end the process.
    let flags = SaFlags::SA_RESETHAND | SaFlags::SA_NODEFER;
    let action = SigAction::new(SigHandler::Handler(restore), flags, SigSet::empty());
    let mut before = Vec::new();
    for signal in SIGNALS {
        // SAFETY: the handler makes system calls only, which may be interrupted anywhere.
        if let Ok(old) = unsafe { sigaction(signal, &action) } {
            before.push((signal, old));
        }
    }
    let restored = Restored(before);
    // A signal that was ignored, as by nohup, stays so.
    for (signal, old) in &restored.0 {
        if matches!(old.handler(), SigHandler::SigIgn) {
            // SAFETY: this action was there before.
            let _ = unsafe { sigaction(*signal, old) };
        }
    }
    restored
}

extern "C" fn restore(signal: i32) {
    let terminal = rustix::fs::open(c"/dev/tty", OFlags::RDWR, Mode::empty());
    if let (Some(state), Ok(terminal)) = (BEFORE.get(), terminal) {
        let had_echo =
            tcgetattr(&terminal).is_ok_and(|now| now.local_modes.contains(LocalModes::ECHO));
        let _ = tcsetattr(&terminal, OptionalActions::Now, state);
        // At Ctrl-C the prompt has begun a new line itself, unless it had not switched the echo
        // off.
        if signal != libc::SIGINT || had_echo {
            let _ = rustix::io::write(&terminal, b"\n");
        }
    }
    // A command asks for secrets before it changes anything.
    if signal == libc::SIGINT && !IS_REPORTED.load(Ordering::Relaxed) {
        let text = b"kithfs: interrupted; nothing was done\nhint: run the same command again\n";
        let _ = rustix::io::write(rustix::stdio::stderr(), text);
    }
    if let Ok(signal) = Signal::try_from(signal) {
        let _ = raise(signal);
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        for (signal, old) in &self.0 {
            // SAFETY: these actions were there before.
            let _ = unsafe { sigaction(*signal, old) };
        }
    }
}
