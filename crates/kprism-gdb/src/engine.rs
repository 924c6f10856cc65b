// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of tracing: maps, a program for each tracepoint, and the way of records into trace frames.

use std::collections::BTreeMap;

use kprism_bpf::link::Link;
use kprism_bpf::map::Map;
use kprism_bpf::mapping::Mapping;
use kprism_bpf::prog::{ProgKind, Program};
use kprism_bpf::ring::Ring;
use kprism_expr::emit::{Slot, What};
use kprism_expr::ir::FAULTS;
use kprism_rsp::buffer::{Buffer, Frame};
use kprism_rsp::define::{Definitions, Key, MOST_POINTS, Tracepoint};

use crate::Error;
use crate::program::{self, Setting, TIMESTAMP, var_at};
use crate::registers::Registers;
use crate::target::Target;

/// A tracepoint at work.
#[derive(Debug)]
struct Installed {
    key: Key,
    registers: Option<u32>,
    slots: Vec<Slot>,
    program: Program,
    link: Option<Link>,
}

/// A run of tracing.
#[derive(Debug)]
pub struct Engine {
    state: Map,
    memory: Mapping,
    ring: Map,
    points: Vec<Installed>,
    /// Places of trace state variables, by GDB's numbers.
    vars: BTreeMap<u16, u16>,
    clock: u64,
}

/// What a tracepoint counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times its condition was true.
    pub hits: u64,
    /// Records that found no room.
    pub lost: u64,
    /// Times its condition could not be computed, or something could not be collected; and why.
    pub faults: Vec<(&'static str, u64)>,
    /// Times the kernel did not run the program, as one ran already.
    pub missed: u64,
}

impl Engine {
    /// Makes the maps; nothing is attached yet. `ring_bytes` is a power of two, and of whole pages.
    pub fn new(definitions: &Definitions, ring_bytes: u32) -> Result<Self, Error> {
        let state = Map::memory("kg_state", program::STATE_BYTES)?;
        let memory = state.mapped()?;
        let ring = Map::ring("kg_ring", ring_bytes)?;
        let mut engine =
            Self { state, memory, ring, points: Vec::new(), vars: BTreeMap::new(), clock: clock() };
        engine.define(definitions);
        Ok(engine)
    }

    /// Gives variables that are new their places and first values.
    fn define(&mut self, definitions: &Definitions) {
        let all = std::iter::once((TIMESTAMP, 0)).chain(definitions.variables.iter().map(|(n, v)| (*n, v.initial)));
        for (number, initial) in all {
            let next = self.vars.len() as u16;
            if usize::from(next) < MOST_POINTS && !self.vars.contains_key(&number) {
                self.vars.insert(number, next);
                self.memory.write(var_at(next) as usize, initial);
            }
        }
    }

    /// Makes, loads and attaches a tracepoint.
    pub fn install(
        &mut self,
        point: &Tracepoint,
        definitions: &Definitions,
        target: &mut Target,
    ) -> Result<(), Error> {
        self.define(definitions);
        let place = self.points.len();
        if place >= MOST_POINTS {
            return Err(Error::Cannot(format!("more than {MOST_POINTS} tracepoints were installed in one run")));
        }
        let setting =
            Setting { space: target.space(), whose: target.whose(), vars: &self.vars, clock: self.clock };
        let made = program::make(point, place as u32, &setting)?;
        let program = Program::load("kg_trace", ProgKind::Kprobe, &made.code, &[&self.state, &self.ring])?;
        self.write(place, program::ENABLED, u64::from(point.enabled));
        let link = target.attach(&program, point.key.address)?;
        let Tracepoint { key, .. } = *point;
        self.points.push(Installed {
            key,
            registers: made.registers,
            slots: made.slots,
            program,
            link: Some(link),
        });
        Ok(())
    }

    /// Lets hits count.
    pub fn run(&self) {
        self.memory.write(program::RUNNING as usize, 1);
    }

    /// Hits do not count any more, and nothing is attached. What was counted stays.
    pub fn stop(&mut self) {
        self.memory.write(program::RUNNING as usize, 0);
        for point in &mut self.points {
            point.link = None;
        }
    }

    /// The tracepoint whose pass count has ended the run.
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

    /// Switches a tracepoint on or off, here and now; false if it is not installed.
    pub fn enable(&self, key: Key, enabled: bool) -> bool {
        let place = self.points.iter().position(|p| p.key == key);
        if let Some(place) = place {
            self.write(place, program::ENABLED, u64::from(enabled));
        }
        place.is_some()
    }

    /// What a tracepoint has counted.
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

    /// A trace state variable's value.
    pub fn variable(&self, number: u16) -> Option<u64> {
        let place = self.vars.get(&number)?;
        Some(if number == TIMESTAMP {
            (now(libc::CLOCK_MONOTONIC).wrapping_add(self.clock)) / 1000
        } else {
            self.memory.read(var_at(*place) as usize)
        })
    }

    /// Puts all records that there are into the buffer; false if one found no room.
    pub fn drain(&self, into: &mut Buffer) -> Result<bool, Error> {
        let mut room = true;
        // Mapped for this once: what is read then is few pages.
        Ring::new(&self.ring)?.drain(|record| {
            if let Some(frame) = self.frame(record) {
                room = room && into.push(frame);
            }
        });
        Ok(room)
    }

    fn frame(&self, record: &[u8]) -> Option<Frame> {
        let word = |at: usize| -> Option<u64> { Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?)) };
        let point = self.points.get(word(0)? as usize)?;
        let mut frame = Frame::new(point.key);
        if let Some(at) = point.registers {
            let mut all = [0; 21];
            for (n, value) in all.iter_mut().enumerate() {
                *value = word(at as usize + 8 * n)?;
            }
            // The place is the tracepoint's: what the kernel saw may be after its breakpoint's instruction.
            all[kprism_expr::regs::Reg::Rip as usize] = point.key.address;
            frame.registers(&Registers(all).seen());
        }
        let by_place: BTreeMap<u16, u16> = self.vars.iter().map(|(number, place)| (*place, *number)).collect();
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
        Some(frame)
    }
}

/// Nanoseconds of a clock.
pub fn now(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it fills the structure it is given.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// From the monotonic clock to the time of day.
fn clock() -> u64 {
    now(libc::CLOCK_REALTIME).wrapping_sub(now(libc::CLOCK_MONOTONIC))
}
