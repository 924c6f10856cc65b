// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes all streams of a run into a [`Profile`], on any number of threads.
//!
//! Each stream is cut at PSBs into chunks. Chunk sizes depend on the stream alone, threads take chunks in order, and
//! results are joined in order. So the profile is the same for any number of threads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use kprism_image::resolve::Resolve;
use kprism_image::sideband::{Record, Switch};

use crate::decode::clock::ClockConfig;
use crate::decode::errata::Errata;
use crate::decode::error::FaultKind;
use crate::decode::flow::PAGE;
use crate::decode::{Decoder, Setup, Stats};
use crate::measure::delta::Plan;
use crate::measure::window::{Window, restrict};
use crate::stack::chunk::{Chunk, NOTED, PLAIN, Stacks};
use crate::stack::lane::Lane;
use crate::stack::stitch::{Need, Stitcher};
use crate::stack::switches::first_task;
use crate::stream::{Stream, chunks};
use kprism_profile::{CpuTotals, FlowError, Profile, Task, Totals};

/// Options of a decode.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads to use; 0 for as many as there are CPUs.
    pub threads: usize,
    /// Calls of at least this many ns become [`Profile::slices`]; system calls and interrupts always do.
    pub slice_ns: u64,
    /// Clock facts of the recording.
    pub clock: ClockConfig,
    /// Errata of the processor.
    pub errata: Errata,
    /// Stream bytes that a thread takes at once, up to the next PSB; 0 for a size that fits the stream. The profile may
    /// depend on it where frames were lost, but never on the number of threads.
    pub chunk: usize,
    /// Intervals and executions to measure.
    pub plan: Plan,
    /// If given, only this task's work in this time is counted, and no intervals.
    pub window: Option<Window>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 0,
            slice_ns: 10_000,
            clock: ClockConfig::default(),
            errata: Errata::NONE,
            chunk: 0,
            plan: Plan::default(),
            window: None,
        }
    }
}

/// Chunks per thread that may be decoded and not stitched yet.
const AHEAD: usize = 2;

/// Resolution of a position in a stream, for the order of jobs.
const POSITION_STEPS: u64 = 1 << 20;

struct Job {
    stream: usize,
    from: usize,
    to: usize,
}

