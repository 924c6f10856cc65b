// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of tracing: creates maps and a program for each tracepoint, and turns records into trace frames.

use std::collections::BTreeMap;

use kprism_bpf::host;
use kprism_bpf::link::Link;
use kprism_bpf::map::{Map, MapKind};
use kprism_bpf::mapping::Mapping;
use kprism_bpf::prog::{ProgKind, Program, on_task_stack};
use kprism_bpf::ring::Ring;
use kprism_expr::emit::{Slot, What};
use kprism_expr::ir::FAULTS;
use kprism_expr::regs;
use kprism_ftrace::format::Format;
use kprism_rsp::buffer::{Buffer, Frame};
use kprism_rsp::define::{Action, Definitions, Key, Kind, MOST_POINTS, Tracepoint};

use crate::Error;
use crate::program::{self, Compiled, Context, Setting, TIMESTAMP, var_at};
use crate::registers::{self, Registers};
use crate::server::frames;
use crate::target::{ProgramMarker, Target, markers};

/// An installed tracepoint.
#[derive(Debug)]
struct Installed {
    key: Key,
    registers: Option<u32>,
    known: u32,
    slots: Vec<Slot>,
    program: Program,
    links: Vec<Link>,
    statics: Statics,
}

/// The source of `$_sdata`, if it is collected.
#[derive(Debug)]
enum Statics {
    None,
    /// A second record, in the format of the kernel's event.
    Event(Format),
    /// The arguments of a program's marker, which are collected like GDB's own values.
    Arguments(Box<ProgramMarker>),
}

/// A run of tracing.
#[derive(Debug)]
pub struct Engine {
    state: Map,
    memory: Mapping,
    ring: Map,
    pending: Map,
    points: Vec<Installed>,
    /// Indices of trace state variables, by GDB's numbers.
    vars: BTreeMap<u16, u16>,
    clock: u64,
    /// Frames that wait for their static tracepoint's own record, by tracepoint and hit.
    waiting: BTreeMap<(u64, u64), Frame>,
}

/// Counters of a tracepoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times its condition was true.
    pub hits: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Number of times that the condition or a collected value could not be computed, by reason.
    pub faults: Vec<(&'static str, u64)>,
    /// Number of times that the kernel skipped the program, because one was running already.
    pub missed: u64,
}

impl Engine {
    /// Creates the maps and attaches nothing yet. `ring_bytes` is a power of two and a multiple of the page size.
    pub fn new(definitions: &Definitions, ring_bytes: u32) -> Result<Self, Error> {
        let state = Map::memory("kg_state", program::STATE_BYTES)?;
        let memory = state.mapped()?;
        let ring = Map::ring("kg_ring", ring_bytes)?;
        let pending = Map::create("kg_pending", MapKind::PercpuArray, 4, 8, MOST_POINTS as u32, 0)?;
        let (vars, waiting) = (BTreeMap::new(), BTreeMap::new());
        let mut engine =
            Self { state, memory, ring, pending, points: Vec::new(), vars, clock: clock(), waiting };
        engine.define(definitions);
        Ok(engine)
    }

    /// Gives new variables an index and their initial value.
    fn define(&mut self, definitions: &Definitions) {
        let all =
            std::iter::once((TIMESTAMP, 0)).chain(definitions.variables.iter().map(|(n, v)| (*n, v.initial)));
        for (number, initial) in all {
            let next = self.vars.len() as u16;
            if usize::from(next) < MOST_POINTS && !self.vars.contains_key(&number) {
                self.vars.insert(number, next);
                self.memory.write(var_at(next) as usize, initial);
            }
        }
    }

    /// Compiles, loads and attaches a tracepoint.
    pub fn install(
        &mut self,
        point: &Tracepoint,
        definitions: &Definitions,
        target: &mut Target,
    ) -> Result<(), Error> {
        self.define(definitions);
        let place = self.points.len();
        if place >= MOST_POINTS {
            return Err(Error::Cannot(format!(
                "more than {MOST_POINTS} tracepoints were installed in one run"
            )));
        }
        let setting =
            Setting { space: target.space(), whose: target.whose()?, vars: &self.vars, clock: self.clock };
        let maps = [&self.state, &self.ring, &self.pending];
        let installed = match point.kind {
            Kind::Static if target.as_process().is_some() => {
                let address = point.key.address;
                let none = || Error::Cannot(format!("{address:#x} is no marker of the program"));
                let marker = target.as_process().and_then(|process| process.marker_at(address));
                let marker = marker.ok_or_else(none)?;
                let own = marker.collecting(point);
                let mut installed = installed_plain(&own, place as u32, &setting, &maps, target)?;
                if point.actions.contains(&Action::Static) {
                    installed.statics = Statics::Arguments(Box::new(marker));
                }
                installed
            }
            Kind::Static => installed_static(point, place as u32, &setting, &maps, target)?,
            _ => installed_plain(point, place as u32, &setting, &maps, target)?,
        };
        self.write(place, program::ENABLED, u64::from(point.enabled));
        self.points.push(installed);
        Ok(())
    }

