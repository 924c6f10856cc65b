// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the mapped files in the places where perf searches, and rejects files that are not the recorded ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kprism_image::{BuildId, Bytes};
use kprism_profile::units::counted;

use super::export::MADE;
use crate::write::below;

/// A file's path and contents.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub place: PathBuf,
    pub bytes: Bytes,
}

/// The places to search.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    /// Folder that replaces the root of the traced machine; without it, this machine's root.
    pub symfs: Option<PathBuf>,
    /// perf's cache of files by build id, usually `~/.debug`.
    pub cache: Option<PathBuf>,
    /// Build ids in the recording, by path.
    pub build_ids: BTreeMap<String, BuildId>,
    /// The recording's own folder: a file in it is the recorder's copy, and needs no proof.
    pub recording: Option<PathBuf>,
    pub known: BTreeMap<(String, Option<BuildId>), Option<Found>>,
    /// Paths of the files that are used without a build id in the recording to hold them against.
    pub unproven: Vec<String>,
    /// Number of the files that are used because their build id is the recorded one.
    pub proved: u64,
    /// Number of the files that are used because they are the recorder's own copies.
    pub copied: u64,
    pub notes: Vec<String>,
}

impl Finder {
    /// The file mapped under this path. `id` is the build id in the mapping itself, empty if there is none.
    pub fn find(&mut self, path: &str, id: &[u8]) -> Option<Found> {
        let id = BuildId::new(id).or_else(|| self.build_ids.get(path).cloned());
        let key = (path.to_owned(), id);
        if !self.known.contains_key(&key) {
            let found = self.look(path, key.1.as_ref());
            // With a build id, no other file is taken.
            self.proved += u64::from(found.is_some() && key.1.is_some());
            self.known.insert(key.clone(), found);
        }
        self.known.get(&key).cloned().flatten()
    }

    fn look(&mut self, path: &str, id: Option<&BuildId>) -> Option<Found> {
        if !path.starts_with('/') || path.starts_with("//") {
            // Memory without a file. The vdso belongs to the kernel, and perf caches it by build id.
            return self.cached(path, id?);
        }
        let plain = path.strip_suffix(" (deleted)").unwrap_or(path);
        let root = self.symfs.clone().unwrap_or_else(|| PathBuf::from("/"));
        let own = below(&root, plain).and_then(|place| load(&place));
        let is = own.as_ref().and_then(|found| BuildId::of_elf(&found.bytes));
        match id {
            Some(id) if is.as_ref() == Some(id) => return own,
            None if own.is_some() && plain == path => {
                match self.is_copied(&root) || is_made(path) {
                    true => self.copied += 1,
                    false => self.unproven.push(path.to_owned()),
                }
                return own;
            }
            _ => {}
        }
        if let Some(cached) = id.and_then(|id| self.cached(path, id)) {
            return Some(cached);
        }
        let own_is_other = own.is_some();
        self.notes.push(match own.zip(id) {
            Some((found, was)) => {
                let is = is.map_or_else(|| "none".to_owned(), |id| id.to_string());
                let place = found.place.display();
                format!(
                    "{place}: its build id is {is}, recorded was {was}: not used (name the folder with the recorded \
                     files by --symfs)"
                )
            }
            None if own_is_other => format!(
                "{path}: the file was replaced or removed before perf saw it, and no build id tells which it was: the one at its path \
                 now is not used"
            ),
            None => format!("{path}: not found (name the folder with the recorded files by --symfs)"),
        });
        None
    }

    /// Returns true if the files under `root` lie in the recording's own folder.
    fn is_copied(&self, root: &Path) -> bool {
        let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        self.recording.as_ref().is_some_and(|recording| whole(root).starts_with(whole(recording)))
    }

    /// A note on the files that nothing proves to be the recorded ones, beside the others; `None` if there are none.
    pub fn unproven_note(&self) -> Option<String> {
        const MOST: usize = 3;
        let names = self.unproven.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if self.unproven.len() > MOST { ", …" } else { "" };
        let (unproven, proved, copied) = (self.unproven.len() as u64, self.proved, self.copied);
        let files = counted(unproven, "files");
        (unproven > 0).then(|| {
            format!(
                "used without a build id to hold against: {files} of {}: {names}{more} (proved by their build id: {proved}; the \
                 recorder's own copies: {copied})",
                unproven + proved + copied
            )
        })
    }

