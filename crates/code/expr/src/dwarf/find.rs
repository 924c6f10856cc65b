// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds DIEs by name or address without an index.

use std::collections::BTreeSet;

use gimli::DwTag;
use memchr::memmem;

use super::{Debug, Entry, Error, Node};

/// Limit of matches in the string table that are followed one by one. With more matches, every unit is a candidate.
const STRINGS: usize = 256;

/// Decision about a DIE during a search.
pub(crate) enum Take {
    /// Accept it; the search ends.
    This,
    /// Accept it if nothing better follows.
    Perhaps,
    /// Reject it.
    No,
}

impl<'d> Debug<'d> {
    /// Returns the unit of the main file that covers the address.
    pub(crate) fn unit_of(&self, address: u64) -> Result<Option<usize>, Error> {
        let mut headers = self.parts[0].dwarf.debug_aranges_headers(self.image);
        while let Ok(Some(header)) = headers.next() {
            let mut entries = header.entries();
            while let Ok(Some(entry)) = entries.next() {
                if entry.range().begin <= address && address < entry.range().end {
                    let node = Node { file: 0, offset: header.debug_info_offset().0 };
                    return Ok(self.unit_index(node));
                }
            }
        }
        // clang writes no .debug_aranges; then the units' own ranges are used.
        for index in 0..self.parts[0].units.len() {
            let unit = self.unit(0, index)?;
            let Ok(mut ranges) = self.parts[0].dwarf.unit_ranges(&unit) else { continue };
            while let Ok(Some(range)) = ranges.next() {
                if range.begin <= address && address < range.end {
                    return Ok(Some(index));
                }
            }
        }
        Ok(None)
    }

    /// Returns the units whose bytes contain the name or a reference to it.
    fn candidates(&self, file: usize, name: &str) -> BTreeSet<usize> {
        let part = &self.parts[file];
        let info = part.dwarf.debug_info_bytes(self.image, file);
        let strings = part.dwarf.debug_str.reader_bytes();
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        let mut units = BTreeSet::new();
        let mut add = |offset: usize| {
            if let Some(index) = self.unit_index(Node { file, offset }) {
                units.insert(index);
            }
        };
        memmem::find_iter(info, &text).for_each(&mut add);
        for (n, at) in memmem::find_iter(strings, &text).enumerate() {
            if n == STRINGS {
                return (0..part.units.len()).collect();
            }
            if let Ok(offset) = u32::try_from(at) {
                memmem::find_iter(info, &offset.to_le_bytes()).for_each(&mut add);
            }
        }
        // Names by index into .debug_str_offsets: an index cannot be told from other numbers, so every unit is a
        // candidate.
        let indexed = (1..=self.image.split().len()).contains(&file)
            || !self.image.section(".debug_str_offsets").is_empty();
        if indexed && memmem::find(strings, &text).is_some() {
            units.extend(0..part.units.len());
        }
        units
    }

    /// Returns the units whose bytes contain the name, alone or followed by template arguments.
    pub(crate) fn candidates_of_base(&self, file: usize, base: &str) -> BTreeSet<usize> {
        let part = &self.parts[file];
        let mut units = self.candidates(file, base);
        let info = self.info_bytes(file);
        let template = format!("{base}<");
        let mut add = |offset: usize| {
            if let Some(index) = self.unit_index(Node { file, offset }) {
                units.insert(index);
            }
        };
        memmem::find_iter(info, template.as_bytes()).for_each(&mut add);
        let strings = part.dwarf.debug_str.reader_bytes();
        for at in memmem::find_iter(strings, template.as_bytes()) {
            // Only at the beginning of a string: longer names may end with this one.
            let begins = at == 0 || strings.get(at - 1) == Some(&0);
            if let (true, Ok(offset)) = (begins, u32::try_from(at)) {
                memmem::find_iter(info, &offset.to_le_bytes()).for_each(&mut add);
            }
        }
        units
    }

