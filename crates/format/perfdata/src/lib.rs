// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data, the output of `perf record`: bytes ↔ records.
//!
//! **In:** the bytes of a file, of the same data through a pipe, or of consecutive records of another recorder.
//! **Out:** [`Contents`]: the events' attributes, records with their times, trace data of AUX buffers, and notes on what
//! is missing. The other way, [`Writer`] writes a file.
//!
//! | file | job |
//! |---|---|
//! | `bytes` | fields of records |
//! | [`attr`] | configuration of events |
//! | [`record`] | one record, from and to bytes |
//! | [`bpf`] | code of BPF programs in its feature section |
//! | [`read()`] | header, sections, compression: bytes → records |
//! | [`Writer`] | records → a file |
//!
//! The meaning of records (which task runs, what is mapped where) is for the user of this crate: `kprism-import` makes a
//! capture of them.
//!
//! **Why not an existing reader:** AUX data, incomplete files, and writing.
//!
//! Source: include/uapi/linux/perf_event.h, tools/perf/Documentation/perf.data-file-format.txt.

#![forbid(unsafe_code)]

pub mod attr;
pub mod bpf;
mod bytes;
pub mod feature;
pub mod read;
pub mod record;
mod write;

pub use attr::Attr;
pub use bytes::{Fields, Put};
pub use read::{Contents, Event, Header, read, records, unpack};
pub use record::{Auxtrace, Mapped, Record, TimeConv, Trailer};
pub use write::{Features, Writer};

/// The first bytes of a file: `PERFILE2`, little-endian.
pub const MAGIC: &[u8; 8] = b"PERFILE2";
