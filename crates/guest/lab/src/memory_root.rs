// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root file system of the user's that is no disk image: a folder, a tar archive or a container image. The guest holds it
//! in its memory, as an initramfs.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::archive::Archive;
use crate::cache::Cache;
use crate::disk;
use crate::error::{Context, Error, Result};
use crate::layers;
use crate::options::{Progress, Report};

/// An initramfs in the cache, without kprism's own files.
#[derive(Debug, Clone)]
pub(crate) struct MemoryRoot {
    /// The archive, not compressed.
    pub archive: PathBuf,
    /// Identifies its content.
    pub key: String,
}

impl MemoryRoot {
    /// The folder or archive as an initramfs; `None` if it is neither.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is too large for a guest of `mem_mib` MiB.
    pub fn find(path: &Path, mem_mib: u64, cache: &Cache, report: Report<'_>) -> Result<Option<Self>> {
        let is_folder = fs::metadata(path).at("read", path)?.is_dir();
        if !is_folder && !layers::is_archive(path)? {
            return Ok(None);
        }
        let files = if is_folder { all_below(path)? } else { vec![path.to_owned()] };
        let mut bytes = 0;
        for file in &files {
            bytes += fs::symlink_metadata(file).at("read", file)?.len();
        }
        let need_mib = 64 + (bytes >> 20);
        // Archives are packed to a third of their size or so.
        let need_mib = if is_folder { need_mib } else { need_mib * 3 };
        let (archive, key) =
            disk::keep("root", &disk::identity(&files, !is_folder)?, cache, need_mib, |made| {
                report(Progress::Step(&format!("reading the root file system {}", path.display())));
                let mut output = BufWriter::new(File::create(made).at("create", made)?);
                if is_folder {
                    let mut archive = Archive::new(&mut output);
                    archive.tree(path, "")?;
                    archive.finish().at("write", made)?;
                } else {
                    layers::write(path, &mut output)?;
                }
                output.flush().at("write", made)
            })?;
        has_room_for(&archive, mem_mib)?;
        Ok(Some(Self { archive, key }))
    }
}

/// The kernel unpacks the archive while it is in memory too.
fn has_room_for(archive: &Path, mem_mib: u64) -> Result<()> {
    let mib = fs::metadata(archive).at("read", archive)?.len() >> 20;
    let need_mib = mib * 2 + 256;
    if need_mib <= mem_mib {
        return Ok(());
    }
    Err(Error::Option(format!(
        "a root file system of {mib} MiB in memory is too large for a guest with {mem_mib} MiB: give it more with \
         --mem {}M, or make a disk image of it (`mke2fs -d`)",
        need_mib.next_multiple_of(512)
    )))
}

/// The folder and all files and folders in it, in the order of their names.
fn all_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = vec![folder.to_owned()];
    let mut at = 0;
    while let Some(path) = all.get(at).cloned() {
        at += 1;
        if !fs::symlink_metadata(&path).at("read", &path)?.is_dir() && at > 1 {
            continue;
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).at("read", &path)? {
            names.push(entry.at("read", &path)?.path());
        }
        names.sort_unstable();
        all.extend(names);
    }
    Ok(all)
}