    /// Starts counting hits.
    pub fn run(&self) {
        self.memory.write(program::RUNNING as usize, 1);
    }

    /// Stops counting hits and detaches all programs. The counters stay.
    pub fn stop(&mut self) {
        self.memory.write(program::RUNNING as usize, 0);
        for point in &mut self.points {
            point.links.clear();
        }
    }

    /// Returns the tracepoint whose pass count ended the run.
    pub fn ended_by(&self) -> Option<Key> {
        let place = self.memory.read(program::ENDED_BY as usize).checked_sub(1)?;
        self.points.get(place as usize).map(|p| p.key)
    }

    fn write(&self, place: usize, what: u32, value: u64) {
        self.memory.write((program::point_at(place as u32) + what) as usize, value);
    }

    fn read(&self, place: usize, what: u32) -> u64 {
        self.memory.read((program::point_at(place as u32) + what) as usize)
    }

    /// Enables or disables a tracepoint at once. Returns false if it is not installed.
    pub fn enable(&self, key: Key, enabled: bool) -> bool {
        let place = self.points.iter().position(|p| p.key == key);
        if let Some(place) = place {
            self.write(place, program::ENABLED, u64::from(enabled));
        }
        place.is_some()
    }

    /// Returns the counters of a tracepoint.
    pub fn counts(&self, key: Key) -> Option<Counts> {
        let place = self.points.iter().position(|p| p.key == key)?;
        let mut faults = Vec::new();
        for (n, fault) in FAULTS.iter().enumerate() {
            let count = |from: u32| self.read(place, from + 8 * n as u32);
            let both = count(program::CONDITION_FAULTS) + count(program::ACTION_FAULTS);
            if both > 0 {
                faults.push((fault.name(), both));
            }
        }
        Some(Counts {
            hits: self.read(place, program::HITS),
            lost: self.read(place, program::LOST),
            faults,
            missed: self.points[place].program.info().map_or(0, |info| info.missed),
        })
    }

    /// Returns the value of a trace state variable.
    pub fn variable(&self, number: u16) -> Option<u64> {
        let place = self.vars.get(&number)?;
        Some(if number == TIMESTAMP {
            host::monotonic_ns().wrapping_add(self.clock) / 1000
        } else {
            self.memory.read(var_at(*place) as usize)
        })
    }

    /// Moves all available records into the buffer. Returns false if one did not fit.
    pub fn drain(&mut self, into: &mut Buffer) -> Result<bool, Error> {
        let mut room = true;
        let mut waiting = std::mem::take(&mut self.waiting);
        // Mapped for this call only: it then touches few pages.
        Ring::new(&self.ring)?.drain(|record| {
            let Some((place, hit)) = word(record, 0).zip(word(record, 8)) else { return };
            let frame = match place.checked_sub(program::STATIC) {
                Some(place) => {
                    let known = self.points.get(place as usize).zip(waiting.remove(&(place, hit)));
                    known.map(|(point, mut frame)| {
                        let own = record.get(program::HEADER as usize..).unwrap_or(&[]);
                        if let Statics::Event(format) = &point.statics {
                            frame.statics = Some(markers::text(format, own).into_bytes().into());
                        }
                        frame
                    })
                }
                None => {
                    let frame = self.frame(record);
                    match frame {
                        Some(frame)
                            if self
                                .points
                                .get(place as usize)
                                .is_some_and(|p| matches!(p.statics, Statics::Event(_))) =>
                        {
                            waiting.insert((place, hit), frame);
                            None
                        }
                        other => other,
                    }
                }
            };
            if let Some(frame) = frame {
                room = room && into.push(frame);
            }
        });
        self.waiting = waiting;
        Ok(room)
    }

    /// After the end of a run: adds the frames that still wait. Their own records were lost because the ring was full.
    pub fn flush(&mut self, into: &mut Buffer) {
        for frame in std::mem::take(&mut self.waiting).into_values() {
            into.push(frame);
        }
    }

