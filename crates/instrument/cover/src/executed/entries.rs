// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of the lines of one function, from its instructions: gcov's rule, on the graph of the code.
//!
//! gcov counts a line as often as control comes from a block without it to a block with it, and adds the circuits that
//! stay on it. The same is done here with pieces of machine code, which end at a jump, before the target of one, and, as gcov's
//! blocks do, behind a call. In a piece:
//! - a line begins anew if another statement of the same source function ran since. Statements of functions inlined into the
//!   line do not end it: it goes on behind them, and counts again only if a piece without it lies between;
//! - copies of a function that were inlined into one piece count once;
//! - instructions of a line elsewhere, which the compiler moved there, do not count, unless the line has no others.

use std::collections::{BTreeMap, HashMap, HashSet};

use kprism_debuginfo::lines::Bare;

use super::gather::{Class, Insn, Jumped};

/// Index of a file, and a line.
pub type Place = (u32, u32);

/// A piece of code that runs from its beginning to its end.
#[derive(Debug)]
pub struct Piece {
    /// Index of its first instruction.
    pub start: usize,
    /// Index of the one behind it.
    pub end: usize,
    /// Number of times that it ran.
    pub count: u64,
    /// It begins where a jump ends or leads to, not only behind a call.
    pub leads: bool,
}

/// A way from one piece to another that was taken.
#[derive(Debug, Clone, Copy)]
pub struct Arc {
    from: usize,
    /// The piece it leads to.
    pub to: usize,
    /// Number of times.
    pub count: u64,
}

/// A line in one function.
#[derive(Debug, Clone, Copy, Default)]
pub struct Part {
    entered: u64,
    most: u64,
    /// Some of its instructions did not run.
    pub unexecuted: bool,
}

impl Part {
    /// Its count.
    pub fn count(&self) -> u64 {
        self.entered.max(self.most)
    }
}

/// Last statement of each source function.
type Running = HashMap<Place, Place>;

/// The lines of a piece.
#[derive(Debug, Default)]
struct Walked {
    /// All that run in it.
    lines: HashSet<Place>,
    /// Those that go on from before it.
    go_on: Vec<Place>,
    /// Statements that run at its end.
    running: Running,
}

/// Splits a function into pieces.
pub fn pieces(insns: &[Insn], jumped: &Jumped) -> Vec<Piece> {
    let leaders = leaders(insns, jumped);
    let mut pieces: Vec<Piece> = Vec::new();
    for (i, insn) in insns.iter().enumerate() {
        if leaders[i] || insns[i - 1].class == Class::Call {
            pieces.push(Piece { start: i, end: i, count: insn.count, leads: leaders[i] });
        }
        if let Some(piece) = pieces.last_mut() {
            piece.end = i + 1;
        }
    }
    pieces
}

/// Returns for each instruction whether it begins a straight piece of code.
fn leaders(insns: &[Insn], jumped: &Jumped) -> Vec<bool> {
    let mut leaders = vec![false; insns.len()];
    for (i, insn) in insns.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| &insns[i]);
        leaders[i] |= before.is_none_or(|b| {
            matches!(b.class, Class::Cond | Class::Jump | Class::Ret) || b.falls != insn.count
        });
        let ways = jumped.get(&insn.address).into_iter().flatten().map(|way| way.0);
        for to in insn.jump.map(|(to, _)| to).into_iter().chain(ways) {
            if let Ok(target) = insns.binary_search_by_key(&to, |i| i.address) {
                leaders[target] = true;
            }
        }
    }
    leaders
}

/// The ways between pieces that were taken. Of two to the same piece, the one from the piece before it comes first.
pub fn arcs(pieces: &[Piece], insns: &[Insn], jumped: &Jumped) -> Vec<Arc> {
    let at = |address: u64| pieces.binary_search_by_key(&address, |piece| insns[piece.start].address).ok();
    let mut arcs = Vec::new();
    for (from, piece) in pieces.iter().enumerate() {
        let last = &insns[piece.end - 1];
        let ways = jumped.get(&last.address).into_iter().flatten().copied();
        let ways = [(last.end, last.falls)].into_iter().chain(last.jump).chain(ways);
        for (to, count) in ways.filter(|&(_, count)| count > 0) {
            if let Some(to) = at(to) {
                arcs.push(Arc { from, to, count: count.min(pieces[to].count) });
            }
        }
    }
    arcs
}

