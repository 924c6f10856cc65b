// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes within a budget: everything is kept or counted, whatever the size.

use proptest::prelude::*;

use super::super::{Arg, Group, Lane, Unit};
use super::*;

fn lane(items: &[(u64, Option<u64>, u8)]) -> Lane {
    let mut lane = Lane::new(Group::Task, "t", ("call", "calls"), &[("n", Unit::Count), ("s", Unit::Text)]);
    let mut sorted = items.to_vec();
    sorted.sort();
    for (start, ns, label) in sorted {
        let label = format!("l{label}");
        lane.push(start, ns, 0, &label, &[Arg::Number(start), Arg::Text(&label)]);
    }
    lane
}

proptest! {
    #[test]
    fn every_item_is_kept_or_counted(
        lanes in prop::collection::vec(prop::collection::vec(
            (0..u64::MAX / 4, prop::option::of(0..1_u64 << 40), 0..20_u8), 0..120), 0..6),
        items in 0..200_usize,
        cells in 0..60_usize,
    ) {
        let lanes: Vec<Lane> = lanes.iter().map(|items| lane(items)).collect();
        let count: usize = lanes.iter().map(|lane| lane.items.len()).sum();
        let sum: u128 = lanes.iter().map(|lane| u128::from(lane.sum_ns())).sum();
        let reduced = reduce(&lanes, &Budget { items, cells, texts: 100_000 });
        let kept: usize = reduced.lanes.iter().map(|lane| lane.start.len()).sum();
        prop_assert!(kept <= items);
        prop_assert!(kept == count || kept + 6 >= items);
        let merged = || reduced.lanes.iter().filter_map(|lane| lane.merged.as_ref());
        prop_assert_eq!(kept as u64 + merged().map(|m| m.items.iter().sum::<u64>()).sum::<u64>(), count as u64);
        prop_assert!(merged().map(|m| m.bin.len()).sum::<usize>() <= cells.max(6));
        let lengths = |lane: &ReducedLane| lane.length.iter().map(|n| u128::from(n.saturating_sub(1))).sum::<u128>();
        let told = reduced.lanes.iter().map(lengths).sum::<u128>()
            + merged().map(|m| m.ns.iter().map(|n| u128::from(*n)).sum::<u128>()).sum::<u128>();
        prop_assert_eq!(told, sum);
        for lane in &reduced.lanes {
            prop_assert_eq!(lane.values.len(), lane.start.len() * 2);
            // The argument is the start: nothing moved.
            let mut at = reduced.from_ns;
            for (distance, values) in lane.start.iter().zip(lane.values.chunks(2)) {
                at += distance;
                prop_assert_eq!(at, values[0]);
            }
        }
    }
}

#[test]
fn the_longest_are_kept_and_texts_are_bounded() {
    let items: Vec<(u64, Option<u64>, u8)> = (0..100).map(|i| (i * 10, Some(i), 0)).collect();
    let reduced = reduce(&[lane(&items)], &Budget { items: 10, cells: 4, texts: 10 });
    assert_eq!(reduced.lanes[0].length, (91..=100).collect::<Vec<u64>>());
    assert_eq!(reduced.lanes[0].merged.as_ref().unwrap().longest_ns, 89);
    let mut many = Lane::new(Group::Other, "o", ("line", "lines"), &[]);
    for i in 0..1000 {
        many.push(i, None, 0, &format!("line {i}"), &[]);
    }
    let reduced = reduce(&[many], &Budget { items: 2000, cells: 4, texts: 100 });
    assert!(reduced.texts.iter().map(String::len).sum::<usize>() < 110, "{:?}", reduced.texts);
    assert!(reduced.texts_cut > 900);
}
