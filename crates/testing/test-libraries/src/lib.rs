// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests' libraries as dependencies of a member of the workspace. There is no code.
//!
//! Some of them switch on features of libraries that the product has too (serde_core's `default`, getrandom's `std`). `cargo build
//! --workspace` does not know what tests depend on, so without this crate it compiles nearly all crates with other features than
//! `cargo test --workspace`, and a run of the suite compiles them twice. Builds of one package (`-p kprism`, what users install and
//! scripts/dist.sh packs) do not get these features.
//! `crates/testing/test/tests/features.rs` fails if a crate would be compiled twice again.
