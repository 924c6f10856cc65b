// SPDX-License-Identifier: MIT OR Apache-2.0
//! Source lines from debug information: of the recorded file itself, or of the file named by its build id.
//!
//! addr2line's own loader opens the file. It finds the unit and the inlined calls of an address by an index that it
//! builds once, which pays for the many addresses of a profile.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, Loader};
use gimli::{EndianArcSlice, LittleEndian};
use kprism_image::BuildId;
use object::{Object as _, ObjectSection as _};

use crate::sections::{Section, layout, sections};
use crate::separate::{by_build_id, of_file};

/// One frame at an address: a function and a line in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The function's name in the source.
    pub function: Option<String>,
    /// The file's path, as given to the compiler.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
}

/// The finder of an address's frames.
enum Finder {
    /// In a linked file, with the offset from its addresses to run-time ones.
    Linked(Box<Loader>, u64),
    /// In a module, whose sections are placed by [`layout`], each with its own offset.
    Module(Box<Context<EndianArcSlice<LittleEndian>>>, Vec<(Section, u64)>),
}

/// Source lines of one file's code.
pub struct Source {
    finder: Finder,
    /// Texts of the source files that are available.
    files: HashMap<String, Option<Vec<String>>>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

/// Maximum size of a source file, bytes.
const MAX_SOURCE: u64 = 16 << 20;

/// Link address of x86-64 kernels (Linux, arch/x86/include/asm/page_64_types.h, `__START_KERNEL`).
const KERNEL_BASE: u64 = 0xffff_ffff_8100_0000;

impl Source {
    /// Loads the debug information for a program or library, `file`: from itself, or from one of the folders `debug` as
    /// `.build-id/xx/yyyy.debug`. `None` if there is none.
    ///
    /// # Errors
    /// A file has debug information that cannot be read.
    pub fn of_file(file: &Path, debug: &[PathBuf]) -> Result<Option<Self>, String> {
        let Ok(bytes) = fs::read(file) else { return Ok(None) };
        let Ok(elf) = object::File::parse(&*bytes) else { return Ok(None) };
        if elf.section_by_name(".debug_info").is_some_and(|s| s.size() > 0) {
            return Self::load(file, 0).map(Some);
        }
        let place = BuildId::of_object(&elf).and_then(|id| by_build_id(&id, debug));
        place.map(|place| Self::load(&place, 0)).transpose()
    }

    /// Loads the debug information in `vmlinux` of the kernel whose first function was at `start`. `name` and `address`
    /// are one of its functions at run time, by which the file is checked.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another kernel.
    pub fn of_kernel(vmlinux: &Path, start: u64, name: &str, address: u64) -> Result<Self, String> {
        // The kernel moves as a whole, by multiples of 2 MiB.
        let bias = (start & !0x1f_ffff).wrapping_sub(KERNEL_BASE & !0x1f_ffff);
        let loader = loader(vmlinux)?;
        let linked = address.wrapping_sub(bias);
        let there = loader.find_symbol_info(linked);
        match there {
            // Aliases share an address.
            Some(symbol) if symbol.address() == linked => Ok(Self::linked(loader, bias)),
            Some(symbol) => Err(format!(
                "{}: {name} should be at {linked:#x}, where {} is: this is another kernel's",
                vmlinux.display(),
                symbol.name()
            )),
            None => Err(format!("{}: nothing at {linked:#x}, where {name} should be", vmlinux.display())),
        }
    }

    /// Loads the debug information of a module, `file`: from itself, or from one of the folders `debug` by its build id. `places`
    /// are the sections of [`Lines::of_file`](crate::lines::Lines::of_file), each with what is added to its addresses
    /// to have those at which it ran. `None` if there is none.
    ///
    /// # Errors
    /// A file cannot be read, or its debug information is damaged.
    pub fn of_module(
        file: &Path,
        debug: &[PathBuf],
        places: Vec<(Section, u64)>,
    ) -> Result<Option<Self>, String> {
        let context = of_file(file, debug, &|debug, code| {
            let (debug, code) = (parse(debug)?, parse(code)?);
            if debug.section_by_name(".debug_info").is_none_or(|section| section.size() == 0) {
                return Ok(None);
            }
            let (bases, _) = layout(&code);
            let read = || {
                let data = sections(&debug, &bases)?;
                let owned = data.borrow(|data| EndianArcSlice::new(Arc::from(&data[..]), LittleEndian));
                Context::from_dwarf(owned)
            };
            read().map(Some).map_err(|error: gimli::Error| format!("its debug information: {error}"))
        });
        let context = context.map_err(|why| format!("{}: {why}", file.display()))?;
        Ok(context.map(|context| Source {
            finder: Finder::Module(Box::new(context), places),
            files: HashMap::new(),
        }))
    }

    fn load(file: &Path, bias: u64) -> Result<Self, String> {
        loader(file).map(|loader| Self::linked(loader, bias))
    }

    fn linked(loader: Loader, bias: u64) -> Self {
        Self { finder: Finder::Linked(Box::new(loader), bias), files: HashMap::new() }
    }

    /// The frames at an address, innermost first: inlined functions, and last the function itself.
    pub fn frames(&self, address: u64) -> Vec<Frame> {
        match &self.finder {
            Finder::Linked(loader, bias) => {
                loader.find_frames(address.wrapping_sub(*bias)).map(all).unwrap_or_default()
            }
            Finder::Module(context, places) => {
                let at = places.iter().find_map(|(section, bias)| {
                    let own = address.wrapping_sub(*bias);
                    (section.start..section.end).contains(&own).then_some(own)
                });
                let Some(at) = at else { return Vec::new() };
                context.find_frames(at).skip_all_loads().map(all).unwrap_or_default()
            }
        }
    }

    /// A line of the source, if its file is available.
    pub fn text(&mut self, file: &str, line: u32) -> Option<&str> {
        let lines = self.files.entry(file.to_owned()).or_insert_with(|| {
            let small = fs::metadata(file).is_ok_and(|m| m.is_file() && m.len() <= MAX_SOURCE);
            let bytes = small.then(|| fs::read(file).ok()).flatten()?;
            Some(String::from_utf8_lossy(&bytes).lines().map(|l| l.trim().to_owned()).collect())
        });
        lines.as_ref()?.get((line as usize).checked_sub(1)?).map(String::as_str)
    }
}

fn loader(file: &Path) -> Result<Loader, String> {
    Loader::new(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn parse(bytes: &[u8]) -> Result<object::File<'_>, String> {
    object::File::parse(bytes).map_err(|error| error.to_string())
}

/// The frames that have a place.
fn all<R: gimli::Reader>(mut found: addr2line::FrameIter<'_, R>) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = found.next() {
        let Some(place) = frame.location else { continue };
        let (Some(file), Some(line)) = (place.file, place.line) else { continue };
        let function = frame.function.and_then(|f| f.demangle().ok().map(|name| name.into_owned()));
        frames.push(Frame { function, file: file.to_owned(), line });
    }
    frames
}
