// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records and counts for people and tools: counts in words ([`summary`]), records as a CTF trace ([`ctf`]).
//!
//! Input: what [`crate::stream`] reads. The tables of `kprism report probe` are made in `kprism-report`.

pub mod ctf;
pub mod summary;
