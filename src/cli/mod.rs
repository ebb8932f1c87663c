//! The command line: parse, run, report.
//!
//! * [`args`]: the command line as types; [`cmd`]: one file for each command; [`report`]: failures
//!   as people read them, and the only place for advice; [`exit`]: what scripts read.
//! * [`secret`], [`identity`], [`kdf`], [`replace`]: passphrases and the files that they open;
//!   [`open`], [`paths`], [`seen`]: vaults.
//! * [`home`], [`contacts`], [`memory`], [`ask`]: what this user keeps of people and shares, and
//!   questions to him.
//! * [`daemon`], [`signals`], [`log`], [`process`], [`registry`]: the process of a mount;
//!   [`control`]: what it can be asked to do.

pub mod args;
pub mod ask;
pub mod cmd;
pub mod contacts;
pub mod control;
pub mod daemon;
pub mod display;
pub mod error;
pub mod exit;
pub mod home;
pub mod identity;
pub mod kdf;
pub mod local;
pub mod log;
pub mod memory;
pub mod new_identity;
pub mod node;
pub mod open;
pub mod out;
pub mod paths;
pub mod process;
pub mod progress;
pub mod registry;
pub mod replace;
pub mod report;
pub mod secret;
pub mod seen;
pub mod signals;
pub mod size;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command, LogLevel};
use self::exit::Exit;
use self::report::Failure;
use crate::fuse::handover;

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    if let Some(exit) = handover::run_as_asker() {
        return exit;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // a closed terminal is no reason to fail in another way
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                Exit::Usage.code()
            } else {
                Exit::Ok.code()
            });
        }
    };
    let exit = run(cli).unwrap_or_else(|failure| {
        failure.print();
        failure.exit
    });
    ExitCode::from(exit.code())
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    // a mount chooses where to log when it knows whether it goes to the background
    if !matches!(cli.command, Command::Mount(_)) {
        log::start(cli.log_level.unwrap_or(LogLevel::Warn), log::Target::Stderr);
    }
    // before any secret is read; a command that reads none loses nothing by it
    daemon::keep_memory_private()?;
    match &cli.command {
        Command::Init(args) => cmd::init::run(args),
        Command::Mount(args) => cmd::mount::run(args, cli.log_level.unwrap_or(LogLevel::Info)),
        Command::Umount(args) => cmd::umount::run(args),
        Command::Passphrase(args) => cmd::passphrase::run(&args.command),
        Command::Identity(args) => cmd::identity::run(&args.command),
        Command::Contact(args) => cmd::contact::run(&args.command),
        Command::Accept(args) => cmd::accept::run(args),
        Command::Share(args) => cmd::share::run(&args.command),
        Command::WhoCanRead(args) => cmd::share::who_can_read(args),
        Command::Info(args) => cmd::info::run(args),
        Command::Fsck(args) => cmd::fsck::run(args),
        Command::Rollback(args) => cmd::rollback::run(args),
        Command::AcceptRollback(args) => cmd::rollback::accept(args),
        Command::Ls(args) => cmd::files::ls(args),
        Command::Cat(args) => cmd::files::cat(args),
        Command::Get(args) => cmd::files::get(args),
        Command::Put(args) => cmd::files::put(args),
        Command::Rm(args) => cmd::files::rm(args),
        Command::Mkdir(args) => cmd::files::mkdir(args),
        Command::Import(args) => cmd::transfer::import(args),
        Command::Export(args) => cmd::transfer::export(args),
        Command::Map(args) => cmd::map::run(args),
        Command::Mounts(args) => cmd::mounts::run(args),
        Command::Bench(args) => cmd::bench::run(args),
        Command::Completion(args) => cmd::generate::completion(args),
        Command::Man(args) => cmd::generate::man(args),
        Command::ExitCodes => cmd::generate::exit_codes(),
    }
}
