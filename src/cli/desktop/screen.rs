//! The lock of the screen, as the desktop announces it on the session bus.

use zbus::connection::Builder;

use super::bus::{self, Bus};
use super::events::Happened;

/// How the interface of each desktop ends: `org.freedesktop.ScreenSaver`, `org.gnome.ScreenSaver`
/// and those of the same form.
const INTERFACE: &str = ".ScreenSaver";
const SIGNAL: &str = "ActiveChanged";

/// The session bus.
pub struct Screen(Bus);

impl Screen {
    /// Connects to the session bus. Which program locks the screen need not be known: it may be
    /// started later.
    ///
    /// # Errors
    /// There is no session bus.
    pub async fn subscribe() -> zbus::Result<Screen> {
        if !bus::has_session() {
            return Err(zbus::Error::Address("DBUS_SESSION_BUS_ADDRESS is not set".into()));
        }
        let bus = Bus::connect(Builder::session())?;
        bus.deliver(&format!("type='signal',member='{SIGNAL}'")).await?;
        Ok(Screen(bus))
    }

    /// Returns whether a program that locks the screen is there or would be started.
    ///
    /// # Errors
    /// The bus does not answer.
    pub async fn has_locker(&self) -> zbus::Result<bool> {
        for list in ["ListNames", "ListActivatableNames"] {
            let names: Vec<String> = self.0.ask(list, &()).await?;
            if names.iter().any(|name| name.ends_with(INTERFACE)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until the screen is locked, or the bus is lost.
    pub async fn next(&mut self) -> Happened {
        while let Some(message) = self.0.signal().await {
            let header = message.header();
            let is_it = header.member().is_some_and(|member| member == SIGNAL)
                && header.interface().is_some_and(|name| name.ends_with(INTERFACE));
            if is_it && message.body().deserialize::<bool>().is_ok_and(|is_active| is_active) {
                return Happened::Lock("the screen was locked");
            }
        }
        Happened::Lost
    }
}
