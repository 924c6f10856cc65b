// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of code that was not built for coverage: lines, branches and functions, from counts of instructions.
//!
//! Input: [`Lines`] of a file, and the counts of its instructions ([`Ran`]). Output, for all files: a [`Cover`], as
//! from gcov's counters. The meaning of a line's count is as close to gcov's as code allows:
//! - a line's count is the number of times that the flow comes to it: see `entries`. Pieces that
//!   the compiler moved away from the start of the statement count only if the line has no others. A statement without
//!   instructions takes the count of the place where they would stand;
//! - the first instructions of a function belong to the line of its name. The closing brace of a function that returns
//!   a value is no line;
//! - a line inlined into several functions has the sum of its counts in each;
//! - lines without code, and those whose code was merged with others', get the counts that
//!   [`infer`](crate::executed::infer) derives, if the source is available;
//! - only functions known to the linker count: a function inlined everywhere is none;
//! - a conditional jump is two branches; a jump through a table (a `switch`) is one for each target in the table;
//! - code is disassembled as in the file, or as it ran if it was patched.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kprism_debuginfo::lines::{Bare, Function, Lines, Section};
use kprism_image::insn::{Kind, Mode, classify};

use super::entries::{Place, arcs, parts, pieces};
use super::infer::infer;
use super::tables::targets;
use crate::cover::{BranchCount, Cover, FunctionTotal, LineCount, Source, Way};

/// An instruction that ran, at its address in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// Its address.
    pub address: u64,
    /// Its length.
    pub length: u8,
    /// Its control transfer; targets are relative to `address`.
    pub kind: Kind,
    /// Number of executions.
    pub count: u64,
    /// Number of times that the flow did not continue at the next instruction.
    pub taken: u64,
}

/// An instruction, executed or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Insn {
    pub address: u64,
    pub end: u64,
    pub count: u64,
    /// Number of times that the flow continued at the next instruction.
    pub falls: u64,
    /// Target of its jump, and number of times taken.
    pub jump: Option<(u64, u64)>,
    pub class: Class,
    /// Source file and line; line 0 if there is none.
    pub line: (u32, u32),
    /// A statement begins here.
    pub statement: bool,
    pub first_column: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Falls,
    Cond,
    Jump,
    Call,
    Ret,
}

impl Insn {
    pub fn new(address: u64, length: u8, kind: Kind, count: u64, taken: u64) -> Self {
        let taken = taken.min(count);
        let (class, falls, jump) = match kind {
            Kind::CondJump { target } => (Class::Cond, count - taken, Some((target, taken))),
            Kind::Jump { target } => (Class::Jump, 0, Some((target, count))),
            Kind::IndirectJump => (Class::Jump, 0, None),
            Kind::Call { .. } | Kind::IndirectCall => (Class::Call, count, None),
            Kind::Ret => (Class::Ret, 0, None),
            _ => (Class::Falls, count, None),
        };
        let end = address.saturating_add(length.into());
        let line = (0, 0);
        Self { address, end, count, falls, jump, class, line, statement: false, first_column: false }
    }

    /// Adds another version of a patched instruction: both ran.
    fn add(&mut self, other: &Insn) {
        if other.count > self.count {
            (self.class, self.end) = (other.class, other.end);
        }
        self.count += other.count;
        self.falls += other.falls;
        self.jump = match (self.jump, other.jump) {
            (Some((to, a)), Some((also, b))) if to == also => Some((to, a + b)),
            (mine, other) => mine.or(other),
        };
    }
}

#[derive(Debug, Default)]
struct Gathered {
    lines: BTreeMap<u32, (u64, bool)>,
    /// Lines with a call that did not always return.
    diverging: HashSet<u32>,
    functions: BTreeMap<(u32, String), FunctionTotal>,
    branches: Vec<BranchCount>,
}

/// Targets of indirect jumps with their counts, by the jump's address.
pub type Jumped = BTreeMap<u64, Vec<(u64, u64)>>;

/// Lines without code by source file. Their counts are derived from neighbouring lines.
pub type Inferred = BTreeMap<String, BTreeSet<u32>>;

