// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace for Perfetto (ui.perfetto.dev and its trace processor).
//!
//! Input: the profile's slices, its decode errors, the context switches of the run, and events of packets. Output: a protobuf trace with a
//! track per thread under its process, nested slices with interned names, scheduling per CPU, and decode errors as
//! points on a track of their CPU. Packets are written one by one, so memory does not grow with the trace.

mod beside;
mod moments;
mod proto;

pub use beside::{Beside, Timeline, What};
pub use moments::Moment;

use kprism_profile::units;
use kprism_profile::{FrameKind, Profile, Slice};
use prost::Message;
use proto::*;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Write};

/// A context switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Switch {
    /// CPU number.
    pub cpu: u32,
    /// Time in nanoseconds.
    #[serde(rename = "t")]
    pub ns: u64,
    /// Id of the thread that leaves.
    pub prev_pid: u32,
    /// Its name.
    #[serde(default)]
    pub prev_comm: String,
    /// Id of the thread that comes.
    pub pid: u32,
    /// Its name.
    #[serde(default)]
    pub comm: String,
}

/// Reads the context switches of a run's `sideband.jsonl`. Incomplete lines and those of another kind are skipped.
///
/// # Errors
/// Reading `input` fails.
pub fn read_switches(input: impl BufRead) -> io::Result<Vec<Switch>> {
    let mut switches = Vec::new();
    for line in input.split(b'\n') {
        let line = line?;
        let record: Option<serde_json::Value> = serde_json::from_slice(&line).ok();
        let Some(record) = record.filter(|r| r["k"] == "switch") else { continue };
        switches.extend(serde_json::from_value::<Switch>(record).ok());
    }
    Ok(switches)
}

/// Packets of one sequence share interned names. The number has no meaning.
const SEQUENCE: u32 = 1;

/// Perfetto draws pid 0 as idle and takes 120 for the default priority.
const DEFAULT_PRIORITY: i32 = 120;

/// Writes the trace.
///
/// # Errors
/// Writing to `out` fails.
pub fn write(
    profile: &Profile,
    switches: &[Switch],
    moments: &[Moment],
    out: &mut impl Write,
) -> io::Result<()> {
    begin(profile, switches, moments, out).map(|_| ())
}

/// Writes the trace of a profile; more can follow.
fn begin<'a, W: Write>(
    profile: &Profile,
    switches: &[Switch],
    moments: &[Moment],
    out: &'a mut W,
) -> io::Result<Writer<'a, W>> {
    let mut writer = Writer { out, names: HashMap::new(), started: false, buffer: Vec::new() };
    let mut processes: BTreeMap<u32, &str> = BTreeMap::new();
    for task in &profile.tasks {
        let name = processes.entry(task.tgid).or_insert(&task.comm);
        if task.pid == task.tgid {
            *name = &task.comm;
        }
    }
    for (&tgid, &name) in &processes {
        let process =
            ProcessDescriptor { pid: Some(tgid as i32), process_name: Some(units::printable(name)) };
        writer.track(TrackDescriptor {
            uuid: Some(uuid(Track::Process(tgid))),
            process: Some(process),
            ..TrackDescriptor::default()
        })?;
    }
    for (i, task) in profile.tasks.iter().enumerate() {
        let thread = ThreadDescriptor {
            pid: Some(task.tgid as i32),
            tid: Some(task.pid as i32),
            thread_name: Some(units::printable(&task.comm)),
        };
        writer.track(TrackDescriptor {
            uuid: Some(uuid(Track::Task(i as u32))),
            parent_uuid: Some(uuid(Track::Process(task.tgid))),
            thread: Some(thread),
            ..TrackDescriptor::default()
        })?;
    }
    let mut of_task: Vec<Vec<&Slice>> = vec![Vec::new(); profile.tasks.len()];
    for slice in &profile.slices {
        of_task[slice.task as usize].push(slice);
    }
    let calls = profile.syscalls.iter().map(|call| ((call.task, call.start_ns), call.func));
    let bodies: HashMap<(u32, u64), u32> = calls.collect();
    for (task, slices) in of_task.into_iter().enumerate() {
        writer.slices(profile, task as u32, slices, &bodies)?;
    }
    writer.errors(profile)?;
    writer.moments(moments)?;
    writer.switches(profile, switches)?;
    Ok(writer)
}

enum Track {
    Process(u32),
    Task(u32),
    Errors(u16),
    Moments(u16),
    Ratio(u16),
}

