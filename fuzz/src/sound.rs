// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold of measured durations, whatever they came from.

use kprism_durations::Measured;
use kprism_profile::NO_PARENT;

/// Callers come before callees, the parts of a context's time are no more than all of it, and every function's calls
/// are those of its contexts.
pub fn check(measured: &Measured) {
    let (profile, times) = (&measured.profile, &measured.times);
    assert_eq!((profile.nodes.len(), profile.funcs.len()), (times.nodes.len(), times.funcs.len()));
    let mut calls = 0u64;
    let mut by_func = vec![0u64; profile.funcs.len()];
    for (i, (node, time)) in profile.nodes.iter().zip(&times.nodes).enumerate() {
        if node.parent == NO_PARENT {
            continue;
        }
        assert!((node.parent as usize) < i);
        let parts = u128::from(node.ns) + u128::from(time.off_ns) + u128::from(time.irq_ns);
        assert!(parts <= u128::from(time.total_ns) || time.total_ns == u64::MAX);
        calls += node.calls;
        by_func[node.func as usize] += node.calls;
    }
    assert_eq!(calls, times.counts.calls);
    assert!(by_func.iter().zip(&times.funcs).all(|(calls, func)| *calls == func.durations.count));
    assert!(profile.slices.iter().all(|s| s.start_ns <= s.end_ns && (s.task as usize) < profile.tasks.len()));
}
