// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was counted between two moments, without what looking at the counters added itself.
//!
//! Reading the counters through the kernel is code of the kernel, and is counted. So they are read twice, one right after
//! the other, before the window: what the second reading has more is the reading's own footprint. It is in the window as
//! well, once, and is taken out of it, function by function. A function in which the window has less than the footprint
//! did not run the same way both times (a cache was empty, a tick came): what it has is left as it is, and it is told.

use crate::data::{Data, Values};
use crate::error::Result;

/// Counters of one object in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windowed {
    /// What was counted.
    pub data: Data,
    /// Functions that reading runs through, and not always alike: their counts have some of the reading's own.
    pub unsure: usize,
}

/// What was counted from `before` to `after`. `idle` is an earlier reading: from it to `before` nothing was done but
/// reading.
///
/// # Errors
/// If they are not of one build.
pub fn between(idle: Option<&Data>, before: &Data, after: Data) -> Result<Windowed> {
    let mut data = after;
    data.subtract(before)?;
    let Some(idle) = idle else { return Ok(Windowed { data, unsure: 0 }) };
    let mut footprint = before.clone();
    footprint.subtract(idle)?;
    let mut rest = data.clone();
    rest.subtract(&footprint)?;
    let mut unsure = 0;
    for (ours, rest) in data.functions.iter_mut().zip(rest.functions) {
        let is_negative = |values: &Values| match values {
            Values::All(values) => values.iter().any(|value| *value < 0),
            Values::Zeros(_) => false,
        };
        match rest.values.iter().any(|(_, values)| is_negative(values)) {
            true => unsure += 1,
            false => *ours = rest,
        }
    }
    Ok(Windowed { data, unsure })
}

/// Counters that are not zero.
pub fn changed(data: &Data) -> usize {
    let values = data.functions.iter().flat_map(|function| &function.values);
    let counts = values.map(|(_, values)| match values {
        Values::All(values) => values.iter().filter(|value| **value != 0).count(),
        Values::Zeros(_) => 0,
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Counters;
    use crate::version::Version;
    use crate::words::Header;

    fn data(functions: &[&[i64]]) -> Data {
        let version = Version(u32::from_be_bytes(*b"B22*"));
        let functions = functions.iter().zip(1..).map(|(values, ident)| {
            let values = vec![(0, Values::All(values.to_vec()))];
            Counters { ident, lineno_checksum: 0, cfg_checksum: 0, values }
        });
        let header = Header { big_endian: false, version, stamp: 1, checksum: 0 };
        Data { header, summary: None, functions: functions.collect() }
    }

    #[test]
    fn the_reading_s_own_counts_are_taken_out() {
        let idle = data(&[&[10, 1], &[0], &[7]]);
        let before = data(&[&[30, 2], &[0], &[9]]);
        // The first ran in the reading and in the window, the second in the window, the third less than in a reading.
        let after = data(&[&[55, 4], &[6], &[10]]);
        let windowed = between(Some(&idle), &before, after.clone()).unwrap();
        assert_eq!(windowed, Windowed { data: data(&[&[5, 1], &[6], &[1]]), unsure: 1 });
        assert_eq!(changed(&windowed.data), 4);
        assert_eq!(between(None, &before, after).unwrap().data, data(&[&[25, 2], &[6], &[1]]));
    }
}