/// Track ids: distinct numbers other than 0, which is the global track.
fn uuid(track: Track) -> u64 {
    match track {
        Track::Process(tgid) => 1 << 40 | u64::from(tgid),
        Track::Task(task) => 2 << 40 | u64::from(task),
        Track::Errors(cpu) => 3 << 40 | u64::from(cpu),
        Track::Moments(cpu) => 4 << 40 | u64::from(cpu),
        Track::Ratio(cpu) => 5 << 40 | u64::from(cpu),
    }
}

/// Interned argument names. The id is the index plus one.
const ARGUMENTS: [&str; 9] =
    ["instructions", "cpu", "module", "stream_offset", "ip", "error", "says", "pid", "ending"];
/// Interned categories. The id is the index plus one.
const CATEGORIES: [&str; 16] = [
    "call",
    "syscall",
    "interrupt",
    "exception",
    "signal",
    "resumed",
    "error",
    "event",
    "kernel event",
    "probe",
    "interrupts off",
    "coverage window",
    "recorded",
    "on CPU",
    "kernel log",
    "mark",
];
/// The category of [`Moment`].
const EVENT_CATEGORY: u64 = 8;

fn argument(name: &str) -> DebugAnnotation {
    let at = ARGUMENTS.iter().position(|a| *a == name).unwrap_or(0);
    DebugAnnotation { name_iid: Some(at as u64 + 1), ..DebugAnnotation::default() }
}

fn category(kind: FrameKind) -> u64 {
    match kind {
        FrameKind::Root | FrameKind::Call | FrameKind::Tail => 1,
        FrameKind::Syscall => 2,
        FrameKind::Interrupt => 3,
        FrameKind::Exception => 4,
        FrameKind::Signal => 5,
        FrameKind::Resumed => 6,
    }
}

