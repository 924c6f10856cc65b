// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets the program find `libduckdb.so` in its own folder, wherever that is.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN");
}
