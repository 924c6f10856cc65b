// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a probe's text and the names in scope at its place to a [`Plan`]: segments of eBPF, and the layout of a record.
//!
//! Input: a [`Request`], the scope at a code address, the [`Site`] there. Output: a [`Plan`], which this machine or another
//! attaches ([`mod@file`]). The steps, a file each:
//!
//! | module | step |
//! |---|---|
//! | `request` | the text, taken apart |
//! | `lower` | condition, values and actions → IR, optimised |
//! | `compile` | IR → segments; the plan is put together |
//! | `layout` | values and keys → offsets, types of the bytes |
//! | `gdb` | registers, and the memory that the expressions read, behind the values |
//!
//! The actions of a hit apply in this order, after the condition: skip and pass limits, variables, counts, the record.

mod compile;
pub mod file;
mod gdb;
mod layout;
mod lower;
mod request;

use std::path::PathBuf;

use kprism_expr::emit::{self, Program, Reloc};
use kprism_expr::ir::{Func, Kept, Space};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::stream::tally::LONGEST_KEY;
use crate::stream::{MOST_ITEMS, Probe};
use kprism_bpf::names::Names;
use kprism_bpf::segment::STACK;

pub(crate) use compile::{compile, guard};
pub use request::{Actions, Request, expressions, split};

/// Maximum of names that are listed, including those without a value.
const MOST_LISTED: usize = 4 * MOST_ITEMS;
/// Largest structure or array, bytes.
const LARGEST: u64 = 4096;

/// A probe, ready to be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Description of the probe and its record.
    pub probe: Probe,
    /// Place of the probe.
    pub site: Site,
    /// The file for which it was made; set by `place`.
    pub origin: Origin,
    /// The memory that it reads.
    pub space: Space,
    /// Checked before anything is read; false counts as a fault, not as an unmet condition. Set by `place::tracepoint` alone.
    pub guard: Option<Segment>,
    /// The tracepoint that must be enabled for the code at the site to run; set by `place::tracepoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enables: Option<String>,
    /// The condition.
    pub condition: Option<Segment>,
    /// The condition before it became eBPF, for native code in a program; not in files of `kprism compile`.
    #[serde(skip)]
    pub condition_ir: Option<Func>,
    /// The collected values.
    pub slots: Vec<Slot>,
    /// Further effects of a hit.
    #[serde(default)]
    pub actions: CompiledActions,
    /// Values kept for GDB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<Slot>,
    /// Values that the program at the function's entry must keep.
    pub kept: Vec<Kept>,
    /// For a place with several code addresses: the distance back to the plan of the first. Skipped hits and the pass
    /// limit are counted there. Set by `place::several`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after_first: u32,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The plan to attach if the kernel refuses this one; set by `place::btf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Box<Plan>>,
}

/// Place at which the program is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Site {
    /// An offset in a file, and the offset of the function's entry.
    User {
        /// The file.
        file: PathBuf,
        /// Offset of the place.
        offset: u64,
        /// Offset of the function's first instruction.
        entry: u64,
        /// True to attach at the function's return.
        at_return: bool,
        /// Offset of the counter of a static tracepoint's listeners; 0 if there is none.
        listeners: u64,
    },
    /// Addresses in the kernel as it is linked.
    Kernel {
        /// Address of the place.
        address: u64,
        /// Address of the function's first instruction.
        entry: u64,
        /// True to attach at the function's return.
        at_return: bool,
    },
    /// A function by its name in BTF.
    Traced {
        /// The function.
        function: String,
        /// Its module; `None` for the kernel itself.
        module: Option<String>,
        /// True to attach at the function's return.
        at_return: bool,
    },
    /// A function by its name, for a kernel without fentry.
    Named {
        /// The function.
        function: String,
        /// Its module; `None` for the kernel itself.
        module: Option<String>,
        /// True to attach at the function's return.
        at_return: bool,
    },
    /// A static tracepoint's record.
    Event {
        /// Its system.
        system: String,
        /// Its name.
        name: String,
    },
    /// A static tracepoint's arguments.
    Raw {
        /// Its name.
        name: String,
    },
}

impl Site {
    fn hook(&self) -> &'static str {
        match self {
            Site::User { at_return: true, .. } => "uretprobe",
            Site::User { .. } => "uprobe",
            Site::Kernel { at_return: true, .. } | Site::Named { at_return: true, .. } => "kretprobe",
            Site::Kernel { .. } | Site::Named { .. } => "kprobe",
            Site::Traced { at_return: true, .. } => "fexit",
            Site::Traced { .. } => "fentry",
            Site::Event { .. } => "tracepoint",
            Site::Raw { .. } => "raw tracepoint",
        }
    }

    /// Returns true if the place is a function's return.
    pub fn is_return(&self) -> bool {
        match self {
            Site::User { at_return, .. }
            | Site::Kernel { at_return, .. }
            | Site::Traced { at_return, .. }
            | Site::Named { at_return, .. } => *at_return,
            Site::Event { .. } | Site::Raw { .. } => false,
        }
    }

    /// Returns true if its program gets `struct pt_regs`.
    pub fn has_registers(&self) -> bool {
        matches!(self, Site::User { .. } | Site::Kernel { .. } | Site::Named { .. })
    }
}

