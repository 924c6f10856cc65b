// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of TLBs. Input: a processor's geometry, then its memory accesses. Output: the accesses that miss.
//!
//! | file | job |
//! |---|---|
//! | [`geometry`] | describes a processor's TLBs; read from JSON and checked |
//! | [`presets`] | geometries of processors, by name |
//! | [`sieve`] | drops accesses that change no model's state, many at once |
//! | [`bank`] | several geometries over one stream of accesses, with a filter of its own |
//! | [`tlb`] | one geometry: levels, walk caches, what a switch of address spaces drops |
//! | `array`, `full` | one array of a level: with sets, or fully associative |
//! | `recent` | keeps the hits that a replay with larger pages needs |

mod array;
pub mod bank;
mod full;
pub mod geometry;
pub mod presets;
mod recent;
pub mod sieve;
pub mod tlb;
