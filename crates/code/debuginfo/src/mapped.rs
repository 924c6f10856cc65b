// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory-mapped object files: sections, symbols, and the .dwo files that they refer to.
//!
//! Input: paths of an ELF file and, if it is separate, of the file with its debug information. Output: [`Image`], from
//! which `kprism-expr` reads only the units that it needs. The sections of an unlinked file (a kernel module) are placed one
//! behind the other, and the relocations of its debug information are applied.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use gimli::SectionId;
use kprism_image::BuildId;
use memmap2::Mmap;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};

use crate::Error;
use crate::sections::{self, Bases, Slice, slice};

/// Size limit of a decompressed section in bytes. A larger size is treated as damage.
const LARGEST: u64 = 8 << 30;

/// Limit of a text's length in bytes. The input may be damaged.
const LONGEST: usize = 4096;

/// A memory-mapped object file.
pub struct Image {
    name: String,
    map: Mmap,
    /// Decompressed contents of compressed sections; in an unlinked file, relocated contents of debug information.
    unpacked: HashMap<String, Vec<u8>>,
    /// Separate file with its debug information.
    debug: Option<Box<Image>>,
    /// .dwo files, with the offsets of their skeleton units.
    split: Vec<(usize, Image)>,
    /// Loadable segments: address, size in the file, offset in the file.
    segments: Vec<(u64, u64, u64)>,
    /// By section of an unlinked file: what is added to addresses in it.
    bases: Bases,
    /// Code symbols by address, built on first use.
    code: OnceCell<Vec<Symbol>>,
    /// Addresses of symbols by name, built on first use.
    names: OnceCell<HashMap<String, u64>>,
}

/// A symbol of an ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Name in the symbol table, mangled for C++ and Rust.
    pub name: String,
    /// Address before relocation.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// True for code.
    pub code: bool,
    /// True for an IFUNC: code that selects the implementation at program start.
    pub chosen: bool,
}

