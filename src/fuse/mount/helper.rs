//! Helper processes of a mount: this program, started under another name.

use std::env::ArgsOs;
use std::ffi::{CString, OsStr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Returns a command that starts this program under `name`, without what it could inherit.
pub(super) fn command(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the arguments if this process was started under `name`, and gives the process that name,
/// which the kernel takes from the file of the program otherwise.
pub(super) fn started_as(name: &str) -> Option<ArgsOs> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != OsStr::new(name) {
        return None;
    }
    if let Ok(name) = CString::new(name) {
        // If this fails, a message may list this process among those that use the mount.
        let _ = rustix::thread::set_name(&name);
    }
    Some(arguments)
}
