// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was recorded of a run, and how: all that the meaning of its numbers depends on beside the command and the environment.
//!
//! In: a manifest. Out: [`Recorded`], names and values. Two runs whose values differ counted different things: their numbers
//! differ for that reason alone, whatever the command did. `diff` tells what differs, `gate` judges no change against it, and a lake
//! compares only runs with the same [`Recorded::id`]; all ask here. Which options count stands in `option`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hash::{hex, of_parts};
use crate::{Bearing, Difference, Manifest, OptionKey, RunKind, SettingKey};

/// Part with the clock, on which times alone depend.
pub const CLOCK: &str = "clock";
/// Ends the clock's name where nothing tells how long its tick is.
pub const GUESSED: &str = "of a frequency that is not known";
/// Part with the packets that were asked for: of finer ones, times are more exact. Instructions do not depend on them.
pub const PACKETS: &str = OptionKey::Packets.name();
/// Part with the method by which TLB misses were found.
pub const TLB_METHOD: &str = OptionKey::Method.name();
/// Part with the events whose samples are TLB misses.
pub const TLB_EVENTS: &str = "sampled events";
/// Part with the TLB model that stands first.
pub const FIRST_TLB: &str = "first TLB model";

/// Begins the part with a TLB model, before its name.
const TLB_MODEL: &str = "TLB model ";

/// Method of the program that QEMU's user mode runs: its CPUs are threads, whose number is no setting.
const USER_METHOD: &str = "user";

/// Part with the number of CPUs.
const CPUS: &str = "CPUs";

/// True if a part changes what something costs, but not what is seen.
fn is_cost(part: &str) -> bool {
    let is_of_cost = |key: &OptionKey| key.bearing() == Bearing::Cost && key.part() == part;
    part == CLOCK || part == CPUS || OptionKey::ALL.iter().any(is_of_cost)
}

/// The numbers of a run that a part of what was recorded bears on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BearsOn<'p> {
    /// All of them.
    All,
    /// Times.
    Times,
    /// TLB misses.
    Misses,
    /// TLB misses of the model that stands first.
    FirstModel,
    /// TLB misses of the model with this name.
    Model(&'p str),
}

impl<'p> BearsOn<'p> {
    /// The numbers that a part bears on.
    #[must_use]
    pub fn of_part(part: &'p str) -> Self {
        match part {
            CLOCK | PACKETS => Self::Times,
            TLB_METHOD | TLB_EVENTS => Self::Misses,
            FIRST_TLB => Self::FirstModel,
            _ => part.strip_prefix(TLB_MODEL).map_or(Self::All, Self::Model),
        }
    }

    /// The name in tables of many runs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Times => "times",
            Self::Misses | Self::FirstModel | Self::Model(_) => "misses",
        }
    }
}

/// Names and values of what was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recorded {
    parts: BTreeMap<String, String>,
}

/// The part with the TLB model of this name.
#[must_use]
pub fn tlb_model(name: &str) -> String {
    format!("{TLB_MODEL}{name}")
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

    fn add_options(&mut self, options: &BTreeMap<String, Value>) {
        for (name, value) in options {
            let Some(value_text) = shown(value) else { continue };
            match OptionKey::named(name) {
                Some(OptionKey::Settings) => self.add_settings(value),
                Some(OptionKey::Perf) => {
                    let text = value.as_array().map_or(value_text, |words| perf_options(words));
                    self.add(OptionKey::Perf.part(), text);
                }
                Some(key) if key.bearing() == Bearing::Nothing => {}
                Some(key) => self.add(key.part(), value_text),
                // Of another version, which may choose by it what is seen.
                None => self.add(format!("option {name}"), value_text),
            }
        }
    }

    fn add_settings(&mut self, settings: &Value) {
        for (name, value) in settings.as_object().into_iter().flatten() {
            match (SettingKey::named(name), shown(value)) {
                (Some(key), Some(text)) if key.bearing() != Bearing::Nothing => self.add(key.part(), text),
                (None, Some(text)) => self.add(format!("setting {name}"), text),
                _ => {}
            }
        }
    }

    /// All parts, with their values.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().map(|(part, value)| (part.as_str(), value.as_str()))
    }

    /// A name of what instructions and calls depend on: the same in two runs if that is the same.
    #[must_use]
    pub fn id(&self) -> String {
        let parts = self.parts().filter(|(part, _)| BearsOn::of_part(part) == BearsOn::All);
        let hash = of_parts(parts.flat_map(|(part, value)| [part, value]));
        hex(&hash[..16])
    }

    /// The value of a part; `None` if the recorder had no such setting, or it was not set.
    #[must_use]
    pub fn get(&self, part: &str) -> Option<&str> {
        self.parts.get(part).map(String::as_str)
    }

    /// True if a function or process that one recording lacks did not run there: the settings that choose what is seen are the same.
    #[must_use]
    pub fn sees_the_same(&self, other: &Recorded) -> bool {
        self.differences(other).iter().all(|difference| is_cost(&difference.part))
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
        let is_user = self.option_facts().method.as_deref() == Some(USER_METHOD);
        // An imported recording has a stream for each CPU, or task, that ran: no setting either.
        if self.kind != RunKind::Import && !is_user {
            recorded.add(CPUS, self.vcpus.to_string());
        }
        recorded.add_options(&self.options);
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
        let count = |name: &str, value: Value| {
            let mut new = old.clone();
            new.options.insert(name.to_owned(), value);
            parts(&old, &new).len()
        };
        for key in OptionKey::ALL {
            let expected = usize::from(key.bearing() != Bearing::Nothing);
            assert_eq!(count(key.name(), json!("x")), expected, "{key:?}");
        }
        for key in SettingKey::ALL {
            let expected = usize::from(key.bearing() != Bearing::Nothing);
            assert_eq!(count("settings", json!({key.name(): 3})), expected, "{key:?}");
        }
        assert_eq!(count("of_later", json!(3)), 1, "it may choose what is seen");
        assert_eq!(count("settings", json!({"of_later": 3})), 1);
    }

    #[test]
    fn instructions_do_not_depend_on_the_clock_nor_on_models_of_tlbs() {
        let manifest = Manifest::new(RunKind::Lab, 1);
        let mut other = manifest.clone();
        other.clock.tsc_hz = 0;
        other.set(OptionKey::Packets, "fine");
        let mut modelled = other.recorded();
        modelled.add(tlb_model("zen"), "1");
        assert_eq!(manifest.recorded().id(), modelled.id());
        assert_eq!(BearsOn::of_part(&tlb_model("zen")), BearsOn::Model("zen"));
        other.set(OptionKey::From, "vfs_read");
        assert_ne!(manifest.recorded().id(), other.recorded().id());
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
