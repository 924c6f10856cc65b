// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events on one clock, in lanes: the one format that every source of a timeline is put into.
//!
//! In: whatever a run knows to have happened at a time: [`of_flow`] makes lanes of a flow's profile, other sources make
//! theirs with [`Lane::push`]. Out: [`Lane`]s; [`detail::reduce`] bounds them for a page, which draws any lane without
//! knowing where it comes from. Labels and arguments are untrusted texts and are escaped for display when pushed.

pub mod detail;
mod flow;

pub use flow::{Sources, of_flow, read_marks};

use std::collections::HashMap;

use kprism_profile::units::printable;
use serde::Serialize;

/// The group of a lane: lanes of one group stand together, groups in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Marks of the whole run: the recorded window, snapshots.
    Run,
    /// Activity of a CPU.
    Cpu,
    /// Activity of a task; its items may be nested by depth.
    Task,
    /// Calls of a task, nested; drawn when there is room.
    Calls,
    /// Anything else: intervals, console lines, counts of other instruments.
    Other,
}

/// The unit of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A plain number.
    Count,
    /// Nanoseconds.
    Ns,
    /// A text: the number is an index into [`Lane::texts`].
    Text,
}

/// An argument of an item.
#[derive(Debug, Clone, Copy)]
pub enum Arg<'a> {
    /// A number, of a count or of nanoseconds as the lane says.
    Number(u64),
    /// A text.
    Text(&'a str),
}

/// One event or interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Start, in ns of the run's clock.
    pub start_ns: u64,
    /// Length in ns; none of an event without a length.
    pub ns: Option<u64>,
    /// Index into [`Lane::texts`].
    pub label: u32,
    /// Row within the lane, 0 is the uppermost.
    pub depth: u16,
}

impl Item {
    /// End in ns.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.ns.unwrap_or(0))
    }
}

/// Items of one kind and one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Group that it stands in.
    pub group: Group,
    /// Name beside it: a CPU, a task, a source.
    pub name: String,
    /// One item in words: `system call`.
    pub one: &'static str,
    /// Several items in words: `system calls`.
    pub many: &'static str,
    /// Remark on what the lane does not have; empty if nothing.
    pub note: String,
    /// Names and units of the arguments that each item has.
    pub args: Vec<(&'static str, Unit)>,
    /// The items.
    pub items: Vec<Item>,
    /// Arguments of all items, one after the other: `args.len()` for each item.
    pub values: Vec<u64>,
    /// Labels and texts, each once.
    pub texts: Vec<String>,
    index: HashMap<String, u32>,
}

impl Lane {
    /// A lane without items. `words` are one and several of its items.
    pub fn new(
        group: Group,
        name: &str,
        (one, many): (&'static str, &'static str),
        args: &[(&'static str, Unit)],
    ) -> Self {
        Lane {
            group,
            name: printable(name),
            one,
            many,
            note: String::new(),
            args: args.to_vec(),
            items: Vec::new(),
            values: Vec::new(),
            texts: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Adds an item at `depth`. Missing arguments are 0, those too many are left out.
    pub fn push(&mut self, start_ns: u64, ns: Option<u64>, depth: u16, label: &str, args: &[Arg<'_>]) {
        let label = self.text(label);
        self.items.push(Item { start_ns, ns, label, depth });
        for i in 0..self.args.len() {
            let value = match args.get(i) {
                Some(Arg::Number(n)) => *n,
                Some(Arg::Text(text)) => self.text(text).into(),
                None => 0,
            };
            self.values.push(value);
        }
    }

    fn text(&mut self, text: &str) -> u32 {
        if let Some(&at) = self.index.get(text) {
            return at;
        }
        let at = self.texts.len() as u32;
        self.texts.push(printable(text));
        self.index.insert(text.to_owned(), at);
        at
    }

    /// Sum of the items' lengths, ns.
    pub fn sum_ns(&self) -> u64 {
        self.items.iter().map(|item| item.ns.unwrap_or(0)).fold(0, u64::saturating_add)
    }
}
