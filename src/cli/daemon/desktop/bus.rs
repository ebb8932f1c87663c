//! A connection to a message bus, with the signals that were asked for.

use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use zbus::connection::Builder;
use zbus::export::futures_core::Stream;
use zbus::message::Type as MessageType;
use zbus::{Connection, Message, MessageStream, Type};

/// The name, and the interface, of the bus itself.
pub const DBUS: &str = "org.freedesktop.DBus";
const DBUS_PATH: &str = "/org/freedesktop/DBus";

/// How long a service may take to answer. One that is started for the call needs some seconds.
const PATIENCE: Duration = Duration::from_secs(25);
/// How many signals may wait while a call is answered. A queue that is full would hold up the
/// answer, and these signals are rare.
const QUEUE: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// A connection to a bus, and the messages that arrive on it.
pub struct Bus {
    connection: Connection,
    messages: MessageStream,
}

impl Bus {
    /// Connects.
    ///
    /// # Errors
    /// There is no bus, or it refuses.
    pub async fn connect(to: Builder<'_>) -> zbus::Result<Bus> {
        let connection = to.method_timeout(PATIENCE).max_queued(QUEUE).build().await?;
        let messages = MessageStream::from(&connection);
        Ok(Bus { connection, messages })
    }

    /// Calls a method and returns what it answers.
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
