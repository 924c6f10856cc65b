// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what ftrace or a BPF recorder left in a run to its durations.
//!
//! In: `streams/ftrace` and `streams/bpf`, as `docs/run-folder.md` has them. Out: [`Measured`], kept as the run's
//! tables, with the task switches as its sideband and what was read and lost in its manifest.

mod account;
mod events;
mod facts;
mod perf;
mod wanted;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_durations::ftrace::Collector;
use kprism_durations::{Measured, Names, aggregate, record};
use kprism_ftrace::dat::{Dat, TscToNs};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::show::Describe;
use kprism_ftrace::show::Shown;
use kprism_ftrace::text::Text;
use kprism_ftrace::{Data, Event, Exit, side};
use kprism_image::symbols::Symbols;
use kprism_profile::units::grouped;
use kprism_profile::{CpuTotals, Profile, Times};
use kprism_store::{
    Instrument, Manifest, Run, has_times, load_profile, load_times, save_profile, save_times,
};
use serde_json::json;

use crate::files::{read, read_if_there};
use crate::progress::Progress;
pub use events::{Events, events};
use facts::Facts;
use wanted::Wanted;

/// Where a run keeps the second pass of its recording.
pub fn remeasured(run: &Run) -> PathBuf {
    run.dir().join("remeasured")
}

