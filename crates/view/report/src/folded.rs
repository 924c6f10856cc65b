// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folded stacks: a line per call stack, `task;outer;inner weight`, as flame graph tools read them.

use crate::calltree::Weight;
use kprism_profile::Filter;
use kprism_profile::{NO_PARENT, Profile};
use std::io::{self, Write};

/// Writes one line per calling context that has a weight of its own. Kernel functions end in `_[k]`, the
/// mark by which flame graph tools colour them. Returns the number of lines.
///
/// # Errors
/// Writing to `out` fails.
pub fn write(profile: &Profile, filter: &Filter, weight: Weight, out: &mut impl Write) -> io::Result<usize> {
    let taken = filter.tasks(profile);
    let task_of = profile.task_of_nodes();
    let (mut stack, mut lines) = (Vec::new(), 0);
    for (i, node) in profile.nodes.iter().enumerate() {
        let own = if weight == Weight::Time { node.ns } else { node.insns };
        let Some(task) = task_of[i].filter(|&t| own > 0 && taken[t as usize]) else { continue };
        stack.clear();
        let mut at = i;
        while profile.nodes[at].parent != NO_PARENT {
            stack.push(profile.nodes[at].func);
            at = profile.nodes[at].parent as usize;
        }
        let task = &profile.tasks[task as usize];
        write!(out, "{}-{}", frame(&task.comm), task.pid)?;
        for &func in stack.iter().rev() {
            let func = &profile.funcs[func as usize];
            write!(out, ";{}{}", frame(&func.name), if func.kernel { "_[k]" } else { "" })?;
        }
        writeln!(out, " {own}")?;
        lines += 1;
    }
    Ok(lines)
}

/// The format has no escapes, so names must not contain its separators.
fn frame(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c == ';' {
                ':'
            } else if c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect()
}
