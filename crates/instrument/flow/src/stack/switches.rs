// SPDX-License-Identifier: MIT OR Apache-2.0
//! Task switches of the sideband: the task before the first one, and the records that belong to one entry into
//! `__switch_to` in the flow.

use kprism_image::sideband::{Record, Switch};

/// The task that runs on a CPU before its first switch.
pub(crate) fn first_task(cpu: u16, switches: &[&Switch], sideband: &[Record]) -> Option<(u32, u32, String)> {
    if let Some(first) = switches.first() {
        return Some((first.prev_pid, first.prev_tgid, first.prev_comm.clone()));
    }
    sideband.iter().find_map(|record| match record {
        Record::Mark(mark) if mark.cpu == u32::from(cpu) => Some((mark.pid, mark.pid, String::new())),
        _ => None,
    })
}

/// Returns how many records, from `next` on, an entry at `ns` consumes.
///
/// This is one if records and entries correspond one to one. If the recorder gives only approximate times
/// ([`Switch::near`]), it is the number up to the record nearest in time, or none if that one was consumed before.
pub(crate) fn used(switches: &[&Switch], next: usize, ns: u64) -> usize {
    // A record is made just before its entry. So one that comes after the entry is less likely to belong to it.
    let away = |t: u64| if t <= ns { ns - t } else { (t - ns).saturating_mul(4) };
    let of = |at: usize| switches.get(at).filter(|s| s.near).map(|s| away(s.t));
    let mut at = next;
    loop {
        let Some(distance) = of(at) else { return at + 1 - next };
        if at.checked_sub(1).and_then(of).is_some_and(|last| last < distance) {
            // The record of this entry is missing: the known one belongs to the entry before.
            return at - next;
        }
        match of(at + 1) {
            Some(later) if later <= distance => at += 1,
            _ => return at + 1 - next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(times: &[u64], near: bool) -> Vec<Switch> {
        times.iter().map(|&t| Switch { t, near, ..Switch::default() }).collect()
    }

    #[test]
    fn one_by_one_or_by_time() {
        let exact = records(&[10, 20, 30], false);
        let exact: Vec<&Switch> = exact.iter().collect();
        assert_eq!(used(&exact, 0, 500), 1);
        assert_eq!(used(&exact, 3, 500), 1);
        let near = records(&[10, 20, 30, 90], true);
        let near: Vec<&Switch> = near.iter().collect();
        assert_eq!(used(&near, 0, 12), 1);
        assert_eq!(used(&near, 1, 31), 2, "the entry of the second was not seen");
        assert_eq!(used(&near, 3, 33), 0, "the record of this entry is missing");
    }
}
