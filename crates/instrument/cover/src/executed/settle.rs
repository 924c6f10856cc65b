// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settles the counts of statements that run one after the other.
//!
//! A compiler merges the ends of paths, and moves code before branches: what is left of a line then has the count of
//! something else. Statements that follow each other, with no way in or out between them, ran equally often. If most of those
//! with code have one count, all of them have it. A statement that leaves (`return`, `break`) and the brace that ends a
//! function have no say: their code is what is merged most.
//!
//! Input: functions of a source, counts of lines with code, lines with a call that did not return. Output: counts of lines
//! whose own were others.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::infer::Told;
use super::statements::{Function, Kind, Simple, Stmt};

/// Statements that ran equally often.
#[derive(Debug, Default)]
struct Row {
    /// Lines of those with a say.
    told: Vec<u32>,
    /// Lines of the others.
    silent: Vec<u32>,
}

struct Settling<'s> {
    told: &'s Told<'s>,
    shared: &'s HashMap<u32, u32>,
    rows: Vec<Row>,
    row: Row,
}

/// Counts of lines that others correct. `shared` has the number of statements on each line.
pub fn settle(
    function: &Function,
    told: &Told<'_>,
    shared: &HashMap<u32, u32>,
) -> BTreeMap<u32, u64> {
    let mut all = Settling { told, shared, rows: Vec::new(), row: Row::default() };
    if !shared.contains_key(&function.name) {
        all.row.told.push(function.name);
    }
    all.sequence(&function.body);
    if function.void && !shared.contains_key(&function.close) {
        all.row.silent.push(function.close);
    }
    all.end();
    let mut found = BTreeMap::new();
    for row in &all.rows {
        let own = || row.told.iter().filter_map(|line| told.counts.get(line).copied());
        let Some((count, n)) = agreed(own()) else { continue };
        let solid = row.told.iter().any(|line| told.solid.contains(line) && told.counts.get(line) == Some(&count));
        let min:usize=std::env::var("MINV").ok().and_then(|v|v.parse().ok()).unwrap_or(1);
        let z=std::env::var("ZERO").is_err();
        if n<min || z && count==0 && n<2 {continue}
        if std::env::var("SOLID").is_ok() && !solid {continue}
        for &line in row.told.iter().chain(&row.silent) {
            if told.counts.get(&line) != Some(&count) {
                found.insert(line, count);
            }
        }
    }
    found
}

/// The count of more than half of them.
fn agreed(counts: impl Iterator<Item = u64>) -> Option<(u64, usize)> {
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    let mut all = 0;
    for count in counts {
        *seen.entry(count).or_default() += 1;
        all += 1;
    }
    seen.into_iter().find(|(_, n)| n * 2 > all)
}

impl Settling<'_> {
    fn end(&mut self) {
        let row = std::mem::take(&mut self.row);
        if row.told.len() + row.silent.len() > 1 {
            self.rows.push(row);
        }
    }

    /// A part that runs as a whole or not at all, in a row of its own.
    fn apart(&mut self, stmt: &Stmt) {
        let outer = std::mem::take(&mut self.row);
        match &stmt.kind {
            Kind::Block(all) => self.sequence(all),
            _ => self.sequence(std::slice::from_ref(stmt)),
        }
        self.end();
        self.row = outer;
    }

    fn simple(&mut self, simple: &Simple) {
        if self.shared.get(&simple.first).is_some_and(|&n| n > 1) {
            return;
        }
        // A line without code: only what acts is a line.
        if !simple.leaves && self.told.counts.contains_key(&simple.first) {
            self.row.told.push(simple.first);
        } else if simple.acts {
            self.row.silent.push(simple.first);
        }
    }

    fn diverges(&self, simple: &Simple) -> bool {
        (simple.first..=simple.last).any(|line| self.told.diverging.contains(&line))
    }

    fn sequence(&mut self, all: &[Stmt]) {
        for stmt in all {
            match &stmt.kind {
                Kind::Gap | Kind::Label | Kind::Case => self.end(),
                Kind::Simple(simple) => {
                    self.simple(simple);
                    if simple.leaves || simple.nested || self.diverges(simple) {
                        self.end();
                    }
                }
                Kind::Block(all) => self.sequence(all),
                Kind::If(head, then, other) => {
                    self.simple(head);
                    self.apart(then);
                    if let Some(other) = other {
                        self.apart(other);
                    }
                }
                Kind::Switch(head, body) => {
                    self.simple(head);
                    self.apart(body);
                }
                Kind::Loop(_, body) | Kind::Do(body, _) => self.apart(body),
            }
            let inside = matches!(stmt.kind, Kind::If(..) | Kind::Switch(..) | Kind::Loop(..) | Kind::Do(..));
            if inside && !self.passes(stmt, Around::default()) {
                self.end();
            }
        }
    }

    /// True if it is left at its end as often as it is entered, and entered nowhere else. `around` is what is around it in the
    /// statement that is asked for.
    fn passes(&self, stmt: &Stmt, around: Around) -> bool {
        let calm = |simple: &Simple| !simple.nested && !self.diverges(simple);
        match &stmt.kind {
            Kind::Simple(simple) => {
                let stays = simple.breaks && around.breaks || simple.continues && around.continues;
                calm(simple) && (!simple.leaves || stays)
            }
            Kind::Block(all) => all.iter().all(|stmt| self.passes(stmt, around)),
            Kind::If(head, then, other) => {
                let mut parts = [Some(then), other.as_ref()].into_iter().flatten();
                calm(head) && parts.all(|part| self.passes(part, around))
            }
            Kind::Loop(head, body) | Kind::Do(body, head) => {
                calm(head) && self.passes(body, Around { breaks: true, continues: true })
            }
            Kind::Switch(head, body) => calm(head) && self.passes(body, Around { breaks: true, ..around }),
            Kind::Case => around.breaks,
            Kind::Gap | Kind::Label => false,
        }
    }
}

/// Statements that a jump leaves, without leaving the one around them.
#[derive(Debug, Clone, Copy, Default)]
struct Around {
    breaks: bool,
    continues: bool,
}
