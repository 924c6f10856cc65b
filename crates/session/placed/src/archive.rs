// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run folder as frames, and frames as files in a folder.
//!
//! The sender is trusted no more than any recording from elsewhere: a path stays in the folder, a file is new, nothing but
//! files and folders is made, and their number and size are limited.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::frame::{CHUNK, Frame};

/// Files and folders of a run, at most.
pub const ENTRIES: u64 = 1_000_000;
/// Bytes of all files of a run, at most.
pub const BYTES: u64 = 1 << 40;
/// Bytes of a path, at most.
pub const PATH: usize = 4096;
/// The file that comes first, so that a run that is cut off can be read.
const FIRST: &str = "manifest.json";

/// Sends all that is in `folder`.
///
/// # Errors
/// A file cannot be read or changes its size, an entry is neither file nor folder, or `send` fails.
pub fn pack(folder: &Path, send: &mut dyn FnMut(Frame) -> io::Result<()>) -> Result<()> {
    if folder.join(FIRST).exists() {
        pack_file(folder, Path::new(FIRST), send)?;
    }
    pack_folder(folder, Path::new(""), send)?;
    Ok(send(Frame::End)?)
}

fn pack_folder(folder: &Path, below: &Path, send: &mut dyn FnMut(Frame) -> io::Result<()>) -> Result<()> {
    let here = folder.join(below);
    let mut names: Vec<_> = fs::read_dir(&here)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect())
        .with_context(|| here.display().to_string())?;
    names.sort();
    for name in names {
        let path = below.join(name);
        let full = folder.join(&path);
        let kind = full.symlink_metadata().with_context(|| full.display().to_string())?.file_type();
        if kind.is_dir() {
            send(Frame::Folder(path.as_os_str().as_bytes().to_vec()))?;
            pack_folder(folder, &path, send)?;
        } else if kind.is_file() {
            if path != Path::new(FIRST) {
                pack_file(folder, &path, send)?;
            }
        } else {
            bail!("{}: is neither a file nor a folder, as all of a run is", path.display());
        }
    }
    Ok(())
}

fn pack_file(folder: &Path, path: &Path, send: &mut dyn FnMut(Frame) -> io::Result<()>) -> Result<()> {
    let full = folder.join(path);
    let named = || full.display().to_string();
    let mut file = File::open(&full).with_context(named)?;
    let size = file.metadata().with_context(named)?.len();
    send(Frame::File { size, path: path.as_os_str().as_bytes().to_vec() })?;
    let mut sent = 0;
    let mut buffer = vec![0; CHUNK];
    while sent < size {
        let room = usize::try_from(size - sent).unwrap_or(CHUNK).min(CHUNK);
        let read = file.read(&mut buffer[..room]).with_context(named)?;
        ensure!(read > 0, "{}: ends after {sent} of {size} bytes", full.display());
        send(Frame::Data(buffer[..read].to_vec()))?;
        sent += read as u64;
    }
    Ok(())
}

/// Writes frames of an archive into a folder of its own.
#[derive(Debug)]
pub struct Unpack {
    folder: PathBuf,
    /// The file that is being written, and the bytes that it lacks.
    open: Option<(File, PathBuf, u64)>,
    /// Files and folders so far.
    pub entries: u64,
    /// Bytes of files so far.
    pub bytes: u64,
}

impl Unpack {
    /// Makes the folder, which must be new, for its owner alone.
    ///
    /// # Errors
    /// It exists, or cannot be made.
    pub fn into(folder: &Path) -> Result<Self> {
        DirBuilder::new().mode(0o700).create(folder).with_context(|| folder.display().to_string())?;
        Ok(Unpack { folder: folder.to_owned(), open: None, entries: 0, bytes: 0 })
    }

    /// Takes the next frame; true at the end of the archive.
    ///
    /// # Errors
    /// The frame is not one of an archive or not at its place, a path leads out of the folder or exists, a limit is passed, or
    /// a file cannot be written.
    pub fn take(&mut self, frame: &Frame) -> Result<bool> {
        match (frame, &mut self.open) {
            (Frame::Data(bytes), Some((file, path, lacks))) => {
                let len = bytes.len() as u64;
                ensure!(len <= *lacks, "{}: more bytes than it was said to have", path.display());
                file.write_all(bytes).with_context(|| self.folder.join(&*path).display().to_string())?;
                *lacks -= len;
                self.bytes += len;
                self.open.take_if(|(_, _, lacks)| *lacks == 0);
                Ok(false)
            }
            (_, Some((_, path, lacks))) => bail!("{}: ends {lacks} bytes too early", path.display()),
            (Frame::End, None) => Ok(true),
            (Frame::Folder(path), None) => {
                let path = self.new_entry(path)?;
                let full = self.folder.join(path);
                DirBuilder::new().mode(0o700).create(&full).with_context(|| full.display().to_string())?;
                Ok(false)
            }
            (Frame::File { size, path }, None) => {
                let path = self.new_entry(path)?;
                let total = self.bytes.checked_add(*size).filter(|&total| total <= BYTES);
                ensure!(total.is_some(), "{}: the run is larger than {BYTES} bytes", path.display());
                let full = self.folder.join(&path);
                let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&full);
                let file = made.with_context(|| full.display().to_string())?;
                self.open = (*size > 0).then_some((file, path, *size));
                Ok(false)
            }
            (other, None) => bail!("a part of a run was expected, not {}", name(other)),
        }
    }

    fn new_entry(&mut self, path: &[u8]) -> Result<PathBuf> {
        self.entries += 1;
        ensure!(self.entries <= ENTRIES, "the run has more than {ENTRIES} files and folders");
        inside(path)
    }
}

