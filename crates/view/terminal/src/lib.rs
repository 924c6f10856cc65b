// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run in the terminal: screens to sort, filter and follow, of a finished run or while it is recorded.
//!
//! In: a run folder, keys. Out: a terminal, or plain text each interval.
//!
//! | module | in → out |
//! |---|---|
//! | [`contents`] | a run folder → its screens, and those behind a row; [`calls`], [`timed`], [`probes`], [`covered`] and [`tested`] make them |
//! | [`screen`] | tables and text → rows without anything that commands a terminal |
//! | [`state`] | state + key → state |
//! | [`lines`] | state + size → lines |
//! | [`shell`] | lines → the terminal; keys and signals → the state. The terminal is put back in every case |
//! | [`live`] | a run folder that grows → contents, again and again, from a thread |
//! | [`recording`] | a command line of kprism → a process that records |
//! | [`top`] | these two together: `kprism top`, with a terminal or in plain text |
//!
//! All but `shell` and `top` can be tested without a terminal.

pub mod calls;
pub mod contents;
pub mod covered;
pub mod lines;
pub mod live;
pub mod probes;
pub mod recording;
pub mod screen;
pub mod shell;
pub mod state;
pub mod tested;
pub mod timed;
pub mod top;

pub use contents::Contents;
