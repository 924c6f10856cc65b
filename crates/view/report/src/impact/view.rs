// SPDX-License-Identifier: MIT OR Apache-2.0
//! The impacts of several tracers as text and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Cost, Impact, Pair, Place, Spread, SyscallImpact};
use crate::header;
use crate::table::Style;
use kprism_profile::units;
use kprism_store::Account;

/// The result for one tracer.
#[derive(Debug, Clone)]
pub struct Tracer {
    /// Its name.
    pub name: String,
    /// Its effect on the kernel, in one line.
    pub about: String,
    /// Its own report on events after the command, such as the number lost.
    pub events: Option<String>,
    /// Its impact, or the reason why it could not be switched on.
    pub impact: Result<Impact, String>,
}

/// The data of the output.
#[derive(Debug, Clone)]
pub struct Page {
    /// The command as typed in a shell.
    pub command: String,
    /// The kernel's release.
    pub kernel: String,
    /// True if a second recording without a tracer was identical to the first, instruction by instruction.
    pub same: bool,
    /// A recording without a tracer after other preparations: differences that no tracer causes.
    pub floor: Impact,
    /// The account of all recordings.
    pub account: Account,
    /// The tracers, in the order of the request.
    pub tracers: Vec<Tracer>,
    /// Show the functions of each system call instead of those of all together.
    pub by_syscall: bool,
    /// Maximum of functions shown for each.
    pub functions: usize,
}

impl Page {
    /// Text on the accuracy of the numbers.
    pub(super) fn trust(&self) -> Vec<String> {
        let repeated = if self.same {
            "without a tracer, twice: the same, 0 instructions apart".to_owned()
        } else {
            "without a tracer, twice: NOT the same; the numbers below are one run's".to_owned()
        };
        let other = "without a tracer, after other preparations: the column \"none\"".to_owned();
        vec![
            repeated,
            other,
            "one instruction is one nanosecond in the guest, each round of a string instruction another"
                .into(),
        ]
    }

    /// The columns: the recording without a tracer after other preparations, then the tracers.
    fn columns(&self) -> Vec<(&str, &Impact)> {
        let tracers = self.tracers.iter().filter_map(|t| Some((t.name.as_str(), t.impact.as_ref().ok()?)));
        std::iter::once(("none", &self.floor)).chain(tracers).collect()
    }

    /// One row per system call: name, calls, instructions of a call alone, and the addition by each tracer.
    pub(super) fn matrix(&self, kind: Kind) -> Vec<Vec<String>> {
        let columns = self.columns();
        let mut rows = vec![vec!["syscall".to_owned(), "calls".into(), "by itself".into()]];
        rows[0].extend(columns.iter().map(|(name, _)| (*name).to_owned()));
        let mut calls: Vec<&SyscallImpact> = Vec::new();
        for call in columns.iter().flat_map(|(_, impact)| &impact.syscalls) {
            if calls.iter().all(|known| known.name != call.name) {
                calls.push(call);
            }
        }
        for call in calls {
            let bare = call.sums.bare;
            let mean = bare.per(bare.calls);
            let itself = if kind == Kind::Time { mean.ns } else { mean.insns };
            let mut row = vec![units::printable(&call.name), number(bare.calls), number(itself)];
            row.extend(columns.iter().map(|(_, impact)| {
                let found = impact.syscalls.iter().find(|c| c.name == call.name);
                found.and_then(|c| kind.of(c)).map_or("-".to_owned(), signed)
            }));
            rows.push(row);
        }
        rows
    }

    /// One row per place: the command's total there, and the addition by each tracer.
    pub(super) fn totals(&self) -> Vec<Vec<String>> {
        let columns = self.columns();
        let mut rows = vec![vec!["where".to_owned(), "by itself".into()]];
        rows[0].extend(columns.iter().map(|(name, _)| (*name).to_owned()));
        let mut row = |name: &str, of: &dyn Fn(&Impact) -> Pair| {
            let mut cells = vec![name.to_owned(), number(of(&self.floor).bare.insns)];
            cells.extend(columns.iter().map(|(_, impact)| {
                let Pair { bare, traced } = of(impact);
                signed(traced.insns - bare.insns)
            }));
            rows.push(cells);
        };
        for place in Place::ALL {
            row(place.name(), &|impact| impact.places.get(&place).copied().unwrap_or_default());
        }
        row("the command", &Impact::total);
        rows
    }

