// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records the events, where there is a TSC: on x86-64.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::{Beside, CLOCK, Clocks, Pair, RecordedEvents};
use crate::error::{Context as _, Error, Result};
use crate::settings::{Scope, Settings};
use crate::tracefs::{self, Tracefs};
use crate::{EVENTS, describe, setup};

/// Folder of the instance below tracefs, and of the one that tells the kernel's own clock.
const PLACE: &str = "instances/kprism-events";
const CLOCK_PLACE: &str = "instances/kprism-clock";
/// Pairs of clocks measured at each end. The one with the least distance is kept.
const PAIRS: usize = 9;

/// Switches the events on, in the guest, for the run at `folder`.
///
/// # Errors
/// There is no such event or no TSC, or tracefs refuses.
pub fn begin(settings: &Beside, folder: &Path) -> Result<()> {
    let tracefs = Tracefs::find()?;
    let output = folder.join(EVENTS);
    fs::create_dir_all(&output).at("create", &output)?;
    let wanted = Settings {
        scope: Scope::All,
        events: false,
        more_events: settings.events.clone(),
        ..Settings::default()
    };
    let events = setup::events(&wanted, &tracefs)?;
    let place = tracefs.path(PLACE);
    fs::create_dir(&place).at("create", &place)?;
    let set = |name: &str, value: &str| tracefs::write(&place.join(name), &[value]);
    set("tracing_on", "0")?;
    if !tracefs.read(&format!("{PLACE}/trace_clock"))?.contains(CLOCK) {
        return Err(Error::Setting(format!("this kernel's tracer has no clock {CLOCK}")));
    }
    set("trace_clock", CLOCK)?;
    set("buffer_size_kb", &settings.buffer_kib.to_string())?;
    let clocks = Clocks { local: vec![local(&tracefs)?], monotonic: vec![monotonic()] };
    describe::formats(&tracefs, &events, &output)?;
    for event in &events {
        set(&format!("events/{event}/enable"), "1")?;
    }
    let recorded = RecordedEvents {
        settings: settings.clone(),
        events,
        clock: CLOCK.to_owned(),
        cpus: Vec::new(),
        clocks,
    };
    recorded.save(&output)?;
    tracefs::write(&place.join("trace"), &[])?;
    set("tracing_on", "1")
}

/// Switches the events off again and writes what was recorded.
///
/// # Errors
/// [`begin`] was not called before, or a file cannot be written.
pub fn end(folder: &Path) -> Result<RecordedEvents> {
    let tracefs = Tracefs::find()?;
    let output = folder.join(EVENTS);
    tracefs::write(&tracefs.path(&format!("{PLACE}/tracing_on")), &["0"])?;
    let mut recorded = RecordedEvents::load(&output)?
        .ok_or_else(|| Error::Setting("no events were switched on".to_owned()))?;
    recorded.clocks.local.push(local(&tracefs)?);
    recorded.clocks.monotonic.push(monotonic());
    let cpus = tracefs.cpus()?;
    let page = tracefs.page_bytes(PLACE);
    for cpu in &cpus {
        copy(
            &tracefs.path(&format!("{PLACE}/per_cpu/cpu{cpu}/trace_pipe_raw")),
            page,
            &output.join(format!("cpu{cpu}.raw")),
        )?;
    }
    recorded.cpus = describe::facts(&tracefs, PLACE, &cpus, &output)?;
    recorded.save(&output)?;
    Ok(recorded)
}

/// Copies a buffer, page by page. A page that is not full keeps its length in its head.
fn copy(from: &Path, page: usize, to: &Path) -> Result<()> {
    let mut raw = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(from).at("open", from)?;
    let mut bytes = Vec::new();
    let mut one = vec![0; page];
    loop {
        match raw.read(&mut one) {
            Ok(0) => break,
            Ok(count) => {
                one[count..].fill(0);
                bytes.extend_from_slice(&one);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).at("read", from),
        }
    }
    fs::write(to, bytes).at("write", to)
}

/// The TSC, when all instructions before it have ended.
fn tsc() -> u64 {
    // Time is only asked for: neither instruction touches memory.
    std::arch::x86_64::__cpuid(0);
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The best of several pairs.
fn best(mut measure: impl FnMut() -> Result<Pair>) -> Result<Pair> {
    let mut best = measure()?;
    for _ in 1..PAIRS {
        let pair = measure()?;
        if pair.after.wrapping_sub(pair.before) < best.after.wrapping_sub(best.before) {
            best = pair;
        }
    }
    Ok(best)
}

/// CLOCK_MONOTONIC, between two readings of the TSC.
pub fn monotonic() -> Pair {
    let measure = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let before = tsc();
        // SAFETY: the structure lives through the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        let after = tsc();
        Ok(Pair { before, ns: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64, after })
    };
    best(measure).unwrap_or(Pair { before: 0, ns: 0, after: u64::MAX })
}

/// The clock of the kernel's log: that of a mark in a trace with the clock `perf`.
fn local(tracefs: &Tracefs) -> Result<Pair> {
    let place = tracefs.path(CLOCK_PLACE);
    if !place.is_dir() {
        fs::create_dir(&place).at("create", &place)?;
        // local_clock(), as of printk. The trace's `local` is without the offset that the kernel adds to its scheduler's clock.
        tracefs::write(&place.join("trace_clock"), &["perf"])?;
    }
    let mut number = 0;
    best(|| {
        tracefs::write(&place.join("trace"), &[])?;
        // The mark of this time, whatever else the trace may hold.
        number += 1;
        let text = format!("kprism{number}");
        let path = place.join("trace_marker");
        let mark = OpenOptions::new().write(true).open(&path).at("open", &path)?;
        let before = tsc();
        std::io::Write::write_all(&mut &mark, text.as_bytes()).at("write", &path)?;
        let after = tsc();
        let trace = tracefs.read(&format!("{CLOCK_PLACE}/trace"))?;
        let ns = time_of_mark(&trace, &text).ok_or_else(|| {
            Error::Setting(format!("{}: no mark with a time", place.join("trace").display()))
        })?;
        Ok(Pair { before, ns, after })
    })
}

/// The time of the last line `… 12.345678: tracing_mark_write: MARK`, in ns.
fn time_of_mark(text: &str, mark: &str) -> Option<u64> {
    let line =
        text.lines().rev().find(|line| line.strip_suffix(mark).is_some_and(|head| head.ends_with(": ")))?;
    let time = line.split_whitespace().find_map(|word| word.strip_suffix(':')?.split_once('.'))?;
    let (seconds, rest): (u64, u64) = (time.0.parse().ok()?, format!("{:0<9.9}", time.1).parse().ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_mark() {
        let text = "# tracer: nop\n#\n  a.b-12 [000] .....    34.567891: tracing_mark_write: kprism\n";
        assert_eq!(time_of_mark(text, "kprism"), Some(34_567_891_000));
        assert_eq!(time_of_mark(text, "ism"), None);
        assert_eq!(time_of_mark("# nothing\n", "kprism"), None);
    }
}
