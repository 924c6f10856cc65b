// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the functions, lines and branches of one object as gcov does.
//!
//! Input: [`Notes`] and, if the object ran, [`Data`]. Output: [`Unit`]. gcov's rules for a line's count:
//! - In each location of a block, the lines are sorted, and the block belongs to the last one.
//! - If blocks belong to a line, its count is the number of entries into them from other lines, plus the iterations of
//!   loops on it. If none do, its count is the sum of the counts of blocks that touch it.
//! - If several functions begin on the same line of a file, each of them has its own copy of its lines
//!   ([`Line::function`]).

use crate::cycles::Cycles;
use crate::data::{Counters, Data, Values, kind};
use crate::error::{Error, Result};
use crate::notes::{Block, Function, Notes};
use crate::solve::{Graph, Kind};
use crate::unit::{Branch, Condition, FunctionCount, Line, Outcomes, Unit, Way};

/// Computes coverage. One counter should be used for many objects, because it reuses its memory.
#[derive(Debug, Default)]
pub struct UnitCounter {
    graph: Graph,
    cycles: Cycles,
    touches: Vec<Touch>,
    locations: Vec<u32>,
    on_line: Vec<u32>,
    stamp: u32,
    blocks: Vec<Block>,
    parts: Vec<Part>,
    branches: Vec<Branch>,
    order: Vec<u128>,
    decisions: Vec<(Block, Outcomes)>,
    every_block: bool,
    /// Blocks that some line touches, if every block counts.
    named: Vec<bool>,
}

/// The association of a block with a line, in one number, which sorts several times as fast as its parts. From the top:
/// source, line, whether the line is one of a grouped function, block, whether the block belongs to the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Touch(u128);

impl Touch {
    fn new(source: u32, line: u32, own: bool) -> Self {
        Touch(u128::from(source) << 96 | u128::from(line) << 64 | u128::from(own) << 63)
    }

    /// Returns the line's part of the number, without the block.
    fn line(self) -> u128 {
        self.0 >> 63
    }

    fn with(self, block: Block, belongs: bool) -> Self {
        Touch(self.line() << 63 | u128::from(block) << 1 | u128::from(belongs))
    }

    fn block(self) -> Block {
        (self.0 >> 1) as Block
    }

    fn belongs(self) -> bool {
        self.0 & 1 != 0
    }

    fn place(self, function: u32) -> Place {
        ((self.0 >> 96) as u32, (self.0 >> 64) as u32, if self.line() & 1 != 0 { function + 1 } else { 0 })
    }
}

/// Source, line, and 1 + the index of the grouped function that owns the line, or 0.
type Place = (u32, u32, u32);

/// Sorts places together with their indices, which are in the lowest 32 bits.
fn in_order(order: &mut Vec<u128>, places: impl Iterator<Item = Place>) {
    order.clear();
    order.extend(places.zip(0u32..).map(|((source, line, function), index)| {
        u128::from(source) << 96 | u128::from(line) << 64 | u128::from(function) << 32 | u128::from(index)
    }));
    order.sort_unstable();
}

/// Contribution of one function to a line.
#[derive(Debug, Clone, Copy)]
struct Part {
    place: Place,
    /// Executions of blocks that touch the line.
    touched: i64,
    /// Entries and iterations of the blocks that belong to the line, if any do.
    entered: Option<i64>,
    unexecuted_block: bool,
    exceptional: bool,
}

impl UnitCounter {
    /// A counter with another rule than gcov's: a line's count is the number of entries into any block that touches it, not only
    /// into those that belong to it. It counts lines only: there are no branches.
    pub fn of_every_block() -> Self {
        UnitCounter { every_block: true, ..UnitCounter::default() }
    }

