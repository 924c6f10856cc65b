// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts about x86-64 that expressions depend on. A second architecture begins here.
//!
//! | file | facts |
//! |---|---|
//! | [`regs`] | registers: their names and parts, and their numbers in DWARF, GDB and the kernel |
//! | `abi` | the registers in which functions take parameters and return results |
//! | `patched` | instructions that the kernel changes while it runs |

pub(crate) mod abi;
pub(crate) mod patched;
pub mod regs;
