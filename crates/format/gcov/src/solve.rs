// SPDX-License-Identifier: MIT OR Apache-2.0
//! The solver: from the counted arcs of a function to the counts of all its arcs and blocks.
//!
//! The compiler counts only the arcs off a spanning tree; every other count follows because as much flows into a
//! block as out of it. Entry and exit alone may give and take.

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
    /// Out of a call, and neither its return nor its failure to return.
    pub thrown: bool,
    known: bool,
}

/// What gcov takes an arc for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of several ways to go on.
    Branch,
    /// Like it, into a handler of exceptions.
    Throw,
    /// A call that did not return.
    Call,
    /// The only way to go on.
    Unconditional,
}

/// A function's graph with all its counts. Reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// In order of source and destination.
    pub edges: Vec<Edge>,
    /// Counts by block.
    pub blocks: Vec<i64>,
    /// Blocks only reached through exceptions.
    pub exceptional: Vec<bool>,
    /// Edges that leave a block: its range of `edges`.
    starts: Vec<u32>,
    /// Edges that enter a block: its range of `into`, by `into_starts`.
    into: Vec<u32>,
    into_starts: Vec<u32>,
    next: Vec<u32>,
    unknown: Vec<(u32, u32)>,
    known: Vec<bool>,
    work: Vec<Block>,
    /// Whether any count is not zero. Of a function that did not run only the arcs out of blocks are known.
    pub ran: bool,
}

impl Graph {
    /// Solves a function of so many `blocks` and these `arcs`, of which the counted ones have these `counts`.
    pub fn solve(&mut self, blocks: u32, arcs: &[Arc], counts: &[i64]) {
        // Most of a kernel never runs, and what follows from zeros is zero.
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

    /// Edges that leave a block.
    pub fn out(&self, block: Block) -> Range<usize> {
        self.starts[block as usize] as usize..self.starts[block as usize + 1] as usize
    }

    /// Edges that enter a block, of a function that ran.
    pub fn entering(&self, block: Block) -> &[u32] {
        let at = |block: usize| self.into_starts[block] as usize;
        &self.into[at(block as usize)..at(block as usize + 1)]
    }

    /// Calls that came back, or ended: what flows into the exit but for calls that did not return.
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
            // The writer's order is nearly that of the destinations, and gcov's is wholly.
            if !arcs.is_sorted_by_key(|arc| arc.to) {
                self.edges[start..].sort_by_key(|edge| edge.to);
            }
        }
        self.starts.resize(blocks + 1, self.edges.len() as u32);
    }

    /// Lists the edges by the block they enter.
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

    /// Where all arcs of one side of a block are known, so is the block; where a known block has one unknown arc
    /// on a side, that is known too.
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
            // Nothing enters the entry or leaves the exit, which says nothing of their counts.
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

    /// If anything is caught here, what is reached without it, the rest being exceptional.
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
