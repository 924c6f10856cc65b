// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the mapped files in the places where perf searches, and rejects files that are not the recorded ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::elf::build_id;
use crate::write::below;

/// A file's path and contents.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub place: PathBuf,
    pub bytes: std::rc::Rc<[u8]>,
}

/// The places to search.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    /// Folder that replaces the root of the traced machine; without it, this machine's root.
    pub symfs: Option<PathBuf>,
    /// perf's cache of files by build id, usually `~/.debug`.
    pub cache: Option<PathBuf>,
    /// Build ids in the recording, by path.
    pub build_ids: BTreeMap<String, Vec<u8>>,
    pub known: BTreeMap<(String, Vec<u8>), Option<Found>>,
    pub notes: Vec<String>,
}

impl Finder {
    /// The file mapped under this path. `id` is the build id in the mapping itself, if any.
    pub fn find(&mut self, path: &str, id: &[u8]) -> Option<Found> {
        let id = match id {
            [] => self.build_ids.get(path).cloned().unwrap_or_default(),
            id => id.to_vec(),
        };
        let key = (path.to_owned(), id);
        if !self.known.contains_key(&key) {
            let found = self.look(path, &key.1);
            self.known.insert(key.clone(), found);
        }
        self.known.get(&key).cloned().flatten()
    }

    fn look(&mut self, path: &str, id: &[u8]) -> Option<Found> {
        if !path.starts_with('/') || path.starts_with("//") {
            // Memory without a file. The vdso belongs to the kernel, and perf caches it by build id.
            return self.cached(path, id);
        }
        let plain = path.strip_suffix(" (deleted)").unwrap_or(path);
        let root = self.symfs.clone().unwrap_or_else(|| PathBuf::from("/"));
        let own = below(&root, plain).and_then(|place| load(&place));
        match own {
            Some(found) if id.is_empty() || build_id(&found.bytes) == id => return Some(found),
            Some(found) => {
                if let Some(cached) = self.cached(path, id) {
                    return Some(cached);
                }
                let (is, was) = (hex(&build_id(&found.bytes)), hex(id));
                let is = if is.is_empty() { "none".to_owned() } else { is };
                let place = found.place.display();
                self.notes.push(format!(
                    "{place}: its build id is {is}, recorded was {was}: not used (name the folder with the recorded \
                     files by --symfs)"
                ));
            }
            None => {
                if let Some(cached) = self.cached(path, id) {
                    return Some(cached);
                }
                self.notes
                    .push(format!("{path}: not found (name the folder with the recorded files by --symfs)"));
            }
        }
        None
    }

    /// Looks in perf's cache: `PATH/ID/elf`, or `PATH/ID/vdso`.
    fn cached(&self, path: &str, id: &[u8]) -> Option<Found> {
        let cache = self.cache.as_ref().filter(|_| !id.is_empty())?;
        let folder = if path.starts_with('/') { below(cache, path)? } else { cache.join(path) };
        let found = ["elf", "vdso"].iter().find_map(|name| load(&folder.join(hex(id)).join(name)))?;
        (build_id(&found.bytes) == id).then_some(found)
    }
}

fn load(place: &Path) -> Option<Found> {
    let regular = std::fs::metadata(place).is_ok_and(|m| m.is_file());
    let bytes = regular.then(|| std::fs::read(place).ok())??;
    Some(Found { place: place.to_owned(), bytes: bytes.into() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