    /// Computes the coverage of an object. Without `data`, all counts are 0.
    ///
    /// # Errors
    /// If notes and data are from different builds.
    pub fn unit(&mut self, notes: &Notes<'_>, data: Option<&Data>) -> Result<Unit> {
        if let Some(data) = data.filter(|data| data.header.version != notes.header.version) {
            return Err(Error::Versions { data: data.header.version, notes: notes.header.version });
        }
        if let Some(data) = data.filter(|data| data.header.stamp != notes.header.stamp) {
            return Err(Error::Stamp { data: data.header.stamp, notes: notes.header.stamp });
        }
        let groups = groups(notes);
        let counters = match data {
            Some(data) => by_function(notes, data)?,
            None => vec![None; notes.functions.len()],
        };
        let mut unit = Unit { functions: Vec::with_capacity(notes.functions.len()), ..Unit::default() };
        self.parts.clear();
        self.branches.clear();
        for (index, function) in notes.functions.iter().enumerate() {
            if function.artificial || function.counters == 0 && data.is_some() {
                continue;
            }
            let counts = match counters[index].and_then(|found| found.of(kind::ARCS)) {
                Some(Values::All(counts)) => &counts[..],
                Some(Values::Zeros(_)) | None => &[],
            };
            self.graph.solve(function.blocks, notes.arcs(function), counts);
            unit.functions.push(self.count(function, index as u32, counters[index], groups[index]));
            self.decide(function, counters[index]);
            self.lines(notes, index as u32, groups[index], &mut unit);
        }
        unit.lines = self.finish();
        // On the same line, the order of functions and blocks stays.
        in_order(&mut self.order, self.branches.iter().map(|branch| (branch.source, branch.line, 0)));
        unit.branches = self.order.iter().map(|&key| self.branches[key as u32 as usize]).collect();
        unit.conditions.sort_by_key(|condition| (condition.source, condition.line));
        Ok(unit)
    }

    fn count(
        &self,
        function: &Function<'_>,
        index: u32,
        counters: Option<&Counters>,
        is_group: bool,
    ) -> FunctionCount {
        let inner = self.graph.blocks.len().saturating_sub(2);
        let executed = self.graph.blocks.iter().skip(1).take(inner).filter(|&&count| count != 0).count();
        let of = |kind| counters.and_then(|counters| counters.of(kind));
        let bits = |values: Option<&Values>| match values {
            Some(Values::All(values)) => values.iter().map(|value| value.count_ones()).sum(),
            _ => 0,
        };
        let terms = function.conditions.iter().fold(0u32, |sum, &(_, terms)| sum.saturating_add(terms));
        FunctionCount {
            index,
            called: self.graph.blocks.first().copied().unwrap_or(0),
            returned: self.graph.returned(),
            blocks: inner as u32,
            executed: executed as u32,
            is_group,
            conditions: (bits(of(kind::CONDITIONS)), terms.saturating_mul(2)),
            paths: (bits(of(kind::PATHS)), function.paths),
        }
    }

    /// Collects the outcomes of each block with a decision: two counters each, for true and for false.
    fn decide(&mut self, function: &Function<'_>, counters: Option<&Counters>) {
        self.decisions.clear();
        let values = counters.and_then(|counters| counters.of(kind::CONDITIONS));
        let at = |place: usize| values.map_or(0, |values| values.get(place)) as u64;
        for (place, &(block, terms)) in function.conditions.iter().enumerate() {
            let seen = Outcomes { terms, yes: at(2 * place), no: at(2 * place + 1) };
            self.decisions.push((block, seen));
        }
        self.decisions.sort_by_key(|&(block, _)| block);
    }

    fn conditions(&self, block: Block, function: u32, place: Place, unit: &mut Unit) {
        let from = self.decisions.partition_point(|&(found, _)| found < block);
        for &(_, seen) in self.decisions[from..].iter().take_while(|&&(found, _)| found == block) {
            unit.conditions.push(Condition { source: place.0, line: place.1, function, seen });
        }
    }

    fn lines(&mut self, notes: &Notes<'_>, index: u32, is_group: bool, unit: &mut Unit) {
        self.touch(notes, &notes.functions[index as usize], is_group);
        let touches = std::mem::take(&mut self.touches);
        self.on_line.resize(self.on_line.len().max(self.graph.blocks.len()), 0);
        if self.every_block {
            self.named.clear();
            self.named.resize(self.graph.blocks.len(), false);
            touches.iter().for_each(|touch| self.named[touch.block() as usize] = true);
        }
        for touches in touches.chunk_by(|a, b| a.line() == b.line()) {
            let part = self.part(touches, index);
            for at in 0..if self.every_block { 0 } else { self.blocks.len() } {
                self.branches(self.blocks[at], index, part.place);
            }
            if !self.decisions.is_empty() {
                for &block in &self.blocks {
                    self.conditions(block, index, part.place, unit);
                }
            }
            self.parts.push(part);
        }
        self.touches = touches;
    }

