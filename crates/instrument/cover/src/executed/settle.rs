// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settles the counts of statements that run one after the other.
//!
//! A compiler merges the ends of paths, and moves code before branches: what is left of a line then has the count of
//! something else. Statements that follow each other, with no way in or out between them, ran equally often. If more than
//! half of those with code have one count, all of them have it. A statement that leaves (`return`, `break`) and the brace that
//! ends a function have no vote: their code is what is merged most.
//!
//! Input: functions of a source, counts of lines with code, lines with a call that did not return. Output: counts of lines
//! that have none, or another one.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::statements::{Function, Kind, Simple, Stmt};

/// Lines of statements that ran equally often.
#[derive(Debug, Default)]
struct Row {
    /// Those with a vote.
    voting: Vec<u32>,
    /// Those that have the count that the others agree on.
    silent: Vec<u32>,
    /// Heads of an `if`, which have a vote too. A compiler that knows how a path goes on leaves the head out there: one
    /// that did not run stays so, as for gcov.
    heads: Vec<u32>,
    /// The brace that ends the function. Copies that were inlined have none: it may be fewer.
    brace: Option<u32>,
}

/// Statements inside the one that is asked for, which a jump leaves without leaving that one.
#[derive(Debug, Clone, Copy, Default)]
struct Around {
    breaks: bool,
    continues: bool,
}

struct Rows<'r> {
    counts: &'r BTreeMap<u32, u64>,
    diverging: &'r HashSet<u32>,
    shared: &'r HashMap<u32, u32>,
    done: Vec<Row>,
    row: Row,
}

/// Counts of a function's lines by the statements around them. `shared` has the number of statements on each line.
pub fn settle(
    function: &Function,
    counts: &BTreeMap<u32, u64>,
    diverging: &HashSet<u32>,
    shared: &HashMap<u32, u32>,
) -> BTreeMap<u32, u64> {
    let mut rows = Rows { counts, diverging, shared, done: Vec::new(), row: Row::default() };
    if !shared.contains_key(&function.name) && counts.contains_key(&function.name) {
        rows.row.voting.push(function.name);
    }
    rows.sequence(&function.body);
    if function.void && !shared.contains_key(&function.close) {
        rows.row.brace = Some(function.close);
    }
    rows.end();
    let mut found = BTreeMap::new();
    for row in &rows.done {
        let Some(count) = agreed(row.voting.iter().map(|line| counts[line])) else { continue };
        let own = |line: &u32| counts.get(line).copied();
        let wrong =
            |line: &&u32| own(line) != Some(count) && !(own(line) == Some(0) && row.heads.contains(line));
        let brace = row.brace.as_ref().filter(|brace| own(brace).is_none_or(|own| own > count));
        let all = row.voting.iter().chain(&row.silent).filter(wrong).chain(brace);
        found.extend(all.map(|&line| (line, count)));
    }
    found
}

/// The count of more than half of them. A single line that did not run says little: what is left of it may be elsewhere.
fn agreed(counts: impl Iterator<Item = u64>) -> Option<u64> {
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    counts.for_each(|count| *seen.entry(count).or_default() += 1);
    let all: usize = seen.values().sum();
    let (&count, &votes) = seen.iter().find(|&(_, &votes)| votes * 2 > all)?;
    (count > 0 || votes > 1).then_some(count)
}

impl Rows<'_> {
    fn end(&mut self) {
        let row = std::mem::take(&mut self.row);
        self.done.push(row);
    }

    /// Statements that run as often as each other, but not as what is around them.
    fn apart(&mut self, stmt: &Stmt) {
        let outer = std::mem::take(&mut self.row);
        self.sequence(std::slice::from_ref(stmt));
        self.end();
        self.row = outer;
    }

    fn simple(&mut self, simple: &Simple) {
        if self.shared.get(&simple.first).is_some_and(|&n| n > 1) {
            return;
        }
        if !simple.leaves && self.counts.contains_key(&simple.first) {
            self.row.voting.push(simple.first);
        } else if simple.acts {
            self.row.silent.push(simple.first);
        }
    }

    fn sequence(&mut self, all: &[Stmt]) {
        for stmt in all {
            match &stmt.kind {
                Kind::Simple(simple) => self.simple(simple),
                Kind::Block(all) => {
                    self.sequence(all);
                    continue;
                }
                Kind::If(head, then, other) => {
                    self.simple(head);
                    self.row.heads.push(head.first);
                    [Some(then), other.as_ref()].into_iter().flatten().for_each(|part| self.apart(part));
                }
                Kind::Switch(head, body) => {
                    self.simple(head);
                    self.apart(body);
                }
                Kind::Loop(_, body) | Kind::Do(body, _) => self.apart(body),
                Kind::Gap | Kind::Label | Kind::Case => {}
            }
            if !self.passes(stmt, Around::default()) {
                self.end();
            }
        }
    }

    /// True if it is left at its end as often as it is entered, and entered nowhere else.
    fn passes(&self, stmt: &Stmt, around: Around) -> bool {
        let returns = |simple: &Simple| {
            !simple.nested && !(simple.first..=simple.last).any(|line| self.diverging.contains(&line))
        };
        match &stmt.kind {
            Kind::Simple(simple) => {
                let stays = simple.breaks && around.breaks || simple.continues && around.continues;
                returns(simple) && (!simple.leaves || stays)
            }
            Kind::Block(all) => all.iter().all(|stmt| self.passes(stmt, around)),
            Kind::If(head, then, other) => {
                let mut parts = [Some(then), other.as_ref()].into_iter().flatten();
                returns(head) && parts.all(|part| self.passes(part, around))
            }
            Kind::Loop(head, body) | Kind::Do(body, head) => {
                returns(head) && self.passes(body, Around { breaks: true, continues: true })
            }
            Kind::Switch(head, body) => returns(head) && self.passes(body, Around { breaks: true, ..around }),
            Kind::Case => around.breaks,
            Kind::Gap | Kind::Label => false,
        }
    }
}
