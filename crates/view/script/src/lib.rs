// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decoded flow as text: what ran, line by line, and functions as they ran.
//!
//! In: a replay of the flow ([`kprism_flow::replay`]), the code it ran over, symbols, and debug information where
//! there is some. Out, as text or as one JSON object a line:
//!
//! | listing | module |
//! |---|---|
//! | every instruction, every branch | [`flow`] |
//! | the graph of calls, system calls | [`calls`] |
//! | the graph of calls of a trace of durations | [`durations`] |
//! | a function's instructions with counts, time, branches, source | [`annotate`] |
//!
//! Text is what costs: decoding an instruction takes a few nanoseconds, formatting one a thousand. So an
//! instruction is formatted when it is met first ([`code`]), and a line is then three copies: the task's part,
//! the time's digits, the instruction's text.

pub mod annotate;
pub mod calls;
pub mod code;
pub mod disasm;
pub mod durations;
pub mod flow;
mod json;
mod names;
mod output;
mod prefix;
pub mod select;

pub use disasm::Syntax;
pub use output::Output;
pub use select::{Field, Fields, Select};
