// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes pprof's profile (`profile.proto` of github.com/google/pprof), compressed with gzip as its tools expect.
//!
//! Input: a profile, and the times of its nodes if it is of durations. Output: a sample for each calling context. pprof
//! computes inclusive values itself, by summing over callers (`-cum`):
//! |---|---|
//! | `calls` | |
//! | `instructions` | of a flow |
//! | `self` | ns on a CPU |
//! | `off_cpu`, `interrupts` | ns, of durations |
//! | `wall` | ns, of durations: the three together. Cumulative, it is the time from entry to exit |
//!
//! Tasks are labels, `comm` and `pid`: `pprof -tagroot=comm`, `-tagfocus=pid=7`.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use kprism_profile::{NO_PARENT, Profile, Times};
use prost::Message as _;

use kprism_profile::Filter;

/// Writes the profile. `times` must be those of this profile. `command` becomes a comment.
///
/// # Errors
/// Writing to `out` fails.
pub fn write(
    profile: &Profile,
    times: Option<&Times>,
    filter: &Filter,
    command: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut file = GzEncoder::new(out, Compression::default());
    file.write_all(&message(profile, times, filter, command).encode_to_vec())?;
    file.finish()?;
    Ok(())
}

fn message(profile: &Profile, times: Option<&Times>, filter: &Filter, command: &str) -> proto::Profile {
    let mut strings = Strings::default();
    strings.number("");
    let mut kinds = vec![("calls", "count")];
    kinds.extend(match times {
        Some(_) => [("self", "nanoseconds"), ("off_cpu", "nanoseconds")],
        None => [("instructions", "count"), ("self", "nanoseconds")],
    });
    if times.is_some() {
        kinds.extend([("interrupts", "nanoseconds"), ("wall", "nanoseconds")]);
    }
    let kind = |(kind, unit): &(&str, &str), strings: &mut Strings| proto::ValueType {
        r#type: strings.number(kind),
        unit: strings.number(unit),
    };
    let sample_type = kinds.iter().map(|names| kind(names, &mut strings)).collect();
    let mut message = proto::Profile { sample_type, ..proto::Profile::default() };
    message.default_sample_type = strings.number("self");
    message.sample = samples(profile, times, filter, &mut strings);
    functions(profile, &mut message, &mut strings);
    let ends = profile.totals.per_cpu.iter().filter(|cpu| cpu.last_ns > 0);
    let (first, last) = ends.fold((u64::MAX, 0), |(a, b), cpu| (a.min(cpu.first_ns), b.max(cpu.last_ns)));
    message.duration_nanos = signed(last.saturating_sub(first));
    if !command.is_empty() {
        message.comment = vec![strings.number(command)];
    }
    message.string_table = strings.all;
    message
}

fn samples(
    profile: &Profile,
    times: Option<&Times>,
    filter: &Filter,
    strings: &mut Strings,
) -> Vec<proto::Sample> {
    let taken = filter.tasks(profile);
    let task_of = profile.task_of_nodes();
    let (comm, pid) = (strings.number("comm"), strings.number("pid"));
    let mut samples = Vec::new();
    for (i, node) in profile.nodes.iter().enumerate() {
        let values: Vec<i64> = match times {
            Some(times) => {
                let own = times.nodes.get(i).copied().unwrap_or_default();
                let wall = node.ns.saturating_add(own.off_ns).saturating_add(own.irq_ns);
                [node.calls, node.ns, own.off_ns, own.irq_ns, wall].map(signed).to_vec()
            }
            None => [node.calls, node.insns, node.ns].map(signed).to_vec(),
        };
        let Some(task) = task_of[i].filter(|&task| taken[task as usize]) else { continue };
        if node.parent == NO_PARENT || values.iter().all(|value| *value == 0) {
            continue;
        }
        let mut stack = Vec::new();
        let mut at = node;
        while at.parent != NO_PARENT {
            stack.push(u64::from(at.func) + 1);
            at = &profile.nodes[at.parent as usize];
        }
        let task = &profile.tasks[task as usize];
        let label = vec![
            proto::Label { key: comm, str: strings.number(&task.comm), num: 0 },
            proto::Label { key: pid, str: 0, num: task.pid.into() },
        ];
        samples.push(proto::Sample { location_id: stack, value: values, label });
    }
    samples
}

/// Adds functions, one location in each, and modules as mappings.
fn functions(profile: &Profile, message: &mut proto::Profile, strings: &mut Strings) {
    let mut modules: HashMap<&str, u64> = HashMap::new();
    for (id, func) in (1..).zip(&profile.funcs) {
        let next = modules.len() as u64 + 1;
        let mapping_id = *modules.entry(&func.module).or_insert(next);
        if mapping_id == next {
            let filename = strings.number(&func.module);
            message.mapping.push(proto::Mapping { id: next, filename, has_functions: true });
        }
        let name = strings.number(&func.name);
        message.function.push(proto::Function { id, name, system_name: name });
        let line = vec![proto::Line { function_id: id }];
        message.location.push(proto::Location { id, mapping_id, address: func.start, line });
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The table of strings; all other messages refer to strings by number.
#[derive(Default)]
struct Strings {
    all: Vec<String>,
    known: HashMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.known.get(text) {
            return number;
        }
        let number = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.known.insert(text.to_owned(), number);
        number
    }
}

/// The messages, with their field numbers. Fields that are not written are omitted.
pub mod proto {
    /// The file.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        /// Kinds of the samples' values.
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        /// Calling contexts.
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        /// Modules of the functions.
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        /// Locations in functions.
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        /// Functions, to which locations refer.
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        /// All strings; the first is empty.
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        /// Duration of the recording, ns.
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        /// Comments.
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        /// The kind of value shown by default.
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    /// A kind of value.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ValueType {
        /// Its name.
        #[prost(int64, tag = "1")]
        pub r#type: i64,
        /// Its unit.
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    /// A calling context.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        /// The stack, innermost first.
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        /// One value for each kind.
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        /// The task.
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    /// A property of a sample.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Label {
        /// Its name.
        #[prost(int64, tag = "1")]
        pub key: i64,
        /// A string value.
        #[prost(int64, tag = "2")]
        pub str: i64,
        /// Or a numeric value.
        #[prost(int64, tag = "3")]
        pub num: i64,
    }

    /// A module.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Mapping {
        /// Its number.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// Its name.
        #[prost(int64, tag = "5")]
        pub filename: i64,
        /// True if its functions have names.
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
    }

    /// A location in a function.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        /// Its number.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// The module's number.
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        /// Its address.
        #[prost(uint64, tag = "3")]
        pub address: u64,
        /// The function.
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    /// A line of a function.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Line {
        /// The function's number.
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
    }

    /// A function.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Function {
        /// Its number.
        #[prost(uint64, tag = "1")]
        pub id: u64,
        /// Its name.
        #[prost(int64, tag = "2")]
        pub name: i64,
        /// Its name as known to the linker.
        #[prost(int64, tag = "3")]
        pub system_name: i64,
    }
}
