// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the program to which an address space (CR3) of a stream belongs.
//!
//! In: addresses of user code with their address space, and for each interval between two times of the stream the programs that
//! ran in it by perf's records. Out: [`Use`]: which program is in which space, from when on.
//!
//! Where one program ran in an interval, its addresses are certain. With times far apart (TSC packets alone) several may have
//! taken turns. Then, in this order, it is
//!
//! 1. a program that has mapped most of the addresses,
//! 2. one whose space it is by other evidence,
//! 3. one that has no space yet: of several the first that ran, which is a guess unless all have the same code there.
//!
//! Without any time nothing tells the order: if the programs' code differs, the space is not known.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use kprism_perfdata::Mapped;

use super::tasks::Life;
use crate::PAGE;

/// A program in an address space of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Use {
    pub asid: u64,
    /// Index into [`super::tasks::History::lives`].
    pub life: usize,
    /// Time from which it is seen there, ns.
    pub ns: u64,
    /// Stream offset of the packet with its first address.
    pub offset: u64,
}

/// Number of addresses that suffices for a program in a space, and the required part of all in that space. Close to a switch an
/// address may be assigned to the wrong program.
const MANY: u64 = 8;
const PART: u64 = 20;

/// Pages of a space that are compared with programs' mappings.
const COMPARED: usize = 64;

/// Addresses in one space between two times.
#[derive(Debug, Default)]
struct Stay {
    asid: u64,
    /// Time before them, ns; 0 if there is none.
    ns: u64,
    /// Stream offset of the first.
    offset: u64,
    count: u64,
    pages: Pages,
    /// Programs that may have run there, in order.
    lives: Rc<[usize]>,
}

/// Pages, each at least once.
#[derive(Debug, Default)]
struct Pages {
    all: Vec<u64>,
    /// Length at which repetitions are dropped next.
    full: usize,
}

impl Pages {
    fn clear(&mut self) {
        self.all.clear();
        self.full = 0;
    }

    fn add(&mut self, page: u64) {
        if self.all.last() == Some(&page) {
            return;
        }
        self.all.push(page);
        if self.all.len() > self.full {
            self.all.sort_unstable();
            self.all.dedup();
            self.full = 2 * self.all.len() + 64;
        }
    }
}

/// The programs that ran between two times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    Nobody,
    One(usize),
    /// In order, each once.
    Several(Vec<usize>),
}

/// Number of addresses by (space, program), and the time, ns, and offset of the first.
type Certain = BTreeMap<(u64, usize), (u64, u64, u64)>;

/// Evidence of one stream.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    certain: Certain,
    unclear: Vec<Stay>,
    /// The stays since the last time, one for each space, and their number. The rest are old ones whose memory is used again.
    open: Vec<Stay>,
    len: usize,
    /// The stay of the last address.
    now: usize,
}

/// What the evidence tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub uses: Vec<Use>,
    /// Number of stays whose program was guessed.
    pub guessed: u64,
    /// Number of address spaces whose program is not known.
    pub unknown: u64,
}

impl Evidence {
    /// User code at `ip`, which the packet at `offset` states, runs in a space. `ns` is the time before it.
    pub fn add(&mut self, asid: u64, ip: u64, ns: u64, offset: u64) {
        if self.now >= self.len || self.open[self.now].asid != asid {
            self.now = self.open[..self.len].iter().rposition(|stay| stay.asid == asid).unwrap_or(self.len);
        }
        if self.now == self.open.len() {
            self.open.push(Stay::default());
        }
        let stay = &mut self.open[self.now];
        if self.now == self.len {
            (stay.asid, stay.ns, stay.offset, stay.count) = (asid, ns, offset, 0);
            stay.pages.clear();
            self.len += 1;
        }
        stay.count += 1;
        stay.pages.add(ip / PAGE);
    }

    /// Ends an interval. `ran` gives the programs that ran in it.
    pub fn settle(&mut self, ran: impl FnOnce() -> Ran) {
        let len = std::mem::take(&mut self.len);
        let stays = &mut self.open[..len];
        if stays.is_empty() {
            return;
        }
        match ran() {
            Ran::Nobody => {}
            Ran::One(life) => {
                for stay in stays {
                    let first = (0, stay.ns, stay.offset);
                    self.certain.entry((stay.asid, life)).or_insert(first).0 += stay.count;
                }
            }
            Ran::Several(lives) => {
                let lives: Rc<[usize]> = lives.into();
                for stay in stays {
                    match self.unclear.last_mut() {
                        Some(last) if last.asid == stay.asid && last.lives == lives => {
                            last.count += stay.count;
                            stay.pages.all.iter().for_each(|&page| last.pages.add(page));
                        }
                        _ => self.unclear.push(Stay { lives: Rc::clone(&lives), ..std::mem::take(stay) }),
                    }
                }
            }
        }
    }

