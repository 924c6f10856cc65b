// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts loops among the blocks of a single line.
//!
//! A line is executed once for each entry from another line, and once for each iteration of a loop entirely on the
//! line. gcov finds these loops with Hawick and James' enumeration of circuits ("Enumerating Circuits and Loops in
//! Graphs with Self-Arcs and Multiple-Arcs"): it subtracts the smallest arc count of each circuit from all arcs of the
//! circuit. The result can depend on the order of the circuits, so this code uses gcov's order: start blocks in the
//! line's order, arcs in the order of their destinations.

use crate::notes::Block;
use crate::solve::Graph;

/// Limit of the search on one line, in steps. Code from real compilers needs less than a thousandth of it.
const PATIENCE: u32 = 20_000_000;

/// Working memory of the search, reused for each line.
#[derive(Debug, Default)]
pub(crate) struct Cycles {
    /// Remaining count of each edge.
    left: Vec<i64>,
    blocked: Vec<bool>,
    /// Blocks to unblock together with each block.
    waiting: Vec<Vec<Block>>,
    path: Vec<usize>,
    /// Number of edges of the path whose remaining count is 0.
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
    /// Counts the iterations on the line that consists of `blocks`. `on_line` returns true for these blocks.
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

    /// Subtracts the smallest remaining count from all edges of the path, and returns it.
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
