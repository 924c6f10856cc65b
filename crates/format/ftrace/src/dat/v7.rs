// SPDX-License-Identifier: MIT OR Apache-2.0
//! Version 7: sections, which may be compressed, found through a chain of options.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::{
    Buffer, Dat, Input, Place, common_option, event_formats, ftrace_formats, header_info, option,
    unpack::unpack,
};
use crate::bytes::{Cursor, Order};
use crate::fault::FtraceError;

const HEADER_INFO: u16 = 16;
const FTRACE_EVENTS: u16 = 17;
const EVENT_FORMATS: u16 = 18;
const KALLSYMS: u16 = 19;
const PRINTK: u16 = 20;
const CMDLINES: u16 = 21;
const BUFFER_TEXT: u16 = 22;

/// Section flag: the contents are compressed.
const COMPRESSED: u16 = 1;

#[derive(Clone, Copy)]
struct Section {
    id: u16,
    compressed: bool,
    /// Offset of the data after the section's header.
    at: u64,
    /// Size of the data as stored.
    size: u64,
}

/// Parses everything after the page size.
pub(super) fn read<'a>(dat: &mut Dat<'a>, mut at: Cursor<'a>, input: Input<'a>) -> Result<(), FtraceError> {
    let head = |at: &mut Cursor<'a>| Some((at.string()?, at.string()?, at.u64()?));
    let (method, _version, mut options) = head(&mut at).ok_or_else(|| {
        FtraceError::format(format!("offset {}", at.at), "compression and the offset of options")
    })?;
    dat.compression = String::from_utf8_lossy(method).into_owned();
    let mut seen = BTreeSet::new();
    let mut parts = Vec::new();
    // The chain of options ends if it returns to an offset it had before.
    while options != 0 && seen.insert(options) {
        let read = section(input, at.order, options).and_then(|section| {
            let data = contents(input, section, &dat.compression, at.order)?;
            Ok((section.id, data))
        });
        let data = match read {
            Ok((0, data)) => data,
            Ok((id, _)) => {
                dat.notes.push(format!("offset {options}: expected options, found section {id}"));
                break;
            }
            Err(error) if seen.len() == 1 => return Err(error),
            Err(error) => {
                dat.notes.push(error.to_string());
                break;
            }
        };
        let mut of = Cursor { bytes: &data, at: 0, order: at.order };
        options = 0;
        while let Some((id, data)) = one_option(&mut of) {
            if id == option::DONE {
                options = at.order.u64(data, 0).unwrap_or(0);
                break;
            }
            parts.push((id, data.to_vec()));
        }
    }
    // The buffers need the layout and the formats, whatever the order of the options.
    for (id, data) in &parts {
        match *id {
            HEADER_INFO | FTRACE_EVENTS | EVENT_FORMATS | KALLSYMS | PRINTK | CMDLINES => {
                if let Err(error) = pointed(dat, (input, at.order), *id, data) {
                    if *id == HEADER_INFO {
                        return Err(error);
                    }
                    dat.notes.push(error.to_string());
                }
            }
            BUFFER_TEXT => dat.notes.push("a buffer of text, of a latency tracer, was passed over".into()),
            option::BUFFER => {}
            id => common_option(dat, id, data, at.order),
        }
    }
    for (_, data) in parts.iter().filter(|(id, _)| *id == option::BUFFER) {
        match buffer(dat, (input, at.order), data) {
            Ok(Some(buffer)) => dat.buffers.push(buffer),
            Ok(None) => dat.notes.push("an option on a buffer is too short".into()),
            Err(error) => dat.notes.push(error.to_string()),
        }
    }
    if dat.formats.is_empty() {
        return Err(FtraceError::format("sections", "formats of events"));
    }
    Ok(())
}

fn one_option<'d>(of: &mut Cursor<'d>) -> Option<(u16, &'d [u8])> {
    let id = of.u16()?;
    let size = of.u32()?;
    Some((id, of.take_u64(size.into())?))
}

/// Size of a section's header: two numbers of 2 bytes, one of 4 and one of 8. trace-cmd writes 8 bytes for the last; its
/// documentation says 4.
const HEADER: u64 = 16;

