// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records probes: from the options of `kprism record probe` to a run with `streams/probe/`.
//!
//! | step | module |
//! |---|---|
//! | [`Probes`], as the user writes them → programs; or programs from a file | `compile` |
//! | programs and [`Settings`] → attached; the command runs; records → `hits.bin`, counts → `probes.json`, the account | `attach` |
//! | `hits.bin`: all records as they come, or the last of them | `kept` |
//! | the same in a guest, by the program `kprism` there | [`guest`] |

mod attach;
mod compile;
pub mod guest;
mod kept;

pub use attach::{KEYS, Recorded, Settings, record};
pub use compile::{Probes, load, variable};
