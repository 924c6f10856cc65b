// SPDX-License-Identifier: MIT OR Apache-2.0
//! trace-cmd's file: `trace.dat`.

use kprism_durations::Measured;
use kprism_ftrace::dat::Dat;
use kprism_ftrace::side;

use super::consumer::Consumer;
use super::facts::Facts;
use super::merged::{Time, collect};
use super::names::{collector, finish, symbols};

/// Measures it.
pub(super) fn measure(
    dat: &Dat<'_>,
    kallsyms: &[u8],
    facts: &mut Facts,
    consumer: &mut Consumer<'_>,
) -> Measured {
    facts.source = "trace.dat";
    facts.notes.extend(dat.notes.iter().cloned());
    facts.kernel = dat.uname.split(' ').nth(2).unwrap_or_default().to_owned();
    let names = if kallsyms.is_empty() { &dat.kallsyms } else { kallsyms };
    let symbols = symbols(names, facts);
    let decoder = dat.decoder();
    let clock = dat.buffers.first().map_or("local", |b| b.clock.as_str());
    facts.clock = if clock.is_empty() { "local".into() } else { clock.to_owned() };
    let time = Time::new(clock, dat.tsc, dat.offset, facts);
    let mut collector = collector(&symbols, true);
    collector.name_tasks(side::by_pid(&dat.cmdlines));
    let (mut cpus, mut places) = (Vec::new(), Vec::new());
    for buffer in &dat.buffers {
        if buffer.clock != clock {
            facts.notes.push(format!(
                "buffer {} has another clock ({}) and was passed over",
                buffer.name, buffer.clock
            ));
            continue;
        }
        for (cpu, (number, _)) in dat.cpus(buffer, &decoder).into_iter().zip(&buffer.cpus) {
            cpus.push(cpu);
            places.push(format!("trace.dat: buffer {:?}, CPU {number}", buffer.name));
        }
    }
    for stats in &dat.stats {
        let stats = side::stats(stats.as_bytes());
        facts.overwrote(stats.overrun.saturating_add(stats.commit_overrun).saturating_add(stats.dropped));
    }
    collect(
        cpus,
        (&places, (&dat.formats, dat.big), &symbols),
        &time,
        None,
        &mut collector,
        (facts, consumer),
    );
    finish(collector, &symbols)
}
