// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stream of misses that a recorder writes: compact, in order of time, read back one by one.
//!
//! | bytes | contents |
//! |---|---|
//! | 8 | `KPTLB001` |
//! | 4 | length of the header, little-endian |
//! | … | the header: JSON with `geometries`, in the order of the bits below |
//!
//! Then events. Numbers are LEB128; differences, from the last miss, are zigzag-coded (`n << 1 ^ n >> 63`).
//!
//! | first byte | then | meaning |
//! |---|---|---|
//! | `access \| size << 2 \| last << 4 \| more << 5`, access 0 load, 1 store, 2 fetch; size 0 4K, 1 2M, 2 1G | if `more`: a byte of geometries whose first level missed, a byte of those whose last did; time (ns), difference; address, difference; instruction, difference | without `more`: a miss of the first level of the first geometry, and of its last if `last`; with `more`: the misses in the two bytes |
//! | `access \| size << 2 \| 64` | address, difference | a hit that a replay with other page sizes needs (`recent`) |
//! | 3 | CR3 | the address space from here on |
//! | 11 | address | INVLPG |
//! | 15 | | all entries were dropped (CR4 was loaded, or observation began) |
//! | 19 | address | a page fault begins; its handling follows |
//! | 23 | | the page fault ends |
//! | 27 | function (see [`crate::objects::allocs`]); time, difference; address, difference; bytes; three addresses, 0 if not known: the return address of the call, of its caller, and so on | memory was allocated |
//! | 31 | time, difference; address, difference; bytes, 0 for all of the allocation | memory was freed |
//! | 7 | thread id, process id | the task from here on |
//! | 39 | address, difference from the last such | address of the page table entry that answers the next miss |
//! | 35 | a number, not 0 | sampling: from here on, each miss stands for this many |

pub mod live;

mod context;
mod read;
mod write;

use serde::{Deserialize, Serialize};

use crate::model::geometry::{Access, Geometry, PageSize};

pub use context::{Context, for_each};
pub use read::{Reader, StreamError};
pub use write::{Batch, MANY, Writer};

/// Magic number of a stream.
pub const MAGIC: &[u8; 8] = b"KPTLB001";

const SPACE: u8 = 3;
const TASK: u8 = 7;
const INVALIDATE: u8 = 11;
const FLUSH: u8 = 15;
const FAULT: u8 = 19;
const FAULT_END: u8 = 23;
const ALLOC: u8 = 27;
const FREE: u8 = 31;
const WEIGHT: u8 = 35;
const ENTRY: u8 = 39;
const LAST: u8 = 1 << 4;
const MORE: u8 = 1 << 5;
const TOUCH: u8 = 1 << 6;

/// The stream's header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The geometries modelled. Bit n of a miss belongs to the n-th.
    pub geometries: Vec<Geometry>,
}

/// A miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Time, ns.
    pub ns: u64,
    /// Address accessed.
    pub va: u64,
    /// Address of the instruction.
    pub ip: u64,
    /// Kind of access.
    pub access: Access,
    /// The page's size.
    pub size: PageSize,
    /// Geometries whose first level missed.
    pub first: u8,
    /// Geometries whose every level missed.
    pub last: u8,
}

/// An allocation of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alloc {
    /// Time, ns.
    pub ns: u64,
    /// Index of the function in [`crate::objects::allocs::FUNCTIONS`].
    pub function: u8,
    /// Address of the memory.
    pub va: u64,
    /// Number of bytes requested.
    pub bytes: u64,
    /// Return addresses of the call, of its caller, and so on; 0 where unknown.
    pub frames: [u64; 3],
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A miss.
    Miss(Miss),
    /// A hit that a replay needs.
    Touch {
        /// Address accessed.
        va: u64,
        /// Kind of access.
        access: Access,
        /// The page's size.
        size: PageSize,
    },
    /// CR3 has this value.
    Space(u64),
    /// INVLPG of this address.
    Invalidate(u64),
    /// All entries were dropped.
    Flush,
    /// A page fault at this address begins.
    Fault(u64),
    /// The page fault's handling ends.
    FaultEnd,
    /// Memory was allocated.
    Alloc(Alloc),
    /// Memory was freed.
    Free {
        /// Time, ns.
        ns: u64,
        /// Its address.
        va: u64,
        /// Number of bytes; 0 for the whole allocation.
        bytes: u64,
    },
    /// From here on, each miss stands for this many.
    Weight(u64),
    /// Physical address of the page table entry for the next miss.
    Entry(u64),
    /// This task runs.
    Task {
        /// Thread id.
        pid: u32,
        /// Process id.
        tgid: u32,
    },
}

/// The last miss, from which differences are counted.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    ns: u64,
    va: u64,
    ip: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        let miss = (any::<(u64, u64, u64)>(), 0u8..3, 0u8..3, any::<(u8, u8)>());
        prop_oneof![
            miss.prop_map(|((ns, va, ip), a, s, (first, last))| Event::Miss(Miss {
                ns,
                va,
                ip,
                access: Access::from_number(a).unwrap(),
                size: PageSize::from_number(s).unwrap(),
                first,
                last
            })),
            (any::<u64>(), 0u8..3, 0u8..3).prop_map(|(va, a, s)| Event::Touch {
                va,
                access: Access::from_number(a).unwrap(),
                size: PageSize::from_number(s).unwrap(),
            }),
            any::<u64>().prop_map(Event::Fault),
            Just(Event::FaultEnd),
            (1..=u64::MAX).prop_map(Event::Weight),
            (any::<(u64, u64, u64)>(), any::<u8>(), any::<[u64; 3]>()).prop_map(
                |((ns, va, bytes), function, frames)| Event::Alloc(Alloc { ns, function, va, bytes, frames })
            ),
            any::<(u64, u64, u64)>().prop_map(|(ns, va, bytes)| Event::Free { ns, va, bytes }),
            any::<u64>().prop_map(Event::Space),
            any::<u64>().prop_map(Event::Invalidate),
            any::<u64>().prop_map(Event::Entry),
            Just(Event::Flush),
            any::<(u32, u32)>().prop_map(|(pid, tgid)| Event::Task { pid, tgid }),
        ]
    }

    proptest! {
        #[test]
        fn reads_what_was_written(events in prop::collection::vec(event(), 0..50)) {
            let mut w = Writer::new(&[crate::model::presets::preset("zen4").unwrap()]);
            let begin = w.bytes.len();
            events.iter().for_each(|e| w.event(e));
            let r = Reader::new(&w.bytes).unwrap();
            prop_assert_eq!(r.map(Result::unwrap).collect::<Vec<_>>(), events.clone());
            // Truncated anywhere, the stream gives its complete events and then at most one error.
            for cut in begin..w.bytes.len() {
                let got: Vec<_> = Reader::new(&w.bytes[..cut]).unwrap().collect();
                let good = got.iter().filter(|e| e.is_ok()).count();
                prop_assert!(got.len() - good <= 1);
                prop_assert!(got.iter().take(good).zip(&events).all(|(g, e)| g.as_ref() == Ok(e)));
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut all = Writer::new(&[]).bytes;
            all.extend(&bytes);
            prop_assert!(Reader::new(&all).unwrap().count() <= bytes.len());
            let _ = Reader::new(&bytes);
        }
    }
}
