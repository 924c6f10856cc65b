// SPDX-License-Identifier: MIT OR Apache-2.0
//! By models: the observer feeds every access of the guest, of its kernel and all programs, to models of processors' TLBs.

use std::path::PathBuf;

use anyhow::Result;
use kprism_lab::{Outcome, Prepared, Report};
use kprism_session::Progress;
use kprism_store::Run;
use kprism_tlb::allocs::{self, Signature};

use crate::guest::{self, Settings};

/// Records the job of `settings` with these geometries ([`super::geometries`]), and the flow. The first geometry is the one
/// that reports are about.
///
/// # Errors
/// As of [`guest::run`].
pub fn record(
    settings: &Settings,
    geometries: &[String],
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    // Better before a long boot than after it.
    kprism_lab::find_observer()?;
    let prepared = guest::prepare(&settings.guest, progress)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("allocs");
    std::fs::write(&file, allocs::to_text(&allocators(settings, &prepared)?))?;
    let mut settings = settings.clone();
    settings.observer_arguments.extend([
        ("tlb".to_owned(), geometries.join("+")),
        ("allocs".to_owned(), file.display().to_string()),
    ]);
    guest::run(&settings, progress, report)
}

/// Libraries whose functions allocate.
const LIBRARIES: [&str; 6] = [
    "libc.so.6",
    "libstdc++.so.6",
    "libjemalloc.so.2",
    "libtcmalloc.so.4",
    "libtcmalloc_minimal.so.4",
    "libmimalloc.so.2",
];
/// Larger files are not looked into.
const MAX_ELF: u64 = 256 << 20;

/// First bytes of the functions that allocate: those of the guest's libraries, and of programs that were linked statically
/// or bring their own.
fn allocators(settings: &Settings, prepared: &Prepared) -> Result<Vec<Signature>> {
    let mut files = Vec::new();
    if let Some(root) = prepared.root() {
        files.extend(LIBRARIES.map(|name| root.join("usr/lib/x86_64-linux-gnu").join(name)));
    }
    let mut folders: Vec<PathBuf> = settings.job.shares.iter().map(|share| share.host.clone()).collect();
    while let Some(path) = folders.pop() {
        if path.is_symlink() {
            continue;
        } else if path.is_dir() {
            folders.extend(std::fs::read_dir(&path)?.map_while(Result::ok).map(|entry| entry.path()));
        } else {
            files.push(path);
        }
    }
    let mut all = Vec::new();
    for file in files {
        if std::fs::metadata(&file).is_ok_and(|m| m.is_file() && m.len() <= MAX_ELF) {
            all.extend(allocs::signatures(&std::fs::read(&file).unwrap_or_default()));
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}