/// The duration in ns below which the recorder left calls out, by the run's settings; 0 if it left none out.
pub fn threshold_ns(manifest: &Manifest) -> u64 {
    let settings = manifest.options.get("settings");
    let time: Option<Duration> =
        settings.and_then(|settings| serde_json::from_value(settings["longer_than"].clone()).ok().flatten());
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Opens a run of durations, measuring first if that was not done yet.
///
/// # Errors
/// No such run, or one that cannot be read.
pub fn open(run: &Run, progress: &Progress) -> Result<(Profile, Times)> {
    if run.has_tables() && has_times(run) {
        progress.step("reading the tables");
        let profile = load_profile(run)?;
        let times = load_times(run, &profile)?;
        return Ok((profile, times));
    }
    progress.step("reading the trace");
    let mut facts = Facts::default();
    let measured = read_trace(run, &mut facts, &mut Consumer::None)?;
    progress.step("writing the tables");
    // A full disk must not keep anybody from seeing why it is full. Half a table would be taken for one.
    if let Err(why) = enter(run, &measured, facts, progress) {
        fs::remove_dir_all(run.tables()).ok();
        progress.say(&format!(
            "kprism: note: the tables are not kept, each report reads the trace again: {why:#}"
        ));
    }
    let Measured { profile, times, .. } = measured;
    Ok((profile, times))
}

/// Takes each event after the collector, with the writer of its text; returns false to end the reading.
pub type Visitor<'e> = &'e mut dyn FnMut(&mut Collector<'_>, &Event<'_>, Describe<'_>) -> bool;

/// The consumer of a trace, beside the collector of durations.
pub enum Consumer<'e> {
    /// No other: sums are enough.
    None,
    /// Calls whose entries are not there are kept.
    Rebuilt,
    /// Every event.
    Events(Visitor<'e>),
}

impl Consumer<'_> {
    fn prepare(&self, collector: &mut Collector<'_>) {
        match self {
            Consumer::None => {}
            Consumer::Rebuilt => collector.keep_rebuilt(),
            Consumer::Events(_) => collector.keep_log(),
        }
    }

    /// Takes an event; `false` ends the reading.
    #[inline]
    fn event(&mut self, collector: &mut Collector<'_>, event: &Event<'_>, describe: Describe<'_>) -> bool {
        collector.event(event);
        match self {
            Consumer::Events(visit) => visit(collector, event, describe),
            _ => true,
        }
    }
}

/// Measures a run, saves its tables, and enters what was read into its manifest.
///
/// # Errors
/// The streams are not there or not what they should be, or the disk refuses.
pub fn measure(run: &Run, progress: &Progress) -> Result<Measured> {
    progress.step("reading the trace");
    let mut facts = Facts::default();
    let measured = read_trace(run, &mut facts, &mut Consumer::None)?;
    progress.step("writing the tables");
    enter(run, &measured, facts, progress)?;
    Ok(measured)
}

/// Reads a run's trace again, for a consumer that needs more of it than the tables have.
///
/// # Errors
/// As [`measure`].
pub fn again(run: &Run, consumer: &mut Consumer<'_>) -> Result<Measured> {
    read_trace(run, &mut Facts::default(), consumer)
}

fn read_trace(run: &Run, facts: &mut Facts, consumer: &mut Consumer<'_>) -> Result<Measured> {
    let dir = run.ftrace();
    facts.clock = "local".into();
    let kallsyms = read_if_there(&run.kallsyms())?;
    let (dat, txt) = (dir.join("trace.dat"), dir.join("trace.txt"));
    let of_perf = dir.join("perf.data");
    let mut measured = if dat.is_file() {
        let bytes = read(&dat)?;
        let dat = Dat::parse(&bytes).with_context(|| dat.display().to_string())?;
        from_dat(&dat, &kallsyms, facts, consumer)
    } else if txt.is_file() {
        from_text(&read(&txt)?, facts, consumer)
    } else if of_perf.is_file() {
        perf::measure(&read(&of_perf)?, &kallsyms, facts, consumer)
            .with_context(|| of_perf.display().to_string())?
    } else if dir.is_dir() {
        from_raw(&dir, &kallsyms, facts, consumer)?
    } else {
        from_bpf(run, &kallsyms, facts, consumer)?
    };
    let counts = &mut measured.times.counts;
    counts.lost = facts.lost_events(counts).unwrap_or(0);
    Ok(measured)
}

/// Saves tables, sideband and manifest.
fn enter(run: &Run, measured: &Measured, facts: Facts, progress: &Progress) -> Result<()> {
    save_profile(run, &measured.profile)?;
    if !measured.switches.is_empty() {
        let line = |s: &kprism_durations::Switch| {
            json!({"k": "switch", "t": s.ns, "cpu": s.cpu, "prev_pid": s.prev.0, "prev_comm": s.prev.1,
                "pid": s.next.0, "comm": s.next.1})
        };
        let text: String = measured.switches.iter().map(|s| format!("{}\n", line(s))).collect();
        fs::write(run.sideband(), text).with_context(|| run.sideband().display().to_string())?;
    }
    let mut manifest = run.manifest()?;
    manifest.vcpus = manifest.vcpus.max(u32::try_from(measured.profile.totals.per_cpu.len())?);
    manifest.clock.name.clone_from(&facts.clock);
    manifest.clock.tsc_hz = 1_000_000_000;
    (manifest.clock.art_num, manifest.clock.art_den) = (0, 0);
    if manifest.kernel.is_none() && !facts.kernel.is_empty() {
        manifest.kernel =
            Some(kprism_store::Kernel { release: facts.kernel.clone(), build_id: String::new() });
    }
    let account = account::account(&manifest, &measured.times, &facts);
    manifest.accounts.insert(Instrument::Durations, account);
    let ftrace = json!({"source": facts.source, "events": facts.events, "overwritten": facts.overwritten});
    manifest.options.insert("ftrace".into(), ftrace);
    if !facts.notes.is_empty() {
        manifest.options.insert("decode_notes".into(), facts.notes.clone().into());
    }
    run.write_manifest(&manifest)?;
    for note in &facts.notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    Ok(save_times(run, &measured.times)?)
}

/// The kernel's functions; none, with a note, where they cannot be told.
fn symbols(kallsyms: &[u8], facts: &mut Facts) -> Symbols {
    Symbols::load(&widened(kallsyms), &[], None).unwrap_or_else(|error| {
        facts.notes.push(error.to_string());
        Symbols::default()
    })
}

/// The symbols of a 32-bit kernel with the addresses that [`high`] makes of them: those of the kernel are in the upper half
/// everywhere else.
fn widened(kallsyms: &[u8]) -> Cow<'_, [u8]> {
    let digits = kallsyms.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits != 8 {
        return kallsyms.into();
    }
    let lines = kallsyms.split_inclusive(|&byte| byte == b'\n');
    lines.flat_map(|line| [b"ffffffff", line]).flatten().copied().collect::<Vec<u8>>().into()
}

/// The address of a kernel's function, from 32 bits too.
fn high(address: u64) -> u64 {
    if address >> 32 == 0 { address | 0xffff_ffff_0000_0000 } else { address }
}

/// The function that an address is in.
fn function(symbols: &Symbols, address: u64) -> Option<(&str, &str)> {
    let address = high(address);
    let func = symbols.function(symbols.locate(0, address, 0)?.func);
    Some((&func.name, &func.module))
}

/// A place in the kernel's code, `vfs_read+0x4`.
fn place(symbols: &Symbols, address: u64) -> Option<String> {
    let address = high(address);
    let place = symbols.locate(0, address, 0).filter(|place| place.known)?;
    let func = symbols.function(place.func);
    Some(format!("{}+{:#x}", func.name, address.saturating_sub(func.start)))
}

