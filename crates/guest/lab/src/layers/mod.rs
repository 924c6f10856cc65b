// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root file system as a tar archive or a container image → an initramfs.
//!
//! A container image (OCI, or as `docker save` writes it) is a tar archive of tar archives, its layers ([`image`]). What is
//! visible of all layers is found out first ([`plan`]), and then written. Owners, modes, links and devices are kept.

mod image;
mod plan;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use kprism_agent::CONTAINER_MARK;
use tar::EntryType;

use crate::archive::{Archive, Node};
use crate::error::{Context, Error, Result};
use crate::packed::{MAGIC, is_packed, unpacked};
use plan::{Kind, Plan};

pub(crate) use image::blob_name;

/// A part of a file that is a tar archive, maybe compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layer {
    at: u64,
    bytes: u64,
}

/// True if a file may be a tar archive, by its first bytes.
pub(crate) fn is_archive(path: &Path) -> Result<bool> {
    let mut start = [0; 512];
    let mut file = File::open(path).at("open", path)?;
    let mut filled = 0;
    while filled < start.len() {
        match file.read(&mut start[filled..]).at("read", path)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(start[257..262] == *b"ustar" || is_packed(&start))
}

/// Writes the initramfs of the archive or container image at `path`.
///
/// # Errors
/// It is damaged, or an image for another processor.
pub(crate) fn write<W: Write>(path: &Path, archive: &mut Archive<W>) -> Result<()> {
    let (layers, is_container) = image::layers(path)?;
    let plan = plan(path, &layers)?;
    if plan.is_empty() {
        return Err(bad(path, "no file in it"));
    }
    if !is_container && plan.is_container_image() {
        return Err(bad(
            path,
            "a container image, packed as a whole: unpack it first (`gunzip`, `unxz`, `unzstd`)",
        ));
    }
    let mut folders = HashSet::new();
    let mut shared = 0;
    for (number, layer) in layers.iter().enumerate() {
        visit(path, *layer, |i, entry| {
            let names = plan.names_of((number, i));
            if names.is_empty() {
                Ok(())
            } else {
                write_entry(path, names, entry, (&mut folders, &mut shared), archive)
            }
        })?;
    }
    if is_container {
        let mark = CONTAINER_MARK.trim_start_matches('/');
        archive.parents(mark).and_then(|()| archive.file(mark, 0o644, &[])).at("write", path)?;
    }
    Ok(())
}

fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::BadFile { path: path.to_owned(), reason: reason.into() }
}

fn part_of(path: &Path, layer: Layer) -> Result<io::Take<File>> {
    let mut file = File::open(path).at("open", path)?;
    file.seek(SeekFrom::Start(layer.at)).at("read", path)?;
    Ok(file.take(layer.bytes))
}

/// The layer, unpacked.
fn open(path: &Path, layer: Layer) -> Result<tar::Archive<Box<dyn Read>>> {
    let mut start = [0; MAGIC];
    let count = part_of(path, layer)?.read(&mut start).at("read", path)?;
    let part = BufReader::with_capacity(1 << 20, part_of(path, layer)?);
    unpacked(&start[..count], part).map(tar::Archive::new).map_err(|reason| bad(path, reason))
}

/// Calls `each` with the number and content of every entry.
fn visit(
    path: &Path,
    layer: Layer,
    mut each: impl FnMut(usize, &mut tar::Entry<'_, Box<dyn Read>>) -> Result<()>,
) -> Result<()> {
    let mut archive = open(path, layer)?;
    for (i, entry) in archive.entries().at("read", path)?.enumerate() {
        if kprism_signals::end_requested() {
            return Err(Error::Interrupted);
        }
        each(i, &mut entry.map_err(|error| bad(path, format!("not a good tar archive: {error}")))?)?;
    }
    Ok(())
}

/// The visible files of all layers.
fn plan(path: &Path, layers: &[Layer]) -> Result<Plan> {
    let mut plan = Plan::default();
    for (number, layer) in layers.iter().enumerate() {
        visit(path, *layer, |i, entry| {
            let link = entry.link_name_bytes().unwrap_or_default().into_owned();
            let kind = match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
                EntryType::Directory => Kind::Folder,
                EntryType::Symlink => Kind::Symlink(&link),
                EntryType::Link => Kind::Hardlink(&link),
                EntryType::Char | EntryType::Block | EntryType::Fifo => Kind::File,
                // Headers that are no files: of pax, of volumes.
                _ => return Ok(()),
            };
            plan.add((number, i), &entry.path_bytes(), kind).map_err(|reason| bad(path, reason))
        })?;
    }
    Ok(plan)
}

/// Writes a file under all of its names.
fn write_entry<W: Write>(
    path: &Path,
    names: &[String],
    entry: &mut tar::Entry<'_, Box<dyn Read>>,
    (folders, shared): (&mut HashSet<String>, &mut u32),
    archive: &mut Archive<W>,
) -> Result<()> {
    let header = entry.header();
    let number = |found: io::Result<u64>| found.map(|number| number as u32).at("read", path);
    let mut node = Node {
        mode: header.mode().at("read", path)? & 0o7777,
        uid: number(header.uid())?,
        gid: number(header.gid())?,
        ..Node::default()
    };
    let device = |header: &tar::Header| -> Result<(u32, u32)> {
        let major = header.device_major().at("read", path)?.unwrap_or_default();
        Ok((major, header.device_minor().at("read", path)?.unwrap_or_default()))
    };
    let name = names.first().map_or("", String::as_str);
    let mut contents = Vec::new();
    let kind = match header.entry_type() {
        EntryType::Directory => libc::S_IFDIR,
        EntryType::Symlink => {
            contents = entry.link_name_bytes().unwrap_or_default().into_owned();
            node.mode = 0o777;
            libc::S_IFLNK
        }
        EntryType::Char => {
            node.device = device(header)?;
            libc::S_IFCHR
        }
        EntryType::Block => {
            node.device = device(header)?;
            libc::S_IFBLK
        }
        EntryType::Fifo => libc::S_IFIFO,
        _ => {
            let size = entry.size();
            if size > u64::from(u32::MAX) {
                let reason = format!("{name} is larger than 4 GiB, which no initramfs can hold");
                return Err(bad(path, reason));
            }
            entry.read_to_end(&mut contents).at("read", path)?;
            if contents.len() as u64 != size {
                return Err(bad(path, format!("not a good tar archive: it ends within {name}")));
            }
            libc::S_IFREG
        }
    };
    node.mode |= kind;
    if names.len() > 1 && kind == libc::S_IFREG {
        *shared += 1;
        node.shared = Some(*shared);
    }
    for (i, name) in names.iter().enumerate() {
        // The kernel makes no folder that the archive does not name.
        for folder in plan::parents(name) {
            if folders.insert(folder.to_owned()) {
                archive.folder(folder, 0o755).at("write", path)?;
            }
        }
        if kind == libc::S_IFDIR {
            folders.insert(name.clone());
        }
        let contents = if i > 0 && node.shared.is_some() { &[][..] } else { &contents };
        archive.node(name, node, contents).at("write", path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
