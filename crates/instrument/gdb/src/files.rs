// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-only files for GDB: the program, its libraries, their debug information.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use kprism_rsp::command::File as Request;

/// Maximum of files that GDB may have open.
const MOST: usize = 64;
/// Bytes per reply. Escapes may double them.
const PIECE: u64 = kprism_rsp::wire::LONGEST as u64 / 2 - 64;

/// The files that GDB has open.
#[derive(Debug, Default)]
pub struct Files {
    open: BTreeMap<u32, File>,
}

impl Files {
    /// Answers a request. `root` is the process's root folder.
    pub fn answer(&mut self, request: &Request, root: &Path) -> Vec<u8> {
        match self.tried(request, root) {
            Ok(reply) => reply,
            Err(Some(error)) => {
                // GDB's own error numbers (fileio.h). For these errors they equal those of Linux.
                let known = [libc::EPERM, libc::ENOENT, libc::EBADF, libc::EACCES, libc::EISDIR];
                let number = error.raw_os_error().filter(|n| known.contains(n)).unwrap_or(9999);
                format!("F-1,{number:x}").into_bytes()
            }
            Err(None) => Vec::new(),
        }
    }

    fn tried(&mut self, request: &Request, root: &Path) -> Result<Vec<u8>, Option<io::Error>> {
        let failed = |number| Some(io::Error::from_raw_os_error(number));
        let file = |number: &u32| self.open.get(number).ok_or(failed(libc::EBADF));
        Ok(match request {
            Request::SetFs(_) => b"F0".to_vec(),
            Request::Open(path, flags) => {
                // The two low bits of the flags are the access mode; 0 is reading.
                if flags & 3 != 0 || self.open.len() >= MOST {
                    return Err(failed(libc::EACCES));
                }
                let file = File::open(within(root, path))?;
                if !file.metadata()?.is_file() {
                    return Err(failed(libc::EACCES));
                }
                let number = (3..).find(|n| !self.open.contains_key(n)).unwrap_or(3);
                self.open.insert(number, file);
                format!("F{number:x}").into_bytes()
            }
            Request::Read(number, count, offset) => {
                let mut bytes = vec![0; (*count).min(PIECE) as usize];
                let read = file(number)?.read_at(&mut bytes, *offset)?;
                [format!("F{read:x};").as_bytes(), &bytes[..read]].concat()
            }
            Request::Stat(number) => {
                let about = file(number)?.metadata()?;
                // The protocol's `struct stat`, in big-endian order.
                let mut bytes = Vec::new();
                for field in [about.dev() as u32, about.ino() as u32, about.mode(), about.nlink() as u32] {
                    bytes.extend(field.to_be_bytes());
                }
                for field in [about.uid(), about.gid(), 0] {
                    bytes.extend(field.to_be_bytes());
                }
                for field in [about.size(), about.blksize(), about.blocks()] {
                    bytes.extend(field.to_be_bytes());
                }
                for field in [about.atime(), about.mtime(), about.ctime()] {
                    bytes.extend((field as u32).to_be_bytes());
                }
                [format!("F{:x};", bytes.len()).as_bytes(), &bytes].concat()
            }
            Request::Close(number) => {
                self.open.remove(number).ok_or(failed(libc::EBADF))?;
                b"F0".to_vec()
            }
            Request::Link(path) => {
                let to = std::fs::read_link(within(root, path))?;
                let to = to.as_os_str().as_bytes();
                [format!("F{:x};", to.len()).as_bytes(), to].concat()
            }
            Request::Other => return Err(None),
        })
    }
}

fn within(root: &Path, path: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    root.join(path.strip_prefix("/").unwrap_or(path))
}
