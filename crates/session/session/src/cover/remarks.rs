// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remarks on coverage that was read, in words.

use kprism_store::Fate;

use super::{Loaded, TORN, Unsettled, reset_text};

impl Loaded {
    /// Number of lines with counts that cannot be.
    pub fn torn(&self) -> u64 {
        self.account.count(Fate::NotUnderstood, TORN).unwrap_or(0)
    }

    /// Remarks at the end of a recording: what reading the counters adds, what changed meanwhile, what could not be used.
    pub fn of_recording(&self) -> Vec<String> {
        let mut texts = Vec::new();
        if let Some(footprint) = self.footprint {
            texts.push(format!(
                "reading them adds to {} counters, to {} of those not always alike: that is taken out, but of {} functions",
                footprint.counters, footprint.varying, footprint.unsure
            ));
        }
        texts.extend(self.unsettled.and_then(Unsettled::told));
        if let Some(first) = self.problems.first() {
            let all = self.problems.len();
            texts.push(format!("{all} objects left out, or not whole; the first: {}", first.text));
        }
        texts.extend(self.resets.iter().map(|(run, objects)| reset_text(run, *objects)));
        let torn = self.torn();
        if torn > 0 {
            texts.push(format!(
                "{torn} lines have counts that cannot be: they were changed while they were read, or by several CPUs at once"
            ));
        }
        texts
    }
}
