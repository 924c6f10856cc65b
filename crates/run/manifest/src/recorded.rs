// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was recorded of a run, and how: all that the meaning of its numbers depends on beside the command and the environment.
//!
//! In: a manifest. Out: [`Recorded`], names and values. Two runs whose values differ counted different things: their numbers
//! differ for that reason alone, whatever the command did. `diff` tells what differs, and `gate` judges no change against it; both ask
//! here.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hash::{hex, of_parts};
use crate::{Difference, Manifest, RunKind};

/// Part with the clock, on which times alone depend.
pub const CLOCK: &str = "clock";
/// Ends the clock's name where nothing tells how long its tick is.
pub const GUESSED: &str = "of a frequency that is not known";
/// Part with the packets that were asked for: of finer ones, times are more exact. Instructions do not depend on them.
pub const PACKETS: &str = "packets";
/// Part with the method by which TLB misses were found.
pub const TLB_METHOD: &str = "method";
/// Part with the events whose samples are TLB misses.
pub const TLB_EVENTS: &str = "sampled events";
/// Part with the TLB model that stands first.
pub const FIRST_TLB: &str = "first TLB model";

/// Method of the program that QEMU's user mode runs: its CPUs are threads, whose number is no setting.
const USER_METHOD: &str = "user";

/// Options of recorders that choose what is recorded, as a manifest has them; those below `settings` first.
const CHOICES: [&str; 34] = [
    "settings.functions",
    "settings.not_functions",
    "settings.graph",
    "settings.not_graph",
    "settings.depth",
    "settings.longer_than",
    "settings.scope",
    "settings.cpus",
    "settings.duration",
    "settings.interrupts",
    "settings.events",
    "settings.more_events",
    "settings.sleep_time",
    "settings.top_level",
    "backend",
    "hook",
    "aggregate",
    "functions",
    "longer_than_ns",
    "condition",
    "from",
    "until",
    "snapshot_when",
    "snapshot_bytes",
    "last",
    "probes",
    "collect",
    "boot",
    "begin",
    "recorded_of",
    "pace",
    "mem_mib",
    "cpu_features",
    // Below, as they are not those of the flow.
    TLB_METHOD,
];

/// Parts, as they are named, that change what something costs, but not what is seen.
const COSTS: [&str; 7] =
    [CLOCK, PACKETS, "CPUs", "pace", "mem mib", "cpu features", "events beside the flow"];

/// Names and values of what was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recorded {
    parts: BTreeMap<String, String>,
}

/// The part with the TLB model of this name.
#[must_use]
pub fn tlb_model(name: &str) -> String {
    format!("TLB model {name}")
}

impl Recorded {
    /// Adds a part that the manifest does not hold.
    pub fn add(&mut self, part: impl Into<String>, value: impl Into<String>) {
        self.parts.insert(part.into(), value.into());
    }

    /// Adds a part whose value is long: a name, and a hash over it.
    pub fn add_hashed(&mut self, part: impl Into<String>, name: &str, value: &str) {
        let hash = of_parts([value]);
        self.add(part, format!("{name} ({})", hex(&hash[..4])));
    }

    /// The value of a part; `None` if the recorder had no such setting, or it was not set.
    #[must_use]
    pub fn get(&self, part: &str) -> Option<&str> {
        self.parts.get(part).map(String::as_str)
    }

    /// True if a function or process that one recording lacks did not run there: the settings that choose what is seen are the same.
    #[must_use]
    pub fn sees_the_same(&self, other: &Recorded) -> bool {
        self.differences(other).iter().all(|difference| COSTS.contains(&&*difference.part))
    }

    /// The parts that differ, by name.
    #[must_use]
    pub fn differences(&self, new: &Recorded) -> Vec<Difference> {
        let names: BTreeSet<&String> = self.parts.keys().chain(new.parts.keys()).collect();
        let difference = |part: &String| Difference {
            part: part.clone(),
            old: self.parts.get(part).cloned(),
            new: new.parts.get(part).cloned(),
        };
        names.into_iter().map(difference).filter(|difference| difference.old != difference.new).collect()
    }
}

