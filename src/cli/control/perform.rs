//! The operations on shares.

use std::path::Path;

use super::message::{Reply, Request, What};
use crate::cli::report::{Failure, in_vault};
use crate::cli::vaults::nodes::make_path;
use crate::vault::{self, CreateShare, ShareProgress, Vault};

/// Performs a request in `vault`, whose directory is `dir`.
///
/// # Errors
/// Those of the vault, as messages for people.
pub fn perform(
    vault: &Vault,
    dir: &Path,
    request: &Request,
    progress: &mut dyn FnMut(&ShareProgress),
) -> Result<Reply, Failure> {
    done(vault, request, progress).map_err(|error| in_vault(error, dir, Some(&request.path)))
}

fn done(
    vault: &Vault,
    request: &Request,
    progress: &mut dyn FnMut(&ShareProgress),
) -> vault::Result<Reply> {
    let Request { path, what } = request;
    let mut last = ShareProgress::default();
    let mut progress = |done: &ShareProgress| {
        last = ShareProgress { unread: last.unread.max(done.unread), ..*done };
        progress(done);
    };
    if let What::Create { isolated, name, mode } = what {
        // An interrupted conversion may have left the folder under another name. It gets its own
        // name back first, so that `make_path` does not create a new folder.
        vault.put_back(path)?;
        drop(make_path(vault, path, *mode)?);
        let options =
            CreateShare { isolated: *isolated, name: name.clone(), ..CreateShare::default() };
        let made = vault.create_share(path, &options, &mut progress)?;
        return Ok(Reply::Made(last, made.former));
    }
    let share = vault.share_at(path)?;
    Ok(match what {
        What::Info => Reply::Info(share.info()?),
        What::Log => Reply::Log(share.log()?),
        What::Pending => Reply::Pending(share.pending(&mut progress)?),
        What::Reseal { eager } => Reply::Pending(share.reseal(*eager, &mut progress)?),
        What::Rekey => share.rekey().map(|_| Reply::Done)?,
        What::Add(members) => share.add(members).map(|_| Reply::Done)?,
        What::SetRole(sign, role) => {
            share.set_role(sign, *role, &mut progress).map(|_| Reply::Done)?
        }
        What::Remove(signs) => {
            share.remove(signs, &mut progress)?;
            Reply::Progress(last)
        }
        What::Settle(keep) => share.settle(keep, &[]).map(|_| Reply::Done)?,
        What::Invite(sign) => Reply::Invitation(share.invite(sign)?),
        What::Create { .. } | What::Status | What::Answers | What::Lock => {
            unreachable!("done elsewhere")
        }
    })
}