/// Combines the coverage of several files.
#[derive(Debug, Default)]
pub struct Gatherer {
    sources: BTreeMap<String, Gathered>,
    folders: BTreeMap<String, usize>,
    files: u32,
    functions: u32,
}

impl Gatherer {
    /// Adds a file's code. `ran` need not be sorted. `jumped` holds the targets of indirect jumps within functions,
    /// with their counts.
    pub fn add(&mut self, lines: &Lines, mut ran: Vec<Ran>, jumped: &Jumped) {
        self.files += 1;
        if let Some(folder) = &lines.folder {
            *self.folders.entry(folder.clone()).or_default() += lines.files.len();
        }
        ran.sort_by_key(|r| (r.address, r.length));
        let mut merged: Vec<Insn> = Vec::with_capacity(ran.len());
        for r in ran {
            let insn = Insn::new(r.address, r.length, r.kind, r.count, r.taken);
            match merged.last_mut() {
                Some(last) if last.address == r.address => last.add(&insn),
                _ => merged.push(insn),
            }
        }
        for function in &lines.functions {
            let mut insns = instructions(function, lines, &merged);
            let mut bare = bare(function, lines, &insns);
            close_braces(function, &mut insns, &mut bare);
            self.function(function, &insns, &bare, lines, jumped);
        }
        self.nameless(lines, &merged);
    }

    /// Handles code without a symbol: mostly code replaced by another definition.
    fn nameless(&mut self, lines: &Lines, ran: &[Insn]) {
        let mut next = 0;
        let mut end = 0;
        for row in lines.rows.iter().filter(|row| row.line != 0) {
            while let Some(function) = lines.functions.get(next).filter(|f| f.start < row.end) {
                end = function.start.saturating_add(function.code.len() as u64);
                next += 1;
            }
            let there = |section: &Section| section.start <= row.start && row.end <= section.end;
            if row.start < end || !lines.sections.iter().any(there) {
                continue;
            }
            let from = ran.partition_point(|insn| insn.address < row.start);
            let within = ran[from..].iter().take_while(|insn| insn.address < row.end);
            let count = within.map(|insn| insn.count).max().unwrap_or(0);
            let known = self.source(lines, row.file).lines.entry(row.line).or_default();
            known.0 = known.0.max(count);
        }
    }

    fn source(&mut self, lines: &Lines, file: u32) -> &mut Gathered {
        self.sources.entry(lines.files[file as usize].clone()).or_default()
    }

    fn function(
        &mut self,
        function: &Function,
        insns: &[Insn],
        bare: &[Bare],
        lines: &Lines,
        jumped: &Jumped,
    ) {
        let Some(first) = insns.first() else { return };
        let pieces = pieces(insns, jumped);
        let arcs = arcs(&pieces, insns, jumped);
        let blocks = pieces.iter().filter(|piece| piece.leads).count() as u32;
        let executed = pieces.iter().filter(|piece| piece.leads && piece.count > 0).count() as u32;
        for ((file, line), part) in parts(insns, bare, &lines.begins, &pieces, &arcs) {
            let known = self.source(lines, file).lines.entry(line).or_default();
            *known = (known.0.saturating_add(part.count()), known.1 | part.unexecuted);
        }
        self.branches(function, insns, lines, jumped);
        // A function without a line is the assembler's.
        let (file, line) = first.line;
        let line = if function.declared.line != 0 { function.declared.line } else { line };
        // Parts moved away are entered by jumps from the function.
        if line == 0 || function.name.ends_with(".cold") {
            return;
        }
        let own = insns.iter().filter(|i| i.line.0 == file).map(|i| i.line.1).max().unwrap_or(line);
        let within = arcs.iter().filter(|arc| arc.to == 0).map(|arc| arc.count).sum();
        let called = first.count.saturating_sub(within);
        let leaves = |to: u64| to < first.address || insns.last().is_none_or(|last| last.end <= to);
        let returned: u64 = insns
            .iter()
            .map(|i| match (i.class, i.jump) {
                (Class::Ret, _) => i.count,
                (_, Some((to, n))) if leaves(to) => n,
                _ => 0,
            })
            .sum();
        let total = FunctionTotal {
            name: function.name.clone(),
            lines: (line, own),
            columns: (0, 0),
            called: signed(called),
            returned: signed(returned.min(called)),
            blocks: (blocks, executed),
            conditions: (0, 0),
            paths: (0, 0),
        };
        let functions = &mut self.source(lines, file).functions;
        match functions.get_mut(&(line, function.name.clone())) {
            Some(known) => {
                known.called = known.called.saturating_add(total.called);
                known.returned = known.returned.saturating_add(total.returned);
            }
            None => drop(functions.insert((line, function.name.clone()), total)),
        }
    }

