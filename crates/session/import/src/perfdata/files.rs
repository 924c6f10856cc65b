// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the mapped files in the places where perf searches, and rejects files that are not the recorded ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kprism_image::{BuildId, Bytes};

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
    pub known: BTreeMap<(String, Option<BuildId>), Option<Found>>,
    pub notes: Vec<String>,
}

impl Finder {
    /// The file mapped under this path. `id` is the build id in the mapping itself, empty if there is none.
    pub fn find(&mut self, path: &str, id: &[u8]) -> Option<Found> {
        let id = BuildId::new(id).or_else(|| self.build_ids.get(path).cloned());
        let key = (path.to_owned(), id);
        if !self.known.contains_key(&key) {
            let found = self.look(path, key.1.as_ref());
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
        if own.is_some() && (id.is_none() || id == is.as_ref()) {
            return own;
        }
        if let Some(cached) = id.and_then(|id| self.cached(path, id)) {
            return Some(cached);
        }
        self.notes.push(match own.zip(id) {
            Some((found, was)) => {
                let is = is.map_or_else(|| "none".to_owned(), |id| id.to_string());
                let place = found.place.display();
                format!(
                    "{place}: its build id is {is}, recorded was {was}: not used (name the folder with the recorded \
                     files by --symfs)"
                )
            }
            None => format!("{path}: not found (name the folder with the recorded files by --symfs)"),
        });
        None
    }

    /// Looks in perf's cache: `PATH/ID/elf`, or `PATH/ID/vdso`.
    fn cached(&self, path: &str, id: &BuildId) -> Option<Found> {
        let cache = self.cache.as_ref()?;
        let folder = if path.starts_with('/') { below(cache, path)? } else { cache.join(path) };
        let found = ["elf", "vdso"].iter().find_map(|name| load(&folder.join(id.to_string()).join(name)))?;
        (BuildId::of_elf(&found.bytes).as_ref() == Some(id)).then_some(found)
    }
}

fn load(place: &Path) -> Option<Found> {
    let regular = std::fs::metadata(place).is_ok_and(|m| m.is_file());
    let bytes = regular.then(|| Bytes::open(place).ok())??;
    Some(Found { place: place.to_owned(), bytes })
}
