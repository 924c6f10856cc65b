// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sections of an ELF file as gimli reads them: decompressed, little-endian, and placed if the file is not linked.
//!
//! Modules (`.ko`) are not linked yet: their sections are placed one behind the other, and the relocations of their
//! debug information are applied.

use std::borrow::Cow;
use std::collections::HashMap;

use gimli::{EndianSlice, LittleEndian, SectionId};
use object::{
    Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, RelocationKind, RelocationTarget,
    SectionIndex, SectionKind,
};

/// Bytes of a section of debug information.
pub type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// Start address for the sections of an unlinked file: far from 0, which stands for discarded code.
const UNLINKED: u64 = 0x1000_0000;

/// A section with code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// Sections that lines and scopes need.
const SECTIONS: [SectionId; 9] = [
    SectionId::DebugAbbrev,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugAddr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];

/// Reads these sections of the debug information.
pub(crate) fn sections<'d>(
    debug: &object::File<'d>,
    bases: &Bases,
) -> Result<gimli::DwarfSections<Cow<'d, [u8]>>, gimli::Error> {
    gimli::DwarfSections::load(|id| match SECTIONS.contains(&id) {
        true => Ok(section(debug, id.name(), bases)),
        false => Ok(Cow::Borrowed(&[][..])),
    })
}

/// Reads a section's bytes as gimli does.
pub(crate) fn slice(data: &[u8]) -> Slice<'_> {
    Slice::new(data, LittleEndian)
}

/// By section with code: what is added to addresses in it.
pub(crate) type Bases = HashMap<SectionIndex, u64>;

/// The address of each section with code, and the offset that it adds to addresses inside.
pub(crate) fn layout(file: &object::File<'_>) -> (Bases, Vec<Section>) {
    let unlinked = file.kind() == ObjectKind::Relocatable;
    let (mut bases, mut sections) = (Bases::new(), Vec::new());
    let mut next = UNLINKED;
    for section in file.sections().filter(|s| s.kind() == SectionKind::Text && s.size() > 0) {
        let base = if unlinked { next } else { 0 };
        let start = base.wrapping_add(section.address());
        let end = start.saturating_add(section.size());
        next = next.saturating_add(section.size()).saturating_add(0x1_0000) & !0xffff;
        bases.insert(section.index(), base);
        sections.push(Section { start, end });
    }
    sections.sort_by_key(|s| s.start);
    (bases, sections)
}

/// The offset that each section with code or data adds to addresses inside, of a file that is not linked. None for a linked file.
pub(crate) fn all_bases(file: &object::File<'_>) -> Bases {
    let mut bases = Bases::new();
    if file.kind() != ObjectKind::Relocatable {
        return bases;
    }
    let is_loaded = |kind: SectionKind| {
        matches!(
            kind,
            SectionKind::Text
                | SectionKind::Data
                | SectionKind::ReadOnlyData
                | SectionKind::ReadOnlyDataWithRel
                | SectionKind::ReadOnlyString
                | SectionKind::UninitializedData
        )
    };
    let mut next = UNLINKED;
    for section in file.sections().filter(|s| is_loaded(s.kind()) && s.size() > 0) {
        bases.insert(section.index(), next);
        next = next.saturating_add(section.size()).saturating_add(0x1_0000) & !0xffff;
    }
    bases
}

/// A section's data, with an unlinked file's relocations applied.
pub(crate) fn section<'d>(file: &object::File<'d>, name: &str, bases: &Bases) -> Cow<'d, [u8]> {
    let Some(section) = file.section_by_name(name) else { return Cow::Borrowed(&[]) };
    let Ok(data) = section.uncompressed_data() else { return Cow::Borrowed(&[]) };
    if file.kind() != ObjectKind::Relocatable {
        return data;
    }
    let mut data = data.into_owned();
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else { continue };
        let Ok(symbol) = file.symbol_by_index(index) else { continue };
        let base = symbol.section_index().and_then(|index| bases.get(&index)).copied().unwrap_or(0);
        let value = base.wrapping_add(symbol.address()).wrapping_add_signed(relocation.addend());
        if relocation.kind() != RelocationKind::Absolute {
            continue;
        }
        let size = usize::from(relocation.size() / 8).min(8);
        let place = usize::try_from(offset).ok().and_then(|at| data.get_mut(at..at.checked_add(size)?));
        if let Some(place) = place {
            place.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }
    Cow::Owned(data)
}