    fn branches(&mut self, of: &Function, insns: &[Insn], lines: &Lines, jumped: &Jumped) {
        let function = self.functions;
        // Jumps to an instruction: the rest of its executions came from the one before it.
        let mut jumps: HashMap<u64, u64> = HashMap::new();
        let ways = insns.iter().flat_map(|insn| jumped.get(&insn.address)).flatten().copied();
        for (to, count) in insns.iter().filter_map(|insn| insn.jump).chain(ways) {
            *jumps.entry(to).or_default() += count;
        }
        let starts: Vec<u64> = insns.iter().map(|insn| insn.address).collect();
        self.functions += 1;
        let mut here: BTreeMap<Place, Vec<(Way, u64, u64)>> = BTreeMap::new();
        let mut diverging: Vec<Place> = Vec::new();
        for (i, insn) in insns.iter().enumerate().filter(|(_, insn)| insn.line.1 != 0) {
            let on_line = here.entry(insn.line);
            match insn.class {
                Class::Cond => {
                    let taken = insn.jump.map_or(0, |(_, taken)| taken);
                    on_line
                        .or_default()
                        .extend([(Way::Fallthrough, insn.falls, insn.count), (Way::Jump, taken, insn.count)]);
                }
                Class::Jump if insn.jump.is_none() => {
                    let went = jumped.get(&insn.address).map_or(&[][..], |went| went);
                    let mut ways = targets(of, &starts, insn.address, lines);
                    ways.extend(went.iter().map(|way| way.0).filter(|to| starts.binary_search(to).is_ok()));
                    let mut known = BTreeSet::new();
                    ways.retain(|&to| known.insert(to));
                    if ways.len() > 1 {
                        let taken = |to| went.iter().filter(|way| way.0 == to).map(|way| way.1).sum();
                        let ways = ways.into_iter().map(|to| (Way::Jump, taken(to), insn.count));
                        on_line.or_default().extend(ways);
                    }
                }
                Class::Call => {
                    let next = insns.get(i + 1).filter(|next| next.address == insn.end);
                    let jumps = jumps.get(&insn.end).copied().unwrap_or(0);
                    let returned = next.map_or(0, |next| next.count.saturating_sub(jumps).min(insn.count));
                    on_line.or_default().push((Way::Call, returned, insn.count));
                    if returned < insn.count {
                        diverging.push(insn.line);
                    }
                }
                _ => {}
            }
        }
        for (file, line) in diverging {
            self.source(lines, file).diverging.insert(line);
        }
        for ((file, line), all) in here {
            let of = u16::try_from(all.len()).unwrap_or(u16::MAX);
            let branches = &mut self.source(lines, file).branches;
            for (place, (way, taken, executed)) in (0..of).zip(all) {
                let (taken, executed) = (signed(taken), signed(executed));
                branches.push(BranchCount { line, function, of, place, way, taken, executed });
            }
        }
    }

