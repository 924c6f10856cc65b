// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own tests in the guest, recorded: [`kunit`], [`kselftest`].
//!
//! Input: a kernel tree and the names of tests. Output: a run with the flow of all of them and their results as the tests
//! printed them. [`kprism_session::kernel_tests`] reads such a run.

pub mod kselftest;
pub mod kunit;

/// Without it the observer does not know one task from another.
const TASKS: (&str, &str) = ("CONFIG_DEBUG_INFO_BTF", "to tell the test's task from others");
