// SPDX-License-Identifier: MIT OR Apache-2.0
//! A disk that is to hold a root file system, looked at before a guest is booted with it.
//!
//! Input: a raw image. Output: nothing, or an error with the content of each partition, if none can be a root. The guest's agent
//! looks at the same bytes again, and mounts.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kprism_agent::content::{self, Content};

use crate::error::{Context, Error, Result};

/// Size of a sector of an NVDIMM.
const SECTOR: u64 = 512;

/// Most entries of a partition table that are read.
const MOST: u64 = 256;

/// Types of an MBR's entries: a GPT is what counts, and extended partitions, which hold a chain of others.
const PROTECTIVE: u8 = 0xee;
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// A partition: its number, as the kernel counts, and its first byte.
type Partition = (u32, u64);

/// Refuses the image at `raw`, the user's file `path`, if no partition of it can be a root.
///
/// # Errors
/// Names the content of each.
pub(crate) fn require_root(raw: &Path, path: &Path) -> Result<()> {
    let file = File::open(raw).at("open", raw)?;
    let read = |at: u64, into: &mut [u8]| file.read_exact_at(into, at).is_ok();
    let partitions = partitions(&read);
    let at = |start: u64| content::of(|at, into| start.checked_add(at).is_some_and(|at| read(at, into)));
    let found: Vec<(String, Content)> = match &partitions[..] {
        [] => vec![("disk0".to_owned(), at(0))],
        all => all.iter().map(|&(number, start)| (format!("disk0p{number}"), at(start))).collect(),
    };
    if found.iter().any(|(_, content)| matches!(content, Content::FileSystem(_))) {
        return Ok(());
    }
    let text = |content: &Content| match content {
        Content::Unknown if has_no_data(&file) => "nothing but zeros",
        other => other.text(),
    };
    let lines: Vec<String> =
        found.iter().map(|(name, content)| format!("  {name}: {}", text(content))).collect();
    Err(Error::BadFile {
        path: path.to_owned(),
        reason: format!(
            "no root file system on the disk:\n{}\na root is on ext4, xfs or btrfs; as another disk of the guest the image \
             can be given with --disk",
            lines.join("\n")
        ),
    })
}

/// True for an image that was copied without its zeros, and has nothing else.
fn has_no_data(file: &File) -> bool {
    // SAFETY: seeks in a file that is ours, and is read by position.
    unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) < 0 }
}

/// The partitions, as the kernel's `block/partitions/{efi,msdos}.c` find them.
fn partitions(read: &impl Fn(u64, &mut [u8]) -> bool) -> Vec<Partition> {
    let mut sector = [0; SECTOR as usize];
    if !read(0, &mut sector) || sector[510..] != [0x55, 0xaa] {
        return Vec::new();
    }
    let entries = entries(&sector);
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        let found = gpt(read);
        if !found.is_empty() {
            return found;
        }
    }
    // Code of a boot sector looks like no partition table: its entries have other marks.
    if (0..4).any(|i| sector[446 + i * 16] & 0x7f != 0) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, entry) in (1..).zip(&entries).filter(|(_, entry)| entry.sectors > 0 && entry.kind != 0) {
        match EXTENDED.contains(&entry.kind) {
            true => logical(read, u64::from(entry.first), &mut found),
            false => found.push((number, u64::from(entry.first) * SECTOR)),
        }
    }
    found.sort_unstable();
    found
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    kind: u8,
    first: u32,
    sectors: u32,
}

/// The four entries of an MBR.
fn entries(sector: &[u8; SECTOR as usize]) -> [Entry; 4] {
    [0, 1, 2, 3].map(|i| {
        let bytes = &sector[446 + i * 16..462 + i * 16];
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Entry { kind: bytes[4], first: number(8), sectors: number(12) }
    })
}

/// Adds the partitions within an extended one: a chain of tables of one partition each, which get the numbers from 5 on.
fn logical(read: &impl Fn(u64, &mut [u8]) -> bool, extended: u64, found: &mut Vec<Partition>) {
    let (mut at, mut number) = (extended, 5);
    for _ in 0..MOST {
        let mut sector = [0; SECTOR as usize];
        if !read(at * SECTOR, &mut sector) || sector[510..] != [0x55, 0xaa] {
            return;
        }
        let [own, next, ..] = entries(&sector);
        if own.sectors > 0 && own.kind != 0 {
            found.push((number, (at + u64::from(own.first)) * SECTOR));
            number += 1;
        }
        if next.sectors == 0 || !EXTENDED.contains(&next.kind) {
            return;
        }
        at = extended + u64::from(next.first);
    }
}