    /// Returns the coverage of all files, and the lines inferred from available sources. `text` reads a source file
    /// that has this line, the last one with code.
    pub fn finish(self, text: &dyn Fn(&str, u32) -> Option<String>) -> (Cover, Inferred) {
        let mut inferred = Inferred::new();
        let sources = self.sources.into_iter().map(|(path, mut gathered)| {
            let last = gathered.lines.last_key_value().map_or(0, |(&line, _)| line);
            if let Some(text) = text(&path, last) {
                let counts = gathered.lines.iter().map(|(&line, &(count, _))| (line, count)).collect();
                let more = infer(&text, &counts, &gathered.diverging);
                inferred.insert(path.clone(), more.keys().copied().collect());
                for (line, count) in more {
                    gathered.lines.entry(line).or_default().0 = count;
                }
            }
            gathered.branches.sort_by_key(|b| (b.line, b.function, b.place));
            let lines = gathered.lines.into_iter();
            Source {
                path,
                lines: lines
                    .map(|(line, (count, unexecuted_block))| LineCount {
                        line,
                        unexecuted_block,
                        exceptional: false,
                        count: signed(count),
                    })
                    .collect(),
                functions: gathered.functions.into_values().collect(),
                branches: gathered.branches,
                conditions: Vec::new(),
            }
        });
        let sources = sources.collect();
        let root = self.folders.into_iter().rev().max_by_key(|(_, n)| *n).map(|(folder, _)| folder);
        (Cover { sources, objects: self.files, root, compiler: None }, inferred)
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A function's instructions: as they ran, and between them as in the file.
fn instructions(function: &Function, lines: &Lines, ran: &[Insn]) -> Vec<Insn> {
    let (start, end) = (function.start, function.start.saturating_add(function.code.len() as u64));
    let mut next = ran.partition_point(|r| r.address < start);
    let mut row = lines.rows.partition_point(|r| r.end <= start);
    let mut insns: Vec<Insn> = Vec::new();
    let mut address = start;
    while address < end {
        let mut insn = match ran.get(next) {
            Some(insn) if insn.address <= address => {
                next += 1;
                // An instruction that starts inside the last one: only where code was patched.
                if insn.address < address {
                    continue;
                }
                *insn
            }
            coming => {
                let bytes = &function.code[(address - start) as usize..];
                let Ok(found) = classify(bytes, address, Mode::Bits64) else { break };
                let insn = Insn::new(address, found.len, found.kind, 0, 0);
                match coming {
                    // The executed instruction replaces the one in the file.
                    Some(coming) if coming.address < insn.end => *coming,
                    _ => insn,
                }
            }
        };
        address = insn.end;
        while lines.rows.get(row).is_some_and(|r| r.end <= insn.address) {
            row += 1;
        }
        if let Some(at) = lines.rows.get(row).filter(|r| r.start <= insn.address) {
            insn.line = (at.file, at.line);
            insn.statement = at.statement && at.line != 0;
            insn.first_column = at.first_column;
        }
        insns.push(insn);
    }
    insns
}

/// The function's statements without instructions of their own.
fn bare(function: &Function, lines: &Lines, insns: &[Insn]) -> Vec<Bare> {
    let end = insns.last().map_or(function.start, |last| last.end);
    let from = lines.bare.partition_point(|bare| bare.address < function.start);
    let to = lines.bare.partition_point(|bare| bare.address < end);
    lines.bare[from..to.max(from)].to_vec()
}

/// Debug information puts the first instructions of a function on the line of its opening brace; they are moved to the
/// line of its name. The closing brace of a function that returns a value is removed: the statement that returns stands
/// for it.
fn close_braces(function: &Function, insns: &mut [Insn], bare: &mut [Bare]) {
    let Some(first) = insns.first() else { return };
    let opening = bare.first().filter(|bare| bare.address == function.start);
    let opening = opening.map_or(first.line, |bare| (bare.file, bare.line));
    let name = match function.declared.line {
        0 => opening.1,
        line => line.min(opening.1),
    };
    for insn in insns.iter_mut() {
        if insn.line == opening {
            insn.line.1 = name;
        } else if insn.first_column && function.declared.has_value && insn.line.0 == opening.0 {
            (insn.line.1, insn.statement) = (0, false);
        }
    }
    for bare in bare.iter_mut().filter(|bare| (bare.file, bare.line) == opening) {
        bare.line = name;
    }
}
