// SPDX-License-Identifier: MIT OR Apache-2.0
//! trace-cmd's `trace.dat`, versions 6 and 7 (trace-cmd.dat.v6(5), trace-cmd.dat.v7(5)).
//!
//! Input: the file. Output: a [`Dat`] with formats, symbols, task names and statistics, and the ring buffer's pages of
//! each buffer and CPU. Both versions contain the same parts: version 6 in sequence (`v6`), version 7 as sections that
//! options point to (`v7`).
//!
//! [`Dat::parse`] takes the bytes of a file, and borrows the pages from them unless they were compressed (zlib, zstd).
//! [`Dat::open`] reads a file up to its pages, and [`Dat::streams`] reads those as their events are needed.

mod input;
mod unpack;
mod v6;
mod v7;

use std::borrow::Cow;
use std::io::Read;

use crate::bytes::{Cursor, Order};
use crate::decode::Decoder;
use crate::fault::FtraceError;
use crate::format::{Format, PageLayout};
use crate::raw::Cpu;
use crate::stream::Stream;
use input::Packed;
pub use input::{Input, Place};

/// First bytes of every trace.dat.
pub const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// Contents of a trace.dat.
#[derive(Debug, Clone, Default)]
pub struct Dat<'a> {
    /// 6 or 7.
    pub version: u32,
    /// `zstd`, `zlib` or `none`. Version 6 has no compression.
    pub compression: String,
    /// True for big-endian data.
    pub big: bool,
    /// Layout of the ring buffer's pages.
    pub layout: PageLayout,
    /// Formats of all events.
    pub formats: Vec<Format>,
    /// Contents of `/proc/kallsyms`.
    pub kallsyms: Cow<'a, [u8]>,
    /// Contents of `saved_cmdlines`.
    pub cmdlines: Cow<'a, [u8]>,
    /// Contents of `printk_formats`.
    pub printk: Cow<'a, [u8]>,
    /// The top buffer first, if it is present, then those of instances.
    pub buffers: Vec<Buffer<'a>>,
    /// `per_cpu/cpuN/stats` as text, in the order of the file.
    pub stats: Vec<String>,
    /// Output of `uname`; empty if the file has none.
    pub uname: String,
    /// Conversion from TSC ticks to ns.
    pub tsc: Option<TscToNs>,
    /// Offset to add to every time.
    pub offset: i64,
    /// Messages about parts that were skipped.
    pub notes: Vec<String>,
    clock: String,
}

/// Conversion from TSC ticks: ns = (ticks · mult >> shift) + offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TscToNs {
    /// Multiplier.
    pub mult: u32,
    /// Right shift in bits.
    pub shift: u32,
    /// Offset in ns.
    pub offset: u64,
}

impl TscToNs {
    /// Converts ticks to ns.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        let scaled = (u128::from(ticks) * u128::from(self.mult)).checked_shr(self.shift).unwrap_or(0);
        (scaled as u64).wrapping_add(self.offset)
    }
}

/// A ring buffer: the top one or an instance's.
#[derive(Debug, Clone, Default)]
pub struct Buffer<'a> {
    /// Name of the instance; empty for the top one.
    pub name: String,
    /// Name of the buffer's clock.
    pub clock: String,
    /// Pages of each CPU; none after [`Dat::open`].
    pub cpus: Vec<(u32, Cow<'a, [u8]>)>,
    /// Place of each CPU's pages in the file.
    pub places: Vec<(u32, Place)>,
    /// Page size in bytes, if it differs from the file's.
    pub page_size: Option<usize>,
}

