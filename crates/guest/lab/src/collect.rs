// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects a command's folder from the guest: reads it from the guest's memory piece by piece, and unpacks it on the
//! host.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use cpio::newc::Reader;
use kprism_agent::Region;
use serde_json::json;

use crate::error::{Context, Error, Result};
use crate::qemu::Running;
use crate::snapshot::{read_region, wait_stopped};

const KIND: u32 = 0o170000;
const FOLDER: u32 = 0o040000;
const FILE: u32 = 0o100000;

/// The archive, as far as it has arrived.
pub(crate) struct Collected {
    scratch: PathBuf,
    archive: Option<BufWriter<File>>,
    next: Option<Region>,
}

impl Collected {
    /// Keeps the archive in the folder `scratch`.
    pub fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.to_owned(), archive: None, next: None }
    }

    fn path(&self) -> PathBuf {
        self.scratch.join("collected")
    }

    /// Announces the next piece. The guest stops itself, or has done so.
    pub fn comes(&mut self, region: Region) {
        self.next = Some(region);
    }

    /// Reads the announced piece, if there is one, and resumes the guest.
    pub fn read(&mut self, qemu: &mut Running) -> Result<()> {
        let Some(region) = self.next.take() else { return Ok(()) };
        wait_stopped(qemu)?;
        let path = self.path();
        if self.archive.is_none() {
            self.archive = Some(BufWriter::new(File::create(&path).at("create", &path)?));
        }
        if let Some(archive) = &mut self.archive {
            read_region(qemu, &region, &self.scratch, archive)?;
        }
        qemu.qmp.call("cont", json!({})).map(|_| ())
    }

    /// Unpacks the archive below `folder`. If the guest's end truncated it, its complete files are there in spite of
    /// the error.
    pub fn unpack(&mut self, folder: &Path) -> Result<()> {
        let Some(mut archive) = self.archive.take() else { return Ok(()) };
        let path = self.path();
        archive.flush().at("write", &path)?;
        drop(archive);
        let input = BufReader::new(File::open(&path).at("open", &path)?);
        unpack(input, folder)
    }
}

/// Unpacks folders and files. The names come from the guest and must lie below `folder`.
fn unpack(mut input: impl io::Read, folder: &Path) -> Result<()> {
    loop {
        let mut reader = Reader::new(input).at("unpack what the guest gave into", folder)?;
        let entry = reader.entry();
        if entry.is_trailer() {
            return Ok(());
        }
        let name = PathBuf::from(entry.name());
        let path = folder.join(&name);
        if !name.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Error::BadFile {
                path: name,
                reason: "the guest gave a file a name outside of its folder".into(),
            });
        }
        match entry.mode() & KIND {
            FOLDER => fs::create_dir_all(&path).at("create", &path)?,
            FILE => {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).at("create", parent)?;
                }
                let size = u64::from(entry.file_size());
                let mut file = File::create(&path).at("create", &path)?;
                let copied = io::copy(&mut reader, &mut file);
                if !matches!(copied, Ok(bytes) if bytes == size) {
                    // A part of a file would be taken for all of it.
                    fs::remove_file(&path).ok();
                    copied.at("write", &path)?;
                    return Err(Error::BadFile {
                        path,
                        reason: "the guest ended while it sent this file".into(),
                    });
                }
            }
            _ => {}
        }
        input = reader.finish().at("unpack", &path)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("kprism-collect-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn files_are_unpacked_and_names_stay_below() {
        let folder = scratch("names");
        let mut archive = Archive::new(Vec::new());
        archive.folder("a", 0o755).unwrap();
        archive.file("a/b", 0o644, b"contents").unwrap();
        let bytes = archive.finish().unwrap();
        unpack(&bytes[..], &folder).unwrap();
        assert_eq!(fs::read(folder.join("a/b")).unwrap(), b"contents");
        for name in ["../evil", "/tmp/evil", "a/../../evil"] {
            let mut archive = Archive::new(Vec::new());
            archive.file(name, 0o644, b"").unwrap();
            let bytes = archive.finish().unwrap();
            assert!(unpack(&bytes[..], &folder).is_err(), "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_archive_cut_short_is_an_error_and_no_panic() {
        let folder = scratch("cut");
        let mut archive = Archive::new(Vec::new());
        archive.file("f", 0o644, &[7; 1000]).unwrap();
        let bytes = archive.finish().unwrap();
        for end in 0..bytes.len() {
            unpack(&bytes[..end], &folder).ok();
        }
        assert!(unpack(&bytes[..50], &folder).is_err());
        assert!(unpack(&bytes[..600], &folder).unwrap_err().to_string().contains("while it sent"));
        assert!(!folder.join("f").exists(), "a part of a file is not left");
        fs::remove_dir_all(folder).unwrap();
    }
}