/// Identifies the file for which a plan was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The build id of the kernel, its module or the program, if it has one.
    pub build_id: Option<String>,
    /// Address at which the kernel's `_text` is linked.
    pub text: Option<u64>,
}

/// A compiled expression.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its source text.
    pub text: String,
    /// The program, whose result is the value.
    pub program: Program,
}

/// Source of a value in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fill {
    /// The segment's value.
    Value(Segment),
    /// A string at the segment's address; the room for it, and the maximum of bytes read, including the zero byte.
    Text(Segment, u32, u32),
    /// This many bytes at the segment's address.
    Memory(Segment, u32),
    /// Elements at the first segment's address. The second gives their number.
    Elements {
        /// Their address.
        address: Segment,
        /// Their number.
        count: Segment,
        /// Size of each, bytes.
        stride: u32,
        /// Maximum of elements.
        most: u32,
    },
    /// The task's name.
    Comm,
    /// All registers.
    Registers,
    /// Return addresses, of the program if requested, and the room for them.
    Stack {
        /// True for the program's stack, false for the kernel's.
        user: bool,
        /// Number of innermost entries that are left out.
        #[serde(default, skip_serializing_if = "is_zero")]
        skip: u8,
        /// Size of the room, bytes.
        room: u32,
    },
}

impl Fill {
    /// Its expressions, to be changed.
    fn segments_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        let all = match self {
            Fill::Value(segment) | Fill::Text(segment, ..) | Fill::Memory(segment, _) => {
                [Some(segment), None]
            }
            Fill::Elements { address, count, .. } => [Some(address), Some(count)],
            Fill::Comm | Fill::Registers | Fill::Stack { .. } => [None, None],
        };
        all.into_iter().flatten()
    }

    /// Its expressions.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        let all = match self {
            Fill::Value(segment) | Fill::Text(segment, ..) | Fill::Memory(segment, _) => {
                [Some(segment), None]
            }
            Fill::Elements { address, count, .. } => [Some(address), Some(count)],
            Fill::Comm | Fill::Registers | Fill::Stack { .. } => [None, None],
        };
        all.into_iter().flatten()
    }
}

/// A value's place in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Offset in the record.
    pub at: u32,
    /// Index of its item.
    pub number: u32,
    /// Source of the value.
    pub fill: Fill,
}

/// The compiled actions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledActions {
    /// Number of first hits to skip.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip: u64,
    /// Number of hits after which all further ones are skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<u64>,
    /// Assignments to trace state variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Segment>,
    /// The keys, at offsets from [`HEADER`](crate::stream::HEADER) on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Slot>,
    /// Size of all keys, bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub key_bytes: u32,
    /// The values of the histograms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Segment>,
    /// The values of the aggregates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregates: Vec<Segment>,
}

fn is_zero<N: Default + PartialEq>(n: &N) -> bool {
    *n == N::default()
}

impl CompiledActions {
    /// Returns true if some hits are skipped.
    pub fn leaves_out(&self) -> bool {
        self.skip > 0 || self.pass.is_some()
    }

    /// All expressions, to be changed.
    fn segments_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        let keys = self.keys.iter_mut().flat_map(|slot| slot.fill.segments_mut());
        self.set.iter_mut().chain(&mut self.values).chain(&mut self.aggregates).chain(keys)
    }

    /// All expressions.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.set.iter().chain(&self.values).chain(&self.aggregates)
    }
}

impl Plan {
    /// Fills in what the expressions name in the kernel that runs: functions, containers.
    ///
    /// # Errors
    /// It has no such name.
    pub fn bind(&mut self, names: &mut Names) -> Result<(), Error> {
        let slots = self.slots.iter_mut().chain(&mut self.hidden);
        let segments = slots.flat_map(|slot| slot.fill.segments_mut()).chain(self.actions.segments_mut());
        for segment in segments.chain(&mut self.condition).chain(&mut self.guard) {
            segment.program.bind(&mut |name| names.find(name)).map_err(Error::Cannot)?;
        }
        self.instead.as_mut().map_or(Ok(()), |instead| instead.bind(names))
    }

    /// Returns true if an expression reads or sets a trace state variable with this number or a greater one.
    pub(crate) fn uses_vars_from(&self, number: u32) -> bool {
        let slots = self.slots.iter().chain(&self.hidden).chain(&self.actions.keys);
        let segments = slots.flat_map(|slot| slot.fill.segments()).chain(self.actions.segments());
        let mut all = segments.chain(&self.condition).chain(&self.guard);
        let first = i64::from(emit::VARS) + 8 * i64::from(number);
        all.any(|segment| {
            let mut relocs = segment.program.relocs.iter();
            relocs.any(|(_, reloc)| matches!(reloc, Reloc::MapValue(_, at) if i64::from(*at) >= first))
        })
    }
}

/// Bytes of stack left to segments beside the keys and one word.
fn key_stack(key_bytes: u32) -> u32 {
    STACK - 8 - key_bytes.min(LONGEST_KEY)
}