impl Image {
    /// Maps a file with debug information, and its .dwo files.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut image = Self::map(path)?;
        if image.section(".debug_info").is_empty() {
            return Err(Error::Stripped(image.name));
        }
        image.split = image.find_split(path)?;
        Ok(image)
    }

    /// Maps a file, which need not have debug information, and optionally a separate file with it.
    pub fn open_with(path: &Path, debug: Option<&Path>) -> Result<Self, Error> {
        let mut image = Self::map(path)?;
        let Some(debug) = debug else {
            if !image.section(".debug_info").is_empty() {
                image.split = image.find_split(path)?;
            }
            return Ok(image);
        };
        let mut other = Self::map(debug)?;
        if other.section(".debug_info").is_empty() {
            return Err(Error::Stripped(other.name));
        }
        if let (Some(own), Some(its)) = (image.build_id(), other.build_id())
            && own != its
        {
            let what = format!(
                "{}: debug information of another file: its build id is {its}, {} has {own}",
                other.name, image.name
            );
            return Err(Error::Nothing(what));
        }
        if !image.bases.is_empty() {
            // Its sections are those of the code.
            other.relocate(image.bases.clone());
        }
        image.debug = Some(Box::new(other));
        image.split = image.find_split(debug)?;
        Ok(image)
    }

    /// Returns true if there is debug information, in the file or in a separate one.
    pub fn is_described(&self) -> bool {
        !self.section(".debug_info").is_empty()
    }

    /// Returns true if the file contains only debug information and no code.
    pub fn is_debug_only(&self) -> bool {
        self.object().is_some_and(|o| {
            let text = o.section_by_name(".text");
            text.is_some_and(|text| text.size() > 0 && text.file_range().is_none())
        })
    }

    /// Checks that the file's code is of the machine that probes know: 64-bit x86. 32-bit programs run on the same kernels, with other
    /// registers and another calling convention.
    pub fn check_machine(&self) -> Result<(), Error> {
        use object::Architecture;
        let machine = match self.object().map(|object| object.architecture()) {
            None | Some(Architecture::X86_64) => return Ok(()),
            Some(Architecture::I386) => "32-bit x86".to_owned(),
            Some(Architecture::X86_64_X32) => "x86 with 32-bit addresses (x32)".to_owned(),
            Some(Architecture::Aarch64) => "64-bit ARM".to_owned(),
            Some(Architecture::Unknown) => "a machine that is not known".to_owned(),
            Some(other) => format!("another machine ({other:?})"),
        };
        Err(Error::Machine(self.name.clone(), machine))
    }

    /// Returns the name and checksum of the separate debug file, from `.gnu_debuglink`.
    pub fn debug_link(&self) -> Option<(String, u32)> {
        let object = self.object()?;
        let (name, sum) = object.gnu_debuglink().ok()??;
        Some((String::from_utf8_lossy(name).into_owned(), sum))
    }

    /// Returns true if parts of the debug information are in a shared file (dwz). That file is not read.
    pub fn has_shared_debug(&self) -> bool {
        let of = self.debug.as_deref().unwrap_or(self);
        !of.section(".gnu_debugaltlink").is_empty()
    }

    /// Maps a file, with or without debug information.
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
        let segments = object.segments().map(|s| (s.address(), s.file_range().1, s.file_range().0)).collect();
        let bases = sections::all_bases(&object);
        let mut image = Self {
            name,
            map,
            unpacked,
            debug: None,
            split: Vec::new(),
            segments,
            bases: Bases::new(),
            code: OnceCell::new(),
            names: OnceCell::new(),
        };
        if !bases.is_empty() {
            image.relocate(bases);
        }
        Ok(image)
    }

    /// Relocates the debug information of an unlinked file, whose sections are placed so.
    fn relocate(&mut self, bases: Bases) {
        // Of several sections of one name, the first is read.
        let mut relocated: HashMap<String, Vec<u8>> = HashMap::new();
        if let Some(object) = self.object() {
            for section in object.sections() {
                let Ok(name) = section.name() else { continue };
                if name.starts_with(".debug") && section.size() < LARGEST && !relocated.contains_key(name) {
                    let data = sections::section(&object, name, &bases).into_owned();
                    relocated.insert(name.to_owned(), data);
                }
            }
        }
        self.unpacked.extend(relocated);
        self.bases = bases;
    }

    /// Address of a symbol, or of the place that its unlinked section has here.
    fn placed(&self, symbol: &object::Symbol<'_, '_>) -> u64 {
        let base = symbol.section_index().and_then(|index| self.bases.get(&index)).copied().unwrap_or(0);
        base.wrapping_add(symbol.address())
    }

    /// The file's path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The build id of the file itself, not of the one with its debug information.
    pub fn build_id(&self) -> Option<BuildId> {
        BuildId::of_object(&self.object()?)
    }

    /// Returns the file's contents at a link-time address.
    pub fn bytes_at(&self, address: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(self.file_offset(address)?).ok()?;
        self.map.get(at..)?.get(..len)
    }

    /// Returns the 64-bit number at a link-time address.
    pub fn word_at(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes_at(address, 8)?.try_into().ok()?))
    }

    /// Returns the 32-bit number at a link-time address.
    pub fn half_at(&self, address: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes_at(address, 4)?.try_into().ok()?))
    }

    /// Returns the address that a signed 32-bit offset there, relative to its own address, refers to.
    pub fn near_at(&self, address: u64) -> Option<u64> {
        Some(address.wrapping_add_signed(i64::from(self.half_at(address)?.cast_signed())))
    }

    /// Returns the text at a link-time address, which ends with a zero byte.
    pub fn text_at(&self, address: u64) -> Option<String> {
        if address == 0 {
            return None;
        }
        let long = (0..=LONGEST).rev().step_by(64).find_map(|len| self.bytes_at(address, len))?;
        let end = memchr::memchr(0, long)?;
        Some(String::from_utf8_lossy(&long[..end]).into_owned())
    }

    /// Returns true if the file is position-independent, as libraries and most programs are.
    pub fn moves(&self) -> bool {
        self.object().is_some_and(|o| o.kind() == object::ObjectKind::Dynamic)
    }

    /// Converts a link-time address to an offset in the file.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|(start, size, at)| {
            let within = address.checked_sub(*start).filter(|n| n < size)?;
            at.checked_add(within)
        })
    }

    /// Returns true if the file has code or data at an address. An unlinked file has no segments: its code is that of its symbols.
    pub fn holds(&self, address: u64) -> bool {
        match self.bases.is_empty() {
            true => self.file_offset(address).is_some(),
            false => self.around(address).is_some(),
        }
    }

    /// Converts an offset in the file to a link-time address.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(start, size, at)| {
            let within = offset.checked_sub(*at).filter(|n| n < size)?;
            start.checked_add(within)
        })
    }

    /// Returns the address of a symbol.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let names = self.names.get_or_init(|| {
            let mut names = HashMap::new();
            for symbol in self.object().iter().flat_map(|o| o.symbols()) {
                if let Ok(name) = symbol.name() {
                    // The first symbol of a name is used.
                    names.entry(name.to_owned()).or_insert(self.placed(&symbol));
                }
            }
            if let Some(debug) = &self.debug {
                for symbol in debug.symbols(|_| true) {
                    names.entry(symbol.name).or_insert(symbol.address);
                }
            }
            names
        });
        names.get(name).copied()
    }

    /// Returns the addresses of two linker symbols that delimit a table.
    pub fn between(&self, start: &str, stop: &str) -> Option<(u64, u64)> {
        Some((self.symbol(start)?, self.symbol(stop)?)).filter(|(a, b)| a <= b)
    }

    /// Returns true if the address is in the kernel's per-CPU section, of which each CPU has a copy.
    pub fn is_per_cpu(&self, address: u64) -> bool {
        let section = self.object().and_then(|o| {
            let section = o.section_by_name(".data..percpu")?;
            let base = self.bases.get(&section.index()).copied().unwrap_or(0);
            Some((base.wrapping_add(section.address()), section.size()))
        });
        section.is_some_and(|(start, size)| address.checked_sub(start).is_some_and(|n| n < size))
    }

    /// Returns the parsed file.
    fn object(&self) -> Option<object::File<'_>> {
        object::File::parse(&*self.map).ok()
    }

    /// Returns the .dwo files, each with the offset of its skeleton unit in `.debug_info`.
    pub fn split(&self) -> &[(usize, Image)] {
        &self.split
    }

    /// Returns a section's contents, decompressed; empty if there is no such section.
    pub fn section(&self, name: &str) -> &[u8] {
        if let Some(data) = self.unpacked.get(name) {
            return data;
        }
        let section = self.object().and_then(|o| {
            let section = o.section_by_name(name)?;
            section.file_range()
        });
        let own = section.and_then(|(at, size)| self.map.get(at as usize..)?.get(..size as usize));
        match (own, &self.debug) {
            (Some(own), _) if !own.is_empty() => own,
            (_, Some(debug)) if name.starts_with(".debug") || name.starts_with(".gnu_debug") => {
                debug.section(name)
            }
            _ => &[],
        }
    }

    /// Returns true if the file has a section of this name.
    pub fn has_section(&self, name: &str) -> bool {
        self.object().is_some_and(|o| o.section_by_name(name).is_some())
    }

    /// Returns a section's link-time address; 0 if there is no such section.
    pub fn section_address(&self, name: &str) -> u64 {
        self.object().and_then(|o| Some(o.section_by_name(name)?.address())).unwrap_or(0)
    }

    /// Returns the debug information, in the file or in the separate one.
    pub fn dwarf(&self) -> gimli::Dwarf<Slice<'_>> {
        self.dwarf_of(false)
    }

    /// Returns the debug information; that of a .dwo file if `dwo` is true.
    pub fn dwarf_of(&self, dwo: bool) -> gimli::Dwarf<Slice<'_>> {
        let load = |id: SectionId| {
            let name = if dwo { id.dwo_name() } else { Some(id.name()) };
            Ok::<_, std::convert::Infallible>(slice(name.map_or(&[][..], |n| self.section(n))))
        };
        match gimli::Dwarf::load(load) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    /// Opens the .dwo files that skeleton units name, next to the file or in the compilation directory. A missing one
    /// is skipped; its contents are then unknown.
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

    /// Returns the symbols that `wanted` accepts, sorted by address and name.
    pub fn symbols(&self, wanted: impl Fn(&str) -> bool + Copy) -> Vec<Symbol> {
        let Some(object) = self.object() else { return Vec::new() };
        let all = object.symbols().chain(object.dynamic_symbols());
        let mut found: Vec<Symbol> = all
            .filter_map(|s| {
                let name = s.name().ok().filter(|n| wanted(n))?;
                let code = s.kind() == object::SymbolKind::Text;
                let known = s.is_definition() || (code && !s.is_undefined());
                let object::SymbolFlags::Elf { st_info, .. } = s.flags() else { return None };
                if !known {
                    return None;
                }
                let chosen = st_info.st_type() == object::elf::STT_GNU_IFUNC;
                Some(Symbol { name: name.to_owned(), address: self.placed(&s), size: s.size(), code, chosen })
            })
            .collect();
        if let Some(debug) = &self.debug {
            found.extend(debug.symbols(wanted));
        }
        found.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        found.dedup();
        found
    }

    /// Returns the symbols without a type in sections of code: labels of assembler, which may be functions. Their size is
    /// what the file says, mostly 0.
    pub fn labels(&self, wanted: impl Fn(&str, u64) -> bool + Copy) -> Vec<Symbol> {
        let Some(object) = self.object() else { return Vec::new() };
        let is_code =
            |index| object.section_by_index(index).is_ok_and(|s| s.kind() == object::SectionKind::Text);
        let mut found: Vec<Symbol> = object
            .symbols()
            .filter_map(|s| {
                let object::SymbolFlags::Elf { st_info, .. } = s.flags() else { return None };
                let untyped = st_info.st_type() == object::elf::STT_NOTYPE;
                let name = s.name().ok().filter(|name| !name.is_empty())?;
                let address = self.placed(&s);
                let is_it = untyped && s.section_index().is_some_and(is_code) && wanted(name, address);
                is_it.then(|| Symbol {
                    name: name.to_owned(),
                    address,
                    size: s.size(),
                    code: true,
                    chosen: false,
                })
            })
            .collect();
        if let Some(debug) = &self.debug {
            found.extend(debug.labels(wanted));
        }
        found.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        found.dedup();
        found
    }

    /// Returns the code symbol that contains an address.
    pub fn around(&self, address: u64) -> Option<&Symbol> {
        let code = self.code.get_or_init(|| {
            let mut all = self.symbols(|_| true);
            all.retain(|s| s.code);
            all.sort_by_key(|s| (s.address, s.size));
            all
        });
        let after = code.partition_point(|s| s.address <= address);
        let nearest = code.get(after.checked_sub(1)?)?;
        (address - nearest.address < nearest.size.max(1)).then_some(nearest)
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("name", &self.name).finish_non_exhaustive()
    }
}
