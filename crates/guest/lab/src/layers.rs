// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root file system as a tar archive or a container image → an initramfs.
//!
//! A container image (OCI, or as `docker save` writes it) is a tar archive of tar archives, its layers. A layer replaces
//! and removes files of those below it. Owners, modes, links and devices are kept.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path};

use serde::Deserialize;
use tar::EntryType;

use crate::archive::{Archive, Node};
use crate::error::{Context, Error, Result};
use crate::packed::{MAGIC, is_packed, unpacked};

/// Maximum size of a file that describes an image, bytes.
const MOST_DESCRIPTION: u64 = 4 << 20;

/// Name that removes the file with the rest of the name, and the one that hides all that lower layers have in its folder
/// (OCI image specification, "Whiteouts").
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// A part of a file that is a tar archive, maybe compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layer {
    at: u64,
    bytes: u64,
}

/// True if a file may be a tar archive, by its first bytes.
pub(crate) fn is_archive(path: &Path) -> Result<bool> {
    let mut start = [0; 512];
    let mut file = File::open(path).at("open", path)?;
    let mut filled = 0;
    while filled < start.len() {
        match file.read(&mut start[filled..]).at("read", path)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(start[257..262] == *b"ustar" || is_packed(&start))
}

/// Writes the initramfs of the archive or container image at `path`.
///
/// # Errors
/// It is damaged, or an image for another processor.
pub(crate) fn write(path: &Path, output: &mut impl Write) -> Result<()> {
    let layers = layers(path)?;
    let hidden = hidden(path, &layers)?;
    let mut archive = Archive::new(output);
    let mut written = Written::default();
    for (layer, hidden) in layers.iter().zip(&hidden) {
        write_layer(path, *layer, hidden, &mut written, &mut archive)?;
    }
    if written.files.is_empty() {
        return Err(bad(path, "no file in it"));
    }
    archive.finish().map(drop).at("write", path)
}

/// Names in the initramfs so far.
#[derive(Default)]
struct Written {
    folders: HashSet<String>,
    files: HashSet<String>,
    /// Number of files that have several names.
    shared: u32,
}

fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::BadFile { path: path.to_owned(), reason: reason.into() }
}

