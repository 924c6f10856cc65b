// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes `newc` cpio archives: the initramfs and the shared folders. The same files give the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cpio::newc::{Builder, trailer};

use crate::error::{Context, Error, Result};

const FOLDER: u32 = 0o040000;
const FILE: u32 = 0o100000;
const LINK: u32 = 0o120000;
const CHARACTER_DEVICE: u32 = 0o020000;
/// First number of files with several names.
const SHARED: u32 = 1 << 31;

/// A file of any kind, as an archive of another form has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Node {
    /// Type and permissions, as stat(2) gives them.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// The number that all names of one file share, if it has several. Only the first of them comes with the contents.
    pub shared: Option<u32>,
}

/// Writes an archive. Everything in it belongs to root and has no date, but for [`Archive::node`].
pub(crate) struct Archive<W: Write> {
    output: W,
    inode: u32,
    machines: BTreeMap<u16, u64>,
}

/// Files are only read: their modes are not changed so that they can be.
fn unreadable(error: io::Error, path: &Path) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::BadFile {
            path: path.to_owned(),
            reason: "you may not read it, so the guest cannot have it: make it readable, leave it out, or run kprism as \
                     its owner or root"
                .into(),
        },
        _ => Error::Io { what: "read", path: path.to_owned(), source: error },
    }
}

impl<W: Write> Archive<W> {
    pub fn new(output: W) -> Self {
        Self { output, inode: 0, machines: BTreeMap::new() }
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) -> io::Result<()> {
        self.entry(name, FILE | permissions, contents, (0, 0))
    }

    /// Adds a folder.
    pub fn folder(&mut self, name: &str, permissions: u32) -> io::Result<()> {
        self.entry(name, FOLDER | permissions, &[], (0, 0))
    }

    /// Adds the parent folders of `name`, without `name` itself.
    pub fn parents(&mut self, name: &str) -> io::Result<()> {
        for (at, _) in name.match_indices('/').filter(|&(at, _)| at > 0) {
            self.folder(&name[..at], 0o755)?;
        }
        Ok(())
    }

    /// Adds a character device. Creating one in a file system would need root.
    pub fn device(&mut self, name: &str, permissions: u32, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, CHARACTER_DEVICE | permissions, &[], (major, minor))
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8], device: (u32, u32)) -> io::Result<()> {
        self.node(name, Node { mode, device, ..Node::default() }, contents)
    }

    /// Adds a file of any kind.
    pub fn node(&mut self, name: &str, node: Node, contents: &[u8]) -> io::Result<()> {
        if kprism_signals::end_requested() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        self.inode += 1;
        if let Some(machine) = kprism_agent::content::machine(contents) {
            *self.machines.entry(machine).or_default() += 1;
        }
        let size = u32::try_from(contents.len())
            .map_err(|_| io::Error::other(format!("{name} is larger than 4 GiB, which no cpio can hold")))?;
        // The kernel joins files of one number if they have more than one link. Those numbers lie above all others.
        let inode = node.shared.map_or(self.inode, |number| SHARED + number);
        let links = if node.mode & FOLDER != 0 || node.shared.is_some() { 2 } else { 1 };
        let builder = Builder::new(name).ino(inode).mode(node.mode).nlink(links).uid(node.uid).gid(node.gid);
        let (major, minor) = node.device;
        let mut writer = builder.rdev_major(major).rdev_minor(minor).write(&mut self.output, size);
        writer.write_all(contents)?;
        writer.finish()?;
        Ok(())
    }

    /// Adds the file or folder at `path`, with all below it, under the name `name` (empty: only the contents). Sockets,
    /// pipes and devices are left out.
    pub fn tree(&mut self, path: &Path, name: &str) -> Result<()> {
        let found = fs::symlink_metadata(path).at("read", path)?;
        let permissions = found.mode() & 0o7777;
        if found.is_dir() {
            if !name.is_empty() {
                self.folder(name, permissions).at("archive", path)?;
            }
            let mut names = Vec::new();
            for entry in fs::read_dir(path).map_err(|error| unreadable(error, path))? {
                names.push(entry.at("read", path)?.file_name());
            }
            names.sort_unstable();
            for child in names {
                let text = child.to_str().ok_or_else(|| Error::BadFile {
                    path: path.join(&child),
                    reason: "a name that is not UTF-8 cannot be given to the guest".into(),
                })?;
                let below = if name.is_empty() { text.to_owned() } else { format!("{name}/{text}") };
                self.tree(&path.join(&child), &below)?;
            }
            Ok(())
        } else if found.is_symlink() {
            let target = fs::read_link(path).at("read", path)?;
            self.entry(name, LINK | 0o777, target.as_os_str().as_bytes(), (0, 0)).at("archive", path)
        } else if found.is_file() {
            let contents = fs::read(path).map_err(|error| unreadable(error, path))?;
            self.file(name, permissions, &contents).at("archive", path)
        } else {
            Ok(())
        }
    }

    /// Executables and libraries so far, by the processor that they are for (`e_machine` of ELF).
    pub fn machines(&self) -> &BTreeMap<u16, u64> {
        &self.machines
    }

    /// Ends the archive.
    pub fn finish(self) -> io::Result<W> {
        trailer(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_what_is_archived_stay() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "x").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o200)).unwrap();
        let may_read = fs::read(&file).is_ok();
        let done = Archive::new(Vec::new()).tree(folder.path(), "");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o200);
        match done {
            Ok(()) => assert!(may_read, "root reads it"),
            Err(error) => assert!(!may_read && error.to_string().contains("make it readable"), "{error}"),
        }
    }

    #[test]
    fn a_tree_reads_back_the_same_every_time() {
        let folder = std::env::temp_dir().join(format!("kprism-archive-{}", std::process::id()));
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(folder.join("sub/file"), "content").unwrap();
        std::os::unix::fs::symlink("sub/file", folder.join("link")).ok();
        let make = || {
            let mut archive = Archive::new(Vec::new());
            archive.parents("a/b").unwrap();
            archive.tree(&folder, "a/b").unwrap();
            archive.device("a/null", 0o666, 1, 3).unwrap();
            archive.finish().unwrap()
        };
        let bytes = make();
        assert_eq!(bytes, make());
        let mut input = io::Cursor::new(bytes);
        let mut names = Vec::new();
        loop {
            let reader = cpio::newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push((reader.entry().name().to_owned(), reader.entry().mode() & 0o170000));
            input = reader.finish().unwrap();
        }
        let expected = [
            ("a", FOLDER),
            ("a/b", FOLDER),
            ("a/b/link", LINK),
            ("a/b/sub", FOLDER),
            ("a/b/sub/file", FILE),
            ("a/null", CHARACTER_DEVICE),
        ];
        assert_eq!(names, expected.map(|(name, mode)| (name.to_owned(), mode)));
        fs::remove_dir_all(folder).unwrap();
    }
}
