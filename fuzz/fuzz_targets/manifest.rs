// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a run's `manifest.json`: an error that names the file, or a manifest that is the same after it was written
//! again, whose accounts are text that can command no terminal.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use kprism_store::{Account, Manifest, Run};
use libfuzzer_sys::fuzz_target;

/// A run of this process.
static RUN: LazyLock<Run> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("kprism-fuzz-manifest-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder to write to");
    fs::write(folder.join("manifest.json"), "{}").expect("a folder to write to");
    Run::open(&folder).expect("a run")
});

fuzz_target!(|bytes: &[u8]| {
    fs::write(RUN.manifest_path(), bytes).expect("a folder to write to");
    let manifest = match RUN.manifest() {
        Ok(manifest) => manifest,
        Err(error) => return assert!(error.to_string().contains("manifest.json")),
    };
    for account in manifest.accounts.values() {
        let text = account.to_text();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        let faults = account.entries.iter().filter(|entry| entry.fate.is_fault());
        let none = faults.clone().all(|entry| account.count(entry.fate, &entry.unit) == Some(0));
        assert_eq!(account.is_whole(), none && !account.is_empty());
    }
    assert_eq!(
        manifest.is_whole(),
        !manifest.accounts.is_empty() && manifest.accounts.values().all(Account::is_whole)
    );
    RUN.write_manifest(&manifest).expect("what was read");
    let again = RUN.manifest().expect("what was written");
    assert_eq!(without_numbers(again), without_numbers(manifest));
});

/// Values that this version does not know may be fractions, of which JSON's reader rounds the last digit: only their names
/// are compared.
fn without_numbers(mut manifest: Manifest) -> Manifest {
    for value in manifest.options.values_mut().chain(manifest.other.values_mut()) {
        value.take();
    }
    manifest
}
