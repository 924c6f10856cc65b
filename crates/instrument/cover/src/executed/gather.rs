// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of code that was not built for coverage: lines, branches and functions, from counts of instructions.
//!
//! Input: [`Lines`] of a file, and the counts of its instructions ([`Ran`]). Output, for all files: a [`Cover`], as
//! from gcov's counters. The meaning of a line's count is as close to gcov's as code allows:
//! - a line's count is the number of times that the flow enters it from another line, and of circuits that stay on it,
//!   and at least the count of each of its instructions. Pieces that the compiler moved away from the start of the statement count only if the line has no
//!   others. A statement without instructions takes the count of the place where they would stand;
//! - the first instructions of a function belong to the line of its name. The closing brace of a function that returns
//!   a value is no line;
//! - a line inlined into several functions has the sum of its counts in each;
//! - lines without code get the counts that [`infer`](crate::executed::infer) derives, if the source is available;
//! - only functions known to the linker count: a function inlined everywhere is none;
//! - a conditional jump is two branches; a jump through a table (a `switch`) is one for each target in the table;
//! - code is disassembled as in the file, or as it ran if it was patched.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kprism_debuginfo::lines::{Bare, Function, Lines, Section};
use kprism_image::insn::{Kind, Mode, classify};

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
struct Insn {
    address: u64,
    end: u64,
    count: u64,
    /// Number of times that the flow continued at the next instruction.
    falls: u64,
    /// Target of its jump, and number of times taken.
    jump: Option<(u64, u64)>,
    class: Class,
    /// Source file and line; line 0 if there is none.
    line: (u32, u32),
    /// A statement begins here.
    statement: bool,
    first_column: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Falls,
    Cond,
    Jump,
    Call,
    Ret,
}