impl<'a> Dat<'a> {
    /// Parses a file.
    ///
    /// # Errors
    /// The file is not a trace.dat, or a part that all others need cannot be read. Other damaged parts are skipped and
    /// listed in `notes`.
    pub fn parse(file: &'a [u8]) -> Result<Dat<'a>, FtraceError> {
        let input = Input::Whole(file);
        let mut dat = Dat::head(file, input)?;
        let mut buffers = std::mem::take(&mut dat.buffers);
        let mut damaged = 0;
        for buffer in &mut buffers {
            for &(cpu, place) in &buffer.places {
                let pages = match place.packed {
                    true => {
                        let mut pages = Vec::new();
                        if let Err(error) = dat.pages(input, place).read_to_end(&mut pages) {
                            dat.notes.insert(place.notes + damaged, note(cpu, &error));
                            damaged += 1;
                        }
                        Cow::Owned(pages)
                    }
                    false => input.bytes(place.at, place.size)?,
                };
                buffer.cpus.push((cpu, pages));
            }
        }
        dat.buffers = buffers;
        Ok(dat)
    }

    /// Reads a file up to its pages; these are not read.
    ///
    /// # Errors
    /// As [`Dat::parse`]; or the file cannot be read.
    pub fn open(input: Input<'_>) -> Result<Dat<'static>, FtraceError> {
        let mut size = FIRST;
        loop {
            let head = input.bytes(0, size)?;
            let is_all = head.len() as u64 == input.len();
            match Dat::head(&head, input) {
                Err(_) if !is_all => size = size.saturating_mul(4),
                other => return other.map(Dat::into_owned),
            }
        }
    }

    /// Parses all but the pages. `head` is the file's beginning, or all of it.
    fn head(head: &'a [u8], input: Input<'a>) -> Result<Dat<'a>, FtraceError> {
        let (mut dat, version, at) = Self::begin(head)?;
        match version.parse().unwrap_or(0) {
            6 => v6::read(&mut dat, at, input)?,
            7 => {
                dat.version = 7;
                v7::read(&mut dat, at, input)?;
            }
            _ => {
                let what = format!(
                    "trace.dat version {version} is not known: convert it with `trace-cmd convert --file-version 7`"
                );
                return Err(FtraceError::Unsupported { what });
            }
        }
        let clock = dat.clock.clone();
        for buffer in &mut dat.buffers {
            if buffer.clock.is_empty() {
                buffer.clock.clone_from(&clock);
            }
        }
        Ok(dat)
    }

    fn into_owned(self) -> Dat<'static> {
        let owned = |text: Cow<'a, [u8]>| Cow::Owned(text.into_owned());
        let buffer = |b: Buffer<'a>| {
            let cpus = b.cpus.into_iter().map(|(cpu, pages)| (cpu, owned(pages))).collect();
            Buffer { name: b.name, clock: b.clock, cpus, places: b.places, page_size: b.page_size }
        };
        Dat {
            version: self.version,
            compression: self.compression,
            big: self.big,
            layout: self.layout,
            formats: self.formats,
            kallsyms: owned(self.kallsyms),
            cmdlines: owned(self.cmdlines),
            printk: owned(self.printk),
            buffers: self.buffers.into_iter().map(buffer).collect(),
            stats: self.stats,
            uname: self.uname,
            tsc: self.tsc,
            offset: self.offset,
            notes: self.notes,
            clock: self.clock,
        }
    }

    /// A reader of a CPU's pages.
    fn pages<'i>(&self, input: Input<'i>, place: Place) -> Box<dyn Read + 'i> {
        let order = if self.big { Order::Big } else { Order::Little };
        match place.packed {
            true => Box::new(Packed::new(input, place, &self.compression, order)),
            false => input.reader(place.at, place.size),
        }
    }

    /// Readers of the events of each CPU of a buffer, whose pages are read from the file as they are needed.
    pub fn streams<'s>(
        &self,
        input: Input<'s>,
        buffer: &Buffer<'_>,
        decoder: &'s Decoder,
    ) -> Vec<Stream<'s>> {
        let layout = self.layout_of(buffer);
        let stream =
            |&(cpu, place): &(u32, Place)| Stream::new(decoder, layout, cpu, self.pages(input, place));
        buffer.places.iter().map(stream).collect()
    }

    /// Adds the notes that [`Dat::parse`] has on damaged pages to `notes`, which begins with those of `self`. `ended`
    /// has the errors of the streams of CPUs, in the order of the file.
    ///
    /// # Errors
    /// The first error that is not of the data: the file could not be read.
    pub fn note_damage(
        ended: impl Iterator<Item = (u32, Place, Option<std::io::Error>)>,
        notes: &mut Vec<String>,
    ) -> Result<(), std::io::Error> {
        let mut damaged = 0;
        for (cpu, place, error) in ended {
            match error {
                None => {}
                Some(error) if error.get_ref().is_some_and(|why| why.is::<FtraceError>()) => {
                    notes.insert((place.notes + damaged).min(notes.len()), note(cpu, &error));
                    damaged += 1;
                }
                Some(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Parses the tracing data in perf's files (`HEADER_TRACING_DATA`): version 6 without buffers.
    ///
    /// # Errors
    /// The bytes are something else, or truncated.
    pub fn parse_head(bytes: &'a [u8]) -> Result<Dat<'a>, FtraceError> {
        let (mut dat, version, mut at) = Self::begin(bytes)?;
        v6::head(&mut dat, &mut at)?;
        v6::texts(&mut dat, &mut at, version != "0.5").ok_or_else(|| {
            FtraceError::format("tracing data", "kallsyms, printk formats and names of tasks")
        })?;
        Ok(dat)
    }

    /// Reads the magic number, the version, and the fields that both versions have after it.
    fn begin(file: &'a [u8]) -> Result<(Dat<'a>, &'a str, Cursor<'a>), FtraceError> {
        let mut at = Cursor { bytes: file, at: 0, order: Order::Little };
        if at.take(MAGIC.len()) != Some(MAGIC) {
            return Err(FtraceError::format("offset 0", "the mark of a trace.dat, 17 08 44 `tracing`"));
        }
        let version = at.string().and_then(|v| std::str::from_utf8(v).ok());
        let (Some(version), Some([big, _long])) = (version, at.take(2)) else {
            return Err(FtraceError::format("offset 10", "version, order of bytes and size of a long"));
        };
        at.order = if *big == 0 { Order::Little } else { Order::Big };
        let Some(_page) = at.u32() else {
            return Err(FtraceError::format(format!("offset {}", at.at), "the size of a page"));
        };
        let dat = Dat { version: 6, big: *big != 0, compression: "none".into(), ..Dat::default() };
        Ok((dat, version, at))
    }

    /// Returns a decoder of the file's events.
    #[must_use]
    pub fn decoder(&self) -> Decoder {
        Decoder::new(&self.formats, self.big)
    }

    /// Takes the main buffer out of the file: the top one, or else the first of an instance.
    pub fn main(&mut self) -> Option<Buffer<'a>> {
        (!self.buffers.is_empty()).then(|| self.buffers.remove(0))
    }

    /// Layout of a buffer's pages.
    #[must_use]
    pub fn layout_of(&self, buffer: &Buffer<'_>) -> PageLayout {
        let mut layout = self.layout;
        if let Some(size) = buffer.page_size.filter(|&size| size > layout.data_at) {
            layout.data_size = size - layout.data_at;
        }
        layout
    }

    /// Returns a reader of events for each CPU of a buffer.
    pub fn cpus<'b>(&self, buffer: &'b Buffer<'_>, decoder: &'b Decoder) -> Vec<Cpu<'b>> {
        let layout = self.layout_of(buffer);
        buffer.cpus.iter().map(|(cpu, pages)| Cpu::new(decoder, layout, *cpu, pages)).collect()
    }
}

/// Bytes at the beginning of a file in which its head is looked for first: most is the kernel's symbols.
const FIRST: u64 = 8 << 20;

/// A note on pages that are damaged.
fn note(cpu: u32, error: &std::io::Error) -> String {
    format!("CPU {cpu}: {error}; what comes before is read")
}

/// Options that exist in both versions.
mod option {
    pub const DONE: u16 = 0;
    pub const CPUSTAT: u16 = 2;
    pub const BUFFER: u16 = 3;
    pub const TRACECLOCK: u16 = 4;
    pub const UNAME: u16 = 5;
    pub const OFFSET: u16 = 7;
    pub const CPUCOUNT: u16 = 8;
    pub const TIME_SHIFT: u16 = 12;
    pub const TSC2NSEC: u16 = 14;
}

/// Handles an option that means the same in both versions.
fn common_option(dat: &mut Dat<'_>, id: u16, data: &[u8], order: Order) {
    let text = || String::from_utf8_lossy(crate::bytes::until_nul(data)).into_owned();
    match id {
        option::CPUSTAT => dat.stats.push(text()),
        option::UNAME => dat.uname = text(),
        option::TRACECLOCK => dat.clock = crate::side::clock(text().as_bytes()).unwrap_or_default(),
        option::OFFSET => dat.offset = text().trim().parse().unwrap_or(0),
        option::TSC2NSEC => dat.tsc = tsc_to_ns(data, order),
        option::TIME_SHIFT => {
            dat.notes.push("times are a guest's own: the shift to its host's is not applied".into())
        }
        _ => {}
    }
}

fn tsc_to_ns(data: &[u8], order: Order) -> Option<TscToNs> {
    Some(TscToNs { mult: order.u32(data, 0)?, shift: order.u32(data, 4)?, offset: order.u64(data, 8)? })
}

/// Parses `header_page\0` with its size and text, then the same for `header_event`.
fn header_info(dat: &mut Dat<'_>, at: &mut Cursor<'_>) -> Option<Result<(), FtraceError>> {
    (at.string()? == b"header_page").then_some(())?;
    let size = at.u64()?;
    let layout = PageLayout::parse(at.take_u64(size)?);
    (at.string()? == b"header_event").then_some(())?;
    let size = at.u64()?;
    at.take_u64(size)?;
    Some(layout.map(|layout| dat.layout = layout))
}

/// Parses a count, then a size and a format for each.
fn ftrace_formats(dat: &mut Dat<'_>, at: &mut Cursor<'_>) -> Option<()> {
    let count = at.u32()?;
    some_formats(dat, at, "ftrace", count)
}

fn some_formats(dat: &mut Dat<'_>, at: &mut Cursor<'_>, system: &str, count: u32) -> Option<()> {
    for _ in 0..count {
        let size = at.u64()?;
        match Format::parse(system, at.take_u64(size)?) {
            Ok(format) => dat.formats.push(format),
            Err(error) => dat.notes.push(error.to_string()),
        }
    }
    Some(())
}

/// Parses a count of subsystems, then for each its name, a count and formats.
fn event_formats(dat: &mut Dat<'_>, at: &mut Cursor<'_>) -> Option<()> {
    for _ in 0..at.u32()? {
        let system = String::from_utf8_lossy(at.string()?).into_owned();
        let count = at.u32()?;
        some_formats(dat, at, &system, count)?;
    }
    Some(())
}
