// SPDX-License-Identifier: MIT OR Apache-2.0
//! kprism-tlb: models translation lookaside buffers, and attributes their misses to memory objects.
//!
//! Input: memory accesses (from the observer, one by one), or the page walks seen on a memory bus. Output: misses as a
//! stream, and sums over them. The crate does no I/O: bytes and values in, values and bytes out.
//!
//! ```text
//! accesses ── model ──┐
//!                     ├── stream ── objects ── analysis ── tables
//! bus trace ── bus ───┘
//! ```
//!
//! | folder | job |
//! |---|---|
//! | `model` | simulates the TLBs of processors: one, or several over the same accesses |
//! | [`bus`] | a memory bus's accesses to page tables → misses |
//! | [`stream`] | misses as bytes, and counters that survive the recorder that writes them |
//! | [`counts`] | the recorder's own counts, typed |
//! | [`objects`] | the objects whose memory misses, allocations among them |
//! | `analysis` | how often, where and when they miss; the same run with larger pages |
//! | `x86` | page tables and address space of x86-64 |
#![forbid(unsafe_code)]

mod analysis;
pub mod bus;
pub mod counts;
mod model;
pub mod objects;
pub mod stream;
mod x86;

pub use analysis::{counters, heat, map, pages, profile, whatif};
pub use model::bank::{Bank, Missed};
pub use model::geometry::{Access, Geometry, GeometryError, PageSize, Policy};
pub use model::sieve::Sieve;
pub use model::tlb::{Outcome, Page, Tlb};
pub use model::{bank, geometry, presets, sieve};
pub use x86::{Mapping, walk};