/// The partitions of a GPT (UEFI specification, 5.3).
fn gpt(read: &impl Fn(u64, &mut [u8]) -> bool) -> Vec<Partition> {
    let mut header = [0; 92];
    if !read(SECTOR, &mut header) || !header.starts_with(b"EFI PART") {
        return Vec::new();
    }
    let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let number = |at: usize| long(&[&header[at..at + 4], &[0; 4]].concat());
    let (table, count, size) = (long(&header[72..80]), number(80).min(MOST), number(84));
    let mut found = Vec::new();
    for i in 0..count {
        let mut entry = [0; 40];
        let at = table.checked_mul(SECTOR).and_then(|at| at.checked_add(i * size));
        let Some(at) = at.filter(|_| size >= 128) else { break };
        if !read(at, &mut entry) {
            break;
        }
        if entry[..16] != [0; 16] {
            found.push((i as u32 + 1, long(&entry[32..40]).saturating_mul(SECTOR)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(disk: &[u8]) -> Vec<Partition> {
        partitions(&|at: u64, into: &mut [u8]| {
            let start = usize::try_from(at).unwrap_or(usize::MAX);
            let bytes = disk.get(start..start.saturating_add(into.len()));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        })
    }

    fn entry(sector: &mut [u8], i: usize, kind: u8, first: u32, sectors: u32) {
        sector[510..512].copy_from_slice(&[0x55, 0xaa]);
        let entry = &mut sector[446 + i * 16..462 + i * 16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    }

    #[test]
    fn tables_of_all_kinds() {
        let mut disk = vec![0; 64 << 10];
        assert_eq!(found(&disk), []);
        entry(&mut disk, 0, 0x83, 8, 8);
        entry(&mut disk, 1, 0x05, 32, 32);
        entry(&mut disk[32 * 512..], 0, 0x83, 2, 4);
        entry(&mut disk[32 * 512..], 1, 0x05, 16, 16);
        entry(&mut disk[48 * 512..], 0, 0x83, 3, 4);
        assert_eq!(found(&disk), [(1, 8 * 512), (5, 34 * 512), (6, 51 * 512)]);
        // Code of a boot loader, without a table.
        let mut code = vec![0x90; 512];
        code[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(found(&code), []);
        // A chain that leads back to itself ends.
        entry(&mut disk[48 * 512..], 1, 0x05, 16, 16);
        assert!(found(&disk).len() < 2 * MOST as usize);

        let mut disk = vec![0; 64 << 10];
        entry(&mut disk, 0, 0xee, 1, 100);
        disk[512..520].copy_from_slice(b"EFI PART");
        disk[512 + 72] = 2;
        (disk[512 + 80], disk[512 + 84]) = (4, 128);
        disk[1024 + 128] = 1;
        disk[1024 + 128 + 32] = 40;
        assert_eq!(found(&disk), [(2, 40 * 512)]);
        for at in 0..2048 {
            let mut damaged = disk.clone();
            damaged[at] ^= 0xff;
            found(&damaged);
        }
    }

    #[test]
    fn a_disk_without_a_root_is_refused_with_what_is_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, user) = (folder.path().join("raw"), Path::new("/users.img"));
        let said = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            require_root(&path, user).map_err(|error| error.to_string())
        };
        let mut disk = vec![0; 64 << 10];
        entry(&mut disk, 0, 7, 8, 64);
        disk[8 * 512 + 3..8 * 512 + 11].copy_from_slice(b"NTFS    ");
        let text = said(&disk).unwrap_err();
        assert!(text.starts_with("/users.img: no root") && text.contains("  disk0p1: NTFS"), "{text}");
        entry(&mut disk, 1, 0x83, 80, 40);
        disk[80 * 512 + 0x438..80 * 512 + 0x43a].copy_from_slice(&[0x53, 0xef]);
        said(&disk).unwrap();
    }
}
