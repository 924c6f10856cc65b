// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that cannot run here are counted as ignored, with the reason, and never as passed.
//!
//! The built-in runner knows only at compile time what to ignore; whether there is root, a browser or a capture shows when
//! the test runs. A file of such tests is run by this crate instead:
//!
//! ```text
//! use kprism_test::{needs, test, CAPTURES, ROOT};        // instead of the built-in #[test]
//!
//! #[test]
//! fn values_are_those_of_the_program() {
//!     needs(&[ROOT, CAPTURES]);                           // or, in the middle: skip("a reason with its remedy")
//!     …
//! }
//!
//! kprism_test::main!();
//! ```
//!
//! and its `Cargo.toml` says so: `[[test]] name = "FILE" harness = false`. Everything else is as ever: names to filter by,
//! `--list`, `--ignored`, `--test-threads`. What tests print is not held back.

mod need;
mod run;

pub use inventory;
pub use kprism_test_macro::test;
pub use need::*;
pub use run::{Ends, Test, run};

/// Ends this test as ignored, with a reason that says what would help. Works in whatever the test calls, on its own thread.
pub fn skip(reason: impl Into<String>) -> ! {
    // Not a panic to be reported: no message, no backtrace.
    std::panic::resume_unwind(Box::new(run::Skipped(reason.into())))
}

/// The runner of a file of tests; stands at its end.
#[macro_export]
macro_rules! main {
    () => {
        fn main() -> ::std::process::ExitCode {
            $crate::run()
        }
    };
}

/// Registers a test; `#[test]` does it.
#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($name:ident, $ignored:expr) => {
        $crate::inventory::submit! {
            $crate::Test {
                module: ::core::module_path!(),
                name: ::core::stringify!($name),
                ignored: $ignored,
                run: || $crate::Ends::ends($name()),
            }
        }
    };
}
