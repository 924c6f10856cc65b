// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the decoded flow as text: its instructions and calls line by line, and annotated functions.
//!
//! Input: a replay of the flow ([`kprism_flow::replay`]), the code that ran, symbols, and debug information if
//! available. Output, as text or as one JSON object per line:
//!
//! | listing | module |
//! |---|---|
//! | every instruction, every branch | [`flow`] |
//! | the graph of calls, system calls | [`calls`] |
//! | the graph of calls of a trace of durations | [`durations`] |
//! | the packets themselves | [`packets`] |
//! | events that packets state beside the flow | [`events`] |
//! | records of probes | [`list`] |
//! | everything that a run holds, in order of time | [`all`] |
//! | a function's instructions with counts, time, branches, source | [`annotate`] |
//! | a function's instructions that missed TLBs, with source | [`misses`] |
//!
//! [`list`] opens a run and chooses among them.
//!
//! Formatting dominates the cost: decoding an instruction takes a few nanoseconds, formatting one a thousand. So an
//! instruction is formatted once, when it first appears ([`code`]). A line is then three copies: the task's part, the
//! time's digits, the instruction's text.

pub mod all;
pub mod annotate;
pub mod calls;
pub mod code;
pub mod disasm;
pub mod durations;
pub mod events;
pub mod flow;
mod indent;
mod json;
pub mod list;
pub mod misses;
mod names;
mod open;
mod output;
pub mod packets;
mod pebs;
mod prefix;
pub mod select;

pub use disasm::Syntax;
pub use output::Output;
pub use select::{Field, Fields, Select};
