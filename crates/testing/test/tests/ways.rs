// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/ways.md` leads from function to function: each that it names is in the file that it names.

use std::fs;
use std::path::Path;

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_stop_is_where_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page = fs::read_to_string(root.join("docs/ways.md")).unwrap();
    let mut stops = 0;
    let mut lost = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split('|').skip(1);
        let file = quoted(cells.next().unwrap()).next().unwrap();
        let text = fs::read_to_string(root.join("crates").join(file));
        for function in quoted(cells.next().unwrap()) {
            stops += 1;
            let is_there = |text: &String| {
                text.contains(&format!("fn {function}(")) || text.contains(&format!("fn {function}<"))
            };
            if !text.as_ref().is_ok_and(is_there) {
                lost.push(format!("{file}: {function}"));
            }
        }
    }
    assert!(stops > 80, "{stops} stops");
    assert!(lost.is_empty(), "not there any more:\n{}", lost.join("\n"));
}
