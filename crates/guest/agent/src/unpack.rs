// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks the shared files.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path};

use cpio::newc::Reader;

/// Unpacks the `newc` archive below `root`: folders, files and symbolic links. Files are copied from `input` in pieces,
/// because the guest's memory holds both.
pub fn unpack(mut input: impl Read, root: &Path) -> io::Result<()> {
    loop {
        let mut reader = Reader::new(input)?;
        let entry = reader.entry();
        if entry.is_trailer() {
            return Ok(());
        }
        let name = Path::new(entry.name()).to_path_buf();
        if !name.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(io::Error::other(format!("{}: not a name below the root", name.display())));
        }
        let (mode, path) = (entry.mode(), root.join(&name));
        let fail = |error: io::Error| io::Error::new(error.kind(), format!("/{}: {error}", name.display()));
        match mode & libc::S_IFMT {
            libc::S_IFDIR => {
                fs::create_dir_all(&path).map_err(fail)?;
                fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777)).map_err(fail)?;
            }
            libc::S_IFLNK => {
                let mut target = String::new();
                reader.read_to_string(&mut target)?;
                fs::remove_file(&path).ok();
                symlink(target, &path).map_err(fail)?;
            }
            _ => {
                fs::remove_file(&path).ok();
                let mut file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .mode(mode & 0o7777)
                    .open(&path)
                    .map_err(fail)?;
                io::copy(&mut reader, &mut file).map_err(fail)?;
            }
        }
        input = reader.finish()?;
    }
}
