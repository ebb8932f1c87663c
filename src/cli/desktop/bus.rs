//! A connection to a message bus, and the signals subscribed to on it.
//!
//! Rule: every wait for the bus has a time limit.

use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use zbus::connection::Builder;
use zbus::export::futures_core::Stream;
use zbus::message::Type as MessageType;
use zbus::{Connection, Message, MessageStream, Type, block_on};

/// The name, and the interface, of the bus itself.
pub const DBUS: &str = "org.freedesktop.DBus";
const DBUS_PATH: &str = "/org/freedesktop/DBus";

/// How long a service may take to answer. A service that is started for the call needs some
/// seconds.
const PATIENCE: Duration = Duration::from_secs(25);
/// How many signals may wait while a call is answered. A queue that is full would hold up the
/// answer, and these signals are rare.
const QUEUE: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// How long a bus may take to accept a connection. A service manager may have to start it.
pub const ACCEPTS: Duration = Duration::from_secs(10);

/// Returns whether there is a session bus.
pub fn has_session() -> bool {
    std::env::var_os("DBUS_SESSION_BUS_ADDRESS").is_some_and(|address| !address.is_empty())
        || std::env::var_os("XDG_RUNTIME_DIR")
            .is_some_and(|dir| Path::new(&dir).join("bus").exists())
}

/// Connects within the time `accepts`. This needs a thread: the time limit of a [`Builder`] applies
/// only to calls, so it would wait for a bus that accepts the connection and never answers.
///
/// # Errors
/// There is no bus, it refuses, or it does not answer.
pub fn connect(to: Builder<'static>, accepts: Duration) -> zbus::Result<Connection> {
    let (done, connected) = mpsc::channel();
    let connect = move || {
        // After the time limit there is no receiver.
        let _ = done.send(block_on(to.build()));
    };
    std::thread::Builder::new().name("kithfs-bus".into()).spawn(connect)?;
    connected.recv_timeout(accepts).unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, "the bus does not answer").into())
    })
}

/// A connection to a bus, and the messages that arrive on it.
pub struct Bus {
    connection: Connection,
    messages: MessageStream,
}

impl Bus {
    /// Connects to a bus.
    ///
    /// # Errors
    /// As [`connect()`].
    pub fn connect(to: Builder<'static>) -> zbus::Result<Bus> {
        let connection = connect(to.method_timeout(PATIENCE).max_queued(QUEUE), ACCEPTS)?;
        let messages = MessageStream::from(&connection);
        Ok(Bus { connection, messages })
    }

    /// Calls a method and returns its answer.
    ///
    /// # Errors
    /// The call failed, or was not answered in time.
    pub async fn call<B, R>(
        &self,
        destination: &str,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> zbus::Result<R>
    where
        B: Serialize + Type,
        R: DeserializeOwned + Type,
    {
        let reply = self
            .connection
            .call_method(Some(destination), path, Some(interface), method, body)
            .await?;
        reply.body().deserialize()
    }

    /// Calls a method of the bus itself.
    ///
    /// # Errors
    /// As [`Bus::call`].
    pub async fn ask<B, R>(&self, method: &str, body: &B) -> zbus::Result<R>
    where
        B: Serialize + Type,
        R: DeserializeOwned + Type,
    {
        self.call(DBUS, DBUS_PATH, DBUS, method, body).await
    }

    /// Has the bus deliver the signals that match a rule.
    ///
    /// # Errors
    /// As [`Bus::call`].
    pub async fn deliver(&self, rule: &str) -> zbus::Result<()> {
        self.ask("AddMatch", &(rule,)).await
    }

    /// Waits for the next signal; returns `None` when the connection is lost.
    pub async fn signal(&mut self) -> Option<Message> {
        loop {
            let mut messages = pin!(&mut self.messages);
            match poll_fn(|context| messages.as_mut().poll_next(context)).await {
                Some(Ok(message)) if message.message_type() == MessageType::Signal => {
                    return Some(message);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!("a message of the bus is ignored: {error}"),
                None => return None,
            }
        }
    }
}
