// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares two boots: initcalls that took longer, new ones, and those that are gone.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Boot, Initcall};

/// An initcall in two boots. Those with the same name and module are summed up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The function's name.
    pub name: String,
    /// Its module.
    pub module: Option<String>,
    /// Its level.
    pub level: String,
    /// Number of calls and their time in the old boot, ns.
    pub old: Option<(u64, u64)>,
    /// Number of calls and their time in the new boot, ns.
    pub new: Option<(u64, u64)>,
}

impl Change {
    /// Time that the new boot spends more, ns.
    pub fn ns(&self) -> i64 {
        let ns = |side: Option<(u64, u64)>| i64::try_from(side.map_or(0, |(_, ns)| ns)).unwrap_or(i64::MAX);
        ns(self.new).saturating_sub(ns(self.old))
    }
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Time from the first initcall to the end of the last, old and new; ns.
    pub span_ns: [u64; 2],
    /// Time in initcalls, old and new; ns.
    pub initcall_ns: [u64; 2],
    /// Changes, the largest difference first.
    pub changes: Vec<Change>,
}

/// Compares two boots.
pub fn compare(old: &Boot, new: &Boot) -> Compared {
    type Sides = (String, [Option<(u64, u64)>; 2]);
    let mut all: BTreeMap<(String, Option<String>), Sides> = BTreeMap::new();
    for (side, boot) in [old, new].into_iter().enumerate() {
        for call in &boot.initcalls {
            let entry = all.entry((call.name.clone(), call.module.clone())).or_default();
            entry.0.clone_from(&call.level);
            let (count, ns) = entry.1[side].get_or_insert((0, 0));
            (*count, *ns) = (*count + 1, ns.saturating_add(call.ns));
        }
    }
    let change = |((name, module), (level, [old, new])): ((String, Option<String>), Sides)| Change {
        name,
        module,
        level,
        old,
        new,
    };
    let mut changes: Vec<Change> = all.into_iter().map(change).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.ns().unsigned_abs()));
    let both = |of: &dyn Fn(&Boot) -> u64| [of(old), of(new)];
    Compared {
        span_ns: both(&|boot| span(&boot.initcalls)),
        initcall_ns: both(&|boot| boot.initcalls.iter().fold(0, |sum, call| sum.saturating_add(call.ns))),
        changes,
    }
}

fn span(initcalls: &[Initcall]) -> u64 {
    let first = initcalls.iter().map(|call| call.start_ns).min().unwrap_or(0);
    let last = initcalls.iter().map(|call| call.start_ns.saturating_add(call.ns)).max().unwrap_or(0);
    last - first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_new_and_gone() {
        let call =
            |name: &str, start_ns, ns| Initcall { name: name.into(), start_ns, ns, ..Initcall::default() };
        let old = Boot { initcalls: vec![call("a", 10, 5), call("gone", 20, 7)], ..Boot::default() };
        let new = Boot {
            initcalls: vec![call("a", 10, 30), call("a", 50, 1), call("new", 60, 3)],
            ..Boot::default()
        };
        let compared = compare(&old, &new);
        let changes: Vec<_> = compared.changes.iter().map(|c| (c.name.as_str(), c.ns())).collect();
        assert_eq!(changes, [("a", 26), ("gone", -7), ("new", 3)]);
        assert_eq!((compared.span_ns, compared.initcall_ns), ([17, 53], [12, 34]));
    }

    #[test]
    fn durations_that_no_clock_has() {
        let call = |ns| Initcall { name: "a".into(), ns, ..Initcall::default() };
        let boot = Boot { initcalls: vec![call(u64::MAX), call(u64::MAX)], ..Boot::default() };
        let compared = compare(&boot, &Boot::default());
        assert_eq!((compared.span_ns, compared.initcall_ns), ([u64::MAX, 0], [u64::MAX, 0]));
    }
}