/// The path, if it leads to a place in the folder that it is relative to.
///
/// # Errors
/// It is empty, absolute, too long, or contains `..` or a zero byte.
pub fn inside(path: &[u8]) -> Result<PathBuf> {
    let shown = String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
    ensure!(path.len() <= PATH, "a path of {} bytes, more than {PATH}: {shown:?}…", path.len());
    let is_plain = |part: &[u8]| !part.is_empty() && part != b"." && part != b".." && !part.contains(&0);
    ensure!(path.split(|&byte| byte == b'/').all(is_plain), "a path that leads out of the run: {shown:?}");
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    ensure!(
        path.components().all(|part| matches!(part, Component::Normal(_))),
        "a path that leads out: {shown:?}"
    );
    Ok(path)
}

fn name(frame: &Frame) -> &'static str {
    match frame {
        Frame::Data(_) => "contents without a file",
        Frame::Output(_) | Frame::Error(_) => "output",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_run_comes_as_it_went() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("a/empty folder")).unwrap();
        let odd: &std::ffi::OsStr = std::ffi::OsStr::from_bytes(b"odd \n\xff'$x");
        let files: [(PathBuf, Vec<u8>); 5] = [
            ("a/large".into(), vec![7; CHUNK * 2 + 5]),
            ("a/empty".into(), vec![]),
            (Path::new("a").join(odd), b"x".to_vec()),
            ("a/exact".into(), vec![1; CHUNK]),
            ("manifest.json".into(), b"{}".to_vec()),
        ];
        files.iter().for_each(|(path, bytes)| fs::write(from.join(path), bytes).unwrap());
        let mut frames = Vec::new();
        let mut send = |frame| {
            frames.push(frame);
            Ok(())
        };
        pack(&from, &mut send).unwrap();
        assert!(matches!(&frames[0], Frame::File { path, .. } if path == b"manifest.json"));
        let mut unpack = Unpack::into(&to).unwrap();
        let ends: Vec<bool> = frames.iter().map(|frame| unpack.take(frame).unwrap()).collect();
        assert_eq!(ends.iter().filter(|end| **end).count(), 1);
        assert_eq!((unpack.entries, unpack.bytes), (7, (CHUNK * 3 + 8) as u64));
        assert!(to.join("a/empty folder").is_dir());
        for (path, bytes) in &files {
            assert_eq!(&fs::read(to.join(path)).unwrap(), bytes, "{}", path.display());
        }
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(to.join("a/large")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn links_are_not_sent() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let error = pack(folder.path(), &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("link: is neither a file nor a folder"), "{error}");
    }

    #[test]
    fn a_hostile_archive_is_refused() {
        let file = |path: &str, size| Frame::File { size, path: path.into() };
        let data = |text: &str| Frame::Data(text.into());
        let cases: [(&str, Vec<Frame>, &str); 10] = [
            ("absolute", vec![file("/etc/x", 1)], "leads out of the run"),
            ("up", vec![file("a/../../x", 1)], "leads out of the run"),
            ("up, a folder", vec![Frame::Folder("..".into())], "leads out of the run"),
            ("empty", vec![file("", 1)], "leads out of the run"),
            ("zero", vec![file("a\0b", 1)], "leads out of the run"),
            ("long", vec![file(&"a".repeat(5000), 1)], "a path of 5000 bytes"),
            ("twice", vec![file("a", 0), file("a", 0)], "File exists"),
            ("large", vec![file("a", BYTES + 1)], "larger than"),
            ("more", vec![file("a", 1), data("xy")], "more bytes than it was said to have"),
            ("less", vec![file("a", 2), data("x"), Frame::End], "ends 1 bytes too early"),
        ];
        for (what, frames, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let mut unpack = Unpack::into(&folder.path().join("to")).unwrap();
            let error = frames.iter().find_map(|frame| unpack.take(frame).err()).expect(what);
            assert!(format!("{error:#}").contains(expected), "{what}: {error:#}");
        }
        let folder = tempfile::tempdir().unwrap();
        let error = Unpack::into(folder.path()).unwrap_err();
        assert!(format!("{error:#}").contains("File exists"), "{error:#}");
    }
}
