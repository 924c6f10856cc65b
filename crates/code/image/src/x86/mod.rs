// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts about x86-64 that this crate and its users depend on. A second architecture begins here.
//!
//! | file | facts |
//! |---|---|
//! | [`insn`] | what an instruction does to the control flow |
//! | [`address`] | the kernel's half of the address space; page tables in CR3 |
//! | `stubs` | code that linkers and C libraries generate: PLT entries, `_start` |

pub mod address;
pub mod insn;
pub(crate) mod stubs;
