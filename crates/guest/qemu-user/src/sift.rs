// SPDX-License-Identifier: GPL-2.0-or-later
//! Filters the recorded entries: the models get accesses to other pages than before, in order, with time and
//! instruction.

use kprism_tlb::Access;
use kprism_tlb::sieve::{AtWork, Sieve};

use crate::block::{Data, Entry, Noted};
use crate::thread::BATCH;

/// An entry gives at most two pages of code and two of data. A power of two, so that an index needs no check.
const ROOM: usize = (4 * BATCH).next_power_of_two();
const NOWHERE: u64 = u64::MAX;

/// The instruction and the time of an access.
#[derive(Clone, Copy, Default)]
pub struct Place {
    pub ip: u64,
    pub ns: u64,
}

/// The accesses for the models.
pub struct Sifted {
    pub vas: [u64; ROOM],
    pub kinds: [Access; ROOM],
    pub marks: [u32; ROOM],
    /// Filled only on request.
    pub places: [Place; ROOM],
}

impl Default for Sifted {
    fn default() -> Self {
        Sifted {
            vas: [0; ROOM],
            kinds: [Access::Load; ROOM],
            marks: [0; ROOM],
            places: [Place::default(); ROOM],
        }
    }
}

/// State kept from one batch to the next.
pub struct Counted {
    /// Instructions of the blocks that began.
    pub instructions: u64,
    /// Accesses by kind: for data each access that QEMU reports, for code each block.
    pub references: [u64; 3],
    /// Page of the last fetch.
    code: u64,
}

impl Counted {
    /// The thread has ended. The next thread's first fetch is from another page.
    pub fn leave(&mut self) {
        self.code = NOWHERE;
    }
}

impl Default for Counted {
    fn default() -> Self {
        Counted { instructions: 0, references: [0; 3], code: NOWHERE }
    }
}

struct Sift<'a, const N: usize, const UNIFORM: bool, const PLACES: bool> {
    sieve: AtWork<'a, N, UNIFORM>,
    shared: bool,
    code: u64,
    ns: u64,
    out: &'a mut Sifted,
    count: usize,
}

/// Returns how many of `out` are set. `N` and `UNIFORM` are the sieve's. `PLACES` is true if instructions and times are
/// requested.
#[inline(always)]
pub fn sift<const N: usize, const UNIFORM: bool, const PLACES: bool>(
    entries: &[Entry],
    sieve: &mut Sieve,
    counted: &mut Counted,
    out: &mut Sifted,
) -> usize {
    let mut blocks = [0u64; 3];
    let (code, ns) = (counted.code, counted.instructions);
    let shared = sieve.is_shared();
    let mut to = Sift::<N, UNIFORM, PLACES> { sieve: sieve.at_work(), shared, code, ns, out, count: 0 };
    for entry in entries {
        match entry.read() {
            Noted::Blocks { va, across, blocks: more, instructions } => {
                blocks[Access::Fetch as usize] += more;
                if va >> 12 != to.code || across {
                    to.fetch(va, across);
                }
                to.ns += instructions;
            }
            Noted::Data(data) => {
                if data.ip >> 12 != to.code && data.instructions != 0 {
                    to.fetch(data.block(), false);
                }
                to.ns += data.instructions;
                blocks[Access::Fetch as usize] += u64::from(data.instructions != 0);
                blocks[Access::Store as usize] += u64::from(data.store);
                blocks[Access::Load as usize] += u64::from(!data.store);
                to.data(data.va, data);
                if (data.va & 0xfff) + data.bytes > 4096 {
                    to.data((data.va | 0xfff).wrapping_add(1), data);
                }
            }
        }
    }
    (counted.code, counted.instructions) = (to.code, to.ns);
    let count = to.count;
    counted.references.iter_mut().zip(blocks).for_each(|(all, more)| *all += more);
    count
}

impl<const N: usize, const UNIFORM: bool, const PLACES: bool> Sift<'_, N, UNIFORM, PLACES> {
    #[inline(always)]
    fn data(&mut self, va: u64, data: Data) {
        let mark = self.sieve.data(va, data.store);
        let access = if data.store { Access::Store } else { Access::Load };
        self.put(va, access, mark, data.ip);
        self.count += usize::from(mark != 0);
        if self.shared && mark != 0 {
            self.code = NOWHERE;
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch(&mut self, va: u64, across: bool) {
        for at in [va, (va | 0xfff) + 1].into_iter().take(1 + usize::from(across)) {
            if at >> 12 != self.code {
                self.code = at >> 12;
                let mark = self.sieve.fetch(at);
                self.put(at, Access::Fetch, mark, va);
                self.count += 1;
            }
        }
    }

    /// Adds an access to the output.
    #[inline(always)]
    fn put(&mut self, va: u64, access: Access, mark: u32, ip: u64) {
        let at = self.count % ROOM;
        self.out.vas[at] = va;
        self.out.kinds[at] = access;
        self.out.marks[at] = mark;
        if PLACES {
            self.out.places[at] = Place { ip, ns: self.ns };
        }
    }
}
