// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often the blocks of one line went round among themselves.
//!
//! A line is executed once for every time it is entered from elsewhere, and once more for every round of a loop that
//! lies wholly on it. gcov finds those loops by Hawick and James' enumeration of circuits ("Enumerating Circuits and
//! Loops in Graphs with Self-Arcs and Multiple-Arcs"): of each circuit it takes the least count of its arcs off all
//! of them. Which circuit comes first can matter, so the order is gcov's too: starts in the line's order, arcs in
//! that of their destinations.

use crate::notes::Block;
use crate::solve::Graph;

/// Steps after which a line's loops are given up. No compiler makes a line that takes a thousandth of it.
const PATIENCE: u32 = 20_000_000;

/// Room for the search, reused from line to line.
#[derive(Debug, Default)]
pub(crate) struct Cycles {
    /// What circuits have left of each edge's count.
    left: Vec<i64>,
    blocked: Vec<bool>,
    /// Blocks to unblock together with one.
    waiting: Vec<Vec<Block>>,
    path: Vec<usize>,
    /// Edges of the path with nothing left.
    spent: usize,
    frames: Vec<Frame>,
}

#[derive(Debug)]
struct Frame {
    block: Block,
    next: usize,
    found: bool,
}

impl Cycles {
    /// Rounds on the line whose blocks are `blocks`, as `on_line` tells too.
    pub fn count(&mut self, graph: &Graph, blocks: &[Block], on_line: impl Fn(Block) -> bool) -> i64 {
        self.left.resize(self.left.len().max(graph.edges.len()), 0);
        self.blocked.resize(self.blocked.len().max(graph.blocks.len()), false);
        self.waiting.resize(self.waiting.len().max(graph.blocks.len()), Vec::new());
        for &block in blocks {
            for edge in graph.out(block) {
                self.left[edge] = graph.edges[edge].count;
            }
        }
        let mut count = 0;
        let mut patience = PATIENCE;
        for &start in blocks {
            self.from(graph, start, &on_line, &mut count, &mut patience);
            for &block in blocks {
                self.blocked[block as usize] = false;
                self.waiting[block as usize].clear();
            }
        }
        count
    }

    fn from(
        &mut self,
        graph: &Graph,
        start: Block,
        on_line: &impl Fn(Block) -> bool,
        count: &mut i64,
        patience: &mut u32,
    ) {
        self.path.clear();
        self.spent = 0;
        self.frames.clear();
        self.enter(graph, start);
        while let Some(frame) = self.frames.last_mut() {
            let block = frame.block;
            let edge = frame.next;
            if edge < graph.out(block).end {
                frame.next += 1;
                *patience = patience.saturating_sub(1);
                let to = graph.edges[edge].to;
                if *patience == 0 || to < start || self.left[edge] <= 0 || !on_line(to) {
                    continue;
                }
                self.path.push(edge);
                if to == start {
                    frame.found = true;
                    *count = count.wrapping_add(self.take_circuit(patience));
                } else if self.spent == 0 && !self.blocked[to as usize] {
                    self.enter(graph, to);
                    continue;
                }
                self.leave_edge();
                continue;
            }
            let found = frame.found;
            self.frames.pop();
            if found {
                self.unblock(block, patience);
            } else {
                for edge in graph.out(block) {
                    let to = graph.edges[edge].to;
                    let goes = to >= start && self.left[edge] > 0 && on_line(to);
                    if goes && self.blocked[to as usize] && !self.waiting[to as usize].contains(&block) {
                        self.waiting[to as usize].push(block);
                    }
                }
            }
            if let Some(above) = self.frames.last_mut() {
                above.found |= found;
                self.leave_edge();
            }
        }
    }

    fn enter(&mut self, graph: &Graph, block: Block) {
        self.blocked[block as usize] = true;
        self.waiting[block as usize].clear();
        self.frames.push(Frame { block, next: graph.out(block).start, found: false });
    }

    fn leave_edge(&mut self) {
        if let Some(edge) = self.path.pop()
            && self.left[edge] <= 0
        {
            self.spent -= 1;
        }
    }

    /// Takes the least count off all edges of the path, and gives it.
    fn take_circuit(&mut self, patience: &mut u32) -> i64 {
        *patience = patience.saturating_sub(self.path.len() as u32);
        let least = self.path.iter().map(|&edge| self.left[edge]).min().unwrap_or(0).max(0);
        for &edge in &self.path {
            self.left[edge] -= least;
        }
        self.spent = self.path.iter().filter(|&&edge| self.left[edge] <= 0).count();
        least
    }

    fn unblock(&mut self, block: Block, patience: &mut u32) {
        let mut work = vec![block];
        while let Some(block) = work.pop() {
            *patience = patience.saturating_sub(1);
            if std::mem::replace(&mut self.blocked[block as usize], false) {
                work.append(&mut self.waiting[block as usize]);
            }
        }
    }
}
