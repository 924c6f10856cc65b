// SPDX-License-Identifier: MIT OR Apache-2.0
//! trace-cmd's file: `trace.dat`.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_durations::Measured;
use kprism_ftrace::dat::{Dat, Input};
use kprism_ftrace::side;

use super::consumer::Consumer;
use super::facts::Facts;
use super::merged::{Time, collect};
use super::names::{collector, finish, symbols};

/// Measures it. Its pages are read as their events are needed: a file may be larger than memory.
pub(super) fn measure(
    path: &Path,
    kallsyms: &[u8],
    facts: &mut Facts,
    consumer: &mut Consumer<'_>,
) -> Result<Measured> {
    let name = || path.display().to_string();
    let file = File::open(path).with_context(name)?;
    let input = Input::File(&file, file.metadata().with_context(name)?.len());
    let dat = &Dat::open(input).with_context(name)?;
    facts.source = "trace.dat";
    let noted = facts.notes.len();
    facts.damaged(&dat.notes);
    facts.kernel = dat.uname.split(' ').nth(2).unwrap_or_default().to_owned();
    let names = if kallsyms.is_empty() { &dat.kallsyms } else { kallsyms };
    let symbols = symbols(names, facts);
    let decoder = dat.decoder();
    let clock = dat.buffers.first().map_or("local", |b| b.clock.as_str());
    facts.clock = if clock.is_empty() { "local".into() } else { clock.to_owned() };
    let time = Time::new(clock, dat.tsc, dat.offset, facts);
    let mut collector = collector(&symbols, true);
    collector.name_tasks(side::by_pid(&dat.cmdlines));
    let (mut cpus, mut places, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for buffer in &dat.buffers {
        if buffer.clock != clock {
            facts.notes.push(format!(
                "buffer {} has another clock ({}) and was passed over",
                buffer.name, buffer.clock
            ));
            continue;
        }
        cpus.extend(dat.streams(input, buffer, &decoder));
        for (number, place) in &buffer.places {
            places.push(format!("trace.dat: buffer {:?}, CPU {number}", buffer.name));
            stored.push((*number, *place));
        }
    }
    for stats in &dat.stats {
        let stats = side::stats(stats.as_bytes());
        facts.overwrote(stats.overrun.saturating_add(stats.commit_overrun).saturating_add(stats.dropped));
    }
    let ended = collect(
        cpus,
        (&places, (&dat.formats, dat.big), &symbols),
        &time,
        None,
        &mut collector,
        (facts, consumer),
    );
    // They stand where a reader of the whole file notes them, before other notes.
    let mut later = facts.notes.split_off(noted + dat.notes.len());
    let mut notes = facts.notes.split_off(noted);
    let ended = stored.into_iter().zip(ended).map(|((cpu, place), stream)| (cpu, place, stream.error));
    Dat::note_damage(ended, &mut notes).with_context(name)?;
    facts.notes.append(&mut notes);
    facts.notes.append(&mut later);
    Ok(finish(collector, &symbols))
}
