// SPDX-License-Identifier: MIT OR Apache-2.0
//! Task switches of the sideband: the task before the first one, the records that belong to one entry into
//! `__switch_to` in the flow, and those that belong to none.

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

/// Time of an entry into `__switch_to`, ns: the time of the stream before it, the estimate, and the time after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct When {
    pub after: u64,
    pub about: u64,
    pub before: u64,
}

/// A record is made less than this before its entry, ns: within the same call of the scheduler.
const SOON: u64 = 1_000;

/// Returns true if `switch` was recorded while the flow was followed, which was until `until` at least, ns. No entry of the
/// flow belongs to it. One that is made right before that may have its entry behind it.
pub(crate) fn has_no_place(switch: &Switch, until: u64) -> bool {
    switch.t.saturating_add(SOON) < until
}

/// Returns how many records, from `next` on, an entry consumes.
///
/// This is one if records and entries correspond one to one. If the recorder gives only approximate times
/// ([`Switch::near`]), records and entries come in the same order between two times of the stream. So it is the next record,
/// unless these times show that the entries of earlier ones were not seen, or that the record of this one is missing.
pub(crate) fn used(switches: &[&Switch], next: usize, when: When) -> usize {
    let all = switches.get(next..).unwrap_or_default();
    if all.first().is_none_or(|first| !first.near) {
        return 1;
    }
    // A record is made just before its entry. So one that comes after the entry is less likely to belong to it.
    let away = |t: u64| if t <= when.about { when.about - t } else { (t - when.about).saturating_mul(4) };
    let passed = all.partition_point(|switch| switch.t <= when.after);
    let later = all.get(passed).filter(|switch| switch.t <= when.before.saturating_add(SOON));
    match (passed, later) {
        (0, Some(later)) => {
            // One after the next time is this entry's only if the last record is further away.
            let last = next.checked_sub(1).and_then(|last| switches.get(last));
            let is_next = later.t > when.before && last.is_some_and(|last| away(last.t) < away(later.t));
            usize::from(!is_next)
        }
        (1, Some(_)) | (_, None) => passed,
        // The entries of those before were not seen.
        (_, Some(later)) => passed + usize::from(away(later.t) < away(all[passed - 1].t)),
    }
}

/// The task that runs after an entry without a record, as (thread ID, process ID, name if it is a new one): of the next record the
/// task that leaves, and behind the last record none that is known. `None` if it is the one that ran before, as where records go
/// with entries by their order.
pub(crate) fn untold_task(switches: &[&Switch], next: usize) -> Option<(u32, u32, &'static str)> {
    switches.last().filter(|last| last.near)?;
    Some(switches.get(next).map_or(UNKNOWN, |record| (record.prev_pid, record.prev_tgid, "")))
}

/// A task that no record tells: -1, as in perf's records.
const UNKNOWN: (u32, u32, &str) = (u32::MAX, u32::MAX, "unknown");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_a_record_begins_the_task_that_leaves_next_or_an_unknown_one() {
        let all = [
            Switch { prev_pid: 7, prev_tgid: 6, near: true, ..Switch::default() },
            Switch { prev_pid: 8, prev_tgid: 8, near: true, ..Switch::default() },
        ];
        let near: Vec<&Switch> = all.iter().collect();
        assert_eq!(untold_task(&near, 0), Some((7, 6, "")));
        assert_eq!(untold_task(&near, 1), Some((8, 8, "")));
        assert_eq!(untold_task(&near, 2), Some((u32::MAX, u32::MAX, "unknown")));
        let by_order = [Switch::default()];
        assert_eq!(untold_task(&by_order.iter().collect::<Vec<_>>(), 1), None);
        assert_eq!(untold_task(&[], 0), None);
    }

    fn records(times: &[u64], near: bool) -> Vec<Switch> {
        times.iter().map(|&t| Switch { t, near, ..Switch::default() }).collect()
    }

    const fn at(after: u64, about: u64, before: u64) -> When {
        When { after, about, before }
    }

    #[test]
    fn one_by_one_or_by_time() {
        let exact = records(&[10, 20, 30], false);
        let exact: Vec<&Switch> = exact.iter().collect();
        assert_eq!(used(&exact, 0, at(500, 500, 500)), 1);
        assert_eq!(used(&exact, 3, at(500, 500, 500)), 1);
        let near = records(&[10_000, 20_000, 30_000, 90_000], true);
        let near: Vec<&Switch> = near.iter().collect();
        assert_eq!(used(&near, 0, at(10_200, 10_200, 10_300)), 1);
        assert_eq!(used(&near, 1, at(30_100, 30_100, 30_200)), 2, "the entry of the second was not seen");
        assert_eq!(used(&near, 3, at(30_300, 30_300, 30_400)), 0, "the record of this entry is missing");
        assert_eq!(used(&near, 4, at(90_300, 90_300, 90_400)), 1, "there is no record left");
    }

    #[test]
    fn between_two_times_they_come_in_order() {
        let near = records(&[10_000, 20_000, 30_000, 90_000], true);
        let near: Vec<&Switch> = near.iter().collect();
        // The estimate of the first entry is near the third record, and that of the third near the first.
        for (next, about) in [(0, 29_000), (1, 30_000), (2, 10_001)] {
            assert_eq!(used(&near, next, at(9_000, about, 40_000)), 1, "{next}");
        }
        assert_eq!(used(&near, 3, at(9_000, 39_000, 40_000)), 0, "the next record is later than this entry");
        // The time comes between a record and its entry.
        assert_eq!(used(&near, 0, at(10_500, 15_000, 40_000)), 1);
        assert_eq!(used(&near, 0, at(25_000, 26_000, 40_000)), 2, "the first entry was not seen");
        assert_eq!(used(&near, 0, at(25_000, 30_500, 40_000)), 3, "neither was the second");
    }

    #[test]
    fn a_record_right_before_the_flow_stops_may_have_its_entry_behind() {
        let both = records(&[10_000, 20_000], true);
        let (early, late) = (&both[0], &both[1]);
        assert!(has_no_place(early, 20_500));
        assert!(!has_no_place(late, 20_500));
        assert!(!has_no_place(early, 0), "the flow was never followed");
    }

    #[test]
    fn a_record_shortly_after_the_next_time_is_this_entrys_if_no_other_is_nearer() {
        let near = records(&[10_000, 20_000], true);
        let near: Vec<&Switch> = near.iter().collect();
        assert_eq!(used(&near, 0, at(9_000, 9_500, 9_900)), 1);
        assert_eq!(used(&near, 1, at(19_000, 19_300, 19_500)), 1);
        assert_eq!(used(&near, 1, at(18_000, 18_500, 18_600)), 0);
    }
}