struct Writer<'a, W: Write> {
    out: &'a mut W,
    /// Names known to the reader so far, with their ids.
    names: HashMap<String, u64>,
    started: bool,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<'_, W> {
    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(SEQUENCE);
        if !self.started {
            self.started = true;
            packet.sequence_flags = Some(SEQ_INCREMENTAL_STATE_CLEARED | SEQ_NEEDS_INCREMENTAL_STATE);
            let data = packet.interned_data.get_or_insert_with(InternedData::default);
            data.event_categories = interned(&CATEGORIES);
            data.debug_annotation_names = interned(&ARGUMENTS);
        } else {
            packet.sequence_flags = Some(SEQ_NEEDS_INCREMENTAL_STATE);
        }
        self.buffer.clear();
        // Each packet is field 1 of the trace, length-delimited: key byte 1 << 3 | 2.
        self.buffer.push(0x0a);
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.out.write_all(&self.buffer)
    }

    fn track(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    /// Writes an event; `name` is interned on its first use.
    fn event(&mut self, ns: u64, name: Option<&str>, mut event: TrackEvent) -> io::Result<()> {
        let mut packet = TracePacket { timestamp: Some(ns), ..TracePacket::default() };
        if let Some(name) = name {
            let known = self.names.get(name).copied();
            let iid = known.unwrap_or(self.names.len() as u64 + 1);
            if known.is_none() {
                self.names.insert(name.to_string(), iid);
                let new = InternedName { iid: Some(iid), name: Some(name.to_string()) };
                packet.interned_data =
                    Some(InternedData { event_names: vec![new], ..InternedData::default() });
            }
            event.name_iid = Some(iid);
        }
        packet.track_event = Some(event);
        self.packet(packet)
    }

    /// Writes the slices of a task, properly nested. A call that (because of lost bytes) seems to outlive its caller is
    /// ended with it. A call that seems to outlive the beginning of the next one of its caller (two CPUs' clocks, or
    /// an estimated time, differ by a few ns) is ended there: the next one would else be drawn inside it, and cut.
    /// A call without an end has a reason in the argument `ending`: its length is not its duration.
    /// `bodies` has the functions that system calls led to, by task and start: a slice has only the kernel's entry.
    fn slices(
        &mut self,
        profile: &Profile,
        task: u32,
        mut slices: Vec<&Slice>,
        bodies: &HashMap<(u32, u64), u32>,
    ) -> io::Result<()> {
        let track = Some(uuid(Track::Task(task)));
        slices.sort_by_key(|s| (s.start_ns, s.depth, s.end_ns));
        let end = TrackEvent { r#type: Some(SLICE_END), track_uuid: track, ..TrackEvent::default() };
        // The end and the depth of each open slice.
        let mut open: Vec<(u64, u16)> = Vec::new();
        for slice in slices {
            let over = |&(until, depth): &(u64, u16)| until <= slice.start_ns || depth >= slice.depth;
            while let Some((until, _)) = open.pop_if(|slice| over(slice)) {
                self.event(until.min(slice.start_ns), None, end.clone())?;
            }
            let body = bodies.get(&(task, slice.start_ns)).filter(|_| slice.kind == FrameKind::Syscall);
            let func = &profile.funcs[*body.unwrap_or(&slice.func) as usize];
            let until =
                slice.end_ns.max(slice.start_ns).min(open.last().map_or(u64::MAX, |&(until, _)| until));
            let mut annotations = vec![
                DebugAnnotation { uint_value: Some(slice.insns), ..argument("instructions") },
                DebugAnnotation { uint_value: Some(slice.cpu.into()), ..argument("cpu") },
                DebugAnnotation { string_value: Some(func.module.clone()), ..argument("module") },
            ];
            annotations.extend(
                slice.unended().map(|remark| DebugAnnotation {
                    string_value: Some(remark.into()),
                    ..argument("ending")
                }),
            );
            let begin = TrackEvent {
                r#type: Some(SLICE_BEGIN),
                track_uuid: track,
                category_iids: vec![category(slice.kind)],
                debug_annotations: annotations,
                ..TrackEvent::default()
            };
            let name = match slice.kind {
                FrameKind::Syscall => units::syscall_name(&func.name),
                _ => func.name.clone(),
            };
            self.event(slice.start_ns, Some(&name), begin)?;
            open.push((until, slice.depth));
        }
        while let Some((until, _)) = open.pop() {
            self.event(until, None, end.clone())?;
        }
        Ok(())
    }

    fn errors(&mut self, profile: &Profile) -> io::Result<()> {
        let mut cpus: Vec<u16> = profile.errors.iter().map(|e| e.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        for cpu in cpus {
            let uuid = Some(uuid(Track::Errors(cpu)));
            let name = Some(format!("Decode errors CPU {cpu}"));
            self.track(TrackDescriptor { uuid, name, ..TrackDescriptor::default() })?;
            for error in profile.errors.iter().filter(|e| e.cpu == cpu) {
                let event = TrackEvent {
                    r#type: Some(INSTANT),
                    track_uuid: uuid,
                    category_iids: vec![7],
                    debug_annotations: vec![
                        DebugAnnotation { string_value: Some(error.kind.clone()), ..argument("error") },
                        DebugAnnotation { uint_value: Some(error.offset), ..argument("stream_offset") },
                        DebugAnnotation { pointer_value: Some(error.ip), ..argument("ip") },
                    ],
                    ..TrackEvent::default()
                };
                self.event(error.ns, Some("decode error"), event)?;
            }
        }
        Ok(())
    }

    /// Writes the switches. The first switch of a CPU states which task ran before it; that task is on the CPU from the
    /// stream's start.
    fn switches(&mut self, profile: &Profile, switches: &[Switch]) -> io::Result<()> {
        let mut begun = Vec::new();
        for switch in switches {
            if begun.contains(&switch.cpu) {
                continue;
            }
            begun.push(switch.cpu);
            let first_ns = profile.totals.per_cpu.get(switch.cpu as usize).map_or(0, |c| c.first_ns);
            if first_ns > 0 && first_ns < switch.ns {
                let (comm, pid) = (switch.prev_comm.clone(), switch.prev_pid);
                let (prev_comm, prev_pid) = (format!("swapper/{}", switch.cpu), 0);
                self.switch(&Switch { ns: first_ns, cpu: switch.cpu, prev_comm, prev_pid, comm, pid })?;
            }
        }
        switches.iter().try_for_each(|switch| self.switch(switch))
    }

    fn switch(&mut self, switch: &Switch) -> io::Result<()> {
        let sched_switch = SchedSwitch {
            prev_comm: Some(units::printable(&switch.prev_comm)),
            prev_pid: Some(switch.prev_pid as i32),
            prev_prio: Some(DEFAULT_PRIORITY),
            prev_state: Some(0),
            next_comm: Some(units::printable(&switch.comm)),
            next_pid: Some(switch.pid as i32),
            next_prio: Some(DEFAULT_PRIORITY),
        };
        let event = FtraceEvent {
            timestamp: Some(switch.ns),
            pid: Some(switch.prev_pid),
            sched_switch: Some(sched_switch),
        };
        let bundle = FtraceEventBundle { cpu: Some(switch.cpu), event: vec![event] };
        self.packet(TracePacket { ftrace_events: Some(bundle), ..TracePacket::default() })
    }
}

fn interned(names: &[&str]) -> Vec<InternedName> {
    let name =
        |(i, name): (usize, &&str)| InternedName { iid: Some(i as u64 + 1), name: Some(name.to_string()) };
    names.iter().enumerate().map(name).collect()
}