    fn frame(&self, record: &[u8]) -> Option<Frame> {
        let word = |at| word(record, at);
        let point = self.points.get(word(0)? as usize)?;
        let mut frame = Frame::new(point.key);
        let mut all = [0; 21];
        if let Some(at) = point.registers {
            for (n, value) in all.iter_mut().enumerate() {
                *value = word(at as usize + 8 * n)?;
            }
            // The frame's address is the tracepoint's. The kernel may report the address after its breakpoint
            // instruction.
            all[regs::Reg::Rip as usize] = point.key.address;
            for (n, reg) in regs::ALL.iter().enumerate() {
                let known = registers::number(*reg).is_some_and(|number| point.known >> number & 1 == 1);
                all[n] = if known { all[n] } else { 0 };
            }
            frame.known = point.known;
            frame.registers(&Registers(all).seen());
        }
        let by_place: BTreeMap<u16, u16> =
            self.vars.iter().map(|(number, place)| (*place, *number)).collect();
        for slot in &point.slots {
            let at = slot.at as usize;
            let length = word(at + 8)?.min(u64::from(slot.room)) as usize;
            if length == 0 {
                continue;
            }
            let data = record.get(at + 16..at + 16 + length)?;
            match slot.what {
                What::Memory => frame.memory(word(at)?, data),
                What::Var(place) => {
                    let number = by_place.get(&place).copied().unwrap_or(0);
                    frame.variable(u32::from(number), word(at + 16)?);
                }
            }
        }
        if let Statics::Arguments(marker) = &point.statics {
            let memory = |address, size| frames::memory(&frame, address, size);
            frame.statics = Some(marker.text(&Registers(all), &memory).into_bytes().into());
        }
        Some(frame)
    }
}

impl Installed {
    fn new(key: Key, compiled: Compiled, program: Program, links: Vec<Link>) -> Self {
        let Compiled { registers, known, slots, .. } = compiled;
        Self { key, registers, known, slots, program, links, statics: Statics::None }
    }
}

/// Installs a tracepoint at an instruction.
fn installed_plain(
    point: &Tracepoint,
    place: u32,
    setting: &Setting<'_>,
    maps: &[&Map],
    target: &mut Target,
) -> Result<Installed, Error> {
    let compiled = program::compile(point, place, Context::Registers, setting)?;
    let code = on_task_stack(&compiled.code);
    let program = Program::load("kg_trace", ProgKind::Kprobe, &code, maps)?;
    let link = target.attach(&program, point.key.address)?;
    Ok(Installed::new(point.key, compiled, program, vec![link]))
}

/// Installs a static tracepoint of the kernel. One program gets its arguments and evaluates the condition. If the tracepoint's own
/// record is wanted, a second program takes it.
fn installed_static(
    point: &Tracepoint,
    place: u32,
    setting: &Setting<'_>,
    maps: &[&Map],
    target: &mut Target,
) -> Result<Installed, Error> {
    let missing = || Error::Cannot("a process has no static tracepoints of the kernel".into());
    let marker = target.as_kernel().ok_or_else(missing)?.marker_at(point.key.address)?;
    if let Some(spot) = &marker.place {
        if point.actions.contains(&Action::Static) {
            let name = &marker.name;
            let what = format!(
                "$_sdata: the marker {name} has it (strace -m {name}), its places in the code do not"
            );
            return Err(Error::Cannot(what));
        }
        let compiled = program::compile(point, place, Context::Registers, setting)?;
        let program = Program::load("kg_site", ProgKind::Kprobe, &compiled.code, maps)?;
        // The jump to the probe is taken while the tracepoint is enabled.
        let links = vec![target.attach(&program, spot.target)?, kprism_probe::attach::enable(&marker.name)?];
        return Ok(Installed::new(point.key, compiled, program, links));
    }
    // Only the kernel knows the number of arguments: it refuses programs that read more.
    let mut most = program::arguments_wanted(point);
    let (compiled, program, link) = loop {
        let compiled = program::compile(point, place, Context::Arguments(most), setting)?;
        let program = Program::load("kg_static", ProgKind::RawTracepoint, &compiled.code, maps)?;
        match Link::raw_tracepoint(&program, &marker.name) {
            Ok(link) => break (compiled, program, link),
            Err(_) if most > 0 => most -= 1,
            Err(why) => return Err(why.into()),
        }
    };
    let wanted = compiled.statics;
    let mut installed = Installed::new(point.key, compiled, program, vec![link]);
    if wanted {
        let format = marker.format()?;
        let code = program::own_record(place, markers::record_bytes(&format))?;
        let own = Program::load("kg_sdata", ProgKind::Tracepoint, &code, maps)?;
        installed.links.push(Link::tracepoint(&own, &format.system, &format.name, 0)?);
        installed.statics = Statics::Event(format);
    }
    Ok(installed)
}

fn word(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

/// Offset from the monotonic clock to the time of day, ns.
fn clock() -> u64 {
    host::real_ns().wrapping_sub(host::monotonic_ns())
}
