// SPDX-License-Identifier: MIT OR Apache-2.0
//! A test runner that counts tests which cannot run on this machine as ignored, with the reason, and never as passed.
//!
//! The built-in runner decides at compile time which tests to ignore. Whether there is root, a browser or a capture is
//! known only when the test runs. This crate runs such tests instead:
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
//! The `Cargo.toml` must have `[[test]] name = "FILE" harness = false`. Everything else works as usual: names as
//! filters, `--list`, `--ignored`, `--test-threads`. The tests' output is not captured.
//!
//! What takes long and varies a claim that a shorter test guards takes turns: see [`turn()`] and [`of_today`].

mod need;
mod run;
mod turn;

use std::time::{Duration, Instant};

pub use inventory;
pub use kprism_test_macro::test;
pub use need::*;
pub use run::{Ends, Test, run};
pub use turn::{of_today, turn};

/// Ends this test as ignored, with a reason that includes a remedy. It may be called from any function that the test
/// calls, on the test's thread.
pub fn skip(reason: impl Into<String>) -> ! {
    // An unwind without a message or backtrace, so it is not reported as a panic.
    std::panic::resume_unwind(Box::new(run::Skipped(reason.into())))
}

/// Waits until a condition holds, and looks each hundredth of a second. The test fails with `what` if it does not within `limit`.
///
/// # Panics
/// It does not hold within `limit`.
pub fn until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < limit, "after {} s not yet: {what}", limit.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits as [`until`] does for a value to be `expected`, and shows both if it never is.
///
/// # Panics
/// It is another one until `limit`.
pub fn until_equal<T: PartialEq + std::fmt::Debug>(
    limit: Duration,
    what: &str,
    expected: &T,
    mut value: impl FnMut() -> T,
) {
    let begun = Instant::now();
    loop {
        let value = value();
        if value == *expected {
            return;
        }
        let seconds = limit.as_secs();
        assert!(
            begun.elapsed() < limit,
            "after {seconds} s not yet: {what}\n  is {value:#?}\n not {expected:#?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Defines the runner of a test file; must be at its end.
#[macro_export]
macro_rules! main {
    () => {
        fn main() -> ::std::process::ExitCode {
            $crate::run()
        }
    };
}

/// Registers a test; used by `#[test]`.
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
