// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports Intel PT recorded by other tools into the form of a run.
//!
//! **In:** recordings of other tools, distinguished by [`detect`]:
//!
//! | [`Source`] | contents |
//! |---|---|
//! | `Pages` | `*.pt` and `xpages.txt`, lines `tgid va_hex size file`: dumps of the executable pages |
//! | `Raw` | one PT file, code named by the caller: raw bytes or ELF, at an address |
//! | `Drpt2trace` | DynamoRIO's `pt.bin` with `*.sideband.pevent` (perf records) and the mapped files |
//! | `Lldb` | LLDB's `trace.json` bundle, one stream per thread or per core |
//! | `SimplePt` | simple-pt's `ptout.N`, one stream per CPU, and `ptout.sideband` |
//! | `PerfData` | perf.data, one stream per CPU or thread; also written: [`perfdata`] |
//!
//! **Out:** a [`Capture`], plain data, which [`write()`] writes in the form of a recorded run: `cpuN.pt`, `code.dict`,
//! `cpuN.map`, `sideband.jsonl`, `counts.json`, and the ELF files for symbols.
//!
//! Recordings without Intel PT have modules of their own: [`ftrace`], [`logs`], samples and tracepoints in [`perfdata`], and
//! captures of a memory bus, [`bus`].
//!
//! **Why one form:** all later stages (decoder, tables, report) then handle only one kind of run. Facts that a source
//! does not state stay unknown and are never guessed: a stream without time packets gets the clock `none`, and a
//! missing conversion factor is 0.
//!
//! User code of captures other than perf.data and simple-pt is written in address space 0, which means "any": such
//! captures hold one process per stream and mostly no CR3.

#![forbid(unsafe_code)]

pub mod bus;
mod capture;
mod elf;
mod error;
pub mod ftrace;
mod lldb;
pub mod logs;
mod pages;
mod perf;
pub mod perfdata;
mod raw;
mod simplept;
mod source;
mod write;

/// Bytes of a page of the processors that have Intel PT.
pub(crate) const PAGE: u64 = 4096;

pub use capture::{
    Capture, CpuModel, Flow, KernelName, Module, Placed, Region, Stream, SwitchAt, Switched, Task,
};
pub use error::ImportError;
pub use raw::CodeFile;
pub use source::{Source, detect, read};
pub use write::write;
