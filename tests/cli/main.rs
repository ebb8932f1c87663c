//! The commands, as users run them. The tests run one at a time (`support::turn`).

#[path = "../support/mod.rs"]
mod support;

mod age;
mod bench;
mod command_line;
mod concurrent_people;
mod first_hour;
mod identity;
mod keyring;
mod messages;
mod named;
mod notify;
mod people;
mod prompt_programs;
mod rollback;
mod ssh_vouchers;
