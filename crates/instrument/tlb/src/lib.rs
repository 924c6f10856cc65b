// SPDX-License-Identifier: MIT OR Apache-2.0
//! kprism-tlb: translation lookaside buffers, what misses them, and whose memory that is.
//!
//! In: memory accesses (from the observer, one by one) or what a memory bus showed of page walks. Out: misses, as a
//! stream, and what they add up to. Pure: bytes and values in, values and bytes out.
//!
//! | file | what |
//! |---|---|
//! | [`geometry`], [`presets`] | what a processor's TLBs are, from JSON or by name |
//! | [`model`], `array`, `full` | one processor's TLBs at work |
//! | [`bank`], `recent`, [`sieve`] | several geometries over one stream of accesses; which of them a replay needs; which change nothing |
//! | [`walk()`] | the page walk, for who has the memory |
//! | [`stream`] | misses as bytes |
//! | [`objects`], [`allocs`], [`profile`], [`heat`] | whose memory misses, how often, where and when |
//! | [`bus`] | a memory bus's accesses to page tables → misses |
//! | [`whatif`] | the same run with larger pages |
//! | [`live`] | counts that survive the recorder that keeps them |
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
