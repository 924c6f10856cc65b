// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a file of a lake: an error that names the file, or columns of equal length, whose rows are the same after they were
//! written again.
#![no_main]

use std::io::Write as _;
use std::sync::Once;

use kprism_lake::rows::{Column, Sink, Source};
use libfuzzer_sys::fuzz_target;

/// libFuzzer's hook ends the process at a panic also where it is caught and becomes an error, as the Parquet reader's are. One that nobody
/// catches still ends it.
static HOOK: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    HOOK.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let (path, again) = (folder.path().join("table.parquet"), folder.path().join("again.parquet"));
    std::fs::File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("a disk with room");
    let groups = match read(&path) {
        Ok(groups) => groups,
        Err(error) => return assert!(format!("{error:#}").contains("table.parquet"), "{error:#}"),
    };
    let Some(first) = groups.first() else { return };
    let rows = |columns: &[Column]| columns.first().map_or(0, |column| column.values.len());
    assert!(groups.iter().all(|columns| columns.iter().all(|c| c.values.len() == rows(columns))));
    // Two columns of one name, or a name of nothing, cannot be written.
    let Ok(mut sink) = Sink::create(&again, "table", first, Vec::new()) else { return };
    for columns in &groups {
        if sink.write(columns.clone()).is_err() {
            return;
        }
    }
    sink.finish().expect("a disk with room");
    let total: usize = groups.iter().map(|columns| rows(columns)).sum();
    let written = read(&again).expect("what was written");
    assert_eq!(written.iter().map(|columns| rows(columns)).sum::<usize>(), total);
});

fn read(path: &std::path::Path) -> anyhow::Result<Vec<Vec<Column>>> {
    let source = Source::open(path)?;
    source.columns()?;
    (0..source.groups()).map(|group| source.group(group)).collect()
}
