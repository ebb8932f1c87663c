//! A message bus for one test, and services of python-dbusmock on it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use zbus::{Type, Variant};

use super::people::{has, wait_until};

/// The interface by which a test controls a mock.
const MOCK: &str = "org.freedesktop.DBus.Mock";

/// Debian's Python, for which python3-dbusmock is installed. The one in the PATH may be another.
const PYTHON: &str = "/usr/bin/python3";

/// Returns whether services can be mocked; prints a message that the test is skipped if not.
pub fn can_mock() -> bool {
    let mut probe = Command::new(PYTHON);
    probe.args(["-c", "import dbusmock"]).stderr(Stdio::null());
    if !has("dbus-daemon") {
        return false;
    }
    let is_there = probe.status().is_ok_and(|status| status.success());
    if !is_there {
        eprintln!("SKIPPED: python3-dbusmock is missing; scripts/tools.sh --tests installs it");
    }
    is_there
}

/// A bus that starts nothing by itself.
pub struct Bus {
    address: String,
    dbus: Option<Child>,
    children: Vec<Child>,
}

/// Returns the configuration of a bus for one user.
fn configuration(listen: &str, services: &str) -> String {
    format!(
        r#"<busconfig><type>session</type><listen>{listen}</listen><auth>EXTERNAL</auth>{services}
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>"#
    )
}

impl Bus {
    /// Starts a bus whose files in `dir` begin with `name`.
    pub fn start(dir: &Path, name: &str) -> Bus {
        let socket = dir.join(name);
        let config = dir.join(format!("{name}.conf"));
        let listen = format!("unix:path={}", socket.display());
        std::fs::write(&config, configuration(&listen, "")).unwrap();
        let dbus = Command::new("dbus-daemon")
            .args(["--nofork", "--nopidfile"])
            .arg(format!("--config-file={}", config.display()))
            .spawn()
            .unwrap();
        // Its socket is there a moment before it accepts connections.
        wait_until("the bus listens", || UnixStream::connect(&socket).is_ok());
        Bus { address: listen, dbus: Some(dbus), children: Vec::new() }
    }