    /// Looks in perf's cache: `PATH/ID/elf`, or `PATH/ID/vdso`.
    fn cached(&self, path: &str, id: &BuildId) -> Option<Found> {
        let cache = self.cache.as_ref()?;
        let folder = if path.starts_with('/') { below(cache, path)? } else { cache.join(path) };
        let found = ["elf", "vdso"].iter().find_map(|name| load(&folder.join(id.to_string()).join(name)))?;
        (BuildId::of_elf(&found.bytes).as_ref() == Some(id)).then_some(found)
    }
}

/// Returns true for a file that the export made of code without a file, which has no build id.
pub(super) fn is_made(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|path| path.starts_with(MADE))
}

fn load(place: &Path) -> Option<Found> {
    let regular = std::fs::metadata(place).is_ok_and(|m| m.is_file());
    let bytes = regular.then(|| Bytes::open(place).ok())??;
    Some(Found { place: place.to_owned(), bytes })
}

/// A small ELF file with a build id and no code.
#[cfg(test)]
pub(super) fn with_build_id(id: &[u8; 20]) -> Vec<u8> {
    let mut out = vec![0; 64];
    out[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0");
    out[20] = 1;
    // Program headers behind the head: a note of 36 bytes.
    out[32] = 64;
    out[52..58].copy_from_slice(&[64, 0, 56, 0, 1, 0]);
    out[58] = 64;
    for word in [4 | 4 << 32, 120, 120, 120, 36, 36, 4u64] {
        out.extend(word.to_le_bytes());
    }
    for half in [4u32, 20, 3] {
        out.extend(half.to_le_bytes());
    }
    out.extend(b"GNU\0");
    out.extend(id);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a file of that build id in `lib/x.so`, as the root of the traced machine.
    fn folder(id: &[u8; 20]) -> (tempfile::TempDir, Finder) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::write(dir.path().join("lib/x.so"), with_build_id(id)).unwrap();
        let finder = Finder { symfs: Some(dir.path().to_owned()), ..Finder::default() };
        (dir, finder)
    }

    #[test]
    fn a_file_that_nothing_proves_is_used_and_said() {
        let (dir, mut finder) = folder(&[7; 20]);
        assert!(finder.find("/lib/x.so", &[]).is_some());
        assert_eq!(
            finder.unproven_note().as_deref(),
            Some(
                "used without a build id to hold against: 1 file of 1: /lib/x.so (proved by their build id: 0; the recorder's own \
                 copies: 0)"
            )
        );
        // A file that is proved, and one that is not here, make it no better.
        std::fs::write(dir.path().join("lib/y.so"), with_build_id(&[8; 20])).unwrap();
        assert!(finder.find("/lib/y.so", &[8; 20]).is_some() && finder.find("/lib/y.so", &[9; 20]).is_none());
        let note = finder.unproven_note().unwrap();
        assert!(note.contains(": 1 file of 2: ") && note.contains("by their build id: 1;"), "{note}");
        // The recorder's own copy is the file.
        let mut finder = Finder { recording: Some(dir.path().into()), ..folder(&[7; 20]).1 };
        finder.symfs = Some(dir.path().into());
        assert!(finder.find("/lib/x.so", &[]).is_some());
        assert_eq!((finder.proved, finder.copied), (0, 1));
        assert_eq!((finder.unproven_note(), finder.notes), (None, vec![]));
        // So is one whose build id is the recorded one.
        finder = Finder { symfs: Some(dir.path().into()), ..Finder::default() };
        assert!(finder.find("/lib/x.so", &[7; 20]).is_some());
        assert_eq!((finder.proved, finder.copied), (1, 0));
        assert_eq!((finder.unproven_note(), finder.notes), (None, vec![]));
    }

    #[test]
    fn a_deleted_file_is_not_the_one_at_its_path_now() {
        let (_dir, mut finder) = folder(&[7; 20]);
        assert!(finder.find("/lib/x.so (deleted)", &[]).is_none());
        assert!(finder.find("/lib/x.so (deleted)", &[8; 20]).is_none());
        assert_eq!(finder.notes.len(), 2);
        assert!(finder.notes[0].contains("no build id tells which it was"), "{:?}", finder.notes);
        assert!(finder.notes[1].contains(&"08".repeat(20)), "{:?}", finder.notes);
        assert!(finder.find("/lib/x.so (deleted)", &[7; 20]).is_some(), "it is the same file");
    }
}