impl Insn {
    fn new(address: u64, length: u8, kind: Kind, count: u64, taken: u64) -> Self {
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

/// A line in one function.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    entered: u64,
    most: u64,
    unexecuted: bool,
    /// Some of its statements begin in this function. Then only their starts count.
    begins: bool,
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
        let leaders = leaders(insns);
        let running = running(insns, &leaders, bare);
        let written: Vec<Place> = insns.iter().map(|insn| insn.line).collect();
        let into = (jumps(insns, &written), jumps(insns, &running));
        let mut parts: BTreeMap<(u32, u32), Part> = BTreeMap::new();
        let (mut blocks, mut executed) = (0u32, 0u32);
        for insn in insns.iter().filter(|insn| insn.statement) {
            parts.entry(insn.line).or_default().begins = true;
        }
        for bare in bare {
            let part = parts.entry((bare.file, bare.line)).or_default();
            part.begins = true;
        }
        let mut start = 0;
        let mut pieces = Vec::new();
        while start < insns.len() {
            let end = (start + 1..insns.len()).find(|&i| leaders[i]).unwrap_or(insns.len());
            blocks += 1;
            executed += u32::from(insns[start].count > 0);
            block(&insns[..end], start, (&written, &into.0), (&running, &into.1), bare, &mut parts);
            pieces.push((start, end));
            start = end;
        }
        if executed > 0 {
            for (line, n) in cycles(insns, &pieces, &running) {
                let part = parts.entry(line).or_default();
                part.entered = part.entered.saturating_add(n);
            }
        }
        for (&(file, line), part) in &parts {
            let count = part.entered.max(part.most);
            let known = self.source(lines, file).lines.entry(line).or_default();
            *known = (known.0.saturating_add(count), known.1 | part.unexecuted);
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
        let within = into.0.get(&first.address).map_or(0, |from| from.iter().map(|&(_, n)| n).sum());
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
                    let returned = next.map_or(0, |next| next.count.min(insn.count));
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

/// Returns for each instruction whether it begins a straight piece of code.
fn leaders(insns: &[Insn]) -> Vec<bool> {
    let mut leaders = vec![false; insns.len()];
    for (i, insn) in insns.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| &insns[i]);
        leaders[i] |= before.is_none_or(|b| {
            matches!(b.class, Class::Cond | Class::Jump | Class::Ret) || b.falls != insn.count
        });
        if let Some((to, _)) = insn.jump
            && let Ok(target) = insns.binary_search_by_key(&to, |i| i.address)
        {
            leaders[target] = true;
        }
    }
    leaders
}

/// Index of a file, and a line.
type Place = (u32, u32);

/// Jumps by target: the lines they come from, with their counts.
type Jumps = HashMap<u64, Vec<(Place, u64)>>;

fn jumps(insns: &[Insn], running: &[Place]) -> Jumps {
    let mut into = Jumps::new();
    for (insn, &line) in insns.iter().zip(running) {
        if let Some((to, n)) = insn.jump.filter(|&(_, n)| n > 0) {
            into.entry(to).or_default().push((line, n));
        }
    }
    into
}

/// The line whose statement is running at each instruction: that of the last statement that began. Instructions that the
/// compiler moved there from other lines do not end it.
fn running(insns: &[Insn], leaders: &[bool], bare: &[Bare]) -> Vec<Place> {
    let mut lines: Vec<Place> = insns.iter().map(|insn| insn.line).collect();
    let jumped: HashSet<u64> =
        insns.iter().filter_map(|insn| insn.jump).filter(|&(_, n)| n > 0).map(|(to, _)| to).collect();
    let mut next = 0;
    for (i, insn) in insns.iter().enumerate() {
        let mut begun = None;
        while let Some(bare) = bare.get(next).filter(|bare| bare.address < insn.end) {
            begun = Some((bare.file, bare.line));
            next += 1;
        }
        if insn.statement {
            continue;
        }
        if let Some(begun) = begun {
            lines[i] = begun;
        } else if !leaders[i] {
            lines[i] = lines[i - 1];
        } else {
            // What is jumped to is a piece of its own.
            let fell = i.checked_sub(1).filter(|&i| insns[i].falls > 0 && insns[i].end == insn.address);
            if let Some(before) = fell.filter(|_| !jumped.contains(&insn.address)) {
                lines[i] = lines[before];
            }
        }
    }
    lines
}

/// Adds the counts of a straight piece of code to its lines: the end of `insns`, from `start` on. `written` are the lines
/// of instructions, and the jumps between them; `running` the same of the statements that run.
///
/// A line counts once for each run of its statements: what was inlined twice into one piece ran twice, with other lines
/// between the two.
fn block(
    insns: &[Insn],
    start: usize,
    written: (&[Place], &Jumps),
    running: (&[Place], &Jumps),
    bare: &[Bare],
    parts: &mut BTreeMap<Place, Part>,
) {
    let own = &insns[start..];
    let (Some(first), Some(last)) = (own.first(), own.last()) else { return };
    // The count of a line that runs at the beginning, less what came to it from the line itself.
    let entered = |line: Place, (lines, into): (&[Place], &Jumps)| {
        let jumped = into.get(&first.address).into_iter().flatten();
        let jumped: u64 = jumped.filter(|(from, _)| *from == line).map(|&(_, n)| n).sum();
        let before = start.checked_sub(1).filter(|&i| lines[i] == line && insns[i].end == first.address);
        let fell = before.map_or(0, |i| insns[i].falls.min(first.count));
        first.count.saturating_sub(jumped).saturating_sub(fell)
    };
    // The line of the last statement that began here, and lines of pieces that were moved here.
    let mut now: Option<Place> = None;
    let mut moved: Vec<Place> = Vec::new();
    let from = bare.partition_point(|bare| bare.address < first.address);
    let mut bare = bare[from..].iter().take_while(|bare| bare.address < last.end).peekable();
    for insn in own {
        let mut begins: Vec<Place> = Vec::new();
        while let Some(bare) = bare.next_if(|bare| bare.address < insn.end) {
            begins.push((bare.file, bare.line));
        }
        let has_line = insn.line.1 != 0;
        if has_line {
            let part = parts.entry(insn.line).or_default();
            part.unexecuted |= insn.count == 0;
            if !part.begins || insn.statement {
                part.most = part.most.max(insn.count);
            }
            if insn.statement {
                begins.push(insn.line);
            } else if !part.begins && !moved.contains(&insn.line) {
                moved.push(insn.line);
                let count = if insn.line == first.line { entered(insn.line, written) } else { first.count };
                part.entered = part.entered.saturating_add(count);
            }
        }
        for line in begins {
            if now != Some(line) {
                let count = if now.is_none() { entered(line, running) } else { first.count };
                let part = parts.entry(line).or_default();
                part.entered = part.entered.saturating_add(count);
                now = Some(line);
            }
        }
    }
}

/// Iterations of loops that stay within a line, by line: `blocks` are the function's straight pieces. As of gcov, a line
/// runs once for each entry from another line, and once for each of these.
fn cycles(insns: &[Insn], blocks: &[(usize, usize)], running: &[Place]) -> BTreeMap<Place, u64> {
    let pure = |&(start, end): &(usize, usize)| {
        let line = running[start];
        (line.1 != 0 && running[start..end].iter().all(|now| *now == line)).then_some(line)
    };
    let lines: Vec<Option<Place>> = blocks.iter().map(pure).collect();
    let at = |address: u64| blocks.binary_search_by_key(&address, |&(start, _)| insns[start].address).ok();
    let mut edges: BTreeMap<Place, Vec<(usize, usize, u64)>> = BTreeMap::new();
    for (from, &(_, end)) in blocks.iter().enumerate() {
        let (Some(line), last) = (lines[from], &insns[end - 1]) else { continue };
        let jump = last.jump.filter(|&(_, n)| n > 0);
        for (to, n) in jump.into_iter().chain((last.falls > 0).then_some((last.end, last.falls))) {
            if let Some(to) = at(to).filter(|&to| lines[to] == Some(line)) {
                edges.entry(line).or_default().push((from, to, n));
            }
        }
    }
    edges.into_iter().map(|(line, mut edges)| (line, loops(&mut edges))).filter(|(_, n)| *n > 0).collect()
}

/// The number of times that circuits among the edges were gone round: each takes its smallest count off its edges.
fn loops(edges: &mut [(usize, usize, u64)]) -> u64 {
    let mut all = 0u64;
    while let Some(circuit) = circuit(edges) {
        let least = circuit.iter().map(|&edge| edges[edge].2).min().unwrap_or(0);
        all = all.saturating_add(least);
        circuit.iter().for_each(|&edge| edges[edge].2 -= least);
    }
    all
}

/// Some circuit of edges whose counts are not 0.
fn circuit(edges: &[(usize, usize, u64)]) -> Option<Vec<usize>> {
    let mut done: HashSet<usize> = HashSet::new();
    for &(start, _, _) in edges {
        // Edges of the path, and for each block on it the next edge to try.
        let (mut path, mut stack): (Vec<usize>, Vec<(usize, usize)>) = (Vec::new(), vec![(start, 0)]);
        while let Some((block, next)) = stack.last_mut() {
            let found = (*next..edges.len()).find(|&edge| edges[edge].0 == *block && edges[edge].2 > 0);
            let Some(edge) = found.filter(|_| !done.contains(block)) else {
                done.insert(*block);
                stack.pop();
                path.pop();
                continue;
            };
            *next = edge + 1;
            let to = edges[edge].1;
            path.push(edge);
            if let Some(from) = stack.iter().position(|&(block, _)| block == to) {
                return Some(path.split_off(from));
            }
            stack.push((to, 0));
        }
    }
    None
}
