// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of every outcome, run by tests/outcomes.rs.

use kprism_test::{CAPTURES, captures, needs, skip, test};

#[test]
fn passes() {
    assert_eq!(std::thread::current().name(), Some("passes"));
}

#[test]
fn fails() {
    panic!("{} purpose", "on");
}

#[test]
fn returns_an_error() -> Result<(), std::io::Error> {
    Err(std::io::Error::other("an error of its own"))
}

#[test]
fn skips_in_the_middle() {
    skip("no such thing: buy one");
}

#[test]
fn needs_captures() {
    needs(&[CAPTURES]);
    captures("pt");
}

mod inside {
    use kprism_test::test;

    #[test]
    #[ignore = "an hour"]
    fn is_long() {}
}

kprism_test::main!();