fn section(input: Input<'_>, order: Order, offset: u64) -> Result<Section, FtraceError> {
    let header = input.bytes(offset, HEADER)?;
    let read = || {
        let mut at = Cursor { bytes: &header, at: 0, order };
        let (id, flags) = (at.u16()?, at.u16()?);
        let _description = at.u32()?;
        let (begin, size) = input.clipped(offset + HEADER, at.u64()?);
        Some(Section { id, compressed: flags & COMPRESSED != 0, at: begin, size })
    };
    read().ok_or_else(|| FtraceError::format(format!("offset {offset}"), "a section"))
}

/// Returns a section's contents, decompressed.
fn contents<'a>(
    input: Input<'a>,
    section: Section,
    method: &str,
    order: Order,
) -> Result<Cow<'a, [u8]>, FtraceError> {
    let data = input.bytes(section.at, section.size)?;
    if !section.compressed {
        return Ok(data);
    }
    let mut at = Cursor { bytes: &data, at: 0, order };
    let packed = (|| {
        let (packed, whole) = (at.u32()?, at.u32()?);
        Some((at.take_u64(packed.into())?, whole))
    })();
    let place = format!("section {} at offset {}", section.id, section.at);
    let (packed, whole) = packed.ok_or_else(|| FtraceError::format(&place, "a whole compressed section"))?;
    unpack(method, packed, whole as usize, &place).map(Cow::Owned)
}

/// Parses the part that an option of one of these kinds points to.
fn pointed(
    dat: &mut Dat<'_>,
    (input, order): (Input<'_>, Order),
    id: u16,
    data: &[u8],
) -> Result<(), FtraceError> {
    let offset = order.u64(data, 0).unwrap_or(0);
    let section = section(input, order, offset)?;
    if section.id != id {
        return Err(FtraceError::format(
            format!("offset {offset}"),
            format!("section {id}, not {}", section.id),
        ));
    }
    let bytes = contents(input, section, &dat.compression, order)?;
    let mut at = Cursor { bytes: &bytes, at: 0, order };
    let done = match id {
        HEADER_INFO => match header_info(dat, &mut at) {
            Some(result) => return result,
            None => None,
        },
        FTRACE_EVENTS => ftrace_formats(dat, &mut at),
        EVENT_FORMATS => event_formats(dat, &mut at),
        _ => {
            let text = (|| {
                let size = if id == CMDLINES { at.u64()? } else { at.u32()?.into() };
                at.take_u64(size)
            })();
            let text = text.map(<[u8]>::to_vec);
            text.map(|text| match id {
                KALLSYMS => dat.kallsyms = text.into(),
                PRINTK => dat.printk = text.into(),
                _ => dat.cmdlines = text.into(),
            })
        }
    };
    done.ok_or_else(|| {
        FtraceError::format(format!("section {id} at offset {}", section.at), "as much as its sizes say")
    })
}

/// Parses a buffer and where its pages are. `None` if the option is truncated.
fn buffer<'a>(
    dat: &Dat<'_>,
    (input, order): (Input<'_>, Order),
    data: &[u8],
) -> Result<Option<Buffer<'a>>, FtraceError> {
    let mut at = Cursor { bytes: data, at: 0, order };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let head = (|| Some((at.u64()?, text(at.string()?), text(at.string()?), at.u32()?, at.u32()?)))();
    let Some((offset, name, clock, page_size, count)) = head else { return Ok(None) };
    let section = section(input, order, offset)?;
    let page_size = Some(page_size as usize).filter(|size| size.is_power_of_two() && *size <= 1 << 20);
    let mut buffer = Buffer { name, clock, page_size, ..Buffer::default() };
    for _ in 0..count {
        let Some((cpu, offset, size)) = (|| Some((at.u32()?, at.u64()?, at.u64()?)))() else {
            return Ok(None);
        };
        let (begin, stored) = input.clipped(offset, size);
        let packed = section.compressed && stored > 0;
        // trace-cmd 3.1 leaves the four bytes of the count of chunks out of the size. The count says where they end.
        let (at, size) = input.clipped(begin, if packed { stored.saturating_add(COUNT) } else { stored });
        buffer.places.push((cpu, Place { at, size, packed, notes: dat.notes.len() }));
    }
    Ok(Some(buffer))
}

/// Size of the count of chunks, bytes.
const COUNT: u64 = 4;
