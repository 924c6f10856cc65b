// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root file system of the user's that is no disk image: a folder, a tar archive or a container image. The guest holds it
//! in its memory, as an initramfs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use kprism_agent::content::{I386, X86_64, machine_name};

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
        if is_folder && path.join("oci-layout").is_file() && path.join("index.json").is_file() {
            return Err(Error::BadFile {
                path: path.to_owned(),
                reason: format!(
                    "an OCI layout, no root file system: make an archive of it (`tar -C {} -cf image.tar .`)",
                    path.display()
                ),
            });
        }
        let files = if is_folder { all_below(path)? } else { vec![path.to_owned()] };
        let mut bytes = 0;
        for file in &files {
            bytes += fs::symlink_metadata(file).at("read", file)?.len();
        }
        let need_mib = 64 + (bytes >> 20);
        // Archives are packed to a third of their size or so.
        let need_mib = if is_folder { need_mib } else { need_mib * 3 };
        // The number is raised whenever other bytes are made of the same files.
        let name = format!("{}.2", disk::identity(&files, !is_folder)?);
        let (archive, key) = disk::keep("root", &name, cache, need_mib, |made| {
            report(Progress::Step(&format!("reading the root file system {}", path.display())));
            let mut output = BufWriter::new(File::create(made).at("create", made)?);
            let mut archive = Archive::new(&mut output);
            match is_folder {
                true => archive.tree(path, "")?,
                false => layers::write(path, &mut archive)?,
            }
            suits(path, archive.machines())?;
            archive.finish().and_then(|output| output.flush()).at("write", made)
        })?;
        has_room_for(&archive, path, is_folder, mem_mib)?;
        Ok(Some(Self { archive, key }))
    }
}

/// Refuses files for another processor, and files without any program.
fn suits(path: &Path, machines: &BTreeMap<u16, u64>) -> Result<()> {
    if machines.contains_key(&X86_64) || machines.contains_key(&I386) {
        return Ok(());
    }
    let reason = match machines.iter().max_by_key(|(_, count)| **count) {
        Some((&machine, _)) => format!(
            "a root file system for another processor: its programs are for {}, and the guest is an x86-64",
            machine_name(machine)
        ),
        None => "no program in it (no file in the form of ELF): a root file system is expected. A folder of other files is \
                 given with --share"
            .to_owned(),
    };
    Err(Error::BadFile { path: path.to_owned(), reason })
}

/// Largest archive, MiB: QEMU puts it below 2 GiB, with the kernel and kprism's own files (`hw/i386/x86-common.c`).
const MOST_MIB: u64 = 2000;

/// The archive is in memory while the kernel unpacks it, into a tmpfs, which takes half of the rest at most.
fn has_room_for(archive: &Path, path: &Path, is_folder: bool, mem_mib: u64) -> Result<()> {
    let mib = fs::metadata(archive).at("read", archive)?.len().div_ceil(1 << 20);
    let need_mib = mib * 3 + 256;
    if need_mib <= mem_mib && mib <= MOST_MIB {
        return Ok(());
    }
    let (from, unpack) = match is_folder {
        true => (path.display().to_string(), String::new()),
        false => ("root".to_owned(), format!("mkdir root && tar -C root -xf {} && ", path.display())),
    };
    let make = format!("`{unpack}mke2fs -q -t ext4 -d {from} root.raw {}M`", mib * 5 / 4 + 64);
    Err(Error::Option(match mib > MOST_MIB {
        true => format!(
            "a root file system of {mib} MiB is too large for memory, as QEMU puts it below 2 GiB: make a disk image of it \
             ({make}), and give that with --root"
        ),
        false => format!(
            "a root file system of {mib} MiB in memory is too large for a guest with {mem_mib} MiB: give it more with \
             --mem {}M, or make a disk image of it ({make})",
            need_mib.next_multiple_of(512)
        ),
    }))
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
        if kprism_signals::end_requested() {
            return Err(Error::Interrupted);
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