    /// Returns the contents of a part's DIE section.
    pub(crate) fn info_bytes(&self, file: usize) -> &'d [u8] {
        self.parts[file].dwarf.debug_info_bytes(self.image, file)
    }

    /// Returns the first accepted DIE of this name and its parent. The unit `first` is searched before the others.
    pub(crate) fn named(
        &self,
        name: &str,
        first: Option<(usize, usize)>,
        take: impl Fn(&Entry<'d>) -> Take,
    ) -> Result<Option<(Node, Option<Node>)>, Error> {
        let mut perhaps = None;
        if let Some((file, index)) = first {
            match self.in_unit(file, index, name, &take)? {
                (found @ Some(_), true) => return Ok(found),
                (found, _) => perhaps = found,
            }
        }
        for file in 0..self.parts.len() {
            for index in self.candidates(file, name) {
                if first == Some((file, index)) {
                    continue;
                }
                match self.in_unit(file, index, name, &take)? {
                    (found @ Some(_), true) => return Ok(found),
                    (found, _) => perhaps = perhaps.or(found),
                }
            }
        }
        Ok(perhaps)
    }

    /// Returns true if a unit has a global variable or a function of this name.
    pub(crate) fn unit_has(&self, file: usize, index: usize, name: &str) -> Result<bool, Error> {
        let take = |e: &Entry<'d>| match e.tag() {
            gimli::DW_TAG_variable | gimli::DW_TAG_subprogram => Take::This,
            _ => Take::No,
        };
        Ok(self.in_unit(file, index, name, &take)?.1)
    }

    /// Searches a unit. Returns the DIE with its parent, and whether it was accepted as final.
    #[allow(clippy::type_complexity)]
    fn in_unit(
        &self,
        file: usize,
        index: usize,
        name: &str,
        take: &impl Fn(&Entry<'d>) -> Take,
    ) -> Result<(Option<(Node, Option<Node>)>, bool), Error> {
        let unit = self.unit(file, index)?;
        let start = self.parts[file].units[index].start;
        let mut perhaps = None;
        let mut entries = unit.entries_raw(None).map_err(self.bad(".debug_info"))?;
        let mut entry = Entry::null();
        // Ancestors of the current DIE: depth, tag, offset.
        let mut above: Vec<(isize, DwTag, usize)> = Vec::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            if !entries.read_entry(&mut entry).map_err(self.bad(".debug_info"))? {
                continue;
            }
            let offset = start + entry.offset().0;
            while above.last().is_some_and(|a| a.0 >= depth) {
                above.pop();
            }
            let inside = above.iter().any(|a| a.1 == gimli::DW_TAG_subprogram);
            // Members of a class are found through the class.
            let of_class = above.last().is_some_and(|a| {
                matches!(
                    a.1,
                    gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type
                )
            });
            let parent = above.last().map(|a| Node { file, offset: a.2 });
            if entry.has_children() {
                above.push((depth, entry.tag(), offset));
            }
            // Local variables are found from the place in the function.
            let local = matches!(entry.tag(), gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter);
            let method = of_class && (local || entry.tag() == gimli::DW_TAG_subprogram);
            if (inside && local) || method || self.own_name_is(file, &unit, &entry, name) != Some(true) {
                continue;
            }
            let found = Some((Node { file, offset }, parent));
            match take(&entry) {
                Take::This => return Ok((found, true)),
                Take::Perhaps => perhaps = perhaps.or(found),
                Take::No => {}
            }
        }
        Ok((perhaps, false))
    }

    fn own_name_is(
        &self,
        file: usize,
        unit: &super::Unit<'d>,
        entry: &Entry<'d>,
        name: &str,
    ) -> Option<bool> {
        let value = entry.attr_value(gimli::DW_AT_name)?;
        let text = self.parts[file].dwarf.attr_string(unit, value).ok()?;
        Some(text.slice() == name.as_bytes())
    }
}

/// Access to whole sections, which gimli's types do not offer.
trait Bytes<'d> {
    fn debug_info_bytes(&self, image: &'d super::Image, file: usize) -> &'d [u8];
    fn debug_aranges_headers(&self, image: &'d super::Image) -> gimli::ArangeHeaderIter<super::R<'d>>;
}

impl<'d> Bytes<'d> for gimli::Dwarf<super::R<'d>> {
    fn debug_info_bytes(&self, image: &'d super::Image, file: usize) -> &'d [u8] {
        match file.checked_sub(1).and_then(|i| image.split().get(i)) {
            Some((_, split)) => split.section(".debug_info.dwo"),
            None if file == 0 => image.section(".debug_info"),
            None => image.section(".debug_types"),
        }
    }

    fn debug_aranges_headers(&self, image: &'d super::Image) -> gimli::ArangeHeaderIter<super::R<'d>> {
        gimli::DebugAranges::new(image.section(".debug_aranges"), gimli::LittleEndian).headers()
    }
}

trait Whole<'d> {
    fn reader_bytes(&self) -> &'d [u8];
}

impl<'d> Whole<'d> for gimli::DebugStr<super::R<'d>> {
    fn reader_bytes(&self) -> &'d [u8] {
        use gimli::Section as _;
        self.reader().slice()
    }
}