/// Counts of all lines. `begins` has the files and lines at which functions begin in the source, sorted.
pub fn parts(
    insns: &[Insn],
    bare: &[Bare],
    begins: &[Place],
    pieces: &[Piece],
    arcs: &[Arc],
) -> BTreeMap<Place, Part> {
    let mut parts: BTreeMap<Place, Part> = BTreeMap::new();
    let stated: HashSet<Place> = insns
        .iter()
        .filter(|insn| insn.statement)
        .map(|insn| insn.line)
        .chain(bare.iter().map(|bare| (bare.file, bare.line)))
        .collect();
    for &line in &stated {
        parts.entry(line).or_default();
    }
    for insn in insns.iter().filter(|insn| insn.line.1 != 0) {
        let part = parts.entry(insn.line).or_default();
        part.unexecuted |= insn.count == 0;
        if insn.statement || !stated.contains(&insn.line) {
            part.most = part.most.max(insn.count);
        }
    }
    if pieces.iter().all(|piece| piece.count == 0) {
        return parts;
    }
    let walker = Walker { insns, bare, begins, stated: &stated };
    let walked = walker.all(pieces, arcs, &mut parts);
    let mut inside: BTreeMap<Place, Vec<(usize, usize, u64)>> = BTreeMap::new();
    for arc in arcs {
        let (from, to) = (&walked[arc.from], &walked[arc.to]);
        for &line in &to.go_on {
            let runs = !stated.contains(&line) || from.running.get(&walker.function(line)) == Some(&line);
            if runs && from.lines.contains(&line) {
                inside.entry(line).or_default().push((arc.from, arc.to, arc.count));
            }
        }
    }
    for (line, mut edges) in inside {
        let part = parts.entry(line).or_default();
        let all = edges.iter().fold(0u64, |sum, edge| sum.saturating_add(edge.2));
        part.entered = part.entered.saturating_sub(all).saturating_add(loops(&mut edges));
    }
    parts
}

struct Walker<'w> {
    insns: &'w [Insn],
    bare: &'w [Bare],
    begins: &'w [Place],
    /// Lines of which some statement begins in the function.
    stated: &'w HashSet<Place>,
}

impl Walker<'_> {
    /// The source function of a line: where it begins.
    fn function(&self, line: Place) -> Place {
        let next = self.begins.partition_point(|begin| *begin <= line);
        let begin = next.checked_sub(1).map(|at| self.begins[at]).filter(|begin| begin.0 == line.0);
        begin.unwrap_or((line.0, 0))
    }

    /// Walks through all pieces, each behind one that led to it.
    fn all(&self, pieces: &[Piece], arcs: &[Arc], parts: &mut BTreeMap<Place, Part>) -> Vec<Walked> {
        let mut out: Vec<Vec<usize>> = vec![Vec::new(); pieces.len()];
        for arc in arcs {
            out[arc.from].push(arc.to);
        }
        let mut walked: Vec<Option<Walked>> = pieces.iter().map(|_| None).collect();
        for first in 0..pieces.len() {
            let mut work: Vec<(usize, Running)> = vec![(first, Running::new())];
            while let Some((piece, running)) = work.pop().filter(|_| pieces[first].count > 0) {
                if walked[piece].is_some() {
                    continue;
                }
                let done = self.piece(&pieces[piece], running, parts);
                // The one behind comes first.
                let next = out[piece].iter().rev().filter(|&&to| walked[to].is_none());
                work.extend(next.map(|&to| (to, done.running.clone())));
                walked[piece] = Some(done);
            }
        }
        walked.into_iter().map(Option::unwrap_or_default).collect()
    }

    /// Walks through a piece, and counts the lines in it: those that go on from before as often as all others.
    fn piece(&self, piece: &Piece, running: Running, parts: &mut BTreeMap<Place, Part>) -> Walked {
        let mut done = Walked { running, ..Walked::default() };
        // The copy of a line's function in which it was counted.
        let mut counted: HashMap<Place, u32> = HashMap::new();
        let mut copies: HashMap<Place, u32> = HashMap::new();
        // Functions of which a statement began in the piece.
        let mut begun: HashSet<Place> = HashSet::new();
        let insns = &self.insns[piece.start..piece.end];
        let mut bare = self.bare.partition_point(|bare| bare.address < insns[0].address);
        for insn in insns {
            let mut begin: Vec<Place> = Vec::new();
            while let Some(next) = self.bare.get(bare).filter(|bare| bare.address < insn.end) {
                begin.push((next.file, next.line));
                bare += 1;
            }
            begin.extend(insn.statement.then_some(insn.line));
            for line in begin {
                let function = self.function(line);
                let ran = done.running.insert(function, line);
                let same = ran == Some(line);
                let first = begun.insert(function);
                let copy = copies.entry(function).or_default();
                *copy += u32::from(!same && line == function);
                let again = counted.get(&line).is_some_and(|known| known != copy || same);
                counted.insert(line, *copy);
                if again {
                    continue;
                }
                // Whether it ran before depends on where control comes from.
                if same || first {
                    done.go_on.push(line);
                }
                done.lines.insert(line);
                let part = parts.entry(line).or_default();
                part.entered = part.entered.saturating_add(piece.count);
            }
            if insn.statement || insn.line.1 == 0 || counted.contains_key(&insn.line) {
                continue;
            }
            let function = self.function(insn.line);
            if !self.stated.contains(&insn.line) {
                counted.insert(insn.line, copies.get(&function).copied().unwrap_or(0));
                done.go_on.push(insn.line);
                done.lines.insert(insn.line);
                let part = parts.entry(insn.line).or_default();
                part.entered = part.entered.saturating_add(piece.count);
            } else if done.running.get(&function) == Some(&insn.line) {
                // The rest of a statement: it is in the piece, but does not come to it.
                done.lines.insert(insn.line);
            }
        }
        done
    }
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