    /// Lists the blocks of each line, sorted by line.
    fn touch(&mut self, notes: &Notes<'_>, function: &Function<'_>, is_group: bool) {
        self.touches.clear();
        // gcov takes the last block for the exit here (gcov.cc, add_line_counts), though that is block 1.
        let exit = self.graph.blocks.len().saturating_sub(1) as Block;
        let mut last: Option<(Block, Touch)> = None;
        let locations = notes.locations(function);
        // The records are in any order of blocks; gcov goes by the blocks.
        self.locations.clear();
        self.locations.extend(0..locations.len() as u32);
        if !locations.is_sorted_by_key(|location| location.block) {
            self.locations.sort_by_key(|&at| locations[at as usize].block);
        }
        for &at in &self.locations {
            let location = &locations[at as usize];
            let block = location.block;
            let lines = notes.lines(location);
            for &line in lines {
                let own = is_group
                    && location.source == function.source
                    && (function.start_line..=function.end_line).contains(&line);
                let touch = Touch::new(location.source, line, own);
                self.touches.push(touch.with(block, false));
            }
            // The highest line of the location, because gcov sorts the lines.
            let first = self.touches.len() - lines.len();
            if let Some(highest) = self.touches[first..].iter().max_by_key(|touch| touch.line() >> 1) {
                last = Some((block, *highest));
            }
            // A location without lines counts for the line before it in the same block.
            if let Some((_, touch)) = last.filter(|&(found, _)| found == block && block != 0 && block != exit)
            {
                self.touches.push(touch.with(block, true));
            }
        }
        self.touches.sort_unstable();
    }