/// The layers, lowest first; one for a plain archive.
fn layers(path: &Path) -> Result<Vec<Layer>> {
    let mut file = File::open(path).at("open", path)?;
    let whole = Layer { at: 0, bytes: file.metadata().at("read", path)?.len() };
    let mut start = [0; MAGIC];
    file.read_exact(&mut start).at("read", path)?;
    if is_packed(&start) {
        return Ok(vec![whole]);
    }
    file.rewind().at("read", path)?;
    // Where the files of an image are, if it is one: its layers are read in place.
    let mut archive = tar::Archive::new(BufReader::new(&file));
    let mut parts = HashMap::new();
    for entry in archive.entries().at("read", path)? {
        let entry = entry.map_err(|error| bad(path, format!("not a good tar archive: {error}")))?;
        let name = name(&entry).map_err(|reason| bad(path, reason))?;
        let layer = Layer { at: entry.raw_file_position(), bytes: entry.size() };
        if !entry.header().entry_type().is_dir() {
            parts.insert(name, layer);
        }
    }
    let part = |name: &str| parts.get(name).copied();
    let names = match (part("oci-layout"), part("index.json"), part("manifest.json")) {
        (Some(_), Some(index), _) => of_oci(path, index, &part)?,
        (None, None, Some(manifest)) => of_docker(path, manifest)?,
        _ => return Ok(vec![whole]),
    };
    names
        .iter()
        .map(|name| {
            part(name).ok_or_else(|| bad(path, format!("a container image without its layer {name}")))
        })
        .collect()
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct ImageManifest {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Descriptor {
    /// Its file in the image.
    fn blob(&self) -> String {
        format!("blobs/{}", self.digest.replacen(':', "/", 1))
    }

    fn fits(&self) -> bool {
        self.platform
            .as_ref()
            .is_none_or(|platform| platform.architecture == "amd64" && platform.os == "linux")
    }
}

/// Names of the layers of an OCI image (OCI image specification, "Image Layout"). An index may name further indexes, one
/// image for each processor.
fn of_oci(path: &Path, index: Layer, part: &impl Fn(&str) -> Option<Layer>) -> Result<Vec<String>> {
    let mut at = index;
    for _ in 0..4 {
        let index: Index = description(path, at)?;
        let image = index.manifests.iter().find(|image| image.fits());
        let image = image.ok_or_else(|| bad(path, "a container image, but none for x86-64 Linux in it"))?;
        at = part(&image.blob()).ok_or_else(|| bad(path, format!("no {} in it", image.blob())))?;
        if !image.media_type.contains("index") && !image.media_type.contains("manifest.list") {
            let manifest: ImageManifest = description(path, at)?;
            return Ok(manifest.layers.iter().map(Descriptor::blob).collect());
        }
    }
    Err(bad(path, "indexes that name indexes without end"))
}

#[derive(Deserialize)]
struct DockerImage {
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

/// Names of the layers of an image as `docker save` wrote it before it wrote OCI images.
fn of_docker(path: &Path, manifest: Layer) -> Result<Vec<String>> {
    let images: Vec<DockerImage> = description(path, manifest)?;
    match <[DockerImage; 1]>::try_from(images) {
        Ok([image]) => Ok(image.layers),
        Err(images) => Err(bad(path, format!("{} container images in it: one is expected", images.len()))),
    }
}

fn description<T: for<'de> Deserialize<'de>>(path: &Path, at: Layer) -> Result<T> {
    let mut text = Vec::new();
    part_of(path, at)?.take(MOST_DESCRIPTION).read_to_end(&mut text).at("read", path)?;
    serde_json::from_slice(&text).map_err(|error| bad(path, format!("the image's description: {error}")))
}

fn part_of(path: &Path, layer: Layer) -> Result<io::Take<File>> {
    let mut file = File::open(path).at("open", path)?;
    file.seek(SeekFrom::Start(layer.at)).at("read", path)?;
    Ok(file.take(layer.bytes))
}

/// The layer, unpacked.
fn open(path: &Path, layer: Layer) -> Result<tar::Archive<Box<dyn Read>>> {
    let mut start = [0; MAGIC];
    let count = part_of(path, layer)?.read(&mut start).at("read", path)?;
    let part = BufReader::with_capacity(1 << 20, part_of(path, layer)?);
    unpacked(&start[..count], part).map(tar::Archive::new).map_err(|reason| bad(path, reason))
}

/// An entry's path without a leading `./` or `/`; empty for the root.
fn name<R: Read>(entry: &tar::Entry<'_, R>) -> std::result::Result<String, String> {
    plain(&entry.path_bytes())
}

fn plain(bytes: &[u8]) -> std::result::Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "a name that is not UTF-8".to_owned())?;
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

/// Calls `each` with the number, name and content of every entry.
fn visit(
    path: &Path,
    layer: Layer,
    mut each: impl FnMut(usize, &str, &mut tar::Entry<'_, Box<dyn Read>>) -> Result<()>,
) -> Result<()> {
    let mut archive = open(path, layer)?;
    for (i, entry) in archive.entries().at("read", path)?.enumerate() {
        let mut entry = entry.map_err(|error| bad(path, format!("not a good tar archive: {error}")))?;
        let name = name(&entry).map_err(|reason| bad(path, reason))?;
        each(i, &name, &mut entry)?;
    }
    Ok(())
}

/// The entries of each layer that are not in the result: replaced or removed by a higher layer, or marks of removal.
fn hidden(path: &Path, layers: &[Layer]) -> Result<Vec<HashSet<usize>>> {
    let mut hidden = vec![HashSet::new(); layers.len()];
    // Names that layers above have, with whether they are folders; and names below which lower layers have nothing.
    let mut above: HashMap<String, bool> = HashMap::new();
    let mut closed: HashSet<String> = HashSet::new();
    for (layer, hidden) in layers.iter().zip(&mut hidden).rev() {
        let (mut names, mut closes) = (Vec::new(), Vec::new());
        visit(path, *layer, |i, name, entry| {
            let is_folder = entry.header().entry_type().is_dir();
            let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
            if file == OPAQUE {
                hidden.insert(i);
                closes.push(folder.to_owned());
            } else if let Some(removed) = file.strip_prefix(WHITEOUT) {
                hidden.insert(i);
                let removed =
                    if folder.is_empty() { removed.to_owned() } else { format!("{folder}/{removed}") };
                names.push((removed.clone(), false));
                closes.push(removed);
            } else {
                // A folder of both stays: the files in it need it, and the higher one comes later.
                let replaced = above.get(name).is_some_and(|also_folder| !(is_folder && *also_folder));
                if replaced || parents(name).any(|parent| closed.contains(parent)) {
                    hidden.insert(i);
                }
                names.push((name.to_owned(), is_folder));
            }
            Ok(())
        })?;
        for (name, is_folder) in names {
            if !is_folder {
                closes.push(name.clone());
            }
            above.entry(name).or_insert(is_folder);
        }
        closed.extend(closes);
    }
    Ok(hidden)
}

/// The folders above a name, from the highest on, and the root last.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(at, _)| &name[..at]).chain([""])
}

/// Writes what is visible of a layer.
fn write_layer<W: Write>(
    path: &Path,
    layer: Layer,
    hidden: &HashSet<usize>,
    written: &mut Written,
    archive: &mut Archive<W>,
) -> Result<()> {
    // Numbers of files that have several names.
    let mut shared: HashMap<String, u32> = HashMap::new();
    visit(path, layer, |i, _, entry| {
        if entry.header().entry_type() == EntryType::Link && !hidden.contains(&i) {
            let target = plain(&entry.link_name_bytes().unwrap_or_default()).map_err(|why| bad(path, why))?;
            shared.entry(target).or_insert_with(|| {
                written.shared += 1;
                written.shared
            });
        }
        Ok(())
    })?;
    // A link's target must be in its own layer, and before it.
    let mut before = HashSet::new();
    visit(path, layer, |i, name, entry| {
        if hidden.contains(&i) || name.is_empty() {
            return Ok(());
        }
        let header = entry.header();
        let number = |found: io::Result<u64>| found.map(|number| number as u32).at("read", path);
        let mut node = Node {
            mode: header.mode().at("read", path)? & 0o7777,
            uid: number(header.uid())?,
            gid: number(header.gid())?,
            ..Node::default()
        };
        let device = |header: &tar::Header| -> Result<(u32, u32)> {
            let major = header.device_major().at("read", path)?.unwrap_or_default();
            Ok((major, header.device_minor().at("read", path)?.unwrap_or_default()))
        };
        let mut contents = Vec::new();
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                if entry.size() > u64::from(u32::MAX) {
                    return Err(bad(
                        path,
                        format!("{name} is larger than 4 GiB, which no initramfs can hold"),
                    ));
                }
                entry.read_to_end(&mut contents).at("read", path)?;
                node.shared = shared.get(name).copied();
                before.insert(name.to_owned());
                libc::S_IFREG
            }
            EntryType::Link => {
                let target =
                    plain(&entry.link_name_bytes().unwrap_or_default()).map_err(|why| bad(path, why))?;
                if !before.contains(&target) {
                    return Err(bad(path, format!("{name}: a link to {target}, which is not before it")));
                }
                node.shared = shared.get(&target).copied();
                libc::S_IFREG
            }
            EntryType::Directory => libc::S_IFDIR,
            EntryType::Symlink => {
                contents = entry.link_name_bytes().unwrap_or_default().into_owned();
                node.mode = 0o777;
                libc::S_IFLNK
            }
            EntryType::Char => {
                node.device = device(header)?;
                libc::S_IFCHR
            }
            EntryType::Block => {
                node.device = device(header)?;
                libc::S_IFBLK
            }
            EntryType::Fifo => libc::S_IFIFO,
            // Headers that are no files: of pax, of volumes.
            _ => return Ok(()),
        };
        node.mode |= kind;
        // The kernel makes no folder that the archive does not name.
        for folder in parents(name).filter(|parent| !parent.is_empty()) {
            if written.folders.insert(folder.to_owned()) {
                archive.folder(folder, 0o755).at("write", path)?;
            }
        }
        match kind {
            libc::S_IFDIR => written.folders.insert(name.to_owned()),
            _ => written.files.insert(name.to_owned()),
        };
        archive.node(name, node, &contents).at("write", path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar archive of files; `dir/` is a folder, `name -> target` a symbolic and `name = target` a hard link.
    fn tar_of(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, contents) in entries {
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o4755);
            header.set_uid(7);
            header.set_gid(8);
            header.set_size(0);
            if let Some((name, target)) = name.split_once(" = ") {
                header.set_entry_type(EntryType::Link);
                builder.append_link(&mut header, name, target).unwrap();
            } else if let Some((name, target)) = name.split_once(" -> ") {
                header.set_entry_type(EntryType::Symlink);
                builder.append_link(&mut header, name, target).unwrap();
            } else {
                let is_folder = name.ends_with('/');
                header.set_entry_type(if is_folder { EntryType::Directory } else { EntryType::Regular });
                header.set_size(contents.len() as u64);
                builder.append_data(&mut header, name, contents.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    fn written(bytes: &[u8]) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut output = Vec::new();
        write(file.path(), &mut output).map(|()| output)
    }

    /// Name, contents, mode, owner, inode of each file of an initramfs.
    fn listed(archive: &[u8]) -> Vec<(String, String, u32, u32, u32)> {
        let mut input = io::Cursor::new(archive.to_vec());
        let mut all = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(input).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                return all;
            }
            let mut contents = String::new();
            reader.read_to_string(&mut contents).unwrap();
            all.push((entry.name().to_owned(), contents, entry.mode(), entry.uid(), entry.ino()));
            input = reader.finish().unwrap();
        }
    }

    /// The files as they are after the kernel unpacked them: later ones replace earlier ones.
    fn unpacked(bytes: &[u8]) -> Vec<(String, String)> {
        let all = listed(&written(bytes).unwrap());
        let all: std::collections::BTreeMap<_, _> = all.into_iter().map(|file| (file.0, file.1)).collect();
        all.into_iter().collect()
    }

    #[test]
    fn an_archive_keeps_owners_modes_and_links() {
        let plain = tar_of(&[
            ("./", ""),
            ("./etc/", ""),
            ("./etc/a", "one"),
            ("l -> etc/a", ""),
            ("b = ./etc/a", ""),
        ]);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&plain).unwrap();
        for bytes in [plain, packed.finish().unwrap()] {
            let files = listed(&written(&bytes).unwrap());
            let names: Vec<_> =
                files.iter().map(|(name, contents, ..)| (name.as_str(), contents.as_str())).collect();
            assert_eq!(names, [("etc", ""), ("etc/a", "one"), ("l", "etc/a"), ("b", "")]);
            let modes: Vec<u32> = files.iter().map(|file| file.2).collect();
            assert_eq!(modes, [0o044_755, 0o104_755, 0o120_777, 0o104_755]);
            assert_eq!((files[1].3, files[1].4), (7, files[3].4), "two names of one file");
            assert_ne!(files[0].4, files[1].4);
        }
    }

    #[test]
    fn folders_that_are_not_named_are_made_first() {
        let files = listed(&written(&tar_of(&[("a/b/c", "x")])).unwrap());
        assert_eq!(files.iter().map(|file| file.0.as_str()).collect::<Vec<_>>(), ["a", "a/b", "a/b/c"]);
    }

    /// An OCI image, with an index for two processors, and the same as Docker once wrote it.
    #[test]
    fn layers_replace_and_remove() {
        let lower = tar_of(&[
            ("a/", ""),
            ("a/gone", "1"),
            ("a/old", "1"),
            ("o/", ""),
            ("o/hidden", "1"),
            ("d/", ""),
            ("d/below", "1"),
            ("f", "1"),
            ("stays", "1"),
        ]);
        let upper = tar_of(&[
            ("a/.wh.gone", ""),
            ("a/old", "2"),
            ("o/", ""),
            ("o/.wh..wh..opq", ""),
            ("o/new", "2"),
            ("d", "a file now"),
            ("f/", ""),
            ("f/in", "2"),
        ]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (lower, upper) = (text(&lower), text(&upper));
        let expected: Vec<(String, String)> = [
            ("a", ""),
            ("a/old", "2"),
            ("d", "a file now"),
            ("f", ""),
            ("f/in", "2"),
            ("o", ""),
            ("o/new", "2"),
            ("stays", "1"),
        ]
        .map(|(name, contents)| (name.to_owned(), contents.to_owned()))
        .into();
        let oci = tar_of(&[
            ("oci-layout", "{}"),
            (
                "index.json",
                r#"{"manifests":[{"digest":"sha256:1","mediaType":"application/vnd.oci.image.index.v1+json"}]}"#,
            ),
            (
                "blobs/sha256/1",
                r#"{"manifests":[{"digest":"sha256:0","platform":{"architecture":"arm64","os":"linux"}},
                    {"digest":"sha256:2","platform":{"architecture":"amd64","os":"linux"}}]}"#,
            ),
            ("blobs/sha256/2", r#"{"layers":[{"digest":"sha256:3"},{"digest":"sha256:4"}]}"#),
            ("blobs/sha256/3", &lower),
            ("blobs/sha256/4", &upper),
        ]);
        assert_eq!(unpacked(&oci), expected);
        let docker = tar_of(&[
            ("x/layer.tar", &lower),
            ("y/layer.tar", &upper),
            ("manifest.json", r#"[{"Config":"c","RepoTags":null,"Layers":["x/layer.tar","y/layer.tar"]}]"#),
        ]);
        assert_eq!(unpacked(&docker), expected);
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        let said = |bytes: &[u8]| written(bytes).unwrap_err().to_string();
        assert!(said(&tar_of(&[("oci-layout", "{}"), ("index.json", "[]")])).contains("description"));
        let arm = r#"{"manifests":[{"digest":"sha256:0","platform":{"architecture":"arm64","os":"linux"}}]}"#;
        assert!(said(&tar_of(&[("oci-layout", "{}"), ("index.json", arm)])).contains("none for x86-64"));
        let without = r#"[{"Layers":["x"]}]"#;
        assert!(said(&tar_of(&[("manifest.json", without)])).contains("without its layer x"));
        assert!(said(&tar_of(&[("a = nothing", "")])).contains("not before it"));
        assert!(said(&tar_of(&[])).contains("no file in it"));
        let whole = tar_of(&[("a/", ""), ("a/b", "text"), ("c = a/b", "")]);
        for end in 6..whole.len() {
            written(&whole[..end]).ok();
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            written(&damaged).ok();
        }
    }
}
