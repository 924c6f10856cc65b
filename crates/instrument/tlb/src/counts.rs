// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorder's counts, typed.
//!
//! In: `streams/tlb/counts.json`, as any version of a recorder wrote it. Out: [`Counts`]: each a number, or none because the
//! recorder wrote none under its name. A reader that looked a key up would take one of another name for zero.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::Access;

/// Way in which misses were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By models of TLBs, in a guest.
    Model,
    /// By models, of one program under QEMU's user mode.
    User,
    /// From walks of page tables on the memory bus.
    Ptat,
    /// By samples of a processor's events.
    Sampled,
}

/// Counts by kind of access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Kinds {
    /// Loads.
    pub load: Option<u64>,
    /// Stores.
    pub store: Option<u64>,
    /// Fetches of instructions.
    pub fetch: Option<u64>,
}

impl Kinds {
    /// The count of one kind.
    pub fn of(self, access: Access) -> Option<u64> {
        match access {
            Access::Load => self.load,
            Access::Store => self.store,
            Access::Fetch => self.fetch,
        }
    }

    /// The sum of all kinds; `None` if one is not known.
    pub fn sum(self) -> Option<u64> {
        Access::ALL.iter().try_fold(0u64, |sum, &access| Some(sum.saturating_add(self.of(access)?)))
    }
}

/// Counts of one model of one CPU or thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Model {
    /// Misses of the first level.
    pub first_level_misses: Option<Kinds>,
    /// Misses of the last level.
    pub misses: Option<Kinds>,
}

/// Counts of one CPU, or of one thread of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Cpu {
    /// Accesses.
    pub references: Option<Kinds>,
    /// The models, in the order of the streams' geometries.
    pub models: Option<Vec<Model>>,
}

impl Cpu {
    /// Misses of the last level of a model.
    pub fn misses(&self, model: usize) -> Option<Kinds> {
        self.models.as_ref()?.get(model)?.misses
    }

    /// Misses of the first level of a model.
    pub fn first_level_misses(&self, model: usize) -> Option<Kinds> {
        self.models.as_ref()?.get(model)?.first_level_misses
    }
}

/// Misses that a condition left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct LeftOut {
    /// They do not meet it.
    pub unmet: Option<u64>,
    /// It could not be computed of them.
    pub not_computed: Option<u64>,
}

/// An event of a processor that was sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Sampled {
    /// Its name.
    pub event: Option<String>,
    /// Its samples.
    pub samples: Option<u64>,
    /// Those of them that are misses.
    pub misses: Option<u64>,
    /// The event that counts the same misses: with it, these are left out.
    pub counted_by: Option<String>,
}

/// Accesses on the bus by what they meant, as far as the account has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct OnBus {
    /// All accesses to page tables.
    pub all: Option<u64>,
    /// To pages of nobody known.
    pub unknown: Option<u64>,
    /// Reads that may be the kernel's or a walk.
    pub unsure: Option<u64>,
}

