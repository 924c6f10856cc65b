// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folders on disk are the diagram: a group of crates uses only itself and the groups above it in `Cargo.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

mod workspace;

/// A crate's own name and the crates of kprism in one of its tables of dependencies.
fn crate_of(folder: &Path, tables: &[&str]) -> (String, Vec<String>) {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let name = manifest.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let mut table = "";
    let mut uses = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            table = line;
        } else if tables.contains(&table) && line.starts_with("kprism-") {
            let end = line.find(['.', ' ', '=']).unwrap();
            uses.push(line[..end].to_owned());
        }
    }
    (name.to_owned(), uses)
}

#[test]
fn a_group_uses_only_groups_above_it() {
    let groups = workspace::groups();
    let mut place: BTreeMap<String, usize> = BTreeMap::new();
    for (index, (_, folders)) in groups.iter().enumerate() {
        place.extend(folders.iter().map(|folder| (crate_of(folder, &[]).0, index)));
    }
    let mut back = Vec::new();
    let mut seen = 0;
    for (index, (group, folders)) in groups.iter().enumerate() {
        for folder in folders {
            let of_x86 = "[target.'cfg(target_arch = \"x86_64\")'.dependencies]";
            let (name, uses) = crate_of(folder, &["[dependencies]", of_x86, "[build-dependencies]"]);
            seen += uses.len();
            let below = uses.iter().filter(|used| place[used.as_str()] > index);
            back.extend(below.map(|used| format!("{group}: {name} uses {used}")));
        }
    }
    assert!(place.len() > 25 && seen > 50, "{} crates, {seen} uses", place.len());
    assert!(back.is_empty(), "arrows that run back up:\n{}", back.join("\n"));
}
