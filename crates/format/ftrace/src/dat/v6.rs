// SPDX-License-Identifier: MIT OR Apache-2.0
//! Version 6: the parts in sequence.

use std::borrow::Cow;

use super::{Buffer, Dat, Input, Place, common_option, event_formats, ftrace_formats, header_info, option};
use crate::bytes::{Cursor, Order, until_nul};
use crate::fault::FtraceError;

/// Parses everything after the page size. `at` is in the beginning of the input, or in all of it.
pub(super) fn read<'a>(dat: &mut Dat<'a>, mut at: Cursor<'a>, input: Input<'a>) -> Result<(), FtraceError> {
    head(dat, &mut at)?;
    let start = place(&at);
    texts(dat, &mut at, true)
        .ok_or_else(|| FtraceError::format(&start, "kallsyms, printk formats and names of tasks"))?;
    let start = place(&at);
    let mut cpus = at.u32().ok_or_else(|| FtraceError::format(&start, "the number of CPUs"))?;

    let mut instances = Vec::new();
    let next = input.bytes(at.at as u64, MARK)?;
    if next.starts_with(b"options  \0") {
        at.at += 10;
        let start = place(&at);
        options(dat, &mut at, &mut cpus, &mut instances)
            .ok_or_else(|| FtraceError::format(&start, "options, up to one with the number 0"))?;
    }
    match buffer(input, at.at as u64, cpus, dat, at.order)? {
        Some(Ok((top, clock))) => {
            if !clock.is_empty() {
                dat.clock = clock;
            }
            dat.buffers.push(top);
        }
        Some(Err(error)) => return Err(error),
        None => return Err(FtraceError::format(place(&at), "`flyrecord` and where each CPU's pages are")),
    }
    for (offset, name) in instances {
        match buffer(input, offset, cpus, dat, at.order)? {
            Some(Ok((found, clock))) => dat.buffers.push(Buffer { name, clock, ..found }),
            Some(Err(error)) => dat.notes.push(format!("buffer {name}: {error}")),
            None => dat.notes.push(format!(
                "buffer {name}: offset {offset}: expected `flyrecord` and where each CPU's pages are"
            )),
        }
    }
    Ok(())
}

fn place(at: &Cursor<'_>) -> String {
    format!("offset {}", at.at)
}

/// Parses the header and the formats.
pub(super) fn head(dat: &mut Dat<'_>, at: &mut Cursor<'_>) -> Result<(), FtraceError> {
    let start = place(at);
    header_info(dat, at)
        .ok_or_else(|| FtraceError::format(&start, "`header_page` and `header_event` with their texts"))??;
    let start = place(at);
    ftrace_formats(dat, at).ok_or_else(|| FtraceError::format(&start, "formats of ftrace's events"))?;
    let start = place(at);
    event_formats(dat, at).ok_or_else(|| FtraceError::format(&start, "formats of events"))
}

/// Parses the texts. Early versions of perf had no task `names`.
pub(super) fn texts<'a>(dat: &mut Dat<'a>, at: &mut Cursor<'a>, names: bool) -> Option<()> {
    let size = at.u32()?;
    dat.kallsyms = Cow::Borrowed(at.take_u64(size.into())?);
    let size = at.u32()?;
    dat.printk = Cow::Borrowed(at.take_u64(size.into())?);
    if names {
        let size = at.u64()?;
        dat.cmdlines = Cow::Borrowed(at.take_u64(size)?);
    }
    Some(())
}

fn options(
    dat: &mut Dat<'_>,
    at: &mut Cursor<'_>,
    cpus: &mut u32,
    instances: &mut Vec<(u64, String)>,
) -> Option<()> {
    loop {
        let id = at.u16()?;
        if id == option::DONE {
            return Some(());
        }
        let size = at.u32()?;
        let data = at.take_u64(size.into())?;
        match id {
            option::BUFFER => {
                let mut of = Cursor { bytes: data, at: 0, order: at.order };
                if let Some(offset) = of.u64() {
                    let name = data.get(8..).unwrap_or_default();
                    instances
                        .push((offset, String::from_utf8_lossy(crate::bytes::until_nul(name)).into_owned()));
                }
            }
            option::CPUCOUNT => *cpus = at.order.u32(data, 0).unwrap_or(*cpus),
            _ => common_option(dat, id, data, at.order),
        }
    }
}

/// Size of the mark of a part.
const MARK: u64 = 10;

/// Result of [`buffer`]: the buffer and its clock, or why it cannot be read; `None` if it is not there.
type Found<'a> = Option<Result<(Buffer<'a>, String), FtraceError>>;

/// Parses `flyrecord`, the offset and size of each CPU's pages, and the clock.
fn buffer<'a>(
    input: Input<'_>,
    offset: u64,
    cpus: u32,
    dat: &Dat<'_>,
    order: Order,
) -> Result<Found<'a>, FtraceError> {
    let size = MARK + 16 * u64::from(cpus) + 8;
    let bytes = input.bytes(offset, size)?;
    let mut at = Cursor { bytes: &bytes, at: 0, order };
    let kind = at.take(MARK as usize);
    if kind == Some(b"latency  \0") {
        let what = "a trace.dat of a latency tracer holds text: import the output of `trace-cmd report` or `trace` instead";
        return Ok(Some(Err(FtraceError::Unsupported { what: what.into() })));
    }
    if kind != Some(b"flyrecord\0") {
        return Ok(None);
    }
    let mut buffer = Buffer::default();
    for cpu in 0..cpus {
        let (Some(begin), Some(stored)) = (at.u64(), at.u64()) else { return Ok(None) };
        // A truncated file still contains the first pages.
        let (begin, stored) = input.clipped(begin, stored);
        let place = Place { at: begin, size: stored, packed: false, notes: dat.notes.len() };
        buffer.places.push((cpu, place));
    }
    let clock = match at.u64() {
        Some(length) => {
            let text = input.bytes(offset.saturating_add(size), length)?;
            let whole = (text.len() as u64 == length).then(|| crate::side::clock(until_nul(&text)));
            whole.flatten().unwrap_or_default()
        }
        None => String::new(),
    };
    Ok(Some(Ok((buffer, clock))))
}