/// Decodes all streams of one run into a profile.
///
/// `progress` is called, from any thread, with the number of further bytes done. Faults never end the decode: they are
/// counted and listed in [`Profile::errors`].
pub fn profile<R: Resolve>(
    streams: &[Stream<'_>],
    resolver: &R,
    sideband: &[Record],
    options: &Options,
    progress: &(dyn Fn(u64) + Sync),
) -> Profile {
    let switches: Vec<&Switch> = sideband
        .iter()
        .filter_map(|r| match r {
            Record::Switch(switch) => Some(switch),
            _ => None,
        })
        .collect();
    let watch = switches.iter().map(|s| s.ip).find(|&ip| ip != 0);
    let jobs = jobs(streams, options.chunk);
    let lanes = lanes(streams, &switches, sideband);
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    let switching = streams
        .iter()
        .map(|s| !s.image.task_switches().is_empty() || switches.iter().any(|w| w.cpu == u32::from(s.cpu)))
        .collect();
    let work = Work {
        streams,
        resolver,
        watch,
        switching,
        options,
        jobs,
        progress,
        next: AtomicUsize::new(0),
        done: Mutex::default(),
        changed: Condvar::new(),
        ahead: AHEAD * threads,
        room: Condvar::new(),
        over: AtomicBool::new(false),
        ahead_of_reports: AtomicBool::new(false),
    };
    let mut stitcher = Stitcher::new(lanes, resolver, &options.plan, options.slice_ns, options.window);
    let stats = std::thread::scope(|scope| {
        for _ in 1..threads.min(work.jobs.len()) {
            scope.spawn(|| {
                let mut decoders = Vec::new();
                while work.wait_for_room() && work.decode_next(&mut decoders, Chunk::default()) {}
            });
        }
        let _release = Release(&work);
        work.stitch_all(&mut stitcher)
    });
    let stitched = stitcher.finish();
    let (mut totals, errors) = totals_and_errors(streams, &work.jobs, stats);
    totals.guessed = stitched.guessed;
    totals.unended = stitched.unended;
    let mut tasks = stitched.tasks;
    name_tasks(&mut tasks, sideband);
    let mut profile = Profile {
        funcs: stitched.funcs,
        tasks,
        nodes: stitched.tree.nodes,
        syscalls: stitched.syscalls,
        slices: stitched.slices,
        deltas: stitched.deltas,
        counts: stitched.counts,
        errors,
        totals,
    };
    if let Some(window) = &options.window {
        restrict(&mut profile, window);
    }
    profile
}

/// The chunks of all streams. All CPUs advance at about the same speed, as they are stitched together in order of time.
fn jobs(streams: &[Stream<'_>], chunk: usize) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (stream, s) in streams.iter().enumerate() {
        jobs.extend(chunks(s.bytes, chunk).map(|(from, to)| Job { stream, from, to }));
    }
    jobs.sort_by_key(|j| {
        let length = streams[j.stream].bytes.len() as u64;
        (j.from as u64 * POSITION_STEPS / length.max(1), j.stream)
    });
    jobs
}

/// A lane for each stream, with the task switches of its CPU.
fn lanes<'a>(streams: &[Stream<'_>], switches: &[&'a Switch], sideband: &'a [Record]) -> Vec<Lane<'a>> {
    let lane = |s: &Stream<'_>| {
        let own: Vec<&Switch> = switches.iter().copied().filter(|w| w.cpu == u32::from(s.cpu)).collect();
        let first = first_task(s.cpu, &own, sideband);
        Lane::new(s.cpu, own, first)
    };
    streams.iter().map(lane).collect()
}

/// Counts of each CPU, and the places that could not be decoded, in order of the streams.
fn totals_and_errors(streams: &[Stream<'_>], jobs: &[Job], stats: Vec<Stats>) -> (Totals, Vec<FlowError>) {
    let per_cpu = streams.iter().map(|_| CpuTotals::default()).collect();
    let mut totals = Totals { per_cpu, ..Totals::default() };
    let mut errors = Vec::new();
    // Times that each page of missing code was entered, and pages of which there is an error in the list.
    let mut missing: BTreeMap<u64, u64> = BTreeMap::new();
    let mut told: BTreeSet<u64> = BTreeSet::new();
    for (job, mut stats) in jobs.iter().zip(stats) {
        let cpu = streams[job.stream].cpu;
        stats.enter_missing(&mut missing);
        stats.faults.retain(|fault| match fault.kind {
            FaultKind::NoCode(at) => told.insert(at >> PAGE),
            _ => true,
        });
        add(&mut totals.per_cpu[job.stream], &stats);
        for (kind, n) in stats.packet_events.iter() {
            *totals.packet_events.entry(kind.name().to_owned()).or_default() += n;
        }
        errors.extend(stats.faults.into_iter().map(|f| (cpu, f)));
    }
    let mut errors: Vec<FlowError> = errors
        .into_iter()
        .map(|(cpu, f)| {
            let mut kind = f.kind.to_string();
            if let FaultKind::NoCode(at) = f.kind
                && let Some(times) = missing.get(&(at >> PAGE << PAGE)).filter(|times| **times > 1)
            {
                kind += &format!(" (its page was entered {times} times)");
            }
            FlowError { cpu, offset: f.offset, ns: f.ns, ip: f.ip, kind }
        })
        .collect();
    errors.sort_by_key(|e| (e.cpu, e.offset));
    (totals, errors)
}

/// State shared by all threads.
struct Work<'a, R> {
    streams: &'a [Stream<'a>],
    resolver: &'a R,
    watch: Option<u64>,
    /// For each stream, true if other tasks may run on its CPU.
    switching: Vec<bool>,
    options: &'a Options,
    jobs: Vec<Job>,
    progress: &'a (dyn Fn(u64) + Sync),
    /// Index of the next job to take.
    next: AtomicUsize,
    /// Results not stitched yet, by job.
    done: Mutex<HashMap<usize, (Chunk, Stats)>>,
    /// Signals a new result.
    changed: Condvar,
    /// Results that may wait to be stitched before no more jobs are taken.
    ahead: usize,
    /// Signals that there is room for another result, or that no more are wanted.
    room: Condvar,
    over: AtomicBool,
    /// In some chunk, estimates of time ran ahead of reports: others will be decoded with [`NOTED`] at once. A chunk in which none
    /// does comes out the same either way, so results do not depend on the order of chunks.
    ahead_of_reports: AtomicBool,
}