#[cfg(test)]
mod tests {
    use kprism_image::insn::Kind;

    use super::*;

    /// Instructions of four bytes each, at which statements of these lines begin, with their counts. A function begins at line 1,
    /// and one that is inlined at line 10.
    fn counts(code: &[(u32, Kind, u64, u64)]) -> Vec<(u32, u64)> {
        let insns: Vec<Insn> = (0..)
            .step_by(4)
            .zip(code)
            .map(|(address, &(line, kind, count, taken))| {
                let mut insn = Insn::new(address, 4, kind, count, taken);
                (insn.line, insn.statement) = ((0, line), true);
                insn
            })
            .collect();
        let jumped = Jumped::new();
        let pieces = pieces(&insns, &jumped);
        let arcs = arcs(&pieces, &insns, &jumped);
        let parts = parts(&insns, &[], &[(0, 1), (0, 10)], &pieces, &arcs);
        parts.into_iter().map(|((_, line), part)| (line, part.count())).collect()
    }

    const NEXT: Kind = Kind::Other;
    const CALL: Kind = Kind::IndirectCall;

    #[test]
    fn a_line_goes_on_behind_what_is_inlined_into_it() {
        let inlined = [(2, NEXT, 5, 0), (11, NEXT, 5, 0), (2, NEXT, 5, 0), (11, NEXT, 5, 0), (2, NEXT, 5, 0)];
        assert_eq!(counts(&inlined), [(2, 5), (11, 5)]);
        // A call in what is inlined: the piece behind it is the line's, too.
        let call = [(2, NEXT, 5, 0), (11, CALL, 5, 0), (2, NEXT, 5, 0)];
        assert_eq!(counts(&call), [(2, 5), (11, 5)]);
        // Between two calls is a piece without the line.
        let calls = [(2, NEXT, 5, 0), (11, CALL, 5, 0), (12, CALL, 5, 0), (2, NEXT, 5, 0)];
        assert_eq!(counts(&calls), [(2, 10), (11, 5), (12, 5)]);
    }

    #[test]
    fn a_line_begins_anew_behind_another_one_of_its_function() {
        let unrolled = [(2, NEXT, 5, 0), (3, NEXT, 5, 0), (2, NEXT, 5, 0), (3, NEXT, 5, 0)];
        assert_eq!(counts(&unrolled), [(2, 10), (3, 10)]);
        // Two copies of a function in one piece are one, in two pieces two.
        let copies =
            [(10, NEXT, 5, 0), (11, NEXT, 5, 0), (3, NEXT, 5, 0), (10, NEXT, 5, 0), (11, NEXT, 5, 0)];
        assert_eq!(counts(&copies), [(3, 5), (10, 5), (11, 5)]);
        let mut apart = copies;
        apart[2].1 = CALL;
        assert_eq!(counts(&apart), [(3, 5), (10, 10), (11, 10)]);
    }

    #[test]
    fn a_line_that_leads_to_itself_is_not_come_to() {
        // Line 2 is come to from line 3, and by a jump of its own at the end of a loop, as of a condition in `for (;;)` at -O0.
        let jump = Kind::Jump { target: 4 };
        let code = [(3, NEXT, 5, 0), (2, CALL, 20, 0), (2, Kind::CondJump { target: 20 }, 20, 5)];
        let code = [&code[..], &[(4, NEXT, 15, 0), (2, jump, 15, 15), (5, NEXT, 5, 0)]].concat();
        assert_eq!(counts(&code), [(2, 20), (3, 5), (4, 15), (5, 5)]);
    }

    #[test]
    fn circuits_on_a_line_count() {
        // The second instruction jumps back to itself.
        let circuit = [(2, NEXT, 5, 0), (2, Kind::CondJump { target: 4 }, 20, 15), (3, NEXT, 5, 0)];
        assert_eq!(counts(&circuit), [(2, 20), (3, 5)]);
        // With another line in the loop, each time round comes to it anew.
        let loops =
            [(2, NEXT, 5, 0), (3, NEXT, 20, 0), (2, Kind::CondJump { target: 4 }, 20, 15), (4, NEXT, 5, 0)];
        assert_eq!(counts(&loops), [(2, 25), (3, 20), (4, 5)]);
    }
}
