// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links the agent, the recorder and the command line statically: the agent runs as /init in any initramfs, with or without a
//! C library, and the command line on every distribution, whatever its C library.
//!
//! `-C target-feature=+crt-static` cannot be set for one crate of a workspace; set for all of them it breaks procedural
//! macros and the observer's shared library. So these programs are linked with `-static` against a directory that holds
//! only the static archives of the libraries that `std` needs. The linker searches that directory first, and finds no
//! shared library to prefer.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Libraries that `std` links on Linux with glibc. `gcc_s` has no static archive of the same name: see [`link`].
const ARCHIVES: [&str; 6] = ["c", "m", "dl", "rt", "pthread", "util"];

fn main() {
    link(&["-static", "-no-pie"]);
}

/// Has the crate's programs linked with these arguments, which ask for a static program. `crates/kprism` uses it too.
pub fn link(arguments: &[&str]) {
    // Nothing else in the package. Cargo knows this file as a part of each script that uses it; a path that does not exist, as this
    // one would from another package's folder, would cause a rebuild each time.
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let is_glibc = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
        && std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    if !is_glibc {
        return;
    }
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("static");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("OUT_DIR is writable");
    for name in ARCHIVES {
        let file = format!("lib{name}.a");
        if let Some(archive) = find(&file) {
            std::os::unix::fs::symlink(archive, directory.join(file)).expect("OUT_DIR is writable");
        }
    }
    if !directory.join("libc.a").exists() {
        panic!("libc.a not found: the agent is linked statically; install libc6-dev and gcc");
    }
    let unwinder = ["libgcc_eh.a", "libgcc.a"].map(|file| {
        let path = find(file).unwrap_or_else(|| panic!("{file} not found: install gcc"));
        path.display().to_string()
    });
    std::fs::write(
        directory.join("libgcc_s.a"),
        format!("GROUP ( {} {} libc.a )\n", unwinder[0], unwinder[1]),
    )
    .expect("OUT_DIR is writable");
    for argument in arguments.iter().copied().chain([&*format!("-L{}", directory.display())]) {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}

/// Path at which the C compiler has `file`, if it has it: otherwise it prints the bare name.
fn find(file: &str) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(compiler).arg(format!("-print-file-name={file}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (path.is_absolute() && Path::new(&path).exists()).then_some(path)
}