/// A collector that knows which functions are special.
fn collector<'s>(symbols: &'s Symbols, timed: bool) -> Collector<'s> {
    Collector::new(Names::new(|address| Some(function(symbols, address)?.0)), timed)
}

fn finish(collector: Collector<'_>, symbols: &Symbols) -> Measured {
    collector.finish(|address| {
        let (name, module) = function(symbols, address)?;
        Some((name.to_owned(), module.to_owned()))
    })
}

fn from_text(text: &[u8], facts: &mut Facts, consumer: &mut Consumer<'_>) -> Measured {
    let mut reader = Text::new(text);
    facts.source = "text";
    let columns = reader.columns();
    let mut collector = Collector::new(Names::default(), reader.timed());
    consumer.prepare(&mut collector);
    let describe = |event: &Event<'_>, out: &mut Vec<u8>| match &event.data {
        Data::Text(text) => {
            out.extend_from_slice(text.as_bytes());
            true
        }
        Data::Stack(caller) => {
            out.extend_from_slice(b"=> ");
            out.extend_from_slice(caller.as_bytes());
            true
        }
        _ => false,
    };
    while let Some(event) = reader.next() {
        if collector.comm(event.pid).is_none()
            && let Some(comm) = reader.comms.get(&event.pid)
        {
            collector.name_tasks([(event.pid, comm.clone())]);
        }
        if !consumer.event(&mut collector, &event, &describe) {
            break;
        }
    }
    collector.name_tasks(std::mem::take(&mut reader.comms));
    facts.events = reader.counts.events;
    if let Some((kept, written)) = reader.counts.entries {
        facts.overwritten = Some(written.saturating_sub(kept));
    }
    facts.overruns.0 = reader.counts.overruns;
    if !reader.timed() {
        facts.clock = "of each task".into();
        facts.guess(
            "the text has no times (option funcgraph-abstime): each task's timeline is made of its durations"
                .into(),
        );
    }
    if reader.guessed {
        facts.guess("the text has no header: its columns are told by its lines".into());
    }
    if columns.graph && !columns.duration {
        // With times, calls that call others have a beginning and an end; the others have one line.
        facts.unmeasured =
            Some(if reader.timed() { "durations of calls that call nothing" } else { "durations of calls" });
        facts.notes.push(
            "the text has no durations (option funcgraph-duration): what is shown as 0 is not known".into(),
        );
    }
    if columns.graph && !columns.cpu {
        facts.guess(
            "the text does not tell CPUs apart (option funcgraph-cpu): calls of several may be mixed up"
                .into(),
        );
    }
    faults(&reader.counts.faults, "trace.txt: line", facts);
    collector.finish(|_| None)
}

fn faults(faults: &kprism_ftrace::Faults, place: &str, facts: &mut Facts) {
    facts.faults += faults.count;
    let places =
        faults.first.iter().map(|fault| format!("{place} {}: expected {}", fault.at, fault.expected));
    facts.fault_places.extend(places.take(4));
    if let Some(first) = faults.first.first() {
        let more = if faults.count > 1 { format!(" ({} such places)", faults.count) } else { String::new() };
        facts.notes.push(format!("{place} {}: expected {}{more}", first.at, first.expected));
    }
}

/// Merges the CPUs' events and counts them.
fn collect<'a>(
    cpus: Vec<Cpu<'a>>,
    (names, formats, symbols): (&[String], (&[Format], bool), &Symbols),
    time: &Time,
    mut wanted: Option<Wanted>,
    collector: &mut Collector<'_>,
    (facts, consumer): (&mut Facts, &mut Consumer<'_>),
) {
    consumer.prepare(collector);
    let shown = Shown::new(formats.0, formats.1);
    let named = |address: u64| place(symbols, address);
    let describe = |event: &Event<'_>, out: &mut Vec<u8>| match &event.data {
        Data::Raw { id, bytes } => shown.write(*id, bytes, &named, out),
        _ => false,
    };
    let mut last = BTreeMap::new();
    let mut merged = Merged::new(cpus);
    for mut event in merged.by_ref() {
        time.apply(&mut event, &mut last);
        facts.count(&event);
        if let Some(wanted) = wanted.as_mut()
            && !wanted.takes(&event)
        {
            continue;
        }
        if !consumer.event(collector, &event, &describe) {
            break;
        }
    }
    facts.others = wanted.as_ref().map(|wanted| wanted.others);
    if let Some(Wanted { others, .. }) = wanted
        && others > 0
    {
        facts.notes.push(format!(
            "{} calls of other tasks left out: with a threshold the kernel keeps those too",
            grouped(others)
        ));
    }
    for (cpu, name) in merged.into_streams().iter().zip(names) {
        facts.events += cpu.counts.events;
        faults(&cpu.counts.faults, &format!("{name}: offset"), facts);
    }
}

