// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters that a recorder keeps in a file mapped into its memory. They survive the recorder, so the process that
//! waits for it can read them however it ended.
//!
//! Words are 8 bytes, little-endian. First come [`HEAD`] words for the whole process, then [`SLOT`] words for each of
//! [`SLOTS`] thread numbers. A number that is used by one thread after another sums them up.
//!
//! | word of the head | |
//! |---|---|
//! | 0 | `KPLIVE01` |
//! | 1 | 1 once the recorder has ended regularly |
//! | 2 | threads that began |
//! | 3 | of these, threads that are not followed |
//! | 4 | forks: processes that are not followed |
//! | 5 | programs that the process became (execve), not followed |
//! | 6 | mappings that could not be written |
//!
//! | word of a slot | |
//! |---|---|
//! | 0 | 1: in use, or was |
//! | 1 | bytes of its stream |
//! | 2 | bytes of its stream that could not be written |
//! | 3 | instructions |
//! | 4–6, 7–9 | references, pages looked up: loads, stores, fetches |
//! | 10 and on, 7 for each geometry | misses of the first level, of the last (three each, as above), entries read by walks |
//! | 126 | misses of the first geometry that were left out: they do not meet the condition |
//! | 127 | the same: the condition cannot be computed of them |

use serde_json::{Value, json};

use crate::model::bank::MAX_GEOMETRIES;
use crate::model::geometry::Geometry;

/// Word 0 of the head: the magic number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KPLIVE01");
/// Words before the slots: one page.
pub const HEAD: usize = 512;
/// Words per slot.
pub const SLOT: usize = 128;
/// Number of thread numbers.
pub const SLOTS: usize = 1 << 14;
/// Total number of words.
pub const WORDS: usize = HEAD + SLOTS * SLOT;

/// Word of the head: 1 once the recorder has ended regularly.
pub const ENDED: usize = 1;
/// Word of the head: threads that began.
pub const THREADS: usize = 2;
/// Word of the head: threads that are not followed.
pub const NOT_FOLLOWED: usize = 3;
/// Word of the head: forks, that is, processes that are not followed.
pub const FORKS: usize = 4;
/// Word of the head: programs that the process executed (execve), not followed.
pub const EXECUTED: usize = 5;
/// Word of the head: mappings that could not be written.
pub const UNTOLD: usize = 6;

/// Word of a slot: 1 if it is or was in use.
pub const IN_USE: usize = 0;
/// Word of a slot: bytes of its stream.
pub const BYTES: usize = 1;
/// Word of a slot: bytes of its stream that could not be written.
pub const UNWRITTEN: usize = 2;
/// Word of a slot: instructions.
pub const INSTRUCTIONS: usize = 3;
/// Words of a slot: references, by kind of access.
pub const REFERENCES: usize = 4;
/// Words of a slot: pages looked up, by kind of access.
pub const LOOKED_UP: usize = 7;
/// First word of a slot's counters by geometry.
pub const MODELS: usize = 10;
/// Words per geometry: misses of the first and of the last level by kind of access, and entries read by walks.
pub const MODEL: usize = 7;

/// Word of a slot: misses of the last level of the first geometry that do not meet the recorder's condition.
pub const UNMET: usize = SLOT - 2;
/// Word of a slot: the same, of which the condition cannot be computed.
pub const NOT_COMPUTED: usize = SLOT - 1;

const _: () = assert!(MODELS + MODEL * MAX_GEOMETRIES <= UNMET);

/// A reader of the file. Words missing at its end are 0.
#[derive(Debug, Clone, Copy)]
pub struct Live<'a>(&'a [u8]);

impl<'a> Live<'a> {
    /// Returns `None` if the bytes are no such file.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let live = Live(bytes);
        (live.word(0) == MAGIC).then_some(live)
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = self.0.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    /// A word of the head.
    pub fn head(&self, word: usize) -> u64 {
        self.word(word)
    }

    /// A word of a slot.
    pub fn slot(&self, slot: usize, word: usize) -> u64 {
        self.word(HEAD + slot * SLOT + word)
    }

    /// Number of slots up to the last one in use.
    pub fn slots(&self) -> usize {
        let there = (self.0.len() / 8).saturating_sub(HEAD) / SLOT;
        (0..there.min(SLOTS)).rev().find(|&slot| self.slot(slot, IN_USE) != 0).map_or(0, |last| last + 1)
    }

    /// All counters, in the form of `streams/tlb/counts.json`.
    pub fn counts(&self, geometries: &[Geometry]) -> Value {
        let vcpus: Vec<Value> = (0..self.slots()).map(|slot| self.of_slot(slot, geometries)).collect();
        json!({
            "method": "user", "vcpus": vcpus, "ended": self.head(ENDED) != 0, "threads": self.head(THREADS),
            "threads_not_followed": self.head(NOT_FOLLOWED), "forks_not_followed": self.head(FORKS),
            "programs_not_followed": self.head(EXECUTED), "unwritten_mappings": self.head(UNTOLD),
            "unwritten_bytes": self.sum(UNWRITTEN),
            "left_out": { "unmet": self.sum(UNMET), "not_computed": self.sum(NOT_COMPUTED) },
        })
    }

    /// The sum of a word over all slots.
    fn sum(&self, word: usize) -> u64 {
        (0..self.slots()).map(|slot| self.slot(slot, word)).sum()
    }

    fn of_slot(&self, slot: usize, geometries: &[Geometry]) -> Value {
        let by_kind = |at: usize| {
            let word = |more| self.slot(slot, at + more);
            json!({ "load": word(0), "store": word(1), "fetch": word(2) })
        };
        let models: Vec<Value> = geometries
            .iter()
            .take(MAX_GEOMETRIES)
            .enumerate()
            .map(|(i, geometry)| {
                let at = MODELS + MODEL * i;
                json!({ "name": geometry.name, "first_level_misses": by_kind(at), "misses": by_kind(at + 3),
                    "walk_reads": self.slot(slot, at + 6) })
            })
            .collect();
        json!({
            "cpu": slot, "instructions": self.slot(slot, INSTRUCTIONS), "references": by_kind(REFERENCES),
            "looked_up": by_kind(LOOKED_UP), "models": models,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_counts_or_nothing() {
        assert!(Live::new(b"").is_none() && Live::new(&[7; 4096]).is_none());
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        assert_eq!(Live::new(&bytes).map(|live| live.slots()), Some(0), "cut short");
        bytes.resize((HEAD + 3 * SLOT) * 8 - 1, 0);
        let mut set = |at: usize, n: u64| bytes[at * 8..at * 8 + 8].copy_from_slice(&n.to_le_bytes());
        set(THREADS, 9);
        set(HEAD + SLOT + IN_USE, 1);
        set(HEAD + SLOT + REFERENCES + 1, 5);
        set(HEAD + SLOT + MODELS + 3, 6);
        let live = Live::new(&bytes).expect("counts");
        let geometry = crate::model::presets::preset(crate::model::presets::DEFAULT).expect("a preset");
        let counts = live.counts(&[geometry]);
        assert_eq!((live.slots(), counts["threads"].as_u64()), (2, Some(9)), "{counts}");
        let of = &counts["vcpus"][1];
        assert_eq!(of["references"]["store"].as_u64(), Some(5), "{of}");
        assert_eq!(of["models"][0]["misses"]["load"].as_u64(), Some(6), "{of}");
        assert_eq!(counts["ended"], false);
    }
}