impl Manifest {
    /// What was recorded, as far as the manifest tells.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        let mut recorded = Recorded::default();
        recorded.add("recorder", self.recorder());
        recorded.add(CLOCK, self.clock_of_times());
        let is_user = self.options.get(TLB_METHOD).and_then(Value::as_str) == Some(USER_METHOD);
        // An imported recording has a stream for each CPU, or task, that ran: no setting either.
        if self.kind != RunKind::Import && !is_user {
            recorded.add("CPUs", self.vcpus.to_string());
        }
        for key in CHOICES {
            let (first, rest) = key.split_once('.').unwrap_or((key, ""));
            let value =
                self.options.get(first).map(|value| if rest.is_empty() { value } else { &value[rest] });
            if let Some(text) = value.and_then(shown) {
                recorded.add(rest_or(key, rest).replace('_', " "), text);
            }
        }
        if let Some(packets) = self.options.get(PACKETS).and_then(shown) {
            recorded.add(PACKETS, packets);
        }
        // The guest's tracer beside the flow runs instructions of its own.
        if let Some(events) = self.options.get("events").and_then(shown) {
            recorded.add("events beside the flow", events);
        }
        if let Some(words) = self.options.get("perf").and_then(Value::as_array) {
            recorded.add("perf", perf_options(words));
        }
        let filter = self.processor.as_ref().map(|processor| processor.filter.as_slice()).unwrap_or_default();
        if !filter.is_empty() {
            // A kernel is somewhere else at each boot: the lengths tell.
            let bytes: Vec<String> =
                filter.iter().map(|(first, last)| last.wrapping_sub(*first).to_string()).collect();
            recorded.add("address filter", format!("ranges of {} bytes", bytes.join(", ")));
        }
        recorded
    }

    fn recorder(&self) -> String {
        let kind = match self.kind {
            RunKind::Lab => "lab",
            RunKind::Machine => "machine",
            RunKind::Import => "import",
            RunKind::Host => "host",
        };
        kind.to_owned()
    }

    fn clock_of_times(&self) -> String {
        match (self.clock.counts(), self.clock.is_guessed()) {
            (false, _) => "none".to_owned(),
            (true, true) => format!("{}, {GUESSED}", self.clock.name),
            (true, false) => self.clock.name.clone(),
        }
    }
}

fn rest_or<'k>(key: &'k str, rest: &'k str) -> &'k str {
    if rest.is_empty() { key } else { rest }
}

/// A value that was set.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Array(all) if all.is_empty() => None,
        Value::Object(all) if all.values().all(is_numbers) && all.values().any(Value::is_array) => {
            // Processes and threads have other numbers in each run.
            Some(all.keys().cloned().collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    }
}

fn is_numbers(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(Value::is_number))
}

/// Options of perf that choose what it records: without its file, the tasks' numbers, and the command.
fn perf_options(words: &[Value]) -> String {
    let mut kept = Vec::new();
    let mut words = words.iter().filter_map(Value::as_str).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        match word {
            "-o" | "--output" => {
                words.next();
            }
            "-p" | "--pid" | "-t" | "--tid" => {
                words.next();
                kept.push(word);
            }
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(old: &Manifest, new: &Manifest) -> Vec<String> {
        old.recorded().differences(&new.recorded()).into_iter().map(|difference| difference.part).collect()
    }

    #[test]
    fn each_choice_of_a_recorder_is_a_part() {
        let old = Manifest::new(RunKind::Lab, 1);
        assert!(parts(&old, &old).is_empty());
        for key in CHOICES {
            let mut new = old.clone();
            match key.split_once('.') {
                Some((first, rest)) => new.options.insert(first.into(), json!({rest: 3})),
                None => new.options.insert(key.into(), json!("x")),
            };
            assert_eq!(parts(&old, &new).len(), 1, "{key}");
        }
    }

    #[test]
    fn more_cpus_see_the_same_and_a_window_does_not() {
        let old = Manifest::new(RunKind::Lab, 1);
        let mut new = Manifest::new(RunKind::Lab, 2);
        new.options.insert("mem_mib".into(), 512.into());
        assert!(old.recorded().sees_the_same(&new.recorded()));
        new.options.insert("from".into(), "vfs_read".into());
        assert!(!old.recorded().sees_the_same(&new.recorded()));
    }

    #[test]
    fn cpus_the_clock_and_the_filter_are_parts() {
        let old = Manifest::new(RunKind::Lab, 1);
        let mut new = Manifest::new(RunKind::Lab, 2);
        new.clock.tsc_hz = 0;
        assert_eq!(parts(&old, &new), ["CPUs", "clock"]);
        assert_eq!(new.recorded().get(CLOCK), Some("guest-virtual, of a frequency that is not known"));
        let imported = |streams| Manifest::new(RunKind::Import, streams);
        assert!(parts(&imported(1), &imported(2)).is_empty());
    }

    #[test]
    fn numbers_of_tasks_and_paths_are_none() {
        let with = |scope: Value, perf: Value| {
            let mut manifest = Manifest::new(RunKind::Host, 1);
            manifest.options.insert("settings".into(), json!({ "scope": scope }));
            manifest.options.insert("perf".into(), perf);
            manifest
        };
        let one =
            with(json!({"Processes": [7]}), json!(["record", "-o", "/a", "-e", "intel_pt//k", "-p", "7"]));
        let other =
            with(json!({"Processes": [8]}), json!(["record", "-o", "/b", "-e", "intel_pt//k", "-p", "8"]));
        assert!(parts(&one, &other).is_empty());
        let third = with(json!("All"), json!(["record", "-o", "/b", "-e", "intel_pt//u", "--", "ls"]));
        assert_eq!(parts(&one, &third), ["perf", "scope"]);
    }
}
