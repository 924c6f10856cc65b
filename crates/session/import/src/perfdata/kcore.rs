// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads kernel code from files: `kcore` (an ELF core file, as `perf record --kcore` copies it) and `vmlinux` (linked
//! at an address from which the kernel may have been relocated).

use std::ops::Range;
use std::path::Path;

use kprism_image::{Bytes, is_kernel};
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Object, ObjectSymbol};

use crate::{ImportError, PAGE, Region};

const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// Executable segments, relocated by `slide`. Pages of zeros are holes: there was no code, or none was copied.
pub(crate) fn code(path: &Path, bytes: &Bytes, slide: u64) -> Result<Vec<Region>, ImportError> {
    let bad = |error: object::Error| ImportError::format(path, "ELF header", format!("64-bit ELF ({error})"));
    let file = ElfFile64::<object::Endianness>::parse(&bytes[..]).map_err(bad)?;
    let endian = file.endian();
    let code = |h: &&object::elf::ProgramHeader64<_>| {
        h.p_type(endian) == PT_LOAD && h.p_flags(endian).contains(PF_X)
    };
    // Address, and range in the file.
    let mut pieces: Vec<(u64, Range<usize>)> = Vec::new();
    for header in file.elf_program_headers().iter().filter(code) {
        let va = header.p_vaddr(endian).wrapping_add(slide);
        let at = usize::try_from(header.p_offset(endian)).unwrap_or(usize::MAX).min(bytes.len());
        let len = usize::try_from(header.p_filesz(endian)).unwrap_or(usize::MAX);
        // The part of the segment in a truncated file.
        let there = &bytes[at..at.saturating_add(len).min(bytes.len())];
        if !is_kernel(va) {
            continue;
        }
        let page = PAGE as usize;
        // Compared as a whole: a kernel's text has thousands of holes.
        let is_hole = |page: &[u8]| page == &ZEROS[..page.len()];
        let pages = (va..).step_by(page).zip((at..).step_by(page)).zip(there.chunks(page));
        for ((va, at), page) in pages.filter(|(_, page)| !is_hole(page)) {
            match pieces.last_mut() {
                Some((start, range)) if range.end == at && start.wrapping_add(range.len() as u64) == va => {
                    range.end += page.len();
                }
                _ => pieces.push((va, at..at + page.len())),
            }
        }
    }
    if pieces.is_empty() {
        return Err(ImportError::format(path, "program headers", "executable segments at kernel addresses"));
    }
    Ok(pieces.into_iter().map(|(va, range)| Region { va, bytes: bytes.slice(range), file: None }).collect())
}

/// The relocation of the kernel: the difference between the recorded address of `name` and that in the file.
pub(crate) fn slide(bytes: &[u8], name: &str, recorded: u64) -> Option<u64> {
    let file = object::File::parse(bytes).ok()?;
    let linked = file.symbols().find(|s| s.name() == Ok(name))?.address();
    Some(recorded.wrapping_sub(linked))
}

/// The functions of a vmlinux in the form of `/proc/kallsyms`.
pub(crate) fn symbols(bytes: &[u8], slide: u64) -> String {
    let Ok(file) = object::File::parse(bytes) else { return String::new() };
    let mut lines: Vec<(u64, char, &str)> = file
        .symbols()
        .filter(|s| is_kernel(s.address()))
        .filter_map(|s| {
            let text = s.kind() == object::SymbolKind::Text;
            Some((s.address().wrapping_add(slide), if text { 't' } else { 'd' }, s.name().ok()?))
        })
        .filter(|(_, _, name)| !name.is_empty() && !name.contains(char::is_whitespace))
        .collect();
    lines.sort_unstable();
    lines.iter().map(|(va, kind, name)| format!("{va:016x} {kind} {name}\n")).collect()
}