    /// Finds the programs. Those in the same space are in order of time.
    pub fn resolve(mut self, lives: &[Life]) -> Told {
        let mut told = Told::default();
        let mut space_of: HashMap<usize, u64> = HashMap::new();
        let mut found: Vec<(u64, usize, u64)> = enough(&self.certain)
            .into_iter()
            .map(|Use { asid, life, .. }| (self.certain[&(asid, life)].0, life, asid))
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        for (_, life, asid) in found {
            space_of.entry(life).or_insert(asid);
        }
        for stay in &self.unclear {
            let mapped = most_mapped(&stay.lives, lives, &stay.pages.all);
            let own = mapped.iter().find(|life| space_of.get(life) == Some(&stay.asid));
            let free: Vec<usize> =
                mapped.iter().copied().filter(|life| !space_of.contains_key(life)).collect();
            let open = if free.is_empty() { &mapped } else { &free };
            let alike = || alike(open, lives, &stay.pages.all);
            let life = match (own, &open[..]) {
                (Some(&own), _) => own,
                (None, &[one]) => one,
                (None, &[first, ..]) if alike() => first,
                (None, &[first, ..]) if stay.ns > 0 => {
                    told.guessed += 1;
                    first
                }
                _ => {
                    told.unknown += 1;
                    continue;
                }
            };
            space_of.entry(life).or_insert(stay.asid);
            let known = self.certain.entry((stay.asid, life)).or_insert((0, stay.ns, stay.offset));
            *known = (known.0 + stay.count, known.1.min(stay.ns), known.2.min(stay.offset));
        }
        told.uses = enough(&self.certain);
        told.uses.sort_by_key(|found| (found.asid, found.ns));
        told
    }
}

/// Those with enough evidence; all of a space in which none has enough. Two hundred children of vfork, each for a moment in their
/// parent's space, are nobody's mistake.
fn enough(found: &Certain) -> Vec<Use> {
    let found: Vec<_> = found.iter().collect();
    let mut uses = Vec::new();
    for space in found.chunk_by(|a, b| a.0.0 == b.0.0) {
        let all: u64 = space.iter().map(|(_, known)| known.0).sum();
        let is_enough = |count: u64| count >= MANY || count.saturating_mul(PART) >= all;
        let none = !space.iter().any(|(_, known)| is_enough(known.0));
        let told = space.iter().filter(|(_, known)| none || is_enough(known.0));
        uses.extend(told.map(|&(&(asid, life), &(_, ns, offset))| Use { asid, life, ns, offset }));
    }
    uses
}

/// The mapping of a program that holds a page.
fn mapping(life: &Life, page: u64) -> Option<&Mapped> {
    let (start, end) = (page.saturating_mul(PAGE), page.saturating_add(1).saturating_mul(PAGE));
    life.maps
        .iter()
        .rev()
        .map(|(_, mapped)| &**mapped)
        .find(|m| m.start < end && start < m.start.saturating_add(m.len))
}

/// Those programs that have mapped most of these pages.
fn most_mapped(of: &[usize], lives: &[Life], pages: &[u64]) -> Vec<usize> {
    let mapped = |life: usize| some(pages).filter(|&page| mapping(&lives[life], page).is_some()).count();
    let counts: Vec<usize> = of.iter().map(|&life| mapped(life)).collect();
    let most = counts.iter().max().copied().unwrap_or(0);
    of.iter().zip(counts).filter(|(_, count)| *count == most).map(|(&life, _)| life).collect()
}

/// True if all these programs have the same parts of the same files at these pages.
fn alike(of: &[usize], lives: &[Life], pages: &[u64]) -> bool {
    let part = |life: usize, page: u64| {
        mapping(&lives[life], page)
            .map(|m| (m.path.as_str(), m.build_id.as_slice(), m.pgoff.wrapping_sub(m.start)))
    };
    some(pages).all(|page| of.windows(2).all(|two| part(two[0], page) == part(two[1], page)))
}