    /// The system calls whose functions are shown.
    fn shown(&self, impact: &Impact) -> Vec<SyscallImpact> {
        if self.by_syscall { impact.syscalls.clone() } else { vec![impact.all_syscalls()] }
    }
}

/// A header and rows of functions: the cost added to a call, and the number of added calls of the function.
pub(super) fn functions(call: &SyscallImpact, limit: usize) -> (Vec<Vec<String>>, usize) {
    let head = ["added insns", "added ns", "added calls", "by itself", "function", "module"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let keep = if limit == 0 { usize::MAX } else { limit };
    for f in call.functions.iter().take(keep) {
        let added = call.added_by(f);
        rows.push(vec![
            signed(added.insns),
            signed(added.ns),
            signed(added.calls),
            number(f.sums.bare.per(call.sums.bare.calls).insns),
            units::printable(&f.name),
            units::printable(&f.module),
        ]);
    }
    (rows, call.functions.len().saturating_sub(keep))
}

/// The text above the functions of a system call.
pub(super) fn caption(call: &SyscallImpact) -> String {
    let added = call.added();
    let mut text = format!(
        "{}: {} instructions, {} ns a call in the mean",
        units::printable(&call.name),
        signed(added.insns),
        signed(added.ns)
    );
    if let Some(Spread { least, median, most }) = call.spread {
        let [least, median, most] = [least, median, most].map(|n| signed(n as f64));
        let _ = write!(text, "; instructions: median {median}, {least} to {most}");
    }
    if call.sums.bare.calls != call.sums.traced.calls {
        let _ = write!(
            text,
            "; {} calls by itself, {} traced",
            number(call.sums.bare.calls),
            number(call.sums.traced.calls)
        );
    }
    if call.shared {
        text += "; made where others are made too: functions of entry and exit are shared out";
    }
    text
}

/// The impacts as text.
pub fn to_text(page: &Page, style: Style) -> String {
    let mut out =
        format!("{} on {}\n", style.bold(&units::printable(&page.command)), units::printable(&page.kernel));
    out += &header::head(Some(&page.account), style);
    for line in page.trust() {
        let _ = writeln!(out, "{}", if page.same { style.dim(&line) } else { style.alert(&line) });
    }
    for (title, kind) in TABLES {
        let _ = write!(out, "\n{}\n{}", style.bold(title), grid(&page.matrix(kind), 1));
    }
    let _ = write!(out, "\n{}\n{}", style.bold(TOTALS), grid(&page.totals(), 1));
    for tracer in &page.tracers {
        let _ = write!(out, "\n{}: {}", style.bold(&tracer.name), tracer.about);
        if let Some(events) = &tracer.events {
            let _ = write!(out, "; {}", units::printable(events));
        }
        out.push('\n');
        match &tracer.impact {
            Err(reason) => {
                let _ = writeln!(out, "{}", style.alert(&format!("not available: {}", lines(reason))));
            }
            Ok(impact) => {
                for call in page.shown(impact) {
                    let (rows, hidden) = functions(&call, page.functions);
                    let _ = writeln!(out, "{}", caption(&call));
                    if rows.len() > 1 {
                        out.push_str(&grid(&rows, 0));
                    }
                    if hidden > 0 {
                        let _ = writeln!(out, "{}", style.dim(&format!("… {hidden} more functions")));
                    }
                }
            }
        }
    }
    out
}

/// The kind of value in a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Median,
    Mean,
    Time,
}

impl Kind {
    fn of(self, call: &SyscallImpact) -> Option<f64> {
        match self {
            Kind::Median => call.spread.map(|s| s.median as f64),
            Kind::Mean => Some(call.added().insns),
            Kind::Time => Some(call.added().ns),
        }
    }
}

