// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are mapped: their sections, symbols, and the .dwo files that they name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use gimli::{EndianSlice, LittleEndian, SectionId};
use memmap2::Mmap;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::{Error, R};

/// Largest section that is unpacked; what claims to be larger is taken for broken.
const LARGEST: u64 = 8 << 30;

/// A mapped file.
pub struct Image {
    name: String,
    map: Mmap,
    /// Sections that were compressed.
    unpacked: HashMap<String, Vec<u8>>,
    /// Offsets of skeleton units, and their files.
    split: Vec<(usize, Image)>,
}

/// The build id of any ELF file, with or without debug information.
pub fn build_id(path: &Path) -> Option<String> {
    hex_id(&Image::map(path).ok()?.object()?)
}

fn hex_id(object: &object::File<'_>) -> Option<String> {
    Some(object.build_id().ok()??.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Where it is linked.
    pub address: u64,
    /// How long it is.
    pub size: u64,
    /// Whether it is code.
    pub code: bool,
}

impl Image {
    /// Maps a file, and the .dwo files that it needs.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut image = Self::map(path)?;
        if image.section(".debug_info").is_empty() {
            return Err(Error::Stripped(image.name));
        }
        image.split = image.find_split(path)?;
        Ok(image)
    }

    /// Maps a file, with debug information or not.
    pub fn map(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let io = |e| Error::Io(name.clone(), e);
        let file = File::open(path).map_err(io)?;
        // SAFETY: the mapping is private and only read. A file that shrinks meanwhile ends the process with SIGBUS,
        // as it does for every tool that maps what it debugs; no other memory is touched.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let mut unpacked = HashMap::new();
        let object = object::File::parse(&*map).map_err(|e| Error::Object(name.clone(), e))?;
        for section in object.sections() {
            let Ok(section_name) = section.name() else { continue };
            let packed =
                section.compressed_file_range().is_ok_and(|r| r.format != object::CompressionFormat::None);
            if packed && section.size() < LARGEST {
                let data = section.uncompressed_data().map_err(|e| Error::Object(name.clone(), e))?;
                if let Cow::Owned(data) = data {
                    unpacked.insert(section_name.to_owned(), data);
                }
            }
        }
        Ok(Self { name, map, unpacked, split: Vec::new() })
    }

    /// Its path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its build id, as hexadecimal digits.
    pub fn build_id(&self) -> Option<String> {
        hex_id(&self.object()?)
    }

    /// Bytes that the file has for this address.
    pub fn bytes_at(&self, address: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(self.file_offset(address)?).ok()?;
        self.map.get(at..)?.get(..len)
    }

    /// Whether it can be loaded anywhere, as libraries and most programs can.
    pub fn moves(&self) -> bool {
        self.object().is_some_and(|o| o.kind() == object::ObjectKind::Dynamic)
    }

    /// Where in the file the byte is that is loaded at this address.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        use object::ObjectSegment as _;
        self.object()?.segments().find_map(|segment| {
            let (at, size) = segment.file_range();
            let within = address.checked_sub(segment.address()).filter(|n| *n < size)?;
            at.checked_add(within)
        })
    }

    /// The address of a symbol.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.object()?.symbol_by_name(name).map(|s| s.address())
    }

    /// Whether the kernel has a copy for each CPU of what is linked at this address.
    pub(crate) fn is_per_cpu(&self, address: u64) -> bool {
        let section = self.object().and_then(|o| {
            let section = o.section_by_name(".data..percpu")?;
            Some((section.address(), section.size()))
        });
        section.is_some_and(|(start, size)| address.checked_sub(start).is_some_and(|n| n < size))
    }

    pub(crate) fn object(&self) -> Option<object::File<'_>> {
        object::File::parse(&*self.map).ok()
    }

    pub(crate) fn split(&self) -> &[(usize, Image)] {
        &self.split
    }

    /// A section's bytes; none if there is no such section.
    pub(crate) fn section(&self, name: &str) -> &[u8] {
        if let Some(data) = self.unpacked.get(name) {
            return data;
        }
        let section = self.object().and_then(|o| {
            let section = o.section_by_name(name)?;
            section.file_range()
        });
        section.and_then(|(at, size)| self.map.get(at as usize..)?.get(..size as usize)).unwrap_or(&[])
    }

    pub(crate) fn section_address(&self, name: &str) -> u64 {
        self.object().and_then(|o| Some(o.section_by_name(name)?.address())).unwrap_or(0)
    }

    pub(crate) fn dwarf(&self) -> gimli::Dwarf<R<'_>> {
        self.dwarf_of(false)
    }

    pub(crate) fn dwarf_of(&self, dwo: bool) -> gimli::Dwarf<R<'_>> {
        let load = |id: SectionId| {
            let name = if dwo { id.dwo_name() } else { Some(id.name()) };
            let data = name.map_or(&[][..], |n| self.section(n));
            Ok::<_, std::convert::Infallible>(EndianSlice::new(data, LittleEndian))
        };
        match gimli::Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    /// Opens what skeleton units name, beside the file or in the folder where it was compiled. One that is not
    /// there is left out: what it describes is then unknown.
    fn find_split(&self, path: &Path) -> Result<Vec<(usize, Image)>, Error> {
        let dwarf = self.dwarf();
        let mut found = Vec::new();
        if self.section(".debug_str_offsets").is_empty() && self.section(".debug_addr").is_empty() {
            return Ok(found);
        }
        let bad = |e| Error::Dwarf(self.name.clone(), ".debug_info", e);
        let mut headers = dwarf.units();
        while let Some(header) = headers.next().map_err(bad)? {
            let Some(start) = header.debug_info_offset() else { continue };
            let Ok(unit) = dwarf.unit(header) else { continue };
            let Ok(Some(name)) = unit.dwo_name() else { continue };
            let Ok(name) = dwarf.attr_string(&unit, name) else { continue };
            let name = PathBuf::from(name.to_string_lossy().into_owned());
            let compiled = unit.comp_dir.map(|d| PathBuf::from(d.to_string_lossy().into_owned()));
            let beside = path.parent().zip(name.file_name()).map(|(dir, file)| dir.join(file));
            let places = [compiled.map(|d| d.join(&name)), beside, Some(name.clone())];
            if let Some(place) = places.into_iter().flatten().find(|p| p.is_file()) {
                found.push((start.0, Self::map(&place)?));
            }
        }
        Ok(found)
    }

    /// The symbols for which `wanted` holds.
    pub(crate) fn symbols(&self, wanted: impl Fn(&str) -> bool) -> Vec<Symbol> {
        let Some(object) = self.object() else { return Vec::new() };
        let all = object.symbols().chain(object.dynamic_symbols());
        let mut found: Vec<Symbol> = all
            .filter(|s| s.is_definition())
            .filter_map(|s| {
                let name = s.name().ok().filter(|n| wanted(n))?;
                let code = s.kind() == object::SymbolKind::Text;
                Some(Symbol { name: name.to_owned(), address: s.address(), size: s.size(), code })
            })
            .collect();
        found.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        found.dedup();
        found
    }

    /// The code symbol that an address belongs to.
    pub(crate) fn around(&self, address: u64) -> Option<Symbol> {
        let object = self.object()?;
        let code = object.symbols().filter(|s| s.kind() == object::SymbolKind::Text && s.is_definition());
        let nearest = code.filter(|s| s.address() <= address).max_by_key(|s| (s.address(), s.size()))?;
        let (start, size) = (nearest.address(), nearest.size());
        let name = nearest.name().ok()?.to_owned();
        (address - start < size.max(1)).then_some(Symbol { name, address: start, size, code: true })
    }
}
