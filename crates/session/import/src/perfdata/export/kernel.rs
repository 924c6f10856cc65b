// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the kernel's code in the form of `perf record --kcore`: `kcore_dir/kcore`, an ELF core file with a segment
//! for each stretch of code, and beside it `kallsyms` and `modules`.
//!
//! The file is sparse: between the executed pages are holes, which perf never reads.

use std::fs::File;
use std::io::{Result, Seek, SeekFrom, Write};
use std::path::Path;

use kprism_image::symbols::kallsyms::value_of;
use object::elf;

use super::code::Code;
use kprism_perfdata::Put;

/// Stretches less than this apart share a segment, because perf makes a map of each segment.
const GAP: u64 = 1 << 20;

/// Address range of the kernel itself: from `_stext` to `_etext`.
pub(super) fn text(kallsyms: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = (value_of(kallsyms, "_stext")?, value_of(kallsyms, "_etext")?);
    (start < end && end - start < 1 << 31).then_some((start, end))
}

/// Writes the ELF core file. The kernel's text is one segment, whatever part of it ran.
pub(super) fn write_kcore(path: &Path, code: &Code, text: Option<(u64, u64)>) -> Result<()> {
    let mut segments = code.ranges(GAP);
    if let Some((start, end)) = text {
        segments.retain(|s| s.1 <= start || s.0 >= end);
        segments.push((start, end));
        segments.sort_unstable();
    }
    let mut head = Vec::new();
    head.put(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    head.u16(elf::ET_CORE.0);
    head.u16(elf::EM_X86_64.0);
    head.u32(1);
    [0, 64, 0].iter().for_each(|word| head.u64(*word));
    head.u32(0);
    [64, 56, segments.len().min(0xfffe) as u16, 0, 0, 0].iter().for_each(|half| head.u16(*half));
    let first = (64 + 56 * segments.len() as u64).next_multiple_of(4096);
    let mut at = first;
    for (start, end) in &segments {
        head.u32(elf::PT_LOAD.0);
        head.u32(7);
        [at, *start, 0, end - start, end - start, 4096].iter().for_each(|word| head.u64(*word));
        at += (end - start).next_multiple_of(4096);
    }
    let mut file = File::create(path)?;
    file.write_all(&head)?;
    let mut at = first;
    for (start, end) in &segments {
        for (va, bytes) in code.pages(*start, *end) {
            file.seek(SeekFrom::Start(at + (va - start)))?;
            file.write_all(bytes)?;
        }
        at += (end - start).next_multiple_of(4096);
    }
    file.set_len(at)
}
