// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes of a running program by a patched jump: a false condition costs some instructions instead of a trap.
//!
//! **In:** a condition in the compiler's IR, a place in a process, the code around it. **Out:** the process with a jump at the
//! place, to a trampoline that tests the condition; or the reason why the place keeps its trap.
//!
//! ```text
//! place:  jmp trampoline ──▶ save flags, rax, rcx, rdx
//!                            condition ── false ──▶ count, restore ──┐
//!                                │ true, or it cannot be told here   │
//!                                ▼                                   │
//!                            restore                                 │
//!                            nop        ◀── the uprobe               │
//!                            the instructions that the jump replaced ◀┘
//! place + n ◀─────────────── jmp
//! ```
//!
//! The uprobe's program tests the condition again: where native code cannot tell (a divisor of zero, an address that may not be
//! mapped) it takes the path of the uprobe, and faults are counted there as without a jump.
//!
//! | module | job | touches a process |
//! |---|---|---|
//! | [`native`] | IR → machine code, or the reason for refusal | no |
//! | [`displace`] | code around the place → the instructions that a jump may replace, or the reason | no |
//! | [`trampoline`] | both → the bytes of a trampoline | no |
//! | [`maps`] | `/proc/PID/maps` | reads |
//! | [`process`] | stops all threads; runs a system call in one | yes |
//! | [`area`] | the trampoline's memory, shared with the process | yes |
//! | [`patch`] | writes jumps, and puts back what was there, in the children that inherited them too | yes |
//! | [`guard`] | a process that puts it back if the recorder is killed | yes |

pub mod area;
pub mod displace;
pub mod guard;
pub mod maps;
pub mod native;
pub mod patch;
pub mod process;
pub mod trampoline;
