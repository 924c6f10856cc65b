// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of calling contexts in the page's data: each node becomes an arc of the sunburst (`ui/src/sunburst.ts`).
//!
//! In: a [`Tree`] of the profile. Out: its nodes in columns, parents first, pruned to a limit.

use kprism_profile::{FrameKind, NO_PARENT, Profile};
use serde::Serialize;

use super::names::Names;
use super::prune::{Folded, Kept, prune};
use crate::tree::{Label, Tree};

/// One tree: of all tasks, of a task, or of a system call.
#[derive(Serialize)]
pub(super) struct EmbeddedTree {
    scope: &'static str,
    id: u32,
    label: String,
    parent: Vec<u32>,
    #[serde(rename = "ref")]
    reference: Vec<i64>,
    kind: Vec<u8>,
    calls: Vec<u64>,
    insns: Vec<u64>,
    ns: Vec<u64>,
    folded: Folded,
}

/// Prunes `tree` to `limit` nodes and puts them into columns.
pub(super) fn embed_tree(
    profile: &Profile,
    names: &mut Names,
    (scope, id, label): (&'static str, u32, String),
    tree: &Tree,
    limit: usize,
) -> EmbeddedTree {
    let (kept, folded) = prune(tree, limit);
    let reference = |node: &Kept, names: &mut Names| match &node.label {
        None => -2,
        _ if node.parent == NO_PARENT => -1, // the page calls it by the tree's label
        Some(Label::All | Label::Task(_)) => -1,
        Some(Label::Comm(comm)) => -3 - i64::from(names.comm(comm)),
        Some(Label::Func(func)) => names.func(profile, *func).into(),
    };
    EmbeddedTree {
        scope,
        id,
        label,
        // The root's parent is never read; 0 is shorter than the largest number.
        parent: kept.iter().enumerate().map(|(i, k)| if i == 0 { 0 } else { k.parent }).collect(),
        reference: kept.iter().map(|k| reference(k, names)).collect(),
        kind: kept.iter().map(|k| kind_number(k.kind)).collect(),
        calls: kept.iter().map(|k| k.calls).collect(),
        insns: kept.iter().map(|k| k.insns).collect(),
        ns: kept.iter().map(|k| k.ns).collect(),
        folded,
    }
}

/// Index into the page's `KINDS`.
pub(super) fn kind_number(kind: FrameKind) -> u8 {
    match kind {
        FrameKind::Root => 0,
        FrameKind::Call => 1,
        FrameKind::Tail => 2,
        FrameKind::Syscall => 3,
        FrameKind::Interrupt => 4,
        FrameKind::Exception => 5,
        FrameKind::Signal => 6,
        FrameKind::Resumed => 7,
    }
}
