// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds up what a kernel counted in several windows of its run.
//!
//! In: all counters of the kernel at each moment at which a window opens or closes ([`Reading`]). Out: their growth in the
//! windows, by object, and what is to be said of it. The counters of a running kernel are never cleared for this, so only
//! differences are taken.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::Data;

/// All counters of a kernel at one moment, by the path of the object's data file.
pub type Reading = BTreeMap<String, Data>;

/// The growth of counters in the windows so far.
#[derive(Debug, Clone, Default)]
pub struct WindowSum {
    /// The counters when the open window was opened.
    open: Option<Reading>,
    sum: Reading,
    /// Facts about the windows.
    pub facts: Facts,
}

/// Facts about the windows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Number of windows that were opened.
    pub windows: u64,
    /// Objects whose counters started again from 0 in a window, as those of a module that was loaded again: of that window,
    /// only what was counted since is in the sum.
    pub restarted: BTreeSet<String>,
    /// Objects that were gone at the end of a window, with what they had counted in it.
    pub unloaded: BTreeSet<String>,
    /// Windows in which all counters were cleared: the number of objects that show it. Of these windows, only what was
    /// counted since is in the sum.
    pub resets: Vec<usize>,
}

impl WindowSum {
    /// Opens a window. If one is open, it goes on.
    pub fn open(&mut self, now: Reading) {
        if self.open.is_none() {
            self.open = Some(now);
            self.facts.windows += 1;
        }
    }

    /// Returns true if a window is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Closes the window that is open, if there is one.
    pub fn close(&mut self, now: &Reading) {
        let Some(mut before) = self.open.take() else { return };
        let mut grown = Reading::new();
        let (mut restarted, mut unchanged) = (Vec::new(), 0);
        for (name, after) in now {
            let mut data = after.clone();
            if let Some(before) = before.remove(name) {
                // Counters only grow; those of another build of a module have nothing to do with the earlier ones.
                if data.subtract(&before).is_err() || data.is_any(|n| n < 0) {
                    data = after.clone();
                    restarted.push(name.clone());
                } else {
                    unchanged += usize::from(after.is_any(|n| n != 0) && !data.is_any(|n| n != 0));
                }
            }
            grown.insert(name.clone(), data);
        }
        self.facts.unloaded.extend(before.into_keys());
        if is_reset(restarted.len(), unchanged) {
            self.facts.resets.push(restarted.len());
            grown.clone_from(now);
        } else {
            self.facts.restarted.extend(restarted);
        }
        for (name, data) in grown {
            self.add(name, data);
        }
    }

    fn add(&mut self, name: String, data: Data) {
        let Some(sum) = self.sum.get_mut(&name) else {
            self.sum.insert(name, data);
            return;
        };
        if sum.add(&data).is_err() {
            // A module of another build under the same name.
            *sum = data;
            self.facts.restarted.insert(name);
        }
    }

    /// Returns the sum. Objects that are in `last` alone, a reading after the windows, count nothing.
    pub fn finish(self, last: &Reading) -> (Reading, Facts) {
        let mut sum = self.sum;
        for (name, data) in last {
            sum.entry(name.clone()).or_insert_with(|| {
                let mut data = data.clone();
                data.clear();
                data
            });
        }
        (sum, self.facts)
    }
}

