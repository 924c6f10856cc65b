// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the heaviest contexts of a tree and folds the rest into one node per parent, so that every sum
//! stays exact.

use crate::tree::{Label, Tree};
use kprism_profile::{FrameKind, NO_PARENT};
use serde::Serialize;
use std::collections::HashMap;

/// Number of folded contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Folded {
    pub contexts: u64,
    pub insns: u64,
    pub ns: u64,
}

/// A node to embed. `label` is `None` for the contexts folded below the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub parent: u32,
    pub label: Option<Label>,
    pub kind: FrameKind,
    pub calls: u64,
    pub insns: u64,
    pub ns: u64,
}

/// Marks the `limit` largest weights, and at least one. Of equal ones the earlier is marked.
pub(super) fn heaviest(weights: &[f64], limit: usize) -> Vec<bool> {
    let mut order: Vec<u32> = (0..weights.len() as u32).collect();
    order.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b)));
    let mut keep = vec![false; weights.len()];
    for &i in order.iter().take(limit.max(1)) {
        keep[i as usize] = true;
    }
    keep
}

/// Keeps at most `limit` nodes, by the larger of their shares of instructions and time. A parent weighs at least as
/// much as its children and comes before them, so the kept nodes form a tree.
pub(super) fn prune(tree: &Tree, limit: usize) -> (Vec<Kept>, Folded) {
    let totals = tree.totals();
    let share = |values: &[u64], i: usize| values[i] as f64 / values[0].max(1) as f64;
    let weight: Vec<f64> =
        (0..tree.nodes.len()).map(|i| share(&totals.insns, i).max(share(&totals.ns, i))).collect();
    let keep = heaviest(&weight, limit);

    let mut folded = Folded::default();
    let mut kept: Vec<Kept> = Vec::new();
    let mut place = vec![NO_PARENT; tree.nodes.len()];
    let mut fold_at: HashMap<u32, u32> = HashMap::new();
    for (i, node) in tree.nodes.iter().enumerate() {
        let parent = if node.parent == NO_PARENT { NO_PARENT } else { place[node.parent as usize] };
        if keep[i] {
            place[i] = kept.len() as u32;
            let label = Some(node.label.clone());
            let (kind, calls, insns, ns) = (node.kind, node.calls, node.insns, node.ns);
            kept.push(Kept { parent, label, kind, calls, insns, ns });
            continue;
        }
        folded.contexts += 1;
        folded.insns = folded.insns.saturating_add(node.insns);
        folded.ns = folded.ns.saturating_add(node.ns);
        if !keep[node.parent as usize] {
            continue; // its weight is in that of the folded ancestor
        }
        let at = *fold_at.entry(parent).or_insert_with(|| {
            kept.push(Kept { parent, label: None, kind: FrameKind::Call, calls: 0, insns: 0, ns: 0 });
            kept.len() as u32 - 1
        });
        let sum = &mut kept[at as usize];
        sum.calls = sum.calls.saturating_add(node.calls);
        sum.insns = sum.insns.saturating_add(totals.insns[i]);
        sum.ns = sum.ns.saturating_add(totals.ns[i]);
    }
    (kept, folded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TreeNode;

    #[test]
    fn sums_stay_exact_and_parents_first_at_any_limit() {
        let node = |parent, insns| {
            let (label, kind) = (Label::Func(insns as u32), FrameKind::Call);
            TreeNode { parent, label, kind, calls: 1, insns, ns: 1000 - insns }
        };
        let parents = [NO_PARENT, 0, 0, 1, 1, 3, 2, 6, 6, 8];
        let tree = Tree {
            nodes: parents.iter().zip([5, 1, 90, 4, 4, 4, 0, 0, 77, 3]).map(|(&p, i)| node(p, i)).collect(),
        };
        let totals = tree.totals();
        for limit in 0..12 {
            let (kept, folded) = prune(&tree, limit);
            assert_eq!(kept.iter().map(|k| k.insns).sum::<u64>(), totals.insns[0]);
            assert_eq!(kept.iter().map(|k| k.ns).sum::<u64>(), totals.ns[0]);
            assert!(kept.iter().enumerate().skip(1).all(|(i, k)| (k.parent as usize) < i));
            assert_eq!(folded.contexts as usize, tree.nodes.len().saturating_sub(limit.max(1)));
        }
    }
}
