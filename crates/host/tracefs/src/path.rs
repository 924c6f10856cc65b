// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of a command, found as a shell finds it.
//!
//! Input: the command's first word, the folder it starts in, its `PATH`. Output: the program's file.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Reason why a command has no program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFound {
    /// There is no such file.
    Missing,
    /// This file is not executable.
    NotExecutable(PathBuf),
}

/// Finds a program: a name with a slash below `folder`, another name in the folders of `path`.
///
/// # Errors
/// There is no executable file of that name.
pub fn find(name: &str, folder: &Path, path: &OsStr) -> Result<PathBuf, NotFound> {
    let places: Vec<PathBuf> = match name.contains('/') {
        true => vec![folder.join(name)],
        false => std::env::split_paths(path).map(|own| folder.join(own).join(name)).collect(),
    };
    let may_run = |path: &PathBuf| path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    let files: Vec<PathBuf> = places.into_iter().filter(|path| path.is_file()).collect();
    match (files.iter().find(|path| may_run(path)), files.first()) {
        (Some(program), _) => Ok(program.clone()),
        (None, Some(file)) => Err(NotFound::NotExecutable(file.clone())),
        (None, None) => Err(NotFound::Missing),
    }
}

/// Finds a program with this process's folder and `PATH`.
///
/// # Errors
/// As [`find`].
pub fn find_here(name: &str) -> Result<PathBuf, NotFound> {
    find(name, Path::new(""), &std::env::var_os("PATH").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn the_first_that_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, mode: u32| {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            file
        };
        let (text, program) = (place("a/tool", 0o644), place("b/tool", 0o755));
        let find = |name: &str, path: &str| find(name, folder.path(), OsStr::new(path));
        assert_eq!(find("tool", "none:a:b"), Ok(program.clone()));
        assert_eq!(find("b/tool", ""), Ok(program), "a name with a slash is below the folder");
        assert_eq!(find("tool", "a"), Err(NotFound::NotExecutable(text)));
        assert_eq!(find("a", ""), Err(NotFound::Missing));
        assert_eq!(find("a", "."), Err(NotFound::Missing), "a folder is no program");
    }
}