/// Returns true if all counters were reset in a window. `restarted` objects restarted their counters, `unchanged` objects kept
/// theirs. A reset clears all objects: nearly every object of a kernel has code that runs only at boot, whose counters
/// would otherwise keep their values. If a module is loaded again, only its own counters restart. A cleared counter
/// rarely returns to exactly the same value.
pub fn is_reset(restarted: usize, unchanged: usize) -> bool {
    restarted > unchanged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Counters, Rest, Values};
    use crate::{Header, Version};

    fn data(stamp: u32, values: &[i64]) -> Data {
        let version = Version(u32::from_be_bytes(*b"B22*"));
        let values = vec![(0, Values::All(values.to_vec()))];
        let functions = vec![Counters { ident: 1, lineno_checksum: 0, cfg_checksum: 0, values }];
        let header = Header { big_endian: false, version, stamp, checksum: 0 };
        Data { header, summary: None, functions, rest: Rest::default() }
    }

    fn reading(objects: &[(&str, &[i64])]) -> Reading {
        objects.iter().map(|(name, values)| ((*name).to_owned(), data(1, values))).collect()
    }

    /// Opens and closes a window for each pair.
    fn sum(windows: &[(Reading, Reading)]) -> WindowSum {
        let mut sum = WindowSum::default();
        for (from, until) in windows {
            sum.open(from.clone());
            sum.close(until);
        }
        sum
    }

    #[test]
    fn only_what_was_counted_in_windows_is_added_up() {
        let mut all = sum(&[
            (reading(&[("a", &[10, 1]), ("b", &[5])]), reading(&[("a", &[13, 1]), ("b", &[5])])),
            // A module was loaded in between, another one in the window.
            (
                reading(&[("a", &[100, 2]), ("b", &[7]), ("m", &[4])]),
                reading(&[("a", &[104, 3]), ("b", &[7]), ("m", &[6]), ("n", &[9])]),
            ),
        ]);
        all.close(&reading(&[("a", &[900, 900])]));
        let last = reading(&[("a", &[1000, 1000]), ("b", &[8]), ("z", &[77])]);
        let (counted, facts) = all.finish(&last);
        let expected = reading(&[("a", &[7, 1]), ("b", &[0]), ("m", &[2]), ("n", &[9]), ("z", &[0])]);
        assert_eq!((counted, facts), (expected, Facts { windows: 2, ..Facts::default() }));
    }

    #[test]
    fn a_window_that_is_open_goes_on() {
        let mut all = WindowSum::default();
        assert!(!all.is_open());
        all.open(reading(&[("a", &[1])]));
        all.open(reading(&[("a", &[2])]));
        assert!(all.is_open());
        all.close(&reading(&[("a", &[5])]));
        let (counted, facts) = all.finish(&Reading::new());
        assert_eq!((counted, facts.windows), (reading(&[("a", &[4])]), 1));
    }

    #[test]
    fn without_a_window_every_object_counts_nothing() {
        let (counted, facts) = WindowSum::default().finish(&reading(&[("a", &[3, 4])]));
        assert_eq!((counted, facts), (reading(&[("a", &[0, 0])]), Facts::default()));
    }

    #[test]
    fn what_restarted_or_went_is_told() {
        let kept: &[(&str, &[i64])] = &[("k", &[1]), ("l", &[1])];
        let with = |more: &[(&str, &[i64])]| reading(&[kept, more].concat());
        let (counted, facts) =
            sum(&[(with(&[("m", &[9]), ("gone", &[3])]), with(&[("m", &[2])]))]).finish(&Reading::new());
        assert_eq!(
            counted,
            with(&[])
                .into_iter()
                .map(|(name, mut data)| {
                    data.clear();
                    (name, data)
                })
                .chain(reading(&[("m", &[2])]))
                .collect()
        );
        assert_eq!((facts.restarted.len(), facts.unloaded.len(), facts.resets.len()), (1, 1, 0));

        // All were cleared: differences mean nothing, even those that are not negative.
        let window = (
            reading(&[("a", &[9]), ("b", &[9]), ("c", &[1])]),
            reading(&[("a", &[1]), ("b", &[0]), ("c", &[4])]),
        );
        let (counted, facts) = sum(&[window]).finish(&Reading::new());
        assert_eq!(counted, reading(&[("a", &[1]), ("b", &[0]), ("c", &[4])]));
        assert_eq!((facts.restarted.len(), facts.resets), (0, vec![2]));

        // Another build of a module, in a window and between two.
        let module = |stamp, n| Reading::from([("m".to_owned(), data(stamp, &[n]))]);
        let both = |stamp, n| reading(kept).into_iter().chain(module(stamp, n)).collect::<Reading>();
        let (counted, facts) =
            sum(&[(both(1, 5), both(2, 3)), (both(3, 1), both(3, 2))]).finish(&Reading::new());
        assert_eq!(counted["m"], data(3, &[1]));
        assert!(facts.restarted.contains("m"));
    }
}
