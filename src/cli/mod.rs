//! The command line: parse, run, report.
//!
//! * [`args`]: the command line as types; [`commands`]: one module for each command.
//! * [`error`]: typed errors; [`report`]: messages for people, with hints; [`exit`]: the exit
//!   codes.
//! * [`secrets`]: passphrases and the identity files that they open; [`user`]: this user's own
//!   files; [`vaults`]: opening a vault; [`local`]: files outside the vault.
//! * [`daemon`]: the process of a mount; [`control`]: requests that it answers; [`desktop`]: the
//!   buses of the session and the system, on which it hears events and shows notices.
//! * [`terminal`]: output, questions and progress; [`display`]: how names, times and sizes are
//!   shown.

pub mod args;
pub mod commands;
pub mod control;
pub mod daemon;
pub mod desktop;
pub mod display;
pub mod error;
pub mod exit;
pub mod local;
pub mod report;
pub mod secrets;
pub mod terminal;
pub mod user;
pub mod vaults;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap_complete::CompleteEnv;

use self::args::{Cli, Command, LogLevel};
use self::daemon::{fork, log};
use self::exit::Exit;
use self::report::Failure;
use self::terminal::color;
use crate::fuse::{abort, handover};

/// Environment variable that the completion scripts set to the shell whose command line is to be
/// completed.
pub const COMPLETE: &str = "KITHFS_COMPLETE";

/// Runs the command that the arguments of the process name.
pub fn main() -> ExitCode {
    if let Some(exit) = handover::run_as_asker().or_else(abort::run_as_aborter) {
        return exit;
    }
    if let Some(exit) = secrets::keyring::run_as_helper() {
        return exit;
    }
    if let Some(exit) = commands::mounting::helper::run_as_helper() {
        return exit;
    }
    CompleteEnv::with_factory(commands::generate::completion::command).var(COMPLETE).complete();
    color::choose(color::of_arguments(std::env::args_os()));
    if commands::version::is_asked(std::env::args_os().skip(1)) {
        return report(commands::version::run());
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Errors of a closed terminal are ignored.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                Exit::Usage.code()
            } else {
                Exit::Ok.code()
            });
        }
    };
    report(run(cli))
}

/// Prints a failure, and returns the exit code of the process.
fn report(result: Result<Exit, Failure>) -> ExitCode {
    let exit = result.unwrap_or_else(|failure| {
        failure.print();
        failure.exit
    });
    ExitCode::from(exit.code())
}

fn parse() -> Result<Cli, clap::Error> {
    let matches = args::help::command().try_get_matches()?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut args::help::command()))
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    // A mount starts logging itself, once it is in the foreground or in the background.
    if !matches!(cli.command, Command::Mount(_) | Command::Open(_)) {
        log::start(cli.log_level.unwrap_or(LogLevel::Warn), log::Target::Stderr);
    }
    // Before any secret is read.
    fork::keep_memory_private()?;
    match &cli.command {
        Command::Init(args) => commands::init::run(args),
        Command::Mount(args) => {
            commands::mounting::mount::run(args, cli.log_level.unwrap_or(LogLevel::Info))
        }
        Command::Open(args) => {
            commands::mounting::named::open(args, cli.log_level.unwrap_or(LogLevel::Info))
        }
        Command::Close(args) => commands::mounting::named::close(args),
        Command::Lock(args) => commands::mounting::lock::run(args),
        Command::Status(args) => commands::mounting::status::run(args),
        Command::Vaults(command) => commands::mounting::named::vaults(command),
        Command::Umount(args) => commands::mounting::umount::run(args),
        Command::Passphrase(command) => commands::people::passphrase::run(command),
        Command::Identity(command) => commands::people::identity::run(command),
        Command::Contact(command) => commands::people::contact::run(command),
        Command::Accept(args) => commands::people::accept::run(args),
        Command::Share(command) => commands::share::run(command),
        Command::WhoCanRead(args) => commands::share::who_can_read(args),
        Command::Info(args) => commands::info::run(args),
        Command::Set(args) => commands::set::run(args),
        Command::Fsck(args) => commands::fsck::run(args),
        Command::Rollback(args) => commands::rollback::run(args),
        Command::AcceptRollback(args) => commands::rollback::accept(args),
        Command::Ls(args) => commands::files::ls(args),
        Command::Cat(args) => commands::files::cat(args),
        Command::Get(args) => commands::files::get(args),
        Command::Put(args) => commands::files::put(args),
        Command::Rm(args) => commands::files::rm(args),
        Command::Mkdir(args) => commands::files::mkdir(args),
        Command::Import(args) => commands::transfer::import(args),
        Command::Export(args) => commands::transfer::export(args),
        Command::Map(args) => commands::map::run(args),
        Command::Mounts(args) => commands::mounting::mounts::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Completion(args) => commands::generate::completion(args),
        Command::Man(args) => commands::generate::man(args),
        Command::ExitCodes => commands::generate::exit_codes(),
    }
}
