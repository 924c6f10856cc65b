// SPDX-License-Identifier: MIT OR Apache-2.0
//! Separate debug files: distributions strip programs, and install what they stripped in files of their own.
//!
//! Input: a program's build id, or the name in its debug link, and folders such as `/usr/lib/debug`. Output: the places of its debug
//! file, in the order of GDB (its manual, "Separate Debug Files"), and the one that is there. A file of another build is not taken.

use std::path::{Path, PathBuf};

use crate::build_id::BuildId;

/// Folder in which distributions install debug files.
pub const GLOBAL: &str = "/usr/lib/debug";

/// The same folder of a machine whose files lie below `root`.
pub fn global_of(root: &Path) -> PathBuf {
    root.join(GLOBAL.trim_start_matches('/'))
}

/// Folders with debug files: those of machines whose files lie below `roots`, then this machine's.
pub fn folders<'r>(roots: impl IntoIterator<Item = &'r Path>) -> Vec<PathBuf> {
    roots.into_iter().map(global_of).chain([PathBuf::from(GLOBAL)]).collect()
}

/// The file with debug information for this build id under one of the folders, if there is one. Its own build id is the same.
pub fn by_build_id<P: AsRef<Path>>(id: &BuildId, folders: &[P]) -> Option<PathBuf> {
    places(id, folders).find(|place| BuildId::of_file(place).as_ref() == Some(id))
}

/// A file at the place of this build id, under one of the folders, that is of another build or has no build id.
pub fn of_another_build<P: AsRef<Path>>(id: &BuildId, folders: &[P]) -> Option<PathBuf> {
    places(id, folders).find(|place| place.is_file() && BuildId::of_file(place).as_ref() != Some(id))
}

fn places<P: AsRef<Path>>(id: &BuildId, folders: &[P]) -> impl Iterator<Item = PathBuf> {
    let name = id.debug_path();
    folders.iter().map(move |folder| folder.as_ref().join(&name))
}

/// The places of the file that the debug link `name` of a program names: in the program's folder, in `.debug` there, and under each of
/// `folders` in the folder with the path `folder_there`, which is the program's on its own machine. None for a name that is a path.
pub fn of_link<P: AsRef<Path>>(
    name: &str,
    folder: &Path,
    folder_there: &Path,
    folders: &[P],
) -> Vec<PathBuf> {
    if Path::new(name).file_name().is_none_or(|own| own != name) {
        return Vec::new();
    }
    let inside = folder_there.strip_prefix("/").unwrap_or(folder_there);
    let beside = [folder.join(name), folder.join(".debug").join(name)];
    beside.into_iter().chain(folders.iter().map(|global| global.as_ref().join(inside).join(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_link_leads_to_files_of_its_name() {
        let places = |name| of_link(name, Path::new("/cache/usr/bin"), Path::new("/usr/bin"), &["/d"]);
        let expected = ["/cache/usr/bin/ls.debug", "/cache/usr/bin/.debug/ls.debug", "/d/usr/bin/ls.debug"];
        assert_eq!(places("ls.debug"), expected.map(PathBuf::from));
        for path in ["", "..", "/etc/passwd", "../ls.debug", "ls.debug/"] {
            assert!(places(path).is_empty(), "{path}");
        }
    }

    /// This test's own program has no build id of its place's name.
    #[test]
    fn a_file_of_another_build_is_not_taken() {
        let folder = std::env::temp_dir().join(format!("kprism-separate-{}", std::process::id()));
        let exe = std::env::current_exe().unwrap();
        let id = BuildId::new(&[0xab, 0x01, 0xf0]).unwrap();
        let place = folder.join(id.debug_path());
        assert_eq!((by_build_id(&id, &[&folder]), of_another_build(&id, &[&folder])), (None, None));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(exe, &place).unwrap();
        assert_eq!((by_build_id(&id, &[&folder]), of_another_build(&id, &[&folder])), (None, Some(place)));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
