//! Recognizes folders that a sync tool keeps equal with other machines, by the files that the tools
//! leave in them.

use std::path::Path;

use crate::cli::display::path as shown;
use crate::cli::report::note;

/// Files that tools leave in the folders that they keep: the tool, and the beginning and the end of
/// a name. Without an end, the beginning is the whole name.
const MARKS: [(&str, &str, &str); 12] = [
    ("Syncthing", ".stfolder", ""),
    ("Syncthing", ".stignore", ""),
    ("Resilio Sync", ".sync", ""),
    ("Dropbox", ".dropbox", ""),
    ("Nextcloud", ".sync_", ".db"),
    ("Nextcloud", "._sync_", ".db"),
    ("Nextcloud", ".nextcloudsync.log", ""),
    ("ownCloud", ".owncloudsync.log", ""),
    ("OneDrive", ".849C9593-D756-4E56-8D6E-42412F2A707B", ""),
    ("Google Drive", ".tmp.drivedownload", ""),
    ("Seafile", ".seafile", ""),
    ("MEGA", ".megaignore", ""),
];

/// Names of folders that tools make themselves, and in which they leave nothing.
const NAMES: [&str; 4] = ["Dropbox", "OneDrive", "Nextcloud", "ownCloud"];

/// Returns the tool that keeps a directory, or one above it, equal with other machines.
pub fn tool(dir: &Path) -> Option<&'static str> {
    dir.ancestors().take_while(|above| above.parent().is_some()).find_map(tool_of)
}

fn tool_of(folder: &Path) -> Option<&'static str> {
    let named = folder.file_name().and_then(|name| NAMES.into_iter().find(|known| name == *known));
    let marked = || {
        std::fs::read_dir(folder).ok()?.filter_map(Result::ok).find_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            // Every mark is hidden; most names are not, and need no comparison.
            let name = name.starts_with('.').then_some(name)?;
            let is = |&&(_, start, end): &&(&str, &str, &str)| match end {
                "" => name == start,
                end => {
                    name.len() > start.len() + end.len()
                        && name.starts_with(start)
                        && name.ends_with(end)
                }
            };
            MARKS.iter().find(is).map(|(tool, ..)| *tool)
        })
    };
    named.or_else(marked)
}

/// Tells the user that a vault seems to be in a synced folder and is not marked so.
pub fn hint(vault: &Path) {
    if let Some(tool) = tool(vault) {
        let place = shown(vault);
        note(format_args!(
            "{place} seems to be in a folder of {tool}; before other machines mount it for writing too, run `kithfs set --synced {place}`"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_sync_tools_are_recognized_from_below() {
        let dir = tempfile::tempdir().unwrap();
        let vault = dir.path().join("folder/below/vault");
        std::fs::create_dir_all(&vault).unwrap();
        assert_eq!(tool(&vault), None);
        for (name, found) in [
            (".stfolder", "Syncthing"),
            (".sync_0123456789ab.db", "Nextcloud"),
            (".dropbox", "Dropbox"),
            (".sync", "Resilio Sync"),
        ] {
            let mark = dir.path().join("folder").join(name);
            std::fs::write(&mark, "").unwrap();
            assert_eq!(tool(&vault), Some(found), "{name}");
            std::fs::remove_file(mark).unwrap();
        }
        for name in [".sync_.db", ".stfolder2", "stfolder"] {
            std::fs::write(vault.join(name), "").unwrap();
            assert_eq!(tool(&vault), None, "{name}");
        }
        let inside = dir.path().join("Dropbox/vault");
        std::fs::create_dir_all(&inside).unwrap();
        assert_eq!(tool(&inside), Some("Dropbox"));
    }
}
