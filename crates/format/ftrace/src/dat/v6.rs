// SPDX-License-Identifier: MIT OR Apache-2.0
//! Version 6: the parts in sequence.

use std::borrow::Cow;

use super::{Buffer, Dat, common_option, event_formats, ftrace_formats, header_info, option};
use crate::bytes::Cursor;
use crate::fault::FtraceError;

/// Parses everything after the page size.
pub(super) fn read<'a>(dat: &mut Dat<'a>, mut at: Cursor<'a>) -> Result<(), FtraceError> {
    head(dat, &mut at)?;
    let start = place(&at);
    texts(dat, &mut at, true)
        .ok_or_else(|| FtraceError::format(&start, "kallsyms, printk formats and names of tasks"))?;
    let start = place(&at);
    let mut cpus = at.u32().ok_or_else(|| FtraceError::format(&start, "the number of CPUs"))?;

    let mut instances = Vec::new();
    if at.bytes.get(at.at..).is_some_and(|rest| rest.starts_with(b"options  \0")) {
        at.at += 10;
        let start = place(&at);
        options(dat, &mut at, &mut cpus, &mut instances)
            .ok_or_else(|| FtraceError::format(&start, "options, up to one with the number 0"))?;
    }
    match buffer(at, cpus) {
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
        let from = Cursor { at: usize::try_from(offset).unwrap_or(usize::MAX), ..at };
        match buffer(from, cpus) {
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

/// Parses `flyrecord`, the offset and size of each CPU's pages, and the clock. `None` if these are absent.
fn buffer<'a>(mut at: Cursor<'a>, cpus: u32) -> Option<Result<(Buffer<'a>, String), FtraceError>> {
    let kind = at.take(10)?;
    if kind == b"latency  \0" {
        let what = "a trace.dat of a latency tracer holds text: import the output of `trace-cmd report` or `trace` instead";
        return Some(Err(FtraceError::Unsupported { what: what.into() }));
    }
    (kind == b"flyrecord\0").then_some(())?;
    let mut buffer = Buffer::default();
    for cpu in 0..cpus {
        let (offset, size) = (at.u64()?, at.u64()?);
        let pages = Cursor { at: usize::try_from(offset).ok()?, ..at }.take_u64(size);
        // A truncated file still contains the first pages.
        let pages = pages.or_else(|| at.bytes.get(usize::try_from(offset).ok()?..)).unwrap_or_default();
        buffer.cpus.push((cpu, Cow::Borrowed(pages)));
    }
    let clock = at.u64().and_then(|size| crate::side::clock(crate::bytes::until_nul(at.take_u64(size)?)));
    Some(Ok((buffer, clock.unwrap_or_default())))
}
