// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remembers that a QEMU fits, so that not every command starts it for its version and reads its 24,000 dynamic symbols: together
//! that took longer than the command `true` in a guest.
//!
//! Input: a program. Output: its version line, as of `qemu_find::fits`. The answer is kept in the cache with the identity of
//! both files that it depends on, QEMU and the observer: a change of either asks again. That it does not fit is never kept.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cache::{self, Cache, Key};
use crate::qemu_find;

/// Kind of the cache's files with what is known of a QEMU.
const KIND: &str = "qemu";

/// The version line of a QEMU that fits, or the reason why it does not.
pub(crate) fn fits(program: &Path) -> Result<String, String> {
    // Looking for a QEMU alone creates no cache.
    match cache::base().filter(|base| base.is_dir()).and_then(|base| Cache::at(base).ok()) {
        Some(cache) => known(program, &cache, qemu_find::fits),
        None => qemu_find::fits(program),
    }
}

/// The answer that the cache has for the program, or else that of `find`.
fn known(
    program: &Path,
    cache: &Cache,
    find: impl FnOnce(&Path) -> Result<String, String>,
) -> Result<String, String> {
    let Some(identity) = identity(program) else { return find(program) };
    let name = Key::default().add(program.as_os_str().as_bytes()).finish();
    let file = cache.folder().join(KIND).join(format!("{name}.current"));
    let kept = fs::read_to_string(file).unwrap_or_default();
    if let Some((of, version)) = kept.split_once('\n')
        && of == identity
    {
        return Ok(version.to_owned());
    }
    let version = find(program)?;
    // A cache that cannot be written to costs time only.
    cache.remembered(KIND, &name, true, || Ok(format!("{identity}\n{version}"))).ok();
    Ok(version)
}

/// The program's and the observer's file, place, size and times. `None` if the program is a script, which may start another QEMU
/// tomorrow.
fn identity(program: &Path) -> Option<String> {
    let mut magic = [0; 4];
    File::open(program).ok()?.read_exact(&mut magic).ok()?;
    let of = |file: &Path| {
        let found = fs::metadata(file).ok()?;
        let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        Some(format!("{} {} {} {times:?}", found.dev(), found.ino(), found.size()))
    };
    let observer = crate::files::find_observer().ok().map(|observer| of(&observer));
    (magic == *b"\x7fELF").then(|| Some(format!("{} {observer:?}", of(program)?)))?
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_program_is_asked_again_when_it_changed_and_a_script_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let program = folder.path().join("qemu");
        let asked = Cell::new(0);
        let find = |answer: &'static str| {
            known(&program, &cache, |_| {
                asked.set(asked.get() + 1);
                if answer.is_empty() { Err("too old".to_owned()) } else { Ok(answer.to_owned()) }
            })
        };
        fs::write(&program, b"\x7fELF one").unwrap();
        assert_eq!(find(""), Err("too old".to_owned()), "a refusal is not kept");
        assert_eq!((find("1"), find("2"), asked.get()), (Ok("1".into()), Ok("1".into()), 2));
        fs::write(&program, b"\x7fELF another").unwrap();
        assert_eq!((find("3"), find("4"), asked.get()), (Ok("3".into()), Ok("3".into()), 3));
        fs::write(&program, b"#!/bin/sh another").unwrap();
        assert_eq!((find("5"), find("6"), asked.get()), (Ok("5".into()), Ok("6".into()), 5));
    }
}
