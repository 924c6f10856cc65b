// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds debug information in a separate file: by the build id, by the link in the program, or by debuginfod.
//!
//! Input: a program, library, kernel or module, and folders. Output: the file with its debug information. [`open`] tries
//! all three, in the order of GDB (its manual, "Separate Debug Files"). Lines, scopes and sources are looked up by the
//! build id only ([`by_build_id`]).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kprism_image::BuildId;

use crate::{Error, Image};

/// Folder in which distributions install debug files.
pub const GLOBAL: &str = "/usr/lib/debug";

/// The file with debug information for this build id under one of the folders, if there is one.
pub fn by_build_id<P: AsRef<Path>>(id: &BuildId, folders: &[P]) -> Option<PathBuf> {
    let name = id.debug_path();
    folders.iter().map(|folder| folder.as_ref().join(&name)).find(|place| place.is_file())
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
/// A file cannot be read, or belongs to another program.
pub fn open(path: &Path, debug: Option<&Path>) -> Result<(Image, Vec<String>), Error> {
    let own = Image::map(path)?;
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
    let global = Path::new(GLOBAL).join(folder.strip_prefix("/").unwrap_or(folder));
    for place in [folder.to_owned(), folder.join(".debug"), global] {
        let file = place.join(&name);
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
