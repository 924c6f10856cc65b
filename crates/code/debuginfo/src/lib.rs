// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debug information of programs and kernels.
//!
//! Input: ELF files with DWARF, or the separate file that a build id names. Output:
//!
//! | question | module |
//! |---|---|
//! | the source lines and inlined frames of one address | [`source`] |
//! | all lines of a file with their code, and its functions | [`lines`] |
//! | discriminators and inlined calls at each address, for compilers' sample profiles | [`scopes`] |

pub mod lines;
pub mod scopes;
pub mod source;
