// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the calls of a timeline in order.
//!
//! Input: calls in the order of their ends. Output: the same calls by task and start, callers before their callees.
//! Sorting them would compare every call some twenty times, and take as much memory again. In the order of their ends
//! callees come right before their callers, so one pass from the end places each call. A clock that jumps, or times
//! that are rounded, break that nesting: the result is checked, and sorted where it is wrong.

use std::cmp::Reverse;

use kprism_profile::Slice;

/// Order of a task's calls.
fn key(slice: &Slice) -> (u64, Reverse<u64>, u16) {
    (slice.start_ns, Reverse(slice.end_ns), slice.depth)
}

/// Sorts by task, start, reversed end and depth. Calls that are equal in all of these stay in their order.
pub(crate) fn sort(slices: &mut [Slice]) {
    let (order, bounds) = by_task(slices);
    let mut placed = vec![0; order.len()];
    let (mut open, mut begin) = (Vec::new(), 0);
    for end in bounds {
        let starts = &mut placed[begin..end as usize];
        nest(slices, &order[begin..end as usize], starts, &mut open);
        // Equal calls are told apart by their numbers.
        let at = |n: &u32| (key(&slices[*n as usize]), *n);
        if !starts.is_sorted_by_key(at) {
            starts.sort_by_key(at);
        }
        begin = end as usize;
    }
    drop(order);
    permute(slices, &mut placed);
}

/// Numbers of the calls by task, each task's in the order of their ends; and where each task's end.
fn by_task(slices: &[Slice]) -> (Vec<u32>, Vec<u32>) {
    let tasks = slices.iter().map(|slice| slice.task as usize + 1).max().unwrap_or(0);
    let mut next = vec![0u32; tasks + 1];
    for slice in slices {
        next[slice.task as usize + 1] += 1;
    }
    for task in 1..next.len() {
        next[task] += next[task - 1];
    }
    next.pop();
    let mut order = vec![0; slices.len()];
    for (number, slice) in (0u32..).zip(slices) {
        let place = &mut next[slice.task as usize];
        order[*place as usize] = number;
        *place += 1;
    }
    (order, next)
}

/// Places callers before their callees. From the last end backwards, a call that does not lie in the innermost open one
/// closes it. All that ended before and is not in it comes before it, and so do its callers, which are still open: the
/// sum is its place.
fn nest(slices: &[Slice], ends: &[u32], starts: &mut [u32], open: &mut Vec<u32>) {
    let mut close = |before: usize, open: &mut Vec<u32>| {
        if let Some(number) = open.pop() {
            starts[before + open.len()] = number;
        }
    };
    for (before, &number) in ends.iter().enumerate().rev() {
        let slice = &slices[number as usize];
        let holds = |outer: &Slice| (outer.start_ns, outer.depth) < (slice.start_ns, slice.depth);
        while open.last().is_some_and(|&outer| !holds(&slices[outer as usize])) {
            close(before + 1, open);
        }
        open.push(number);
    }
    while !open.is_empty() {
        close(0, open);
    }
}

/// Moves each element to its place: `from[i]` is the number of the element that comes to place i.
fn permute(slices: &mut [Slice], from: &mut [u32]) {
    for first in 0..from.len() {
        let mut to = first;
        // Places that are done name themselves.
        loop {
            let source = std::mem::replace(&mut from[to], to as u32) as usize;
            if source == first || source == to {
                break;
            }
            slices.swap(to, source);
            to = source;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The order that [`sort`] must give.
    fn sorted(mut slices: Vec<Slice>) -> Vec<Slice> {
        slices.sort_by_key(|s| (s.task, s.start_ns, Reverse(s.end_ns), s.depth));
        slices
    }

    fn slice(task: u32, depth: u16, start_ns: u64, end_ns: u64, func: u32) -> Slice {
        Slice { task, depth, start_ns, end_ns, func, ..Slice::default() }
    }

    /// Calls within calls, in the order of their ends; the clock advances by `steps`.
    fn nested(steps: &[(u8, u64, u32)]) -> Vec<Slice> {
        let (mut open, mut out, mut now): (Vec<(u32, Vec<u64>)>, _, _) = (Vec::new(), Vec::new(), 0);
        open.extend((0..4).map(|task| (task, Vec::new())));
        for (number, &(enters, step, task)) in (0u32..).zip(steps) {
            now += step;
            let (task, stack) = &mut open[task as usize];
            match stack.pop_if(|_| enters % 2 == 0) {
                Some(start) => out.push(slice(*task, stack.len() as u16, start, now, number)),
                None => stack.push(now),
            }
        }
        out
    }

    #[test]
    fn callers_come_before_callees() {
        let mut slices = vec![
            slice(1, 2, 12, 13, 0),
            slice(1, 2, 14, 15, 1),
            slice(0, 0, 1, 16, 2),
            slice(1, 1, 11, 17, 3),
            slice(1, 1, 18, 19, 4),
            slice(1, 0, 10, 20, 5),
            slice(1, 0, 21, 22, 6),
        ];
        sort(&mut slices);
        assert_eq!(slices.iter().map(|s| s.func).collect::<Vec<_>>(), [2, 5, 3, 0, 1, 4, 6]);
    }

    proptest! {
        #[test]
        fn nested_calls_are_sorted(steps in prop::collection::vec((any::<u8>(), 0u64..3, 0u32..4), 0..400)) {
            let mut slices = nested(&steps);
            let expected = sorted(slices.clone());
            sort(&mut slices);
            prop_assert_eq!(slices, expected);
        }

        #[test]
        fn any_calls_are_sorted(list in prop::collection::vec((0u32..3, 0u16..4, 0u64..20, 0u64..20), 0..200)) {
            let numbered = (0u32..).zip(list).map(|(n, (task, depth, start, ns))| slice(task, depth, start, start + ns, n));
            let mut slices: Vec<Slice> = numbered.collect();
            let expected = sorted(slices.clone());
            sort(&mut slices);
            prop_assert_eq!(slices, expected);
        }
    }
}
