// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call tree for terminals: top down, small branches folded, each line with its share.

use crate::table::Style;
use crate::tree::{Label, Tree};
use kprism_profile::units;
use kprism_profile::{FrameKind, Profile};
use serde_json::{Value, json};

/// Measure of which shares are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Weight {
    /// Retired instructions.
    #[default]
    Instructions,
    /// Time on a CPU.
    Time,
}

impl Weight {
    /// Both weights, with their words and meanings.
    pub const ALL: &[(Weight, &[&str], &str)] = &[
        (Weight::Instructions, &["instructions"], "Retired instructions"),
        (Weight::Time, &["time"], "Time on a CPU"),
    ];
}

/// Options of the tree's output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// The measure.
    pub weight: Weight,
    /// Branches below this share of the whole are folded, in percent.
    pub min_percent: f64,
    /// Levels shown below the root.
    pub max_depth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { weight: Weight::Instructions, min_percent: 1.0, max_depth: 40 }
    }
}

/// One visible line: a node, or the sum of what was folded below its parent.
struct Line {
    depth: usize,
    node: Option<u32>,
    folded: usize,
    total: u64,
}

fn lines(tree: &Tree, options: &Options) -> (Vec<Line>, u64) {
    let totals = tree.totals();
    let totals = if options.weight == Weight::Time { totals.ns } else { totals.insns };
    let children = tree.children();
    let whole = totals.first().copied().unwrap_or(0);
    let mut out = Vec::new();
    let mut stack = vec![Line { depth: 0, node: Some(0), folded: 0, total: whole }];
    while let Some(line) = stack.pop() {
        if let Some(node) = line.node {
            let below = &children[node as usize];
            let (mut shown, hidden): (Vec<u32>, Vec<u32>) = below.iter().partition(|&&c| {
                line.depth < options.max_depth
                    && units::percent(totals[c as usize], whole) >= options.min_percent
            });
            let depth = line.depth + 1;
            if !hidden.is_empty() {
                let total = hidden.iter().fold(0u64, |sum, &c| sum.saturating_add(totals[c as usize]));
                stack.push(Line { depth, node: None, folded: hidden.len(), total });
            }
            // Smallest first: the stack turns the order round.
            shown.sort_by_key(|&c| totals[c as usize]);
            let push = |&c: &u32| Line { depth, node: Some(c), folded: 0, total: totals[c as usize] };
            stack.extend(shown.iter().map(push));
        }
        out.push(line);
    }
    (out, whole)
}

/// Formats the tree as text.
pub fn to_text(profile: &Profile, tree: &Tree, options: &Options, style: Style) -> String {
    let (lines, whole) = lines(tree, options);
    let mut out = style.bold(&format!("{:>8}  {:>8}  {:>10}  {}", "total", "self", "calls", "function"));
    out.push('\n');
    for line in lines {
        let total = units::percent(line.total, whole);
        let indent = "  ".repeat(line.depth);
        let text = match line.node {
            Some(node) => {
                let n = &tree.nodes[node as usize];
                let own = if options.weight == Weight::Time { n.ns } else { n.insns };
                format!(
                    "{total:>7.2}%  {:>7.2}%  {:>10}  {indent}{}",
                    units::percent(own, whole),
                    units::count(n.calls),
                    units::printable(&name(profile, n.kind, &n.label))
                )
            }
            None => {
                let s = if line.folded == 1 { "" } else { "es" };
                let text = format!("… {} smaller branch{s}", line.folded);
                style.dim(&format!("{total:>7.2}%  {:>8}  {:>10}  {indent}{text}", "", ""))
            }
        };
        out.push_str(&if line.node.is_some() { style.heat(total, &text) } else { text });
        out.push('\n');
    }
    out
}

/// The first `rows` lines of a tree's text below its head, and how many more there are; 0 rows is all.
pub fn limited(text: &str, rows: usize, style: Style) -> String {
    let keep = if rows == 0 { usize::MAX } else { rows + 1 };
    let mut out: String = text.lines().take(keep).map(|line| format!("{line}\n")).collect();
    let more = text.lines().count().saturating_sub(keep);
    if more > 0 {
        out += &style.dim(&format!("… {more} more lines (--limit 0 shows all)"));
        out.push('\n');
    }
    out
}

/// Formats the tree as JSON: nested objects
/// `{name, module, kind, calls, instructions, total_instructions, self_ns, total_ns, children}`. Folded branches are
/// counted in `folded`. Has the first `rows` of the lines that the text has (0: all); the second value is the number of those
/// left out.
pub fn to_json(profile: &Profile, tree: &Tree, options: &Options, rows: usize) -> (Value, usize) {
    let totals = tree.totals();
    let (mut lines, _) = lines(tree, options);
    let hidden = if rows == 0 { 0 } else { lines.len().saturating_sub(rows) };
    lines.truncate(lines.len() - hidden);
    let mut folded = vec![0usize; tree.nodes.len()];
    let mut order = Vec::new();
    let mut path: Vec<u32> = Vec::new();
    for line in &lines {
        path.truncate(line.depth);
        match line.node {
            Some(node) => {
                path.push(node);
                order.push(node);
            }
            None => folded[path[line.depth - 1] as usize] = line.folded,
        }
    }
    let mut done: Vec<Vec<Value>> = vec![Vec::new(); tree.nodes.len()];
    let mut root = Value::Null;
    for &node in order.iter().rev() {
        let n = &tree.nodes[node as usize];
        let mut children = std::mem::take(&mut done[node as usize]);
        children.reverse();
        let module = match n.label {
            Label::Func(f) => Some(profile.funcs[f as usize].module.as_str()),
            _ => None,
        };
        let value = json!({
            "name": name(profile, FrameKind::Call, &n.label),
            "module": module,
            "kind": n.kind,
            "calls": n.calls,
            "instructions": n.insns,
            "total_instructions": totals.insns[node as usize],
            "self_ns": n.ns,
            "total_ns": totals.ns[node as usize],
            "folded": folded[node as usize],
            "children": children,
        });
        match done.get_mut(n.parent as usize) {
            Some(siblings) => siblings.push(value),
            None => root = value,
        }
    }
    (root, hidden)
}

/// A node's name, with a mark unless it was simply called.
pub(crate) fn name(profile: &Profile, kind: FrameKind, label: &Label) -> String {
    let name = match label {
        Label::All => "all tasks".to_string(),
        Label::Comm(comm) => comm.clone(),
        Label::Task(t) => {
            let task = &profile.tasks[*t as usize];
            format!("{} [{}]", task.comm, task.pid)
        }
        Label::Func(f) => profile.funcs[*f as usize].name.clone(),
    };
    match kind {
        FrameKind::Root | FrameKind::Call | FrameKind::Tail => name,
        FrameKind::Syscall => format!("{name} (syscall)"),
        FrameKind::Interrupt => format!("{name} (interrupt)"),
        FrameKind::Exception => format!("{name} (exception)"),
        FrameKind::Signal => format!("{name} (signal)"),
        FrameKind::Resumed => format!("{name} (resumed)"),
    }
}
