// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables over a stream of misses. Input: the stream's events, and the objects in memory. Output: sums and predictions.
//!
//! | file | table |
//! |---|---|
//! | [`profile`] | misses by task, instruction, object and page |
//! | [`pages`] | misses by page |
//! | [`heat`] | misses over address and time: the objects that miss most |
//! | [`map`] | all misses over address and time, in a bounded number of cells |
//! | [`counters`] | the processor's own counts of misses, for comparison |
//! | [`whatif`] | the misses with larger pages, predicted |

pub mod counters;
pub mod heat;
pub mod map;
pub mod pages;
pub mod profile;
pub mod whatif;