/// When dropped, releases the threads that wait for room, even if stitching panics.
struct Release<'w, 'a, R>(&'w Work<'a, R>);

impl<R> Drop for Release<'_, '_, R> {
    fn drop(&mut self) {
        let done = self.0.done.lock().unwrap_or_else(|e| e.into_inner());
        self.0.over.store(true, Ordering::Relaxed);
        drop(done);
        self.0.room.notify_all();
    }
}

/// When dropped, delivers a result, even after a panic. So no thread waits for it forever.
struct Deliver<'w, 'a, R> {
    work: &'w Work<'a, R>,
    index: usize,
    result: (Chunk, Stats),
}

impl<R> Drop for Deliver<'_, '_, R> {
    fn drop(&mut self) {
        let result = std::mem::take(&mut self.result);
        self.work.done.lock().unwrap_or_else(|e| e.into_inner()).insert(self.index, result);
        self.work.changed.notify_one();
    }
}

impl<'a, R: Resolve> Work<'a, R> {
    /// Waits while too many results wait to be stitched. Returns true if more are wanted.
    fn wait_for_room(&self) -> bool {
        let full = |done: &mut HashMap<_, _>| done.len() >= self.ahead && !self.over.load(Ordering::Relaxed);
        let done = self.done.lock().unwrap_or_else(|e| e.into_inner());
        drop(self.room.wait_while(done, full));
        !self.over.load(Ordering::Relaxed)
    }

    /// Decodes one more job, if there is one. `decoders` belong to the calling thread, one for each stream.
    fn decode_next(&self, decoders: &mut Vec<Option<Decoder<'a, R>>>, room: Chunk) -> bool {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(job) = self.jobs.get(index) else { return false };
        decoders.resize_with(self.streams.len(), || None);
        let decoder = &mut decoders[job.stream];
        let mut result = Deliver { work: self, index, result: <(Chunk, Stats)>::default() };
        let mut done = None;
        let mut room = room;
        if !self.ahead_of_reports.load(Ordering::Relaxed) {
            let (chunk, stats, ahead) = self.decode::<PLAIN>(job, decoder, room);
            // The lab's instructions take a tick each: there the pace is wrong only for moments, which later reports absorb.
            let ahead = ahead && !self.options.clock.counts_instructions();
            (done, room) = if ahead { (None, chunk) } else { (Some((chunk, stats)), Chunk::default()) };
            if ahead {
                self.ahead_of_reports.store(true, Ordering::Relaxed);
                // A decoder goes forward only.
                *decoder = None;
            }
        }
        result.result = done.unwrap_or_else(|| {
            let (chunk, stats, _) = self.decode::<NOTED>(job, decoder, room);
            (chunk, stats)
        });
        drop(result);
        (self.progress)((job.to - job.from) as u64);
        true
    }

