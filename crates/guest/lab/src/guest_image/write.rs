// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's kernel and programs in the cache → a guest image. The same guest gives the same bytes.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::{
    CONFIG_TYPE, FORMAT, INDEX_TYPE, KERNEL, LAYER_TYPE, MANIFEST_TYPE, PACKAGES, PART, PROGRAMS, VERSION,
    bad,
};
use crate::cache::{self, Cache, Scratch};
use crate::error::{Context, Result};
use crate::kernel::Kernel;
use crate::layers::blob_name;
use crate::options::{Options, Progress, Report};
use crate::rootfs::RootFs;

/// A guest image that was written.
#[derive(Debug, Clone)]
pub struct Saved {
    /// The kernel: its package, version and architecture.
    pub kernel: String,
    /// Number of packages of the programs.
    pub packages: usize,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Writes the kernel and the programs of a guest into the guest image `to`. The kernel must be a package of Debian's.
///
/// # Errors
/// apt cannot provide a package, or the disk is full. Then `to` is as it was.
pub fn save(options: &Options, to: &Path, report: Report<'_>) -> Result<Saved> {
    let cache = Cache::open()?;
    let kernel = Kernel::find(options, &cache, report)?;
    let rootfs = RootFs::find(&options.packages, &cache, options.refresh, report)?;
    let place = match to.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    cache::require_space(place, 450)?;
    report(Progress::Step(&format!("packing the guest into {}", to.display())));
    // A blob's name is its hash, so the layers are written first, beside the image.
    let scratch = Scratch::new(place, ".kprism-guest.")?;
    let staging = scratch.path().join("image");
    let packages = rootfs.packages()?;
    let bytes = write(scratch.path(), &kernel, &rootfs, &packages, &staging)?;
    fs::rename(&staging, to).at("rename", &staging)?;
    Ok(Saved { kernel: kernel.key, packages: packages.lines().count(), bytes })
}

/// A blob: its file, its hash, and the hash of what it holds unpacked.
struct Blob {
    file: std::path::PathBuf,
    digest: String,
    unpacked: String,
    bytes: u64,
}

/// Writes the image `to`, and its layers into `folder`.
pub(super) fn write(
    folder: &Path,
    kernel: &Kernel,
    rootfs: &RootFs,
    packages: &str,
    to: &Path,
) -> Result<u64> {
    let programs = layer(&folder.join("programs"), |tar| append_tree(tar, &rootfs.root, ""))?;
    let modules = kernel.installed_modules().ok_or_else(|| {
        bad(&kernel.image, "a guest image holds a kernel of Debian's packages: give --kernel linux-image-…")
    })?;
    let kernel_layer = layer(&folder.join("kernel"), |tar| {
        append_folders(tar, "boot")?;
        let image = fs::read(&kernel.image).at("read", &kernel.image)?;
        append(tar, &format!("boot/vmlinuz-{}", kernel.release), EntryType::Regular, 0o644, &image)
            .at("write", &kernel.image)?;
        let inside = format!("usr/lib/modules/{}", kernel.release);
        append_folders(tar, &inside)?;
        append_tree(tar, modules, &inside)
    })?;
    let descriptor = |kind: &str, digest: &str, bytes: u64| -> Value {
        json!({ "mediaType": kind, "digest": digest, "size": bytes })
    };
    let part = |blob: &Blob, name: &str| {
        let mut layer = descriptor(LAYER_TYPE, &blob.digest, blob.bytes);
        layer["annotations"] = json!({ PART: name });
        layer
    };
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Cmd": ["/bin/sh"] },
        "rootfs": { "type": "layers", "diff_ids": [programs.unpacked, kernel_layer.unpacked] },
    })
    .to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, &digest_of(config.as_bytes()), config.len() as u64),
        "layers": [part(&programs, "programs"), part(&kernel_layer, "kernel")],
        "annotations": {
            FORMAT: VERSION,
            KERNEL: kernel.key,
            PROGRAMS: rootfs.key,
            PACKAGES: packages,
        },
    })
    .to_string();
    let mut image = descriptor(MANIFEST_TYPE, &digest_of(manifest.as_bytes()), manifest.len() as u64);
    image["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    image["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [image] }).to_string();

    let output = BufWriter::with_capacity(1 << 20, File::create(to).at("create", to)?);
    let mut tar = Builder::new(output);
    // The descriptions come first: a reader need not go through the layers to find them.
    let layout = json!({ "imageLayoutVersion": "1.0.0" }).to_string();
    let mut text =
        |name: &str, text: &str| append(&mut tar, name, EntryType::Regular, 0o644, text.as_bytes());
    text("oci-layout", &layout).at("write", to)?;
    text("index.json", &index).at("write", to)?;
    for blob in [&manifest, &config] {
        text(&blob_name(&digest_of(blob.as_bytes())), blob).at("write", to)?;
    }
    for blob in [&programs, &kernel_layer] {
        let mut header = header(EntryType::Regular, 0o644, blob.bytes);
        let file = File::open(&blob.file).at("open", &blob.file)?;
        tar.append_data(&mut header, blob_name(&blob.digest), file).at("write", to)?;
    }
    let output = tar.into_inner().at("write", to)?;
    let file = output.into_inner().map_err(io::IntoInnerError::into_error).at("write", to)?;
    file.sync_all().at("write", to)?;
    Ok(file.metadata().at("read", to)?.len())
}

