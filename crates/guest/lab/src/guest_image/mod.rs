// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest images: the kernel and the programs of a guest in one file, for machines without apt.
//!
//! A guest image is a container image (an OCI archive: a tar archive with `oci-layout`, `index.json` and `blobs/`; OCI image
//! specification, "Image Layout"). One layer holds the programs, one the kernel: `boot/vmlinuz-RELEASE` and
//! `usr/lib/modules/RELEASE`. Annotations of the manifest name what they were made from, so a guest from an image is the same
//! guest as one from apt, to the byte.

mod read;
mod write;

use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::files;
use crate::kernel::Kernel;
use crate::options::{KernelSource, Options, Report};
use crate::rootfs::RootFs;

pub use write::{Saved, save};

/// Environment variable that names a guest image.
pub const VARIABLE: &str = "KPRISM_GUEST_IMAGE";

/// Annotations of the manifest: the format's version, the keys of the kernel and of the programs, and a line `name=version`
/// for each package of the programs.
const FORMAT: &str = "org.kprism.guest";
const VERSION: &str = "1";
const KERNEL: &str = "org.kprism.kernel";
const PROGRAMS: &str = "org.kprism.programs";
const PACKAGES: &str = "org.kprism.packages";
/// Annotation of a layer: `kernel` or `programs`.
const PART: &str = "org.kprism.part";

/// Media types (OCI image specification).
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The guest image that `$KPRISM_GUEST_IMAGE` names, or, on a machine without apt, the one that was installed with kprism.
pub fn named_or_installed() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    named.or_else(|| files::find_guest_image().filter(|_| !crate::apt::is_here()))
}

/// A guest image, unpacked in the cache.
#[derive(Debug, Clone)]
pub(crate) struct GuestImage {
    /// The image's file, for messages.
    pub path: PathBuf,
    /// `vmlinuz` and `lib/modules/RELEASE` are in `kernel`; `root` and the list `packages` in `programs`.
    folder: PathBuf,
    /// Keys of the kernel and of the programs.
    keys: (String, String),
}

impl GuestImage {
    /// The image that a guest is made from: the one that is named, or, on a machine without apt, one that was installed with
    /// kprism. `None` if apt is to be asked.
    ///
    /// # Errors
    /// The named image cannot be read, or is none.
    pub fn find(options: &Options, cache: &Cache, report: Report<'_>) -> Result<Option<Self>> {
        match options.guest_image.clone().or_else(named_or_installed) {
            Some(path) => read::open(&path, cache, report).map(Some),
            None => Ok(None),
        }
    }

    /// Its kernel, if `wanted` is it.
    ///
    /// # Errors
    /// Another package of Debian's is wanted, or a file of the cache is missing.
    pub fn kernel(&self, wanted: &KernelSource) -> Result<Option<Kernel>> {
        let is_it = match wanted {
            KernelSource::Newest => true,
            KernelSource::Package(name) => {
                let has = self.keys.0.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('_'));
                // The user may have both: apt, and an image with another kernel.
                if !has && !crate::apt::is_here() {
                    return Err(Error::Option(format!(
                        "the guest image {} has the kernel {}, not {name}, and there is no apt here to fetch that: \
                         save an image with it on Debian (`kprism lab save-guest --kernel {name} FILE`)",
                        self.path.display(),
                        self.keys.0
                    )));
                }
                has
            }
            KernelSource::Image(_) | KernelSource::Tree(_) => false,
        };
        if !is_it {
            return Ok(None);
        }
        Kernel::from_folder(&self.folder.join("kernel"), self.keys.0.clone()).map(Some)
    }

    /// Its programs, `more` among them.
    ///
    /// # Errors
    /// It lacks one of `more`.
    pub fn programs(&self, more: &[String]) -> Result<RootFs> {
        let rootfs = RootFs { root: self.folder.join("programs/root"), key: self.keys.1.clone() };
        let packages = rootfs.packages()?;
        let has = |name: &&String| {
            packages
                .lines()
                .any(|line| line.split('=').next() == Some(name.as_str()) || line == name.as_str())
        };
        let missing: Vec<&str> = more.iter().filter(|name| !has(name)).map(String::as_str).collect();
        if missing.is_empty() {
            return Ok(rootfs);
        }
        Err(Error::Option(format!(
            "the guest image {} lacks the packages {}: save one with them on Debian (`kprism lab save-guest --package {} \
             FILE`), or leave the image out where there is apt",
            self.path.display(),
            missing.join(", "),
            missing.join(" --package ")
        )))
    }
}

fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::BadFile { path: path.to_owned(), reason: reason.into() }
}