/// How times become ns.
enum Time {
    /// They are ns, and functions are timed with the same clock.
    Same,
    /// They are ns of another clock than function graph's own, which is `local`.
    Other { tsc: Option<TscToNs>, offset: i64 },
    /// They are no ns: those of returns are taken.
    Returns,
}

impl Time {
    fn new(clock: &str, tsc: Option<TscToNs>, offset: i64, facts: &mut Facts) -> Self {
        match clock {
            "local" | "" if offset == 0 => Time::Same,
            "counter" | "uptime" | "x86-tsc" if tsc.is_none() => {
                facts.guess(format!(
                    "clock {clock} cannot be converted to ns: functions' own times are taken"
                ));
                facts.clock = "local".into();
                Time::Returns
            }
            _ => Time::Other { tsc, offset },
        }
    }

    fn apply(&self, event: &mut Event<'_>, last: &mut BTreeMap<u32, u64>) {
        match self {
            Time::Same => {}
            Time::Other { tsc, offset } => {
                let ns = tsc.map_or(event.ns, |tsc| tsc.ns(event.ns));
                event.ns = ns.saturating_add_signed(*offset);
                if let Data::Exit(Exit { call_ns: Some(call), ret_ns: Some(ret), .. }) = &mut event.data {
                    let took = ret.saturating_sub(*call);
                    (*call, *ret) = (event.ns.saturating_sub(took), event.ns);
                }
            }
            Time::Returns => {
                let ns = last.entry(event.cpu).or_insert(0);
                if let Data::Exit(Exit { ret_ns: Some(ret), .. }) = &event.data {
                    *ns = *ret;
                }
                event.ns = *ns;
            }
        }
    }
}