    /// Computes a line's contribution. Afterwards `blocks` contains the blocks that belong to the line.
    fn part(&mut self, touches: &[Touch], function: u32) -> Part {
        let mut part = Part {
            place: touches[0].place(function),
            touched: 0,
            entered: None,
            unexecuted_block: false,
            exceptional: true,
        };
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.on_line.fill(0);
            self.stamp = 1;
        }
        self.blocks.clear();
        for touch in touches {
            let block = touch.block();
            // gcov counts a block as often as it belongs to the line. Touches are sorted by block.
            let counts = match self.every_block {
                true => self.blocks.last() != Some(&block),
                false => touch.belongs(),
            };
            if counts {
                self.blocks.push(block);
                self.on_line[block as usize] = self.stamp;
            }
            if touch.belongs() {
                continue;
            }
            let count = self.graph.blocks[block as usize];
            part.touched = part.touched.saturating_add(count);
            if !self.graph.exceptional[block as usize] {
                part.exceptional = false;
                part.unexecuted_block |= count == 0;
            }
        }
        if self.blocks.is_empty() {
            return part;
        }
        if !self.graph.ran {
            part.entered = Some(0);
            return part;
        }
        if self.every_block {
            self.take_along();
        }
        let (graph, on_line, stamp) = (&self.graph, &self.on_line, self.stamp);
        let is_on_line = |block: Block| on_line[block as usize] == stamp;
        let mut entered: i64 = 0;
        let mut inside = false;
        for &block in &self.blocks {
            for &edge in graph.entering(block) {
                let edge = &graph.edges[edge as usize];
                if is_on_line(edge.from) {
                    inside |= edge.count > 0;
                } else {
                    entered = entered.saturating_add(edge.count);
                }
            }
        }
        if inside {
            entered = entered.saturating_add(self.cycles.count(graph, &self.blocks, is_on_line));
        }
        part.entered = Some(entered);
        part
    }

    /// Adds to the line's blocks those without any line that only they lead to.
    fn take_along(&mut self) {
        let mut at = 0;
        while let Some(&block) = self.blocks.get(at) {
            at += 1;
            for edge in self.graph.out(block) {
                let to = self.graph.edges[edge].to;
                let inner = to > 1 && !self.named[to as usize] && self.on_line[to as usize] != self.stamp;
                if inner && self.graph.entering(to).len() == 1 {
                    self.on_line[to as usize] = self.stamp;
                    self.blocks.push(to);
                }
            }
        }
    }

    fn branches(&mut self, block: Block, function: u32, place: Place) {
        let executed = self.graph.blocks[block as usize];
        for edge in &self.graph.edges[self.graph.out(block)] {
            let way = match edge.kind {
                Kind::Unconditional => continue,
                Kind::Call => Way::Call,
                Kind::Branch | Kind::Throw if edge.fallthrough => Way::Fallthrough,
                Kind::Throw => Way::Throw,
                Kind::Branch => Way::Jump,
            };
            let taken = if way == Way::Call { executed.saturating_sub(edge.count) } else { edge.count };
            self.branches.push(Branch {
                source: place.0,
                line: place.1,
                function,
                in_group: place.2 != 0,
                way,
                taken,
                executed,
                from: edge.from,
                to: edge.to,
            });
        }
    }

    /// Merges the contributions of all functions to each line.
    fn finish(&mut self) -> Vec<Line> {
        in_order(&mut self.order, self.parts.iter().map(|part| part.place));
        let mut lines = Vec::with_capacity(self.parts.len());
        for same in self.order.chunk_by(|a, b| a >> 32 == b >> 32) {
            let parts = || same.iter().map(|&key| &self.parts[key as u32 as usize]);
            let (source, line, function) = self.parts[same[0] as u32 as usize].place;
            let has_blocks = parts().any(|part| part.entered.is_some());
            let count = parts().fold(0i64, |sum, part| {
                let count = if has_blocks { part.entered.unwrap_or(0) } else { part.touched };
                sum.saturating_add(count)
            });
            lines.push(Line {
                source,
                line,
                function: function.checked_sub(1),
                count,
                unexecuted_block: parts().any(|part| part.unexecuted_block),
                exceptional: parts().all(|part| part.exceptional),
            });
        }
        lines
    }
}

/// Returns true for functions that begin on the same line of the same file as another one.
fn groups(notes: &Notes<'_>) -> Vec<bool> {
    let start = |index: &usize| (notes.functions[*index].source, notes.functions[*index].start_line);
    let mut order: Vec<usize> = (0..notes.functions.len()).collect();
    order.retain(|&index| !notes.functions[index].artificial);
    order.sort_by_key(start);
    let mut groups = vec![false; notes.functions.len()];
    for same in order.chunk_by(|a, b| start(a) == start(b)).filter(|same| same.len() > 1) {
        for &index in same {
            groups[index] = true;
        }
    }
    groups
}

/// Returns the counters of each function, if there are any.
fn by_function<'a>(notes: &Notes<'_>, data: &'a Data) -> Result<Vec<Option<&'a Counters>>> {
    let mut places: Vec<(u32, usize)> =
        notes.functions.iter().enumerate().map(|(index, function)| (function.ident, index)).collect();
    // Of two functions with the same number, gcov uses the last.
    places.sort_unstable_by_key(|&(ident, index)| (ident, std::cmp::Reverse(index)));
    let mut found = vec![None; notes.functions.len()];
    for counters in &data.functions {
        let place = places.partition_point(|&(ident, _)| ident < counters.ident);
        let Some(&(_, index)) = places.get(place).filter(|(ident, _)| *ident == counters.ident) else {
            continue;
        };
        let function = &notes.functions[index];
        let mismatch = |what| Error::Mismatch { function: function.name.clone().into_owned(), what };
        if (counters.lineno_checksum, counters.cfg_checksum)
            != (function.lineno_checksum, function.cfg_checksum)
        {
            return Err(mismatch("the checksums"));
        }
        if counters.of(kind::ARCS).is_some_and(|values| values.len() != function.counters as usize) {
            return Err(mismatch("the numbers of counters"));
        }
        found[index] = Some(counters);
    }
    Ok(found)
}
