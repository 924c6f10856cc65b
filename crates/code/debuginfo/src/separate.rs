// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds debug information in a separate file: by the build id, by the link in the program, or by debuginfod.
//!
//! Input: a program, library, kernel or module, and folders. Output: the file with its debug information. [`open`] tries
//! all three, in the order of GDB (its manual, "Separate Debug Files"). Lines, scopes, sources and, in `kprism-image`, names
//! of functions are looked up by the build id only ([`by_build_id`]). A recorder looks by the link too, and keeps the file
//! where the build id finds it ([`keep`]).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kprism_image::BuildId;
pub use kprism_image::separate::{GLOBAL, by_build_id, folders};
use kprism_image::separate::{global_of, of_link};
use object::Object as _;

use crate::{Error, Image};

/// Size above which a debug file is not kept in a run, in bytes. That of the C library has 4 MiB.
const MAX_KEPT: u64 = 64 << 20;

/// Copies the separate debug file of a program or library into a run's folder `root` of the machine's files, below
/// `/usr/lib/debug/.build-id`, so that names and lines are known wherever the run is read. `file` is the program, which was at
/// `path` on its machine. The debug file is one of the same build id: it is looked for by that under `folders`, then by the
/// program's debug link. Nothing is done if there is none, or if `root` has it.
///
/// # Errors
/// It is larger than 64 MiB, or cannot be copied; with its path, and the reason.
pub fn keep(file: &Path, path: &Path, folders: &[PathBuf], root: &Path) -> Result<(), (PathBuf, String)> {
    let Some(id) = BuildId::of_file(file) else { return Ok(()) };
    let linked = || linked_by_id(file, path, folders, &id);
    let Some(found) = by_build_id(&id, folders).or_else(linked) else { return Ok(()) };
    let to = global_of(root).join(id.debug_path());
    if to.exists() {
        return Ok(());
    }
    let copied = || -> Result<(), String> {
        let size = std::fs::metadata(&found).map_err(|e| e.to_string())?.len();
        if size > MAX_KEPT {
            return Err(format!(
                "it has {} MiB, and debug files up to {} MiB are kept",
                size >> 20,
                MAX_KEPT >> 20
            ));
        }
        let folder = to.parent().unwrap_or(root);
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        std::fs::copy(&found, &to).map(drop).map_err(|e| {
            // A part of it would be taken for a damaged one.
            let _ = std::fs::remove_file(&to);
            format!("{}: {e}", to.display())
        })
    };
    copied().map_err(|reason| (found.clone(), reason))
}

/// The file of this build id that the debug link of `file` names.
fn linked_by_id(file: &Path, path: &Path, folders: &[PathBuf], id: &BuildId) -> Option<PathBuf> {
    let cache = object::ReadCache::new(std::fs::File::open(file).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let (name, _) = elf.gnu_debuglink().ok()??;
    let places = of_link(&String::from_utf8_lossy(name), file.parent()?, path.parent()?, folders);
    let is_its = |place: &PathBuf| place != file && BuildId::of_file(place).as_ref() == Some(id);
    places.into_iter().find(is_its)
}

/// Reads debug information, and the code that it describes.
type Read<'r, T> = &'r dyn Fn(&[u8], &[u8]) -> Result<Option<T>, String>;

/// Applies `read` to a file's code and its debug information, wherever the latter is.
pub(crate) fn of_file<T>(file: &Path, folders: &[PathBuf], read: Read<'_, T>) -> Result<Option<T>, String> {
    let code = std::fs::read(file).map_err(|e| e.to_string())?;
    if let Some(found) = read(&code, &code)? {
        return Ok(Some(found));
    }
    let elf = object::File::parse(&*code).map_err(|e| e.to_string())?;
    let place = BuildId::of_object(&elf).and_then(|id| by_build_id(&id, folders));
    let Some(place) = place else { return Ok(None) };
    let debug = std::fs::read(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    read(&debug, &code)
}

/// Opens a program or library with its debug information, wherever that is. Without any, only its symbols are known.
/// Returns notes for the user too.
///
/// # Errors
/// A file cannot be read, belongs to another program, or is for another machine.
pub fn open(path: &Path, debug: Option<&Path>) -> Result<(Image, Vec<String>), Error> {
    let own = Image::map(path)?;
    own.check_machine()?;
    if own.is_debug_only() {
        return Err(Error::DebugOnly(path.display().to_string()));
    }
    let mut notes = Vec::new();
    let found = match debug {
        Some(debug) => Some(debug.to_owned()),
        None if own.is_described() => None,
        None => found(path, &own, &mut notes),
    };
    if let Some(found) = &found {
        notes.push(format!("debug information of {} is in {}", path.display(), found.display()));
    }
    let image = Image::open_with(path, found.as_deref())?;
    if image.has_shared_debug() {
        notes.push(format!(
            "some debug information of {} is in a file that several share (dwz), which is not read: names and types in it are unknown",
            path.display()
        ));
    }
    if !image.is_described() {
        notes.push(format!(
            "{} has no debug information: only symbols, registers and memory are known (install its debug symbols, name them with --debug-file, or set DEBUGINFOD_URLS)",
            path.display()
        ));
    }
    Ok((image, notes))
}

fn found(path: &Path, image: &Image, notes: &mut Vec<String>) -> Option<PathBuf> {
    let id = image.build_id();
    let installed = id.as_ref().and_then(|id| by_build_id(id, &[GLOBAL]));
    installed.or_else(|| linked(path, image, notes)).or_else(|| fetched(&id?, notes))
}

/// The file that the program names: beside it, in `.debug` there, or below the global folder.
fn linked(path: &Path, image: &Image, notes: &mut Vec<String>) -> Option<PathBuf> {
    let (name, sum) = image.debug_link()?;
    let real = path.canonicalize().ok()?;
    let folder = real.parent()?;
    for file in of_link(&name, folder, folder, &[GLOBAL]) {
        if !file.is_file() || file.canonicalize().ok().as_ref() == Some(&real) {
            continue;
        }
        // If both have a build id, it is compared when the file is opened.
        let same = match (image.build_id(), Image::map(&file).ok().and_then(|image| image.build_id())) {
            (Some(own), Some(its)) => own == its,
            _ => std::fs::read(&file).is_ok_and(|data| crc32fast::hash(&data) == sum),
        };
        if same {
            return Some(file);
        }
        notes.push(format!("{}: not the debug information of this {}", file.display(), path.display()));
    }
    None
}

/// Downloads from the user's servers with elfutils' own client, which caches the files.
fn fetched(id: &BuildId, notes: &mut Vec<String>) -> Option<PathBuf> {
    let urls = std::env::var("DEBUGINFOD_URLS").ok()?;
    if urls.trim().is_empty() {
        return None;
    }
    let output = Command::new("debuginfod-find")
        .args(["debuginfo", &id.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Some(PathBuf::from(path)).filter(|path| path.is_file())
        }
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().last().unwrap_or("not found").to_owned();
            notes.push(format!("debuginfod has no debug information for {id}: {why}"));
            None
        }
        Err(_) => {
            notes.push(
                "DEBUGINFOD_URLS is set, but there is no debuginfod-find (package debuginfod)".to_owned(),
            );
            None
        }
    }
}
