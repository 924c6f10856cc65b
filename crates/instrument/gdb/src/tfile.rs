// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a trace file on GDB's `tsave -r` (GDB manual, "Trace File Format").

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use kprism_rsp::buffer::Buffer;
use kprism_rsp::define::Definitions;
use kprism_rsp::hex;

pub use crate::program::TIMESTAMP;
use crate::registers::{ALL, SEEN, target_xml};

/// The contents of a trace file.
#[derive(Debug)]
pub struct Description<'a> {
    /// Tracepoints and variables.
    pub definitions: &'a Definitions,
    /// Trace frames.
    pub buffer: &'a Buffer,
}

impl Description<'_> {
    /// The whole file. `status` is the reply to `qTStatus`.
    pub fn bytes(&self, status: &str) -> Vec<u8> {
        let mut out = b"\x7fTRACE0\n".to_vec();
        let mut line = |text: String| out.extend((text + "\n").into_bytes());
        line(format!("R {ALL:x}"));
        let status = status.split_once(';').map_or("", |(_, rest)| rest);
        line(format!("status 0;{status}"));
        line(format!("tsv {TIMESTAMP:x}:0:1:{}", hex::bytes(b"trace_timestamp")));
        for (number, variable) in &self.definitions.variables {
            line(format!("tsv {number:x}:{:x}:0:{}", variable.initial, hex::bytes(variable.name.as_bytes())));
        }
        for point in self.definitions.points.values() {
            for piece in point.pieces() {
                line(format!("tp {piece}"));
            }
        }
        for text in target_xml().lines() {
            line(format!("tdesc {text}"));
        }
        line(String::new());
        out.extend(self.buffer.raw(0, usize::MAX, ALL - SEEN));
        // A frame of tracepoint 0 ends the file.
        out.extend([0, 0]);
        out
    }
}

/// Writes a trace file that only the own user can read: it holds memory. Replaces an existing file of that user.
/// Refuses to follow a symbolic link, or to write to anything but a plain file.
pub fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: it takes nothing and gives a number.
    let own = unsafe { libc::geteuid() };
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => return Err(io::Error::other("it is there, and no plain file")),
        Ok(there) if there.uid() != own => {
            let why =
                format!("it is there, and user {}'s: kprism, as user {own}, leaves it alone", there.uid());
            return Err(io::Error::other(why));
        }
        Ok(_) => {}
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(why),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|why| why.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn only_ones_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let [own, link, to] = ["own", "link", "to"].map(|name| dir.path().join(name));
        save(&own, b"1").unwrap();
        save(&own, b"22").unwrap();
        assert_eq!(fs::read(&own).unwrap(), b"22");
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&to, "kept").unwrap();
        symlink(&to, &link).unwrap();
        assert!(save(&link, b"x").unwrap_err().to_string().contains("no plain file"));
        assert!(save(dir.path(), b"x").unwrap_err().to_string().contains("no plain file"));
        assert_eq!(fs::read(&to).unwrap(), b"kept");
        // Only root can give a file away.
        if std::os::unix::fs::chown(&to, Some(65534), None).is_ok() {
            assert!(save(&to, b"x").unwrap_err().to_string().contains("user 65534's"));
            assert_eq!(fs::read(&to).unwrap(), b"kept");
        }
        // No other file is left in the folder.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
