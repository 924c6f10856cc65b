// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of probes as trace files of other tools: a folder of CTF, a file of GDB.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_gdb::registers::Registers;
use kprism_gdb::tfile;
use kprism_probe::stream::{Description, Hit, Probe};
use kprism_probe::stream::{Frame as Kept, Memory};
use kprism_probe::view::ctf::{Event, Streams, metadata};
use kprism_rsp::buffer::{Buffer, Frame};
use kprism_rsp::define::{Action, Definitions, Key, Kind, Tracepoint};
use kprism_rsp::hex;

use super::Loaded;
use crate::progress::Progress;

/// Writes the records as a folder for readers of CTF. Returns their number.
///
/// # Errors
/// The folder is not empty or cannot be written, or as [`Loaded::each`].
pub fn ctf(loaded: &Loaded, path: &Path) -> Result<u64> {
    let name = |path: &Path| path.display().to_string();
    // As of a file, the folder that it goes into has to be there.
    if !path.is_dir() {
        fs::create_dir(path).with_context(|| name(path))?;
    }
    if fs::read_dir(path).with_context(|| name(path))?.next().is_some() {
        bail!("{}: is not empty", path.display());
    }
    let probes = &&loaded.description.probes;
    let mut streams = Streams::default();
    let mut records = 0_u64;
    loaded.each(|hit, values| {
        let values: Vec<_> = values.into_iter().map(|(_, value)| value.ok()).collect();
        let Hit { probe, cpu, time_ns, pid, tid, .. } = *hit;
        let event = Event { probe, cpu, time_ns, pid, tid, values: &values };
        streams.push(&probes[usize::from(probe)], &event);
        records += 1;
        Ok(true)
    })?;
    let write = |file: &str, bytes: &[u8]| {
        let file = path.join(file);
        fs::write(&file, bytes).with_context(|| name(&file))
    };
    write("metadata", metadata(probes).as_bytes())?;
    for (cpu, bytes) in streams.files() {
        write(&format!("cpu_{cpu}"), &bytes)?;
    }
    Ok(records)
}

/// Writes the records as a trace file for GDB. Returns the number of its frames. `progress` is told where files were
/// loaded, and what GDB has to be told of that.
///
/// # Errors
/// The records were not made for GDB, the file cannot be written, or as [`Loaded::each`].
pub fn gdb(loaded: &Loaded, path: &Path, progress: &Progress) -> Result<u64> {
    let Description { probes, .. } = &loaded.description;
    if probes.iter().all(|probe| probe.gdb.is_none()) {
        bail!("{}: GDB needs registers and memory: record with --for-gdb", path.display());
    }
    let mut buffer = Buffer::new(usize::MAX, false);
    // How far from where it is linked each probe's file was loaded.
    let mut slides: Vec<Vec<u64>> = vec![Vec::new(); probes.len()];
    loaded.each(|hit, _| {
        let number = usize::from(hit.probe);
        let (probe, slides) = (&probes[number], &mut slides[number]);
        let Some(kept) = &probe.gdb else { return Ok(true) };
        let mut registers = registers(hit, kept);
        let rip = &mut registers.0[kprism_expr::regs::Reg::Rip as usize];
        // Files are loaded by pages. A kprobe at a function's entry may be behind its first instruction.
        let slide = rip.wrapping_sub(linked(probe)) & !0xfff;
        *rip = linked(probe).wrapping_add(slide);
        if !slides.contains(&slide) {
            slides.push(slide);
        }
        let mut frame = Frame::new(Key { number: number as u32 + 1, address: *rip });
        frame.registers(&registers.seen());
        for memory in &kept.memory {
            if let Some((address, bytes)) = block(hit, memory) {
                frame.memory(address, bytes);
            }
        }
        frame.variable(u32::from(tfile::TIMESTAMP), hit.time_ns / 1000);
        Ok(buffer.push(frame))
    })?;
    let mut definitions = Definitions::default();
    for (number, probe) in probes.iter().enumerate().filter(|(_, probe)| probe.gdb.is_some()) {
        let slide = slides[number].first().copied().unwrap_or(0);
        let key = Key { number: number as u32 + 1, address: linked(probe).wrapping_add(slide) };
        definitions.points.insert(key, point(key, probe));
        let whose = probe.file.as_deref().unwrap_or("VMLINUX");
        match slides[number][..] {
            [] | [0] => {}
            [slide] => progress.say(&format!(
                "{} was loaded {slide:#x} from where it is linked; in GDB, before `target tfile`: symbol-file {whose} -o {slide:#x}",
                probe.place
            )),
            _ => progress.say(&format!(
                "note: {} was loaded at {} places; GDB knows one at a time: symbol-file {whose} -o {slide:#x}",
                probe.place,
                slides[number].len()
            )),
        }
    }
    let frames = buffer.len();
    let status = format!("T0;tstop::0;tframes:{frames:x};tcreated:{frames:x}");
    let description = tfile::Description { definitions: &definitions, buffer: &buffer };
    fs::write(path, description.bytes(&status)).with_context(|| path.display().to_string())?;
    Ok(frames as u64)
}

fn linked(probe: &Probe) -> u64 {
    probe.address.unwrap_or(0)
}

fn word(hit: &Hit<'_>, at: u32) -> u64 {
    let bytes = hit.bytes.get(at as usize..).and_then(|rest| rest.first_chunk::<8>());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn registers(hit: &Hit<'_>, kept: &Kept) -> Registers {
    Registers(std::array::from_fn(|n| word(hit, kept.registers.saturating_add(8 * n as u32))))
}

/// Memory that was read: its address, its bytes.
fn block<'h>(hit: &Hit<'h>, memory: &Memory) -> Option<(u64, &'h [u8])> {
    if memory.item < 64 && hit.failed >> memory.item & 1 == 1 {
        return None;
    }
    let address = word(hit, memory.address);
    let size = match memory.text {
        true => word(hit, memory.bytes.checked_sub(8)?).min(memory.size.into()) as usize,
        false => memory.size as usize,
    };
    let from = memory.bytes as usize;
    let bytes = hit.bytes.get(from..from.checked_add(size)?)?;
    (address != 0 && size > 0).then_some((address, bytes))
}

/// A tracepoint as GDB would have defined it.
fn point(key: Key, probe: &Probe) -> Tracepoint {
    let source =
        |kind: &str, text: &str| (kind.to_owned(), 0, text.len() as u32, hex::bytes(text.as_bytes()));
    // What is before a function's first line is a place too: GDB would go to the line.
    let mut sources = vec![source("at", &format!("*{:#x}", key.address))];
    // What begins with `$` has names of its own here.
    sources
        .extend(probe.condition.iter().filter(|text| !text.contains('$')).map(|text| source("cond", text)));
    let names = probe.items.iter().filter(|item| item.shape.is_some() && !item.name.contains('$'));
    let names: Vec<&str> = names.map(|item| item.name.as_str()).collect();
    sources.push(source("cmd", &format!("collect {}", [&["$regs"][..], &names].concat().join(", "))));
    Tracepoint {
        key,
        enabled: true,
        step: 0,
        pass: 0,
        kind: Kind::Plain,
        condition: None,
        actions: vec![Action::Registers(vec![0xff; 3])],
        step_actions: Vec::new(),
        sources,
    }
}
