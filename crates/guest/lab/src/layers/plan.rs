// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files are visible when layers lie one over the other.
//!
//! Input: the entries of all layers, in order, lowest layer first. Output: the names of each entry in the result: none if a higher
//! layer hides it, several if it has hard links. It is the tree that a container's runtime would unpack: a name whose folder is a
//! symbolic link lies where that leads, and links never lead out of the root.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Component, Path};

/// Name that removes the file with the rest of the name, and the one that hides all that lower layers have in its folder
/// (OCI image specification, "Whiteouts").
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// Most symbolic links in one name, and longest name, as in Linux (`MAXSYMLINKS`, `PATH_MAX`).
const MOST_LINKS: u32 = 40;
const LONGEST: usize = 4096;

/// Number of a layer, and of an entry in it.
pub(super) type Place = (usize, usize);

/// Kind of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'e> {
    /// A file, or a device.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, with its target.
    Symlink(&'e [u8]),
    /// One more name of the file with this name.
    Hardlink(&'e [u8]),
}

/// A name in the tree.
#[derive(Debug, Clone)]
struct Node {
    /// Entry with its owner, mode and contents.
    source: Place,
    /// Layer that it came with: of a hard link, not that of its source.
    layer: usize,
    is_folder: bool,
    /// Target of a symbolic link.
    target: Option<String>,
}

/// The tree of all layers so far.
#[derive(Debug, Default)]
pub(super) struct Plan {
    nodes: BTreeMap<String, Node>,
    /// Names by entry; made at the first question.
    names: std::cell::OnceCell<HashMap<Place, Vec<String>>>,
}

impl Plan {
    /// Adds an entry.
    ///
    /// # Errors
    /// Its name or its link's leads nowhere; in words.
    pub fn add(&mut self, place: Place, name: &[u8], kind: Kind<'_>) -> Result<(), String> {
        let given = plain(name)?;
        let Some((folder, file)) = split(&given) else { return Ok(()) };
        let folder = self.resolve(folder)?;
        self.replace_files(&folder);
        let layer = place.0;
        if file == OPAQUE {
            self.remove_below(&folder, layer);
            return Ok(());
        }
        if let Some(removed) = file.strip_prefix(WHITEOUT) {
            let name = join(&folder, removed);
            if self.nodes.get(&name).is_some_and(|node| node.layer < layer) {
                self.nodes.remove(&name);
            }
            self.remove_below(&name, layer);
            return Ok(());
        }
        let name = join(&folder, file);
        let mut node = Node { source: place, layer, is_folder: false, target: None };
        match kind {
            Kind::File => {}
            Kind::Folder => node.is_folder = true,
            Kind::Symlink(target) => {
                node.target = Some(utf8(target)?.to_owned());
            }
            Kind::Hardlink(target) => {
                let named = plain(target)?;
                let missing = || format!("{given}: a link to {named}, which is not before it");
                let (folder, file) = split(&named).ok_or_else(missing)?;
                let found = self.nodes.get(&join(&self.resolve(folder)?, file));
                let found = found.filter(|found| !found.is_folder).ok_or_else(missing)?;
                node = Node { layer, ..found.clone() };
            }
        }
        if !(node.is_folder && self.nodes.get(&name).is_some_and(|old| old.is_folder)) {
            self.remove_below(&name, usize::MAX);
        }
        self.nodes.insert(name, node);
        Ok(())
    }

    /// Names of an entry in the result.
    pub fn names_of(&self, place: Place) -> &[String] {
        let names = self.names.get_or_init(|| {
            let mut names: HashMap<Place, Vec<String>> = HashMap::new();
            for (name, node) in &self.nodes {
                names.entry(node.source).or_default().push(name.clone());
            }
            names
        });
        names.get(&place).map_or(&[], Vec::as_slice)
    }

    /// True if there is nothing but folders.
    pub fn is_empty(&self) -> bool {
        self.nodes.values().all(|node| node.is_folder)
    }

    /// True if the files are those of a container image, which are no root file system.
    pub fn is_container_image(&self) -> bool {
        let has = |name: &str| self.nodes.contains_key(name);
        let is_layer = |name: &String| name.starts_with("blobs/") || name.ends_with("/layer.tar");
        let has_layers = || self.nodes.keys().any(is_layer);
        (has("index.json") && has("oci-layout") || has("manifest.json")) && has_layers()
    }

    /// The name of a folder without symbolic links.
    fn resolve(&self, folder: &str) -> Result<String, String> {
        let mut rest: VecDeque<String> = folder.split('/').map(str::to_owned).collect();
        let (mut at, mut links) = (String::new(), 0);
        while let Some(part) = rest.pop_front() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at.truncate(at.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let next = join(&at, &part);
            if next.len() > LONGEST {
                return Err(format!("{folder}: a name of more than {LONGEST} bytes"));
            }
            let Some(target) = self.nodes.get(&next).and_then(|node| node.target.as_deref()) else {
                at = next;
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                return Err(format!("{folder}: symbolic links without end"));
            }
            if target.starts_with('/') {
                at.clear();
            }
            for part in target.split('/').rev() {
                rest.push_front(part.to_owned());
            }
        }
        Ok(at)
    }

    /// A folder of a higher layer replaces a file, also if only a file in it is named.
    fn replace_files(&mut self, folder: &str) {
        for parent in parents(folder).chain(Some(folder)) {
            if self.nodes.get(parent).is_some_and(|node| !node.is_folder) {
                self.nodes.remove(parent);
            }
        }
    }

    /// Removes all that layers under `layer` have below a name.
    fn remove_below(&mut self, name: &str, layer: usize) {
        let start = if name.is_empty() { String::new() } else { format!("{name}/") };
        let below = self.nodes.range(start.clone()..).take_while(|(name, _)| name.starts_with(&start));
        let gone: Vec<String> =
            below.filter(|(_, node)| node.layer < layer).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.nodes.remove(&name);
        }
    }
}

/// The folders above a name, from the highest on.
pub(super) fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(at, _)| &name[..at])
}

fn join(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") }
}

/// Folder and file; nothing of the root.
fn split(name: &str) -> Option<(&str, &str)> {
    match name.rsplit_once('/') {
        _ if name.is_empty() => None,
        None => Some(("", name)),
        parts => parts,
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "a name that is not UTF-8".to_owned())
}

/// An entry's path without a leading `./` or `/`; empty for the root.
pub(super) fn plain(bytes: &[u8]) -> Result<String, String> {
    let text = utf8(bytes)?;
    if text.len() > LONGEST {
        return Err(format!("a name of {} bytes: {LONGEST} are the most", text.len()));
    }
    let mut parts = Vec::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str().unwrap_or_default()),
            Component::RootDir | Component::CurDir => {}
            _ => return Err(format!("{text}: a name that leads out of the archive")),
        }
    }
    Ok(parts.join("/"))
}
