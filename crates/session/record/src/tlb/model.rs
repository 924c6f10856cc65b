// SPDX-License-Identifier: MIT OR Apache-2.0
//! By models: the observer feeds every access of the guest, of its kernel and all programs, to models of processors' TLBs.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use kprism_expr::access::Known;
use kprism_lab::{Outcome, Prepared, Report};
use kprism_session::Progress;
use kprism_store::Run;
use kprism_tlb::objects::allocs::{self, Signature};
use serde_json::{Value, json};

use super::close;
use crate::guest::{self, Settings};

/// Records the job of `settings` with these geometries ([`super::geometries`]), and the flow. The first geometry is the one
/// that reports are about. Of the misses those are kept that meet `condition` ([`kprism_expr::access`]).
///
/// # Errors
/// As of [`guest::run`]; the condition is wrong.
pub fn record(
    settings: &Settings,
    geometries: &[String],
    condition: Option<&str>,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    let compiled = super::compile(condition, Known::All)?;
    // Better before a long boot than after it.
    kprism_lab::find_observer()?;
    let prepared = guest::prepare(&settings.guest, progress)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("allocs");
    let (signatures, unread) = allocators(settings, &prepared, folder.path())?;
    std::fs::write(&file, allocs::to_text(&signatures))?;
    let mut settings = settings.clone();
    settings.observer_arguments.extend([
        ("tlb".to_owned(), geometries.join("+")),
        ("allocs".to_owned(), file.display().to_string()),
    ]);
    settings.observer_arguments.extend(compiled.map(|json| ("misses-if".to_owned(), json)));
    let (run, ran) = guest::run(&settings, progress, report)?;
    super::keep_condition(&run, condition)?;
    keep(&run, &unread)?;
    close(&run, progress)?;
    Ok((run, ran))
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
/// Folders in which distributions have them.
const FOLDERS: [&str; 4] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"];
/// Larger files are not looked into.
const MAX_ELF: u64 = 256 << 20;

/// First bytes of the functions that allocate: those of the guest's libraries, and of programs of the shared folders that
/// were linked statically or bring their own. With them the files and folders of the shares that could not be looked into.
fn allocators(
    settings: &Settings,
    prepared: &Prepared,
    scratch: &Path,
) -> Result<(Vec<Signature>, Vec<String>)> {
    let mut signatures = Vec::new();
    let names = LIBRARIES.iter().flat_map(|name| FOLDERS.map(|folder| format!("/{folder}/{name}")));
    let root = match prepared.root() {
        Some(root) => root.to_owned(),
        None => {
            let root = scratch.join("root");
            kprism_lab::fetch(prepared, names.clone().collect(), &root)?;
            root
        }
    };
    // A guest need not have each of them.
    for name in names {
        let file = root.join(name.trim_start_matches('/'));
        signatures.extend(allocs::signatures(&fs::read(file).unwrap_or_default()));
    }
    let mut unread = Vec::new();
    for share in &settings.job.shares {
        of_folder(&share.host, &mut signatures, &mut unread);
    }
    signatures.sort();
    signatures.dedup();
    Ok((signatures, unread))
}

/// Signatures of all ELF files below a folder, and why others could not be read. Symbolic links are not followed.
fn of_folder(folder: &Path, signatures: &mut Vec<Signature>, unread: &mut Vec<String>) {
    let mut paths = vec![folder.to_owned()];
    while let Some(path) = paths.pop() {
        match of_path(&path, &mut paths) {
            Ok(found) => signatures.extend(found),
            Err(why) => unread.push(format!("{}: {why}", path.display())),
        }
    }
}

/// Signatures of a file; entries of a folder are added to `paths`.
fn of_path(path: &Path, paths: &mut Vec<PathBuf>) -> io::Result<Vec<Signature>> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            paths.push(entry?.path());
        }
    }
    if !meta.is_file() {
        return Ok(Vec::new());
    }
    if meta.len() > MAX_ELF {
        return Err(io::Error::other(format!("over {} MB", MAX_ELF >> 20)));
    }
    Ok(allocs::signatures(&fs::read(path)?))
}

/// Adds what could not be looked into to the remarks that reports show.
fn keep(run: &Run, unread: &[String]) -> Result<()> {
    let Some(first) = unread.first() else { return Ok(()) };
    let path = run.tlb_counts();
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    let mut counts: Value = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    counts["notes"] = json!([format!(
        "{} files of shared folders were not looked into for functions that allocate, and what such functions allocate has \
         no object of its own: {first}{}",
        unread.len(),
        if unread.len() > 1 { " …" } else { "" }
    )]);
    fs::write(&path, serde_json::to_vec_pretty(&counts)?).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_is_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::copy("/usr/lib/x86_64-linux-gnu/libc.so.6", folder.path().join("libmine.so")).unwrap();
        fs::write(folder.path().join("script"), "#!/bin/sh").unwrap();
        let large = fs::File::create(folder.path().join("large")).unwrap();
        large.set_len(MAX_ELF + 1).unwrap();
        let (mut signatures, mut unread) = (Vec::new(), Vec::new());
        of_folder(folder.path(), &mut signatures, &mut unread);
        of_folder(&folder.path().join("nowhere"), &mut signatures, &mut unread);
        assert!(!signatures.is_empty());
        assert_eq!(unread.len(), 2, "{unread:?}");
        assert!(unread[0].ends_with("large: over 256 MB") && unread[1].contains("nowhere"), "{unread:?}");
    }
}