/// At most [`COMPARED`] of the pages, evenly.
fn some(pages: &[u64]) -> impl Iterator<Item = u64> {
    pages.iter().step_by(pages.len().div_ceil(COMPARED).max(1)).copied()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const A: u64 = 0x1000;
    const B: u64 = 0x2000;
    const C: u64 = 0x3000;

    fn life(pid: u32, path: &str, start: u64) -> Life {
        let mapped = Mapped { pid, start, len: 0x2000, path: path.into(), ..Mapped::default() };
        Life { pid, from: 1, maps: vec![(1, Rc::new(mapped))] }
    }

    /// Time before, addresses with their spaces, programs that ran.
    type Interval<'a> = (u64, &'a [(u64, u64)], &'a [usize]);

    fn told(lives: &[Life], intervals: &[Interval<'_>]) -> (Vec<(u64, usize, u64)>, u64, u64) {
        let mut evidence = Evidence::default();
        for (ns, addresses, ran) in intervals {
            addresses.iter().for_each(|&(asid, ip)| evidence.add(asid, ip, *ns, 0));
            evidence.settle(|| match ran {
                [] => Ran::Nobody,
                [one] => Ran::One(*one),
                several => Ran::Several(several.to_vec()),
            });
        }
        let told = evidence.resolve(lives);
        (told.uses.iter().map(|u| (u.asid, u.life, u.ns)).collect(), told.guessed, told.unknown)
    }

    #[test]
    fn a_program_alone_in_an_interval_is_certain_and_tells_the_others() {
        let lives = [life(1, "/a", 0x40_0000), life(2, "/b", 0x40_0000)];
        // Both ran in the first interval, the second one alone in the next.
        let found =
            told(&lives, &[(10, &[(B, 0x40_0010), (A, 0x40_0010)], &[0, 1]), (20, &[(B, 0x40_0020)], &[1])]);
        assert_eq!(found, (vec![(A, 0, 10), (B, 1, 10)], 0, 0));
    }

    #[test]
    fn a_program_that_mapped_the_addresses_is_meant() {
        let lives = [life(1, "/a", 0x40_0000), life(2, "/b", 0x50_0000), life(3, "/c", 0x60_0000)];
        let found = told(&lives, &[(10, &[(B, 0x50_0010), (A, 0x40_0010), (C, 0x60_0000)], &[0, 1, 2])]);
        assert_eq!(found, (vec![(A, 0, 10), (B, 1, 10), (C, 2, 10)], 0, 0));
        // Without a time, too.
        let found = told(&lives, &[(0, &[(B, 0x50_0010), (A, 0x40_0010), (C, 0x60_0000)], &[0, 1, 2])]);
        assert_eq!(found, (vec![(A, 0, 0), (B, 1, 0), (C, 2, 0)], 0, 0));
    }

    #[test]
    fn of_others_the_first_that_has_no_space_is_a_guess() {
        let lives = [life(1, "/a", 0x40_0000), life(2, "/b", 0x40_0000), life(3, "/c", 0x40_0000)];
        let found = told(
            &lives,
            &[(10, &[(A, 0x40_0000)], &[0]), (20, &[(B, 0x40_0000), (C, 0x40_0000)], &[0, 1, 2])],
        );
        assert_eq!(found, (vec![(A, 0, 10), (B, 1, 20), (C, 2, 20)], 1, 0));
        // Children of one parent have the same code: no guess is needed for it.
        let lives = [life(1, "/a", 0x40_0000), life(2, "/a", 0x40_0000), life(3, "/a", 0x40_0000)];
        let found = told(&lives, &[(20, &[(B, 0x40_0000), (C, 0x40_0000)], &[1, 2])]);
        assert_eq!(found, (vec![(B, 1, 20), (C, 2, 20)], 0, 0));
    }

    #[test]
    fn without_a_time_other_code_at_the_same_place_is_not_known() {
        let lives = [life(1, "/a", 0x40_0000), life(2, "/b", 0x40_0000)];
        assert_eq!(told(&lives, &[(0, &[(A, 0x40_0000)], &[0, 1])]), (vec![], 0, 1));
    }

    #[test]
    fn few_addresses_against_many_are_not_counted() {
        let lives = [life(1, "/a", 0x40_0000), life(2, "/b", 0x40_0000)];
        let many: Vec<(u64, u64)> = (0..300).map(|n| (A, 0x40_0000 + n)).collect();
        let found = told(&lives, &[(10, &many, &[0]), (20, &[(A, 0x40_0000)], &[1]), (30, &[], &[])]);
        assert_eq!(found, (vec![(A, 0, 10)], 0, 0));
    }

    /// Children of vfork run in their parent's space, which itself ran on another CPU.
    #[test]
    fn many_with_few_addresses_each_are_counted_where_nobody_has_more() {
        let children: Vec<Life> = (1..100).map(|pid| life(pid, "/a", 0x40_0000)).collect();
        let addresses = [(A, 0x40_0000), (A, 0x40_0010)];
        let moments: Vec<[usize; 1]> = (0..children.len()).map(|child| [child]).collect();
        let intervals: Vec<Interval<'_>> = moments.iter().map(|one| (10, &addresses[..], &one[..])).collect();
        assert_eq!(told(&children, &intervals).0.len(), children.len());
    }
}
