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

/// Why gcov's count is not the one by its own blocks.
const BY_RULE: &str = "as often as all of gcov's blocks with the line did";

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
    let absent: Map<String, Value> =
        all.executed.absent.iter().map(|(why, lines)| (why.key().to_owned(), json!(lines))).collect();
    let differ: Map<String, Value> =
        Differs::ALL.iter().map(|&kind| (kind.key().to_owned(), json!(of(&all, kind).count()))).collect();
    let by_rule: Map<String, Value> =
        Differs::ALL.iter().map(|&kind| (kind.key().to_owned(), json!(by_rule(&all, kind)))).collect();
    let ran = &all.executed;
    let by_flow = ran.both + of(&all, Differs::OnlyFlow).count() as u64;
    json!({
        "lines": all.gcov, "both": all.both, "alike": all.alike, "equal": all.equal,
        "executed": ran.gcov, "executed_both": ran.both, "executed_equal": ran.equal,
        "executed_by_flow": by_flow, "recall_percent": percent(ran.both, ran.gcov),
        "precision_percent": percent(ran.both, by_flow), "same_count_percent": percent(ran.equal, ran.gcov),
        "differ": differ, "differ_by_rule": by_rule, "executed_absent": absent, "only_flow_executed": all.only_flow_ran.len(),
        "inferred": all.inferred.0, "inferred_alike": all.inferred.1, "inferred_wrongly": all.wrongly.len(),
        "only_gcov": why, "only_flow": all.only_flow.len(), "files": files.iter().map(listed).collect::<Vec<_>>(),
        "rows": table.to_json(), "hidden": table.hidden,
    })
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Lines of one kind of difference.
fn of(file: &Comparison, kind: Differs) -> impl Iterator<Item = u32> {
    file.differ.iter().filter(move |(_, differs)| *differs == kind).map(|(line, _)| *line)
}

/// Number of lines of one kind for which the flow has the count of all of gcov's blocks with the line.
fn by_rule(file: &Comparison, kind: Differs) -> u64 {
    file.by_rule.iter().filter(|(_, differs)| *differs == kind).count() as u64
}

/// A table of numbers with words behind them, right-aligned; those that are 0 are left out.
fn listing(text: &mut String, rows: &[(u64, String)]) {
    for (n, words) in rows.iter().filter(|(n, _)| *n > 0) {
        text.push_str(&format!("{:>8}  {words}\n", grouped(*n)));
    }
}

/// The sums in words: see [`total`]. First what the flow is worth for lines that ran, then all lines.
pub fn summary(all: &Comparison) -> String {
    let number = |kind: Differs| of(all, kind).count() as u64;
    let ran = &all.executed;
    let by_flow = ran.both + number(Differs::OnlyFlow);
    let mut text = format!(
        "{} lines ran by gcov, of the {} that it has\n\
         recall      {:>6.2}%  {} of these ran by the flow too\n\
         same count  {:>6.2}%  {} of these have the same count in the flow\n\
         precision   {:>6.2}%  {} of the {} that ran by the flow ran by gcov\n\n",
        grouped(ran.gcov),
        grouped(all.gcov),
        percent(ran.both, ran.gcov),
        grouped(ran.both),
        percent(ran.equal, ran.gcov),
        grouped(ran.equal),
        percent(ran.both, by_flow),
        grouped(ran.both),
        grouped(by_flow),
    );
    let mut rows: Vec<(u64, String)> = Vec::new();
    for kind in Differs::ALL {
        let of_rule = by_rule(all, kind);
        rows.push((of_rule, format!("{}: {BY_RULE}", kind.name())));
        rows.push((number(kind) - of_rule, format!("{}: {}", kind.name(), kind.words())));
    }
    rows.extend(Why::ALL.iter().map(|why| {
        (ran.absent.get(why).copied().unwrap_or(0), format!("ran by gcov, not in the flow: {}", why.words()))
    }));
    rows.push((
        all.only_flow_ran.len() as u64,
        "ran by the flow, no lines of gcov's (not in the precision)".to_owned(),
    ));
    listing(&mut text, &rows);
    text.push_str(&format!(
        "\nall {} lines, most of which ran in neither: {:.2}% executed alike, {:.2}% with the same count\n\
         {} are in the flow's coverage, {} of these without code or with merged code, told from lines around: {:.2}% alike\n",
        grouped(all.gcov),
        percent(all.alike, all.gcov),
        percent(all.equal, all.gcov),
        grouped(all.both),
        grouped(all.inferred.0),
        percent(all.inferred.1, all.inferred.0),
    ));
    let absent = |why: &Why| all.only_gcov.get(why).map_or(0, |lines| lines.len() as u64);
    let mut rows: Vec<(u64, String)> =
        Why::ALL.iter().map(|why| (absent(why), format!("only gcov's: {}", why.words()))).collect();
    rows.push((all.only_flow.len() as u64, "only the flow's".to_owned()));
    listing(&mut text, &rows);
    text
}

/// A row for each file.
pub fn table(files: &[Comparison]) -> Table {
    let rows = files.iter().map(|file| {
        let only = |why: Why| Cell::Int(file.only_gcov.get(&why).map_or(0, |lines| lines.len() as u64));
        let ran = &file.executed;
        let by_flow = ran.both + of(file, Differs::OnlyFlow).count() as u64;
        let mut row = vec![
            Cell::Int(file.gcov),
            Cell::Int(file.both),
            Cell::Int(ran.gcov),
            Cell::Percent(percent(ran.both, ran.gcov)),
            Cell::Percent(percent(ran.equal, ran.gcov)),
            Cell::Percent(percent(ran.both, by_flow)),
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
        ("executed", "ran"),
        ("recall_percent", "recall"),
        ("executed_equal_percent", "same count"),
        ("precision_percent", "precision"),
        ("alike_percent", "alike"),
        ("equal_percent", "equal"),
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
    let differ: Map<String, Value> = Differs::ALL
        .iter()
        .map(|&kind| (kind.key().to_owned(), json!(of(file, kind).collect::<Vec<_>>())))
        .collect();
    let why: Map<String, Value> =
        file.only_gcov.iter().map(|(why, lines)| (why.key().to_owned(), json!(lines))).collect();
    json!({
        "path": file.path, "only_gcov": why, "only_flow": file.only_flow,
        "only_flow_executed": file.only_flow_ran, "differ": differ, "inferred_wrongly": file.wrongly,
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
    for kind in Differs::ALL {
        line(&format!("{} ({})", kind.name(), kind.words()), of(file, kind).collect());
    }
    for (why, lines) in &file.only_gcov {
        line(&format!("only gcov's ({})", why.words()), lines.clone());
    }
    line("only the flow's", file.only_flow.clone());
    text
}