fn digest_of(bytes: &[u8]) -> String {
    text_of(Sha256::digest(bytes))
}

/// A hash as OCI writes it.
pub(super) fn text_of(hash: impl AsRef<[u8]>) -> String {
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// A writer that hashes what passes.
struct Hashing<W> {
    output: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Hashing<W> {
    fn new(output: W) -> Self {
        Self { output, hash: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.output.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

type Layer = Builder<Hashing<GzEncoder<Hashing<BufWriter<File>>>>>;

/// Writes a layer, which `fill` fills.
fn layer(file: &Path, fill: impl FnOnce(&mut Layer) -> Result<()>) -> Result<Blob> {
    let output = BufWriter::with_capacity(1 << 20, File::create(file).at("create", file)?);
    // Modules and kernel are compressed already; a higher level finds no more.
    let packed = GzEncoder::new(Hashing::new(output), Compression::default());
    let mut tar = Builder::new(Hashing::new(packed));
    fill(&mut tar)?;
    let inner = tar.into_inner().at("write", file)?;
    let unpacked = text_of(inner.hash.finalize());
    let mut packed = inner.output.finish().at("write", file)?;
    packed.flush().at("write", file)?;
    Ok(Blob { file: file.to_owned(), digest: text_of(packed.hash.finalize()), unpacked, bytes: packed.bytes })
}

/// Everything belongs to root and has no date, as in the guest.
fn header(kind: EntryType, mode: u32, bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn append<W: Write>(
    tar: &mut Builder<W>,
    name: &str,
    kind: EntryType,
    mode: u32,
    contents: &[u8],
) -> io::Result<()> {
    tar.append_data(&mut header(kind, mode, contents.len() as u64), name, contents)
}

/// Appends a folder and those above it.
fn append_folders(tar: &mut Layer, name: &str) -> Result<()> {
    for (at, _) in name.match_indices('/').chain([(name.len(), "")]) {
        append(tar, &format!("{}/", &name[..at]), EntryType::Directory, 0o755, &[])
            .at("write", Path::new(name))?;
    }
    Ok(())
}

/// Appends the contents of a folder, in the order of names, below `name`.
fn append_tree(tar: &mut Layer, folder: &Path, name: &str) -> Result<()> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).at("read", folder)?.collect::<io::Result<_>>().at("read", folder)?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let text = entry.file_name().into_string().map_err(|_| bad(&path, "a name that is not UTF-8"))?;
        let below = if name.is_empty() { text } else { format!("{name}/{text}") };
        let found = entry.metadata().at("read", &path)?;
        let mode = found.permissions().mode() & 0o7777;
        if found.is_dir() {
            append(tar, &format!("{below}/"), EntryType::Directory, mode, &[]).at("write", &path)?;
            append_tree(tar, &path, &below)?;
        } else if found.is_symlink() {
            let target = fs::read_link(&path).at("read", &path)?;
            let mut header = header(EntryType::Symlink, 0o777, 0);
            tar.append_link(&mut header, &below, &target).at("write", &path)?;
        } else if found.is_file() {
            let mut header = header(EntryType::Regular, mode, found.size());
            let file = File::open(&path).at("open", &path)?;
            tar.append_data(&mut header, &below, file).at("write", &path)?;
        }
    }
    Ok(())
}
