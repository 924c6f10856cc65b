// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call tree for terminals: top down, small branches folded, each line with its share.

use crate::table::Style;
use crate::tree::{Label, Totals, Tree, TreeNode, subtree_sums};
use kprism_profile::units;
use kprism_profile::{FrameKind, Profile};
use serde_json::{Map, Value, json};

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
    /// Contexts in the branches that are folded for their depth alone, however large they are.
    deeper: usize,
    total: u64,
}

fn lines(tree: &Tree, options: &Options) -> (Vec<Line>, u64) {
    let totals = tree.totals();
    let totals = if options.weight == Weight::Time { totals.ns } else { totals.insns };
    let children = tree.children();
    let whole = totals.first().copied().unwrap_or(0);
    let mut out = Vec::new();
    let contexts = subtree_sums(tree.nodes.iter().map(|n| n.parent), tree.nodes.iter().map(|_| 1));
    let mut stack = vec![Line { depth: 0, node: Some(0), folded: 0, deeper: 0, total: whole }];
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
                let deeper = match line.depth < options.max_depth {
                    true => 0,
                    false => hidden.iter().map(|&c| contexts[c as usize] as usize).sum(),
                };
                stack.push(Line { depth, node: None, folded: hidden.len(), deeper, total });
            }
            // Smallest first: the stack turns the order round.
            shown.sort_by_key(|&c| totals[c as usize]);
            let push =
                |&c: &u32| Line { depth, node: Some(c), folded: 0, deeper: 0, total: totals[c as usize] };
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
        let indent = indent(line.depth);
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
                let text = match line.deeper {
                    0 => format!("… {} smaller branch{s}", line.folded),
                    deeper => format!("… {} deeper branch{s}: {deeper} contexts (--depth)", line.folded),
                };
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

/// Levels that are shown by blanks: a recursion of 20,000 levels would otherwise write 40,000 blanks a line.
const DEEPEST: usize = 128;

/// Two blanks a level, and behind the deepest the level as a number.
fn indent(depth: usize) -> String {
    let blanks = "  ".repeat(depth.min(DEEPEST));
    if depth > DEEPEST { format!("{blanks}[level {depth}] ") } else { blanks }
}

/// Levels of nested JSON objects. Each is two of JSON's own levels, and usual parsers take a thousand of these.
pub const NESTED: usize = 400;

/// Formats the tree as JSON: nested objects
/// `{name, module, kind, calls, instructions, total_instructions, self_ns, total_ns, children}`. Folded branches are
/// counted in `folded`; the contexts in those that are folded for their depth in `deeper`. Below [`NESTED`] levels there are no
/// nested objects: the root's `rows_below` has a row for each context, with its `id` and that of its `parent`. Has
/// the first `rows` of the lines that the text has (0: all); the second value is the number of those left out.
pub fn to_json(profile: &Profile, tree: &Tree, options: &Options, rows: usize) -> (Value, usize) {
    let totals = tree.totals();
    let (mut lines, _) = lines(tree, options);
    let hidden = if rows == 0 { 0 } else { lines.len().saturating_sub(rows) };
    lines.truncate(lines.len() - hidden);
    let mut folded = vec![(0usize, 0usize); tree.nodes.len()];
    let mut order = Vec::new();
    let mut path: Vec<u32> = Vec::new();
    for line in &lines {
        path.truncate(line.depth);
        match line.node {
            Some(node) => {
                path.push(node);
                order.push((node, line.depth));
            }
            None => folded[path[line.depth - 1] as usize] = (line.folded, line.deeper),
        }
    }
    let mut done: Vec<Vec<Value>> = vec![Vec::new(); tree.nodes.len()];
    let mut below = Vec::new();
    let mut has_rows = vec![false; tree.nodes.len()];
    let mut root = Value::Null;
    for &(node, depth) in order.iter().rev() {
        let n = &tree.nodes[node as usize];
        let mut object = object(profile, n, node, &totals, folded[node as usize]);
        if depth >= NESTED && (depth > NESTED || has_rows[node as usize]) {
            object.insert("id".to_owned(), node.into());
        }
        if depth > NESTED {
            object.insert("parent".to_owned(), n.parent.into());
            below.push(Value::Object(object));
            has_rows[n.parent as usize] = true;
            continue;
        }
        // They are moved: a copy at each level would take the square of the depth.
        let mut children = std::mem::take(&mut done[node as usize]);
        children.reverse();
        object.insert("children".to_owned(), Value::Array(children));
        match done.get_mut(n.parent as usize) {
            Some(siblings) => siblings.push(Value::Object(object)),
            None => root = Value::Object(object),
        }
    }
    if !below.is_empty() {
        below.reverse();
        root["rows_below"] = Value::Array(below);
    }
    (root, hidden)
}

