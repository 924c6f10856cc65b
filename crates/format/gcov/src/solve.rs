// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the counts of all arcs and blocks of a function from the counted arcs.
//!
//! The compiler counts only the arcs that are not on a spanning tree. The other counts follow from flow conservation:
//! the counts into and out of a block are equal, except for entry and exit.

use std::ops::Range;

use crate::notes::{Arc, Block};

/// The entry block.
const ENTRY: usize = 0;
/// The exit block.
const EXIT: usize = 1;

/// An arc with its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    pub from: Block,
    pub to: Block,
    pub count: i64,
    pub kind: Kind,
    pub fallthrough: bool,
    pub fake: bool,
    /// True for an arc that leaves a block with a call, except for the return and the fake arc.
    pub thrown: bool,
    known: bool,
}

/// Kind of an arc, as gcov classifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of several arcs out of a block.
    Branch,
    /// One of several arcs, to an exception handler.
    Throw,
    /// A call that did not return.
    Call,
    /// The only arc out of a block.
    Unconditional,
}

/// A function's graph with all counts. Its memory is reused for each function.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// Sorted by source and destination.
    pub edges: Vec<Edge>,
    /// Counts by block.
    pub blocks: Vec<i64>,
    /// True for blocks that are reached only by exceptions.
    pub exceptional: Vec<bool>,
    /// Start of each block's outgoing edges in `edges`.
    starts: Vec<u32>,
    /// Incoming edges of each block; `into_starts` has their ranges.
    into: Vec<u32>,
    into_starts: Vec<u32>,
    next: Vec<u32>,
    unknown: Vec<(u32, u32)>,
    known: Vec<bool>,
    work: Vec<Block>,
    /// True if any count is not zero. For a function that did not run, only outgoing edges are listed.
    pub ran: bool,
}

impl Graph {
    /// Solves a function with this number of `blocks` and these `arcs`. `counts` are the counts of the counted arcs, in
    /// order.
    pub fn solve(&mut self, blocks: u32, arcs: &[Arc], counts: &[i64]) {
        // Most of a kernel never runs. If all counters are zero, all counts are zero.
        self.ran = counts.iter().any(|&count| count != 0);
        self.load(blocks as usize, arcs, counts);
        self.classify();
        self.blocks.clear();
        self.blocks.resize(blocks as usize, 0);
        if self.ran {
            self.enter();
            self.propagate();
        }
        self.find_exceptional();
    }

    /// Returns the indices of a block's outgoing edges.
    pub fn out(&self, block: Block) -> Range<usize> {
        self.starts[block as usize] as usize..self.starts[block as usize + 1] as usize
    }

    /// Returns the indices of a block's incoming edges. Valid only for a function that ran.
    pub fn entering(&self, block: Block) -> &[u32] {
        let at = |block: usize| self.into_starts[block] as usize;
        &self.into[at(block as usize)..at(block as usize + 1)]
    }

    /// Number of calls that returned: the flow into the exit, without calls that did not return.
    pub fn returned(&self) -> i64 {
        let Some(&count) = self.blocks.get(EXIT).filter(|_| self.ran) else { return 0 };
        let lost = self.entering(EXIT as Block).iter().map(|&edge| &self.edges[edge as usize]);
        lost.filter(|edge| edge.fake).fold(count, |count, edge| count.saturating_sub(edge.count))
    }

    fn load(&mut self, blocks: usize, arcs: &[Arc], counts: &[i64]) {
        self.edges.clear();
        self.starts.clear();
        let mut counted = 0;
        for arcs in arcs.chunk_by(|a, b| a.from == b.from) {
            let start = self.edges.len();
            self.starts.resize(arcs[0].from as usize + 1, start as u32);
            for arc in arcs {
                let known = !arc.is(Arc::ON_TREE);
                let count = if known { counts.get(counted).copied().unwrap_or(0) } else { 0 };
                counted += usize::from(known);
                self.edges.push(Edge {
                    from: arc.from,
                    to: arc.to,
                    count,
                    kind: Kind::Branch,
                    fallthrough: arc.is(Arc::FALLTHROUGH),
                    fake: arc.is(Arc::FAKE),
                    thrown: false,
                    known,
                });
            }
            // gcov sorts by destination. The compiler's order is almost that.
            if !arcs.is_sorted_by_key(|arc| arc.to) {
                self.edges[start..].sort_by_key(|edge| edge.to);
            }
        }
        self.starts.resize(blocks + 1, self.edges.len() as u32);
    }