/// Contents of `streams/tlb/counts.json`. `None`: the recorder wrote none.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Counts {
    method: Option<Method>,
    /// CPUs of a guest, or threads of a program.
    pub vcpus: Option<Vec<Cpu>>,
    /// Misses that a condition left out.
    pub left_out: Option<LeftOut>,
    /// What a reader has to know, in sentences.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Of a program: true if it ended by itself, so that its last accesses are counted.
    pub ended: Option<bool>,
    /// Of a program: threads not followed.
    pub threads_not_followed: Option<u64>,
    /// Of a program: forked processes not followed.
    pub forks_not_followed: Option<u64>,
    /// Of a program: programs not followed that it became.
    pub programs_not_followed: Option<u64>,
    /// Of a program: bytes of misses not written.
    pub unwritten_bytes: Option<u64>,
    /// Of a program: mappings not written.
    pub unwritten_mappings: Option<u64>,
    /// Of samples: those kept.
    pub samples: Option<u64>,
    /// Of samples: misses that one stands for, on average.
    pub period: Option<f64>,
    /// Of samples: the events.
    pub events: Option<Vec<Sampled>>,
    /// Of samples: those lost.
    pub lost: Option<u64>,
    /// Of samples: those without an address.
    pub without_address: Option<u64>,
    /// Of samples: those of no known event.
    pub of_no_known_event: Option<u64>,
    /// Of samples: those cut short.
    pub cut_short: Option<u64>,
    /// Of a bus: accesses by their meaning.
    pub accesses: Option<OnBus>,
    /// Of a bus: page tables outside the region.
    pub escaped_tables: Option<u64>,
    /// Of a bus: address spaces not followed.
    pub overlooked_spaces: Option<u64>,
    /// Of a bus: accesses not written.
    pub unwritten_accesses: Option<u64>,
    /// Of a bus: records of the module that are not known.
    pub unknown_records: Option<u64>,
    /// Of a bus: missed brackets around the kernel's reads.
    pub missed_brackets: Option<u64>,
    /// Of a capture: its boards. Only a capture that was imported has them, and the counts below.
    pub boards: Option<Vec<Value>>,
    /// Of a capture: records of the boards that are missing.
    pub lost_records: Option<u64>,
    /// Of a capture: tags without their record of the kernel.
    pub out_of_step: Option<u64>,
    /// Of a capture: mappings without their entry's address.
    pub without_entry: Option<u64>,
    /// Of a capture: pages unmapped that were never mapped.
    pub never_mapped: Option<u64>,
    /// Of a capture: accesses out of order of time.
    pub late_accesses: Option<u64>,
    /// Everything else.
    #[serde(flatten)]
    other: BTreeMap<String, Value>,
    /// All of it, as it was written.
    #[serde(skip)]
    pub written: Value,
}

/// Facts that recorders write for people, and that no result depends on.
const FOR_PEOPLE: [&str; 8] =
    ["clock", "threads", "region", "tables", "mailbox_writes", "before_the_module", "other_lines", "tags"];

impl Counts {
    /// Parses the file.
    ///
    /// # Errors
    /// It is not JSON, or a value is of another type than expected.
    pub fn parse(text: &[u8]) -> serde_json::Result<Self> {
        let written: Value = serde_json::from_slice(text)?;
        Ok(Counts { written, ..serde_json::from_slice(text)? })
    }

    /// The method; `None` if it is not known. Observers of older versions wrote none, and nothing that the other methods write.
    pub fn method(&self) -> Option<Method> {
        let is_of_other = self.ended.is_some() || self.samples.is_some() || self.accesses.is_some();
        let is_model = self.vcpus.is_some() && !is_of_other && self.not_understood().is_empty();
        self.method.or(is_model.then_some(Method::Model))
    }

    /// Facts under names that no recorder of this version writes. Whatever they are, it is not known.
    pub fn not_understood(&self) -> Vec<String> {
        self.other.keys().filter(|key| !FOR_PEOPLE.contains(&key.as_str())).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_under_another_name_is_not_known() {
        let text = br#"{"method": "user", "ended": true, "vcpus": [{"references": {"load": 1, "store": 2, "fetch": 3},
            "models": [{"misses": {"load": 1, "stores": 0, "fetch": 0}}]}], "forks": 0}"#;
        let counts = Counts::parse(text).unwrap();
        let cpu = &counts.vcpus.as_ref().unwrap()[0];
        assert_eq!((counts.method(), counts.forks_not_followed), (Some(Method::User), None));
        assert_eq!((cpu.references.unwrap().sum(), cpu.misses(0).unwrap().sum()), (Some(6), None));
        assert_eq!((cpu.first_level_misses(0), cpu.misses(1)), (None, None));
        assert_eq!(counts.not_understood(), ["forks"]);
    }

    #[test]
    fn a_method_under_another_name_is_not_the_observers() {
        let method = |text: &[u8]| Counts::parse(text).unwrap().method();
        assert_eq!(method(br#"{"vcpus": []}"#), Some(Method::Model));
        assert_eq!(method(br#"{"vcpus": [], "how": "user"}"#), None);
        assert_eq!(method(br#"{"vcpus": [], "samples": 3}"#), None);
        assert_eq!((method(b"{}"), Counts::default().method()), (None, None));
        assert!(Counts::parse(br#"{"method": "of another version"}"#).is_err());
        assert!(Counts::parse(br#"{"lost": "3"}"#).is_err());
    }
}
