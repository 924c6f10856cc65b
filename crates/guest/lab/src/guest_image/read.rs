// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest image → its kernel and programs, unpacked in the cache. What is unpacked has the hash that the image names.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Component, Path};

use flate2::read::GzDecoder;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::write::text_of;
use super::{FORMAT, GuestImage, KERNEL, PACKAGES, PART, PROGRAMS, VERSION, bad};
use crate::cache::{Cache, Key};
use crate::error::{Context, Error, Result};
use crate::kernel;
use crate::layers::blob_name;
use crate::options::{Progress, Report};

/// Maximum size of a description, bytes.
const MOST_DESCRIPTION: u64 = 4 << 20;

const REMEDY: &str =
    "`kprism lab save-guest FILE` writes guest images; a root file system is given by --root";

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// Opens the image at `path`, and unpacks it into the cache if it is not there.
///
/// # Errors
/// It is no guest image, or damaged.
pub(super) fn open(path: &Path, cache: &Cache, report: Report<'_>) -> Result<GuestImage> {
    let mut image = Image::open(path)?;
    let index: Index = image.description("index.json", None)?;
    let [named] = &index.manifests[..] else {
        return Err(bad(path, format!("{} images in it, one is expected: {REMEDY}", index.manifests.len())));
    };
    let manifest: Manifest = image.description(&blob_name(&named.digest), Some(&named.digest))?;
    let said = |name: &str| manifest.annotations.get(name).cloned();
    match said(FORMAT).as_deref() {
        Some(VERSION) => {}
        Some(other) => {
            return Err(bad(path, format!("a guest image of format {other}; this kprism reads {VERSION}")));
        }
        None => return Err(bad(path, format!("a container image, but no guest image: {REMEDY}"))),
    }
    let (Some(kernel), Some(programs), Some(packages)) = (said(KERNEL), said(PROGRAMS), said(PACKAGES))
    else {
        return Err(bad(path, "its manifest does not name its kernel and programs"));
    };
    let part = |name: &str| {
        let is_part = |layer: &&Descriptor| layer.annotations.get(PART).map(String::as_str) == Some(name);
        manifest.layers.iter().find(is_part).ok_or_else(|| bad(path, format!("no layer {name} in it")))
    };
    let (kernel_layer, programs_layer) = (part("kernel")?, part("programs")?);
    if manifest.layers.len() != 2 {
        return Err(bad(path, format!("a guest image to which layers were added: {REMEDY}")));
    }
    let key = Key::default().add("layout 1").add(&named.digest).finish();
    let need_mib = (kernel_layer.size + programs_layer.size * 4) >> 20;
    let folder = cache.entry("guest-image", &key, need_mib, |folder| {
        report(Progress::Step(&format!("unpacking the guest image {}", path.display())));
        let (to_kernel, to_programs) = (folder.join("kernel"), folder.join("programs"));
        image.unpack(kernel_layer, &to_kernel)?;
        kernel::arrange(&to_kernel, path)?;
        image.unpack(programs_layer, &to_programs.join("root"))?;
        let list = to_programs.join("packages");
        fs::write(&list, &packages).at("write", &list)
    })?;
    cache.keep_recent("guest-image", &folder, 4);
    Ok(GuestImage { path: path.to_owned(), folder, keys: (kernel, programs) })
}

/// An OCI archive: where its files are.
struct Image<'a> {
    path: &'a Path,
    file: File,
    /// Offset and size of each file.
    parts: HashMap<String, (u64, u64)>,
}

impl<'a> Image<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let file = File::open(path).at("open", path)?;
        let mut parts = HashMap::new();
        let mut archive = tar::Archive::new(&file);
        // The error's own text quotes the file.
        let not_tar =
            |_: io::Error| bad(path, format!("not a guest image: it is no good tar archive; {REMEDY}"));
        for entry in archive.entries_with_seek().map_err(not_tar)? {
            let entry = entry.map_err(not_tar)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
            parts.insert(name, (entry.raw_file_position(), entry.size()));
        }
        if !parts.contains_key("oci-layout") {
            return Err(bad(path, format!("not a guest image: it has no oci-layout; {REMEDY}")));
        }
        Ok(Self { path, file, parts })
    }

    fn part(&mut self, name: &str) -> Result<io::Take<&File>> {
        let (at, bytes) = *self
            .parts
            .get(name)
            .ok_or_else(|| bad(self.path, format!("no {name} in it: it is cut off or damaged")))?;
        self.file.seek(SeekFrom::Start(at)).at("read", self.path)?;
        Ok((&self.file).take(bytes))
    }

    fn description<T: for<'de> Deserialize<'de>>(&mut self, name: &str, digest: Option<&str>) -> Result<T> {
        let path = self.path;
        let mut text = Vec::new();
        self.part(name)?.take(MOST_DESCRIPTION).read_to_end(&mut text).at("read", path)?;
        if digest.is_some_and(|digest| digest != text_of(Sha256::digest(&text))) {
            return Err(bad(path, format!("{name} is damaged: its hash is another")));
        }
        serde_json::from_slice(&text).map_err(|error| bad(path, format!("{name}: {error}")))
    }

    /// Unpacks a layer into `to`.
    fn unpack(&mut self, layer: &Descriptor, to: &Path) -> Result<()> {
        let path = self.path;
        fs::create_dir_all(to).at("create", to)?;
        let name = blob_name(&layer.digest);
        let damaged = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path: to.to_owned() },
            _ => bad(path, format!("{name} cannot be unpacked: {error}")),
        };
        let mut packed =
            Hashing { input: BufReader::with_capacity(1 << 20, self.part(&name)?), hash: Sha256::new() };
        let mut archive = tar::Archive::new(GzDecoder::new(&mut packed));
        archive.set_preserve_permissions(true);
        archive.set_preserve_mtime(false);
        for entry in archive.entries().map_err(damaged)? {
            let mut entry = entry.map_err(damaged)?;
            let inside = entry.path().map_err(damaged)?.into_owned();
            let plain =
                inside.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            let kind = entry.header().entry_type();
            if !plain || !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
                return Err(bad(path, format!("{name}: {} has no place in a guest image", inside.display())));
            }
            if !entry.unpack_in(to).map_err(damaged)? {
                return Err(bad(path, format!("{name}: {} leads out of it", inside.display())));
            }
        }
        drop(archive);
        // What comes after the archive's end is in the hash, too.
        io::copy(&mut packed, &mut io::sink()).map_err(damaged)?;
        if text_of(packed.hash.finalize()) != layer.digest {
            return Err(bad(path, format!("{name} is damaged: its hash is another")));
        }
        Ok(())
    }
}

/// A reader that hashes what passes.
struct Hashing<R> {
    input: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }
}