    /// Connects to an existing bus.
    pub fn at(address: String) -> Bus {
        Bus { address, dbus: None, children: Vec::new() }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Starts a service, which ends with the bus, and waits until it owns its name.
    pub fn serve(&mut self, command: &mut Command, name: &str) {
        self.children.push(command.spawn().unwrap());
        wait_until("the service is on the bus", || self.has(name));
    }

    /// Starts python-dbusmock with these arguments.
    pub fn mock(&mut self, arguments: &[&str], name: &str) {
        let mut mock = Command::new(PYTHON);
        mock.args(["-m", "dbusmock"]).args(arguments);
        mock.env("DBUS_SESSION_BUS_ADDRESS", self.address());
        mock.env("DBUS_SYSTEM_BUS_ADDRESS", self.address());
        self.serve(mock.stdout(Stdio::null()), name);
    }

    /// Returns whether a service owns its name.
    pub fn has(&self, name: &str) -> bool {
        let bus = "org.freedesktop.DBus";
        self.call(bus, "/org/freedesktop/DBus", bus, "NameHasOwner", &(name,))
    }

    /// Calls a method, which must succeed.
    pub fn call<R>(
        &self,
        service: &str,
        path: &str,
        interface: &str,
        method: &str,
        body: &(impl serde::Serialize + Type),
    ) -> R
    where
        R: serde::de::DeserializeOwned + Type,
    {
        let asked = async {
            let bus = zbus::connection::Builder::address(self.address().as_str()).build().await?;
            let reply = bus.call_method(Some(service), path, Some(interface), method, body).await?;
            reply.body().deserialize::<R>()
        };
        zbus::block_on(asked).unwrap_or_else(|error| panic!("{interface}.{method}: {error}"))
    }

    /// Makes a mock send a signal.
    pub fn emit(
        &self,
        service: &str,
        path: &str,
        signal: (&str, &str, &str),
        args: &[Variant<'_>],
    ) {
        let (interface, name, signature) = signal;
        self.call(service, path, MOCK, "EmitSignal", &(interface, name, signature, args))
    }

    /// Sends a signal to every connection, from one that owns no name. Returns once the bus has passed it
    /// on.
    pub fn forge(
        &self,
        path: &str,
        (interface, name): (&str, &str),
        body: &(impl serde::Serialize + Type),
    ) {
        let sent = async {
            let (dbus, bus_path) = ("org.freedesktop.DBus", "/org/freedesktop/DBus");
            let bus = zbus::connection::Builder::address(self.address().as_str()).build().await?;
            let ask =
                async || bus.call_method(Some(dbus), bus_path, Some(dbus), "ListNames", &()).await;
            let names: Vec<String> = ask().await?.body().deserialize()?;
            for to in names.iter().filter(|name| name.starts_with(':')) {
                bus.emit_signal(Some(&**to), path, interface, name, body).await?;
            }
            ask().await.map(drop)
        };
        zbus::block_on(sent).unwrap_or_else(|error| panic!("{interface}.{name}: {error}"));
    }

    /// Calls a method of a mock that its template provides for tests.
    pub fn control<R>(
        &self,
        service: &str,
        path: &str,
        method: &str,
        body: &(impl serde::Serialize + Type),
    ) -> R
    where
        R: serde::de::DeserializeOwned + Type,
    {
        self.call(service, path, MOCK, method, body)
    }

    /// Ends the services, not the bus.
    pub fn end_services(&mut self) {
        for mut child in self.children.drain(..).rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends the bus, and with it every connection.
    pub fn end(&mut self) {
        if let Some(mut dbus) = self.dbus.take() {
            let _ = dbus.kill();
            let _ = dbus.wait();
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.end_services();
        self.end();
    }
}

/// A bus that a service manager restarts: its socket stays, and a service is started when it is
/// called.
pub struct Restarted {
    socket: PathBuf,
    manager: Child,
}

/// Keeps the socket, and starts the bus again after each line of its input.
const MANAGER: &str = r#"
import os, socket, subprocess, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
os.dup2(listening.fileno(), 3, inheritable=True)
start = 'LISTEN_PID=$$ LISTEN_FDS=1 exec dbus-daemon --nofork --nopidfile --config-file="$0"'
bus = None
print("ready", flush=True)
while True:
    bus = subprocess.Popen(["sh", "-c", start, sys.argv[2]], pass_fds=[3], stdin=subprocess.DEVNULL)
    line = sys.stdin.readline()
    bus.kill()
    bus.wait()
    if not line:
        break
"#;

impl Restarted {
    /// Starts it with one service, a python-dbusmock with these arguments.
    pub fn start(dir: &Path, name: &str, arguments: &str, service: &str) -> Restarted {
        let (socket, config) = (dir.join(name), dir.join(format!("{name}.conf")));
        let services = dir.join(format!("{name}.services"));
        std::fs::create_dir(&services).unwrap();
        let address = format!("unix:path={}", socket.display());
        let start = format!(
            "[D-BUS Service]\nName={service}\nExec=/usr/bin/env DBUS_SYSTEM_BUS_ADDRESS={address} {PYTHON} -m dbusmock --logfile /dev/null {arguments}\n"
        );
        std::fs::write(services.join(format!("{service}.service")), start).unwrap();
        let services = format!("<servicedir>{}</servicedir>", services.display());
        std::fs::write(&config, configuration("systemd:", &services)).unwrap();
        let mut manager = Command::new(PYTHON)
            .args(["-c", MANAGER])
            .args([&socket, &config])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut said = std::io::BufReader::new(manager.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Restarted { socket, manager }
    }

    pub fn address(&self) -> String {
        format!("unix:path={}", self.socket.display())
    }

    /// Ends the bus and starts another one on the same socket.
    pub fn restart(&mut self) {
        use std::io::Write;
        self.manager.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        drop(self.manager.stdin.take());
        let _ = self.manager.wait();
    }
}