    /// Decodes a job. The flag is true if an estimate of time was ahead of a report.
    fn decode<const NOTES: bool>(
        &self,
        job: &Job,
        decoder: &mut Option<Decoder<'a, R>>,
        room: Chunk,
    ) -> (Chunk, Stats, bool) {
        let new = || {
            let Stream { bytes, image, .. } = self.streams[job.stream];
            let Self { resolver, watch, .. } = *self;
            let setup =
                Setup { image, resolver, clock: self.options.clock, watch, errata: self.options.errata };
            Decoder::marking(bytes, setup, false, &self.options.plan.markers)
        };
        let Options { slice_ns, window, .. } = *self.options;
        let stacks = |room| Stacks::<NOTES>::new(slice_ns, window, !self.switching[job.stream], room);
        let mut sink = stacks(room);
        let stats = decoder.get_or_insert_with(new).run(job.from, job.to, &mut sink);
        let rests = sink.take_rests();
        let (chunk, ahead) = sink.finish();
        if rests.is_empty() || !window.is_some_and(|window| chunk.has_edge(&window)) {
            return (chunk, stats, ahead);
        }
        // How long a repeated instruction took is known at the next report, and what ran between them was in the window or not.
        let shared = chunk.shared;
        let mut sink = stacks(chunk).with_rests(rests);
        let stats = decoder.insert(new()).run(job.from, job.to, &mut sink);
        let (mut chunk, ahead) = sink.finish();
        chunk.shared = shared;
        (chunk, stats, ahead)
    }

    /// Stitches all chunks in order, and decodes while there is nothing to stitch. Returns the counters by job.
    fn stitch_all(&self, stitcher: &mut Stitcher<'a, R>) -> Vec<Stats> {
        let mut stats: Vec<Stats> = self.jobs.iter().map(|_| Stats::default()).collect();
        let mut decoders = Vec::new();
        // Jobs of each stream, in order.
        let mut ahead: Vec<_> = (0..self.streams.len())
            .map(|stream| (0..self.jobs.len()).filter(move |&j| self.jobs[j].stream == stream))
            .collect();
        while let Need::Chunk(lane) = stitcher.advance() {
            let Some(index) = ahead[lane].next() else {
                stitcher.feed(lane, None);
                continue;
            };
            let (chunk, counted) = loop {
                let done = self.done.lock().unwrap_or_else(|e| e.into_inner()).remove(&index);
                if let Some(done) = done {
                    self.room.notify_one();
                    break done;
                }
                if !self.decode_next(&mut decoders, stitcher.spare()) {
                    // All jobs are taken, so another thread is decoding this one.
                    let done = self.done.lock().unwrap_or_else(|e| e.into_inner());
                    let wait = self.changed.wait_while(done, |done| !done.contains_key(&index));
                    drop(wait);
                }
            };
            stats[index] = counted;
            stitcher.feed(lane, Some(chunk));
        }
        stats
    }
}

fn add(totals: &mut CpuTotals, stats: &Stats) {
    totals.instructions += stats.instructions;
    totals.branches += stats.branches;
    totals.errors += stats.errors;
    totals.overflows += stats.overflows;
    totals.lost_bytes += stats.lost_bytes;
    if totals.first_ns == 0 {
        totals.first_ns = stats.first_ns;
    }
    totals.last_ns = totals.last_ns.max(stats.last_ns);
}

/// Gives every task the last name it had.
fn name_tasks(tasks: &mut [Task], sideband: &[Record]) {
    let by_id: HashMap<(u32, u32), usize> =
        tasks.iter().enumerate().map(|(i, t)| ((t.pid, t.tgid), i)).collect();
    for record in sideband {
        let (pid, tgid, comm) = match record {
            Record::Comm(c) => (c.pid, c.tgid, &c.comm),
            Record::Switch(s) if s.pid != 0 => (s.pid, s.tgid, &s.comm),
            _ => continue,
        };
        if let Some(&task) = by_id.get(&(pid, tgid)) {
            tasks[task].comm.clone_from(comm);
        }
    }
}
