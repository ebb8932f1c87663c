//! What an administrator can do on this machine to make mounts faster.
//!
//! Rules that hold here
//! * A piece of advice is given only if its command would change something.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// A change that would help, and the command that makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What becomes faster, and why it is not.
    pub what: &'static str,
    /// The command, for a shell.
    pub command: &'static str,
}

const SWITCHED_OFF: Advice = Advice {
    what: "small operations: this kernel can send requests over io_uring, which is switched off",
    command: "echo Y | sudo tee /sys/module/fuse/parameters/enable_uring",
};
const NOT_USED: Advice = Advice {
    what: "small operations: the kernel can send requests over io_uring, and this mount was made without",
    command: "export KITHFS_TRANSPORT=uring",
};
const HALTS: Advice = Advice {
    what: "waking processors: this virtual machine halts idle ones at once",
    command: "echo 200000 | sudo tee /sys/module/haltpoll/parameters/guest_halt_poll_ns",
};

/// Returns what would help a mount on this machine. `io_uring` tells whether its requests come over
/// io_uring.
pub fn advice(io_uring: bool) -> Vec<Advice> {
    of(Path::new("/sys"), io_uring)
}

fn of(sys: &Path, io_uring: bool) -> Vec<Advice> {
    let read = |name: &str| fs::read_to_string(sys.join(name)).unwrap_or_default();
    let mut advice = Vec::new();
    match read("module/fuse/parameters/enable_uring").trim() {
        "N" => advice.push(SWITCHED_OFF),
        "Y" if !io_uring => advice.push(NOT_USED),
        _ => {}
    }
    if read("devices/system/cpu/cpuidle/current_governor").trim() == "haltpoll"
        && read("module/haltpoll/parameters/guest_halt_poll_ns").trim() == "0"
    {
        advice.push(HALTS);
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = sys.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        sys
    }

    #[test]
    fn advice_is_given_only_where_it_changes_something() {
        const SWITCH: &str = "module/fuse/parameters/enable_uring";
        const GOVERNOR: &str = "devices/system/cpu/cpuidle/current_governor";
        const POLL: &str = "module/haltpoll/parameters/guest_halt_poll_ns";
        let given = |files, io_uring| of(machine(files).path(), io_uring);
        assert_eq!(given(&[], false), []);
        assert_eq!(given(&[(SWITCH, "N\n")], false), [SWITCHED_OFF]);
        assert_eq!(given(&[(SWITCH, "Y\n")], false), [NOT_USED]);
        assert_eq!(given(&[(SWITCH, "Y\n")], true), []);
        assert_eq!(given(&[(GOVERNOR, "haltpoll\n"), (POLL, "0\n")], false), [HALTS]);
        assert_eq!(given(&[(GOVERNOR, "haltpoll\n"), (POLL, "200000\n")], false), []);
        assert_eq!(given(&[(GOVERNOR, "menu\n"), (POLL, "0\n")], false), []);
    }
}
