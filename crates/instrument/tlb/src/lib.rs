// SPDX-License-Identifier: MIT OR Apache-2.0
//! kprism-tlb: models translation lookaside buffers, and attributes their misses to memory objects.
//!
//! Input: memory accesses (from the observer, one by one), or the page walks seen on a memory bus. Output: misses as a
//! stream, and sums over them. The crate does no I/O: bytes and values in, values and bytes out.
//!
//! | file | job |
//! |---|---|
//! | [`geometry`], [`presets`] | descriptions of a processor's TLBs, from JSON or by name |
//! | [`model`], `array`, `full` | simulate one processor's TLBs |
//! | [`bank`], `recent`, [`sieve`] | several geometries over one stream of accesses, and the filters in front of them |
//! | [`walk()`] | the page walk, for callers that can read the memory |
//! | [`stream`] | misses as bytes |
//! | [`objects`], [`allocs`], [`profile`], [`heat`] | the objects whose memory misses: how often, where and when |
//! | [`bus`] | a memory bus's accesses to page tables → misses |
//! | [`whatif`] | the same run with larger pages |
//! | [`live`] | counters that survive the recorder that writes them |
#![forbid(unsafe_code)]

pub mod allocs;
mod array;
pub mod bank;
pub mod bus;
pub mod counters;
mod full;
pub mod geometry;
pub mod heat;
pub mod live;
pub mod model;
pub mod objects;
pub mod presets;
pub mod profile;
mod recent;
pub mod sieve;
pub mod stream;
pub mod walk;
pub mod whatif;

pub use bank::Bank;
pub use bank::Missed;
pub use geometry::{Access, Geometry, GeometryError, PageSize, Policy};
pub use model::{Outcome, Page, Tlb};
pub use sieve::Sieve;
pub use walk::walk;
