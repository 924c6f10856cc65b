// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crates of the workspace, for tests of its structure.

use std::fs;
use std::path::{Path, PathBuf};

/// Groups in the order of the workspace's `members`, with each crate's folder.
pub fn groups() -> Vec<(String, Vec<PathBuf>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let patterns = members.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
    let folders = |pattern: &str| match pattern.strip_suffix("/*") {
        Some(group) => fs::read_dir(root.join(group)).unwrap().map(|entry| entry.unwrap().path()).collect(),
        None => vec![root.join(pattern)],
    };
    patterns.map(|pattern| (pattern.to_owned(), folders(pattern))).collect()
}
