// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executable segments of ELF files.

use std::path::Path;

use kprism_image::Bytes;
use object::elf::{PF_X, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::ImportError;

/// An executable segment as the loader maps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Virtual address in the file, without load bias.
    pub va: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Contents of the segment.
    pub bytes: Bytes,
}

/// The data needed to place a file in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Lowest address of all segments, page-aligned: debuggers call it the module's load address.
    pub base: u64,
    /// Executable segments.
    pub code: Vec<Segment>,
}

/// Returns true if the bytes begin like an ELF file.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Reads the segments of a 64-bit ELF file.
pub(crate) fn parse(path: &Path, bytes: &Bytes) -> Result<Elf, ImportError> {
    let bad = |error: object::Error| ImportError::format(path, "ELF header", format!("64-bit ELF ({error})"));
    let file = ElfFile64::<object::Endianness>::parse(&bytes[..]).map_err(bad)?;
    let endian = file.endian();
    let loads = || file.elf_program_headers().iter().filter(|h| h.p_type(endian) == PT_LOAD);
    let base = loads().map(|h| h.p_vaddr(endian)).min().unwrap_or(0) & !0xfff;
    let mut code = Vec::new();
    for header in loads().filter(|h| h.p_flags(endian).contains(PF_X)) {
        let data = header.data(endian, &bytes[..]).map_err(|()| {
            ImportError::format(path, "program headers", "segments that lie inside the file")
        })?;
        let offset = header.p_offset(endian) as usize;
        code.push(Segment {
            va: header.p_vaddr(endian),
            offset: header.p_offset(endian),
            bytes: bytes.slice(offset..offset.saturating_add(data.len())),
        });
    }
    if code.is_empty() {
        return Err(ImportError::format(path, "program headers", "an executable PT_LOAD segment"));
    }
    Ok(Elf { base, code })
}
