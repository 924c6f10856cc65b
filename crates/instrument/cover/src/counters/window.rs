// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the counts between two points in time, without the counts that reading the counters adds.
//!
//! Reading the counters executes kernel code, which is counted too. So the counters are read several times in a row
//! before the window; the differences between consecutive readings show what one reading adds. The window also contains
//! one reading. Its share is removed function by function:
//! - Of the earlier readings, the one that leaves the lowest counts without making any negative is subtracted.
//! - Readings differ slightly (cold caches, timer ticks). If none of a function's counters exceeds the largest reading
//!   by more than the difference between the largest and the smallest, the counts are attributed to the reading and set
//!   to 0.
//! - If neither applies, the counts stay, including those of the reading, and the function counts as unsure.

use kprism_gcov::Result;
use kprism_gcov::data::{Counters, Data, Values};
pub use kprism_gcov::windows::is_reset;

/// Counters of an object in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windowed {
    /// The counters.
    pub data: Data,
    /// Number of functions that reading executes in varying ways, so that their counts include those of the reading.
    pub unsure: usize,
    /// Number of counters that a reading increases.
    pub footprint: usize,
    /// Number of counters that the readings increase by different amounts.
    pub varying: usize,
    /// True if the counters restarted in the window (a reset, or a module loaded again). The counts are those since
    /// then.
    pub restarted: bool,
    /// True if there were counts before and none changed: these counters were not cleared.
    pub unchanged: bool,
}

impl Windowed {
    fn of(data: Data) -> Self {
        Self { data, unsure: 0, footprint: 0, varying: 0, restarted: false, unchanged: false }
    }
}

/// Computes the counts from the last of `before` to `after`. Between the elements of `before`, only readings took
/// place.
///
/// # Errors
/// If they are from different builds.
pub fn between(before: &[Data], after: Data) -> Result<Windowed> {
    let mut data = after;
    let Some((last, _)) = before.split_last() else {
        return Ok(Windowed::of(data));
    };
    let all = data.clone();
    data.subtract(last)?;
    // Counters only grow. A counter that several CPUs change at once may miss a count, but never decreases.
    if data.is_any(|n| n < 0) {
        return Ok(Windowed { restarted: true, ..Windowed::of(all) });
    }
    let mut readings = Vec::new();
    for pair in before.windows(2) {
        let mut reading = pair[1].clone();
        reading.subtract(&pair[0])?;
        readings.push(reading);
    }
    let unchanged = all.is_any(|n| n != 0) && !data.is_any(|n| n != 0);
    let mut windowed = Windowed { unchanged, ..Windowed::of(data) };
    for (index, function) in windowed.data.functions.iter_mut().enumerate() {
        // In the same kernel, functions have the same index, unless a module of that name was loaded in between.
        let found = readings.iter().filter_map(|reading| reading.functions.get(index));
        let same = |f: &&Counters| f.ident == function.ident && f.cfg_checksum == function.cfg_checksum;
        let same: Vec<&Counters> = found.filter(same).collect();
        let places = function.values.iter().enumerate();
        let places: Vec<(usize, usize)> =
            places.flat_map(|(kind, (_, values))| (0..values.len()).map(move |i| (kind, i))).collect();
        let get = |of: &Counters, (kind, i): (usize, usize)| of.values.get(kind).map_or(0, |(_, v)| v.get(i));
        for &place in &places {
            let counts = same.iter().map(|f| get(f, place));
            windowed.footprint += usize::from(counts.clone().any(|n| n != 0));
            let last = same.last().map_or(0, |f| get(f, place));
            windowed.varying += usize::from(counts.clone().any(|n| n != last));
        }
        let rests = same.iter().map(|f| places.iter().map(|&p| get(function, p) - get(f, p)).collect());
        let rest: Option<Vec<i64>> = rests
            .filter(|rest: &Vec<i64>| rest.iter().all(|n| *n >= 0))
            .min_by_key(|rest| rest.iter().sum::<i64>());
        let is_reading = !same.is_empty()
            && places.iter().all(|&place| {
                let counts = || same.iter().map(|f| get(f, place));
                let (low, high) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
                get(function, place) <= high + (high - low)
            });
        let rest = if is_reading { Some(vec![0; places.len()]) } else { rest };
        match rest {
            Some(rest) => {
                for (&(kind, i), left) in places.iter().zip(rest) {
                    if let Some((_, Values::All(values))) = function.values.get_mut(kind) {
                        values[i] = left;
                    }
                }
            }
            None => windowed.unsure += usize::from(!same.is_empty()),
        }
    }
    Ok(windowed)
}

#[cfg(test)]
mod tests {
    use kprism_gcov::data::Rest;
    use kprism_gcov::{Header, Version};

    use super::*;

    fn data(functions: &[&[i64]]) -> Data {
        let version = Version(u32::from_be_bytes(*b"B22*"));
        let functions = functions.iter().zip(1..).map(|(values, ident)| {
            let values = vec![(0, Values::All(values.to_vec()))];
            Counters { ident, lineno_checksum: 0, cfg_checksum: 0, values }
        });
        let header = Header { big_endian: false, version, stamp: 1, checksum: 0 };
        Data { header, summary: None, functions: functions.collect(), rest: Rest::default() }
    }

    #[test]
    fn the_readings_own_counts_are_taken_out() {
        let readings = [
            data(&[&[0, 0], &[0], &[0], &[5, 5]]),
            data(&[&[20, 1], &[0], &[10], &[6, 7]]),
            data(&[&[40, 2], &[0], &[22], &[8, 8]]),
        ];
        // The first function ran in the reading and in the window, the second only in the window. The third is within
        // the variation of the readings, the fourth fits no reading.
        let after = data(&[&[65, 4], &[6], &[35], &[20, 8]]);
        let windowed = between(&readings, after.clone()).unwrap();
        let expected = data(&[&[5, 1], &[6], &[0], &[12, 0]]);
        assert_eq!(
            windowed,
            Windowed {
                data: expected,
                unsure: 1,
                footprint: 5,
                varying: 3,
                restarted: false,
                unchanged: false
            }
        );
        let plain = between(&readings[2..], after.clone()).unwrap();
        assert_eq!(plain.data, data(&[&[25, 2], &[6], &[13], &[12, 0]]));
        assert!(between(&readings, readings[2].clone()).unwrap().unchanged);
        assert!(!between(&readings, data(&[&[0], &[0], &[0], &[0]])).unwrap().unchanged);
        assert!(is_reset(1, 0) && is_reset(33, 2) && !is_reset(3, 900) && !is_reset(0, 0));
        assert_eq!(between(&[], after.clone()).unwrap().data, after);
        let reset = data(&[&[1, 0], &[0], &[0], &[0, 0]]);
        assert_eq!(
            between(&readings, reset.clone()).unwrap(),
            Windowed { restarted: true, ..Windowed::of(reset) }
        );
    }
}