fn from_dat(dat: &Dat<'_>, kallsyms: &[u8], facts: &mut Facts, consumer: &mut Consumer<'_>) -> Measured {
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

fn from_raw(dir: &Path, kallsyms: &[u8], facts: &mut Facts, consumer: &mut Consumer<'_>) -> Result<Measured> {
    facts.source = "pages of the ring buffer";
    let header = read_if_there(&dir.join("header_page"))?;
    let layout = if header.is_empty() { PageLayout::default() } else { PageLayout::parse(&header)? };
    let formats = formats(&dir.join("events"), facts)?;
    let decoder = Decoder::new(&formats, false);
    let wanted = Wanted::of(dir, &formats).unwrap_or_else(|unknown| {
        facts.guess(unknown.into());
        None
    });
    let symbols = symbols(kallsyms, facts);
    let mut streams: Vec<(u32, Cow<'_, [u8]>)> = Vec::new();
    for cpu in numbered(dir) {
        streams.push((cpu, read(&dir.join(format!("cpu{cpu}.raw")))?.into()));
        let stats = read_if_there(&dir.join(format!("stats/cpu{cpu}")))?;
        if !stats.is_empty() {
            let stats = side::stats(&stats);
            facts.overwrote(stats.overrun.saturating_add(stats.commit_overrun).saturating_add(stats.dropped));
        }
    }
    if streams.is_empty() {
        bail!("{}: no cpuN.raw: the recording left nothing", dir.display());
    }
    facts.clock = side::clock(&read_if_there(&dir.join("trace_clock"))?).unwrap_or_else(|| "local".into());
    let time = Time::new(&facts.clock.clone(), None, 0, facts);
    let mut collector = collector(&symbols, true);
    collector.name_tasks(side::by_pid(&read_if_there(&dir.join("saved_cmdlines"))?));
    let tgids = side::by_pid(&read_if_there(&dir.join("saved_tgids"))?);
    collector.group_tasks(tgids.iter().filter_map(|(pid, tgid)| Some((*pid, tgid.trim().parse().ok()?))));
    let cpus = streams.iter().map(|(cpu, pages)| Cpu::new(&decoder, layout, *cpu, pages)).collect();
    let names: Vec<String> = streams.iter().map(|(cpu, _)| format!("cpu{cpu}.raw")).collect();
    collect(cpus, (&names, (&formats, false), &symbols), &time, wanted, &mut collector, (facts, consumer));
    Ok(finish(collector, &symbols))
}

/// CPUs that have pages.
fn numbered(dir: &Path) -> Vec<u32> {
    let number = |name: String| name.strip_prefix("cpu")?.strip_suffix(".raw")?.parse().ok();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut cpus: Vec<u32> =
        entries.filter_map(|e| number(e.file_name().to_string_lossy().into_owned())).collect();
    cpus.sort_unstable();
    cpus
}

/// All formats below `events`. One that cannot be read costs its events their meaning, and is noted.
fn formats(events: &Path, facts: &mut Facts) -> Result<Vec<Format>> {
    let sorted = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    let mut formats = Vec::new();
    for system in sorted(events) {
        for event in sorted(&events.join(&system)) {
            let path = events.join(&system).join(&event).join("format");
            if !path.is_file() {
                continue;
            }
            match Format::parse(&system.to_string_lossy(), &read(&path)?) {
                Ok(format) => formats.push(format),
                Err(error) => {
                    facts.formats.push(error.to_string());
                    facts.notes.push(error.to_string());
                }
            }
        }
    }
    if formats.is_empty() {
        bail!("{}: no SYSTEM/NAME/format tells what the records mean", events.display());
    }
    Ok(formats)
}

/// What BPF left: single calls, or functions' numbers.
fn from_bpf(run: &Run, kallsyms: &[u8], facts: &mut Facts, consumer: &Consumer<'_>) -> Result<Measured> {
    facts.clock = "monotonic".into();
    facts.of_calls = true;
    let manifest = run.manifest()?;
    let calls = run.bpf_calls();
    let functions = run.bpf_functions();
    let mut measured = if functions.is_file() && !calls.is_file() {
        facts.source = "functions counted by BPF";
        let (mut measured, bad) = aggregate::read(&read(&functions)?);
        facts.faults = bad.len() as u64;
        facts.fault_places = bad.iter().map(ToString::to_string).collect();
        facts.notes.extend(bad.iter().map(ToString::to_string));
        facts.events = measured.times.counts.calls;
        let last_ns = manifest.durations.recorded_ns.unwrap_or(0);
        let cpu = CpuTotals { last_ns, ..CpuTotals::default() };
        measured.profile.totals.per_cpu = vec![cpu; manifest.vcpus.min(1 << 16) as usize];
        measured
    } else {
        facts.source = "calls kept by BPF";
        let bytes = manifest.options.get("record_bytes").and_then(serde_json::Value::as_u64);
        if bytes != Some(record::SIZE as u64) {
            bail!(
                "{}: its records are not of {} bytes: another version of kprism recorded it; record it again",
                calls.display(),
                record::SIZE
            );
        }
        let symbols = symbols(kallsyms, facts);
        let mut collector = collector(&symbols, true);
        consumer.prepare(&mut collector);
        for call in record::read(&read(&calls)?) {
            match call {
                Ok(call) => {
                    facts.events += 1;
                    collector.kept(&call);
                }
                Err(error) => {
                    facts.faults += 1;
                    facts.fault_places.push(error.to_string());
                    facts.notes.push(error.to_string());
                }
            }
        }
        finish(collector, &symbols)
    };
    let losses = manifest.durations.losses.unwrap_or_default();
    let counts = &mut measured.times.counts;
    counts.lost = losses.lost.saturating_add(losses.overflowed).saturating_add(losses.missed);
    counts.unfinished = losses.unfinished.saturating_add(losses.abandoned);
    counts.orphans = losses.orphans;
    Ok(measured)
}

/// A few lines on what was measured.
///
/// # Errors
/// The manifest cannot be read.
pub fn summary(run: &Run, measured: &Measured) -> Result<String> {
    let manifest = run.manifest()?;
    let ftrace = &manifest.options["ftrace"];
    let number = |key: &str| grouped(ftrace[key].as_u64().unwrap_or(0));
    let counts = &measured.times.counts;
    let text =
        format!("{} events, {}, {} lost events", number("events"), calls(measured), grouped(counts.lost));
    Ok(text + &format!("\nread into {}", see(run)))
}

/// Whether anything at all was read.
///
/// # Errors
/// The manifest cannot be read.
pub fn has_events(run: &Run) -> Result<bool> {
    Ok(run.manifest()?.options["ftrace"]["events"].as_u64().unwrap_or(0) > 0)
}

/// How many calls there are of how many functions.
pub fn calls(measured: &Measured) -> String {
    let functions = grouped(measured.profile.funcs.len() as u64);
    format!("{} calls of {functions} functions", grouped(measured.times.counts.calls))
}

/// Where the run is, and what shows it.
pub fn see(run: &Run) -> String {
    let place = run.dir().display();
    let input = crate::input_option(run);
    format!("{place}; see: kprism report durations{input}")
}