/// A node without its children. `folded`: branches below it that are folded, and the contexts in those that are for their depth.
fn object(
    profile: &Profile,
    n: &TreeNode,
    node: u32,
    totals: &Totals,
    (folded, deeper): (usize, usize),
) -> Map<String, Value> {
    let module = match n.label {
        Label::Func(f) => Some(profile.funcs[f as usize].module.as_str()),
        _ => None,
    };
    let mut object = Map::new();
    let mut add = |key: &str, value: Value| drop(object.insert(key.to_owned(), value));
    add("name", name(profile, FrameKind::Call, &n.label).into());
    add("module", module.into());
    add("kind", json!(n.kind));
    add("calls", n.calls.into());
    add("instructions", n.insns.into());
    add("total_instructions", totals.insns[node as usize].into());
    add("self_ns", n.ns.into());
    add("total_ns", totals.ns[node as usize].into());
    add("folded", folded.into());
    if deeper > 0 {
        add("deeper", deeper.into());
    }
    object
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

#[cfg(test)]
mod tests {
    use kprism_profile::{NO_PARENT, Profile};

    use super::*;

    /// A recursion: each node calls the next.
    fn deep(levels: u32) -> (Profile, Tree) {
        let node = |n: u32| TreeNode {
            parent: if n == 0 { NO_PARENT } else { n - 1 },
            label: Label::Comm("work".into()),
            kind: FrameKind::Call,
            calls: 1,
            insns: 1,
            ns: 1,
        };
        (Profile::default(), Tree { nodes: (0..=levels).map(node).collect() })
    }

    const ALL: Options = Options { weight: Weight::Instructions, min_percent: 0.0, max_depth: usize::MAX };

    fn nested(tree: &Value) -> usize {
        let (mut levels, mut at) = (0, tree);
        while let Some(child) = at["children"].get(0) {
            (levels, at) = (levels + 1, child);
        }
        levels
    }

    #[test]
    fn a_deep_recursion_is_nested_up_to_a_limit_and_then_rows() {
        let (profile, tree) = deep(100_000);
        let (value, hidden) = to_json(&profile, &tree, &ALL, 0);
        assert_eq!((nested(&value), hidden), (NESTED, 0));
        let rows = value["rows_below"].as_array().unwrap();
        assert_eq!(rows.len(), 100_000 - NESTED);
        assert_eq!((&rows[0]["parent"], &rows[0]["id"]), (&json!(NESTED), &json!(NESTED + 1)));
        assert_eq!(rows.last().unwrap()["total_instructions"], 1);
        let text = value.to_string();
        assert!(text.len() < 100_001 * 300, "{} bytes", text.len());
        let (value, _) = to_json(&profile, &deep(NESTED as u32).1, &ALL, 0);
        assert_eq!((nested(&value), value.get("rows_below")), (NESTED, None));
    }

    #[test]
    fn what_is_below_the_depth_is_told() {
        let (profile, tree) = deep(10);
        let options = Options { max_depth: 3, ..ALL };
        let text = to_text(&profile, &tree, &options, Style::default());
        assert!(text.ends_with("… 1 deeper branch: 7 contexts (--depth)\n"), "{text}");
        let (value, _) = to_json(&profile, &tree, &options, 0);
        let last = &value["children"][0]["children"][0]["children"][0];
        assert_eq!((&last["folded"], &last["deeper"]), (&json!(1), &json!(7)));
    }

    #[test]
    fn a_deep_level_is_a_number() {
        assert_eq!(indent(2), "    ");
        assert!(indent(20_001).ends_with(" [level 20001] ") && indent(20_001).len() < 300);
    }
}
