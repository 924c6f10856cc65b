// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about x86-64 that this crate depends on. A second architecture begins here; the page sizes are in
//! [`geometry`](crate::model::geometry), and processors in [`presets`](crate::model::presets).
//!
//! | file | facts |
//! |---|---|
//! | `walk` | page tables of 4 levels: the page and the entry that map an address |
//! | `layout` | ranges of the address space in Linux |

pub(crate) mod layout;
mod walk;

pub use walk::{Mapping, walk};
