// SPDX-License-Identifier: MIT OR Apache-2.0
//! gcov's counters beside the flow of the same run: agreement by file, and the reasons of differences.
//!
//! Input: a [`Comparison`] for each source file. Output: a table, text, JSON.

use kprism_cover::why::{Comparison, Differs, Why};
use kprism_profile::units::grouped;
use serde_json::{Map, Value, json};

use crate::table::{Cell, Table};

/// Lines that are named for each kind of difference.
const NAMED: usize = 12;

/// The sums over all files.
pub fn total(files: &[Comparison]) -> Comparison {
    let mut all = Comparison::default();
    files.iter().for_each(|file| all.add(file));
    all
}

/// Everything as JSON; `table` is that of [`table`], maybe sorted and shortened.
pub fn to_json(files: &[Comparison], table: &Table) -> Value {
    let all = total(files);
    let why: Map<String, Value> =
        all.only_gcov.iter().map(|(why, lines)| (why.key().to_owned(), json!(lines.len()))).collect();
    json!({
        "lines": all.gcov, "both": all.both, "alike": all.alike, "equal": all.equal,
        "executed": all.executed.0, "executed_both": all.executed.1,
        "inferred": all.inferred.0, "inferred_alike": all.inferred.1, "inferred_wrongly": all.wrongly.len(),
        "only_gcov": why, "only_flow": all.only_flow.len(), "files": files.iter().map(listed).collect::<Vec<_>>(),
        "rows": table.to_json(),
    })
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// The sums in words: see [`total`].
pub fn summary(all: &Comparison) -> String {
    let mut text = format!(
        "{} lines of gcov's, most of which ran in neither: {:.2}% executed alike, {:.2}% with the same count; of the {} that ran by gcov, the flow has {:.2}%\n\
         {} of them in the flow's coverage, {} of these without code, told from lines around: {:.2}% alike\n",
        grouped(all.gcov),
        percent(all.alike, all.gcov),
        percent(all.equal, all.gcov),
        grouped(all.executed.0),
        percent(all.executed.1, all.executed.0),
        grouped(all.both),
        grouped(all.inferred.0),
        percent(all.inferred.1, all.inferred.0),
    );
    let mut line = |n: u64, words: &str| {
        if n > 0 {
            text.push_str(&format!("{:>8}  {words}\n", grouped(n)));
        }
    };
    let of = |kind: Differs| all.differ.iter().filter(|(_, differs)| *differs == kind).count() as u64;
    line(of(Differs::OnlyGcov), "executed to gcov only: what is left of the line did not run");
    line(
        of(Differs::OnlyFlow),
        "executed in the flow only: code shared with another line, or moved before a branch",
    );
    for why in Why::ALL {
        line(
            all.only_gcov.get(&why).map_or(0, |lines| lines.len() as u64),
            &format!("only gcov's: {}", why.words()),
        );
    }
    line(all.only_flow.len() as u64, "only the flow's");
    text
}

/// A row for each file.
pub fn table(files: &[Comparison]) -> Table {
    let rows = files.iter().map(|file| {
        let only = |why: Why| Cell::Int(file.only_gcov.get(&why).map_or(0, |lines| lines.len() as u64));
        let mut row = vec![
            Cell::Int(file.gcov),
            Cell::Int(file.both),
            Cell::Percent(percent(file.alike, file.both)),
            Cell::Percent(percent(file.equal, file.both)),
        ];
        row.extend(Why::ALL.map(only));
        row.extend([Cell::Int(file.only_flow.len() as u64), Cell::Text(file.path.clone())]);
        row
    });
    let columns = [
        ("lines", "lines"),
        ("both", "both"),
        ("alike_percent", "alike"),
        ("equal_percent", "same count"),
        ("label", "labels"),
        ("optimised", "optimised"),
        ("inlined", "inlined"),
        ("gone", "gone"),
        ("unnamed", "unnamed"),
        ("no_debug", "no debug"),
        ("only_flow", "only flow"),
        ("path", "file"),
    ];
    Table::new(&columns, rows.collect())
}

/// Every line that differs, as JSON.
fn listed(file: &Comparison) -> Value {
    let of = |kind: Differs| -> Vec<u32> {
        file.differ.iter().filter(|(_, differs)| *differs == kind).map(|(line, _)| *line).collect()
    };
    let why: Map<String, Value> =
        file.only_gcov.iter().map(|(why, lines)| (why.key().to_owned(), json!(lines))).collect();
    json!({
        "path": file.path, "only_gcov": why, "only_flow": file.only_flow,
        "executed_to_gcov_only": of(Differs::OnlyGcov), "executed_in_the_flow_only": of(Differs::OnlyFlow),
        "counts_differ": of(Differs::Count), "inferred_wrongly": file.wrongly,
    })
}

/// The first lines of a file that differ, by the kind of difference, as text.
pub fn lines(file: &Comparison) -> String {
    let mut text = String::new();
    let mut line = |words: &str, lines: Vec<u32>| {
        if lines.is_empty() {
            return;
        }
        let more = if lines.len() > NAMED { " …" } else { "" };
        let names: Vec<String> = lines.iter().take(NAMED).map(u32::to_string).collect();
        text.push_str(&format!("{words}: {}{more}\n", names.join(" ")));
    };
    let of = |kind: Differs| file.differ.iter().filter(|d| d.1 == kind).map(|d| d.0).collect();
    line("executed to gcov only", of(Differs::OnlyGcov));
    line("executed in the flow only", of(Differs::OnlyFlow));
    line("counts differ", of(Differs::Count));
    for (why, lines) in &file.only_gcov {
        line(&format!("only gcov's ({})", why.words()), lines.clone());
    }
    line("only the flow's", file.only_flow.clone());
    text
}
