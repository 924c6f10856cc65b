// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts about x86-64 that this crate depends on: page tables. A second architecture begins here.

pub mod paging;