pub(super) const TABLES: [(&str, Kind); 3] = [
    ("instructions added to a call: the median", Kind::Median),
    ("instructions added to a call: the mean", Kind::Mean),
    ("nanoseconds added to a call, on the CPU: the mean", Kind::Time),
];
pub(super) const TOTALS: &str = "instructions added to the command";

/// The impacts as JSON.
pub fn to_json(page: &Page) -> Value {
    let pair = |p: Pair| json!({"bare": cost(p.bare), "traced": cost(p.traced)});
    let call = |call: &SyscallImpact| {
        let functions: Vec<Value> = call
            .functions
            .iter()
            .map(|f| {
                let added = call.added_by(f);
                json!({
                    "function": f.name, "module": f.module, "bare": cost(f.sums.bare),
                    "traced": cost(f.sums.traced), "added_per_call": cost(added),
                })
            })
            .collect();
        json!({
            "syscall": call.name,
            "bare": cost(call.sums.bare),
            "traced": cost(call.sums.traced),
            "added_per_call": {"instructions": call.added().insns, "ns": call.added().ns},
            "least_added_instructions": call.spread.map(|s| s.least),
            "median_added_instructions": call.spread.map(|s| s.median),
            "most_added_instructions": call.spread.map(|s| s.most),
            "entry_shared": call.shared,
            "functions": functions,
        })
    };
    let impact = |impact: &Impact| {
        let places: serde_json::Map<String, Value> =
            impact.places.iter().map(|(p, sums)| (p.name().replace(' ', "_"), pair(*sums))).collect();
        json!({
            "total": pair(impact.total()),
            "places": places,
            "syscalls": impact.syscalls.iter().map(call).collect::<Vec<_>>(),
        })
    };
    let tracer = |t: &Tracer| {
        let mut value = match &t.impact {
            Ok(found) => impact(found),
            Err(reason) => json!({"error": reason}),
        };
        value["name"] = json!(t.name);
        value["about"] = json!(t.about);
        value["events"] = json!(t.events);
        value
    };
    json!({
        "run": {"command": page.command, "kernel": page.kernel, "stopped": null, "account": page.account},
        "command": page.command,
        "kernel": page.kernel,
        "bare_twice_the_same": page.same,
        "other_preparations": impact(&page.floor),
        "tracers": page.tracers.iter().map(tracer).collect::<Vec<_>>(),
    })
}

fn cost(cost: Cost) -> Value {
    json!({"calls": cost.calls, "instructions": cost.insns, "ns": cost.ns})
}

/// Formats rows of cells under a header. The first `names` columns are names, and so are those after the last number.
fn grid(rows: &[Vec<String>], names: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    // The functions' table begins with numbers and ends with two names.
    let is_name = |c: usize| if names == 0 { c + 2 >= columns } else { c < names };
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            let (before, after) = if is_name(c) { ("", pad.as_str()) } else { (pad.as_str(), "") };
            let _ = write!(line, "{}{before}{cell}{after}", if c == 0 { "" } else { "  " });
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Lines of untrusted text, safe to print.
fn lines(text: &str) -> String {
    text.lines().map(units::printable).collect::<Vec<_>>().join("\n  ")
}

/// An exact number with thousands separated, or a number with one decimal.
fn number(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0;
    let sign = if rounded < 0.0 { "-" } else { "" };
    let whole = units::grouped(rounded.abs().trunc() as u64);
    let tenth = ((rounded.abs().fract()) * 10.0).round() as u64;
    if tenth == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{tenth}") }
}

/// Like [`number`], with its sign.
fn signed(value: f64) -> String {
    let text = number(value);
    if text.starts_with('-') || text == "0" { text } else { format!("+{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(1234.0), "1,234");
        assert_eq!(number(917.25), "917.3");
        assert_eq!(number(0.96), "1");
        assert_eq!(signed(-2.72), "-2.7");
        assert_eq!(signed(0.01), "0");
        assert_eq!(signed(1366.0), "+1,366");
    }
}
