// SPDX-License-Identifier: MIT OR Apache-2.0
//! A condition of the running kernel, at which perf is to save its ring: `record flow --snapshot-when`.
//!
//! Input: a probe's text, and whose hits count. The condition is compiled to eBPF and tested in the kernel, as `record probe`
//! does. Output: whether it held since the last look, and [`Counted`] at the end.
//!
//! Nothing stops the trace at the hit itself: perf learns of it by a signal, and goes on to write its ring until then. So the
//! longest time from a hit to the signal is measured, and kept in the run.

use std::cell::RefCell;

use anyhow::{Context as _, Result, bail};
use kprism_bpf::host;
use kprism_image::symbols::kallsyms;
use kprism_probe::attach::{Config, HitScope, Reader, Session};
use kprism_probe::stream;
use kprism_session::{Progress, files};
use serde::Serialize;

use super::settings::Settings;
use crate::condition::interval;
use crate::probe::{KEYS, Probes};

/// Bytes of each CPU's ring for hits, which are taken out each millisecond.
const RING: u32 = 1 << 16;
const OPTION: &str = "--snapshot-when";

/// Functions whose calls are an interval of [`interval::NAMES`], the first that the kernel has.
const CALLS: [(&str, &[&str]); 2] = [
    // do_syscall_64 takes no probe (noinstr); it calls this, since Linux 6.9.
    ("syscall", &["x64_sys_call"]),
    ("contention", &["native_queued_spin_lock_slowpath", "queued_spin_lock_slowpath"]),
];

/// Hits of a condition, and the signals to perf that they led to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Number of times that the condition held.
    pub held: u64,
    /// Number of times that its place was reached; with all CPUs recorded, by perf too.
    pub hits: u64,
    /// Number of times that the condition could not be computed.
    pub failed: u64,
    /// Snapshots that perf was asked for. Hits of one look, a millisecond, are one request.
    pub requests: u64,
    /// Longest time from a hit to the request, ns: so much of the ring may be of after the hit.
    pub longest_delay_ns: u64,
}

/// The text of the probe for a condition: itself, or the call that is the interval it names.
///
/// # Errors
/// It names an interval that is not the call of a function, or whose function the kernel lacks. `kernel` gives the text of
/// `/proc/kallsyms`, if it is needed.
fn probe_text(spec: &str, kernel: impl FnOnce() -> Result<Vec<u8>>) -> Result<String> {
    let Some((name, condition)) = interval::split(spec) else { return Ok(spec.to_owned()) };
    let Some((_, functions)) = CALLS.iter().find(|(call, _)| *call == name) else {
        bail!(
            "{OPTION}: {name} is measured from outside a guest (kprism lab run, kprism observe); on a processor name the call of a \
             function: 'FUNC%return if $duration > 100us'"
        );
    };
    let kernel = kernel()?;
    let known = |function: &&&str| kallsyms::value_of(&kernel, function).is_some();
    let function = functions.iter().find(known).with_context(|| {
        format!("{OPTION}: {name}: this kernel has no function {}", functions.join(" or "))
    })?;
    Ok(match condition {
        Some(condition) => format!("{function}%return if {condition}"),
        None => format!("{function}%return"),
    })
}

/// The attached condition.
#[derive(Debug)]
pub struct Attached {
    session: Session,
}

impl Attached {
    /// Compiles the condition `spec` and attaches it, for hits of what `settings` records.
    ///
    /// # Errors
    /// The place does not exist, the expression has no meaning there, or the user may not load programs into the kernel.
    pub fn begin(spec: &str, settings: &Settings, progress: &Progress) -> Result<Self> {
        let text = probe_text(spec, || files::read("/proc/kallsyms".as_ref()))?;
        let pids: Vec<u32> = settings.pid.into_iter().collect();
        let compiled = Probes { probes: vec![text], ..Probes::default() }
            .compile(&settings.command, &pids, progress)
            .context(OPTION)?;
        let who = match (settings.all_cpus, settings.pid) {
            (true, _) => HitScope::All,
            (_, Some(pid)) => HitScope::Processes(vec![pid]),
            _ => HitScope::Children,
        };
        let config =
            Config { who, ring_bytes: RING, stop_after: None, vars: Vec::new(), thread_vars: 0, keys: KEYS };
        let session = Session::start(compiled.plans, &config).context(OPTION)?;
        session.notes().iter().for_each(|note| progress.say(&format!("note: {OPTION}: {note}")));
        if let Some(why) = session.failed().first() {
            bail!("{OPTION}: {why}");
        }
        Ok(Self { session })
    }

    /// Looks at its hits from now on.
    pub fn watch(&self) -> Watch<'_> {
        let state = State { reader: self.session.reader(), perf: None, counted: Counted::default() };
        Watch { session: &self.session, state: RefCell::new(state) }
    }
}

/// Looks at the hits as they come.
#[derive(Debug)]
pub struct Watch<'s> {
    session: &'s Session,
    state: RefCell<State<'s>>,
}

#[derive(Debug)]
struct State<'s> {
    reader: Reader<'s>,
    perf: Option<u32>,
    counted: Counted,
}

impl Watch<'_> {
    /// True if the condition held since the last call. `perf` is the process whose own hits do not count, the same in each call.
    ///
    /// # Errors
    /// There is no such process.
    pub fn held(&self, perf: u32) -> Result<bool> {
        let mut state = self.state.borrow_mut();
        let perf = match state.perf {
            Some(perf) => perf,
            None => *state.perf.insert(self.session.count_only_children_of(perf)?),
        };
        let State { reader, counted, .. } = &mut *state;
        let mut first = None;
        reader.drain(|records| {
            for hit in of_others(records, perf) {
                counted.held += 1;
                first = first.or(Some(hit.time_ns));
            }
        });
        let Some(first) = first else { return Ok(false) };
        let delay = host::monotonic_ns().saturating_sub(first);
        state.counted.requests += 1;
        state.counted.longest_delay_ns = state.counted.longest_delay_ns.max(delay);
        Ok(true)
    }

    /// Detaches the condition.
    pub fn end(self) -> Counted {
        self.session.stop();
        let State { mut reader, perf, mut counted } = self.state.into_inner();
        reader.finish(|records| counted.held += of_others(records, perf.unwrap_or(0)).count() as u64);
        for counts in self.session.counts() {
            counted.hits += counts.hits;
            counted.held += counts.lost;
            counted.failed += counts.condition_errors.values().sum::<u64>();
        }
        counted
    }
}

/// The hits in these records, less perf's own.
fn of_others(records: &[u8], perf: u32) -> impl Iterator<Item = stream::Hit<'_>> {
    stream::hits(records).flatten().filter(move |hit| hit.pid != perf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_calls_or_refused() {
        let kernel = b"ffffffff81249030 T x64_sys_call\nffffffff81249040 T vfs_read\n";
        let text = |spec| probe_text(spec, || Ok(kernel.to_vec())).map_err(|error| error.to_string());
        assert_eq!(text("vfs_read if count > 3"), Ok("vfs_read if count > 3".into()));
        assert_eq!(text("syscall > 1ms"), Ok("x64_sys_call%return if $duration > 1ms".into()));
        assert_eq!(text("syscall"), Ok("x64_sys_call%return".into()));
        let error = text("contention > 1us").unwrap_err();
        assert!(error.contains("no function native_queued_spin_lock_slowpath or queued"), "{error}");
        let error = text("irqs_off > 100us").unwrap_err();
        assert!(error.contains("irqs_off is measured from outside a guest"), "{error}");
    }
}