    /// Lists the edges by destination.
    fn enter(&mut self) {
        let blocks = self.blocks.len();
        self.into_starts.clear();
        self.into_starts.resize(blocks + 1, 0);
        for edge in &self.edges {
            self.into_starts[edge.to as usize + 1] += 1;
        }
        for block in 0..blocks {
            self.into_starts[block + 1] += self.into_starts[block];
        }
        self.into.clear();
        self.into.resize(self.edges.len(), 0);
        self.next.clone_from(&self.into_starts);
        for (index, edge) in self.edges.iter().enumerate() {
            let place = &mut self.next[edge.to as usize];
            self.into[*place as usize] = index as u32;
            *place += 1;
        }
    }

    fn classify(&mut self) {
        for edges in self.edges.chunk_by_mut(|a, b| a.from == b.from) {
            let is_entry = edges[0].from as usize == ENTRY;
            let real = edges.iter().filter(|edge| !edge.fake).count();
            let is_call = !is_entry && real < edges.len();
            for edge in edges {
                edge.thrown = is_call && !edge.fake && !edge.fallthrough;
                edge.kind = match edge {
                    Edge { fake: true, .. } if is_call => Kind::Call,
                    Edge { fake: false, .. } if real == 1 => Kind::Unconditional,
                    Edge { thrown: true, .. } => Kind::Throw,
                    _ => Kind::Branch,
                };
            }
        }
    }

    /// Derives unknown counts. If all arcs on one side of a block are known, so is the block. If a known block has one
    /// unknown arc on a side, that arc follows.
    fn propagate(&mut self) {
        let blocks = self.blocks.len();
        self.known.clear();
        self.known.resize(blocks, false);
        self.unknown.clear();
        self.unknown.resize(blocks, (0, 0));
        for edge in self.edges.iter().filter(|edge| !edge.known) {
            self.unknown[edge.from as usize].0 += 1;
            self.unknown[edge.to as usize].1 += 1;
        }
        self.work.clear();
        self.work.extend((0..blocks as Block).rev());
        while let Some(block) = self.work.pop() {
            let index = block as usize;
            // The entry has no incoming and the exit no outgoing arcs; that does not make their counts zero.
            let out_known = self.unknown[index].0 == 0 && !(index == EXIT && self.out(block).is_empty());
            let into_known =
                self.unknown[index].1 == 0 && !(index == ENTRY && self.entering(block).is_empty());
            if !self.known[index] {
                if !out_known && !into_known {
                    continue;
                }
                self.blocks[index] = if out_known { self.sum(self.out(block)) } else { self.sum_into(block) };
                self.known[index] = true;
            }
            if self.unknown[index].0 == 1 {
                let range = self.out(block);
                let rest = self.blocks[index].saturating_sub(self.sum(range.clone()));
                if let Some(edge) = range.clone().find(|&edge| !self.edges[edge].known) {
                    self.learn(edge, rest);
                }
            }
            if self.unknown[index].1 == 1 {
                let rest = self.blocks[index].saturating_sub(self.sum_into(block));
                let unknown = self.entering(block).iter().find(|&&edge| !self.edges[edge as usize].known);
                if let Some(&edge) = unknown {
                    self.learn(edge as usize, rest);
                }
            }
        }
    }

    fn learn(&mut self, index: usize, count: i64) {
        let edge = &mut self.edges[index];
        edge.count = count;
        edge.known = true;
        let (from, to) = (edge.from, edge.to);
        self.unknown[from as usize].0 -= 1;
        self.unknown[to as usize].1 -= 1;
        self.work.push(from);
        self.work.push(to);
    }

    fn sum(&self, range: Range<usize>) -> i64 {
        self.edges[range].iter().fold(0, |sum, edge| sum.saturating_add(edge.count))
    }

    fn sum_into(&self, block: Block) -> i64 {
        self.entering(block).iter().fold(0, |sum, &edge| sum.saturating_add(self.edges[edge as usize].count))
    }

    /// Marks blocks as exceptional if they are not reachable without exceptions.
    fn find_exceptional(&mut self) {
        let catches = self.edges.iter().any(|edge| edge.thrown);
        self.exceptional.clear();
        self.exceptional.resize(self.blocks.len(), catches);
        if !catches || self.blocks.is_empty() {
            return;
        }
        self.exceptional[ENTRY] = false;
        self.work.push(ENTRY as Block);
        while let Some(block) = self.work.pop() {
            for index in self.out(block) {
                let edge = self.edges[index];
                if !edge.fake && !edge.thrown && self.exceptional[edge.to as usize] {
                    self.exceptional[edge.to as usize] = false;
                    self.work.push(edge.to);
                }
            }
        }
    }
}
