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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A guest of a few small files: its kernel, its programs, and the image of both.
    fn image(folder: &Path) -> PathBuf {
        let (kernel, programs) = (folder.join("kernel"), folder.join("programs"));
        let modules = kernel.join("lib/modules/6.1-x/kernel");
        fs::create_dir_all(&modules).unwrap();
        fs::create_dir_all(programs.join("root/usr/bin")).unwrap();
        fs::write(kernel.join("vmlinuz"), "the kernel").unwrap();
        fs::write(modules.join("a.ko"), "a module").unwrap();
        let tool = programs.join("root/usr/bin/tool");
        fs::write(&tool, "a program").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o4755)).unwrap();
        symlink("usr/bin", programs.join("root/bin")).unwrap();
        fs::write(programs.join("packages"), "tool=1.0\nother=2").unwrap();
        let kernel = Kernel::from_folder(&kernel, "linux-image-6.1-x_1_amd64".into()).unwrap();
        let rootfs = RootFs { root: programs.join("root"), key: "programs".into() };
        let file = folder.join("guest.tar");
        let scratch = folder.join("scratch");
        fs::create_dir(&scratch).unwrap();
        write::write(&scratch, &kernel, &rootfs, &rootfs.packages().unwrap(), &file).unwrap();
        file
    }

    fn open(file: &Path, cache: &Path) -> Result<GuestImage> {
        crate::cache::remove(cache).unwrap();
        read::open(file, &Cache::at(cache.to_owned()).unwrap(), &mut |_| {})
    }

    /// Paths, modes and contents below a folder.
    fn tree(folder: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(at) = folders.pop() {
            for entry in fs::read_dir(&at).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let contents = match metadata.is_file() {
                    true => fs::read(&path).unwrap(),
                    false => fs::read_link(&path)
                        .map(|to| to.as_os_str().as_encoded_bytes().to_vec())
                        .unwrap_or_default(),
                };
                if metadata.is_dir() {
                    folders.push(path.clone());
                }
                found.push((
                    path.strip_prefix(folder).unwrap().to_owned(),
                    metadata.permissions().mode(),
                    contents,
                ));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_guest_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let file = image(dir.path());
        let found = open(&file, &dir.path().join("cache")).unwrap();
        assert_eq!(tree(&found.folder.join("programs")), tree(&dir.path().join("programs")));
        assert_eq!(tree(&found.folder.join("kernel")), tree(&dir.path().join("kernel")));
        assert_eq!(found.kernel(&KernelSource::Newest).unwrap().unwrap().key, "linux-image-6.1-x_1_amd64");
        let named = KernelSource::Package("linux-image-6.1-x".into());
        assert!(found.kernel(&named).unwrap().is_some());
        assert!(found.kernel(&KernelSource::Image("vmlinuz".into())).unwrap().is_none());
        assert!(found.programs(&["tool".into()]).is_ok());
        let missing = found.programs(&["tool".into(), "jq".into()]).unwrap_err().to_string();
        assert!(missing.contains("lacks the packages jq"), "{missing}");
    }

    /// Whatever is damaged or cut off: an error, or the same guest (bits of tar's headers that nobody reads).
    #[test]
    fn a_damaged_image_is_an_error_or_the_same_guest() {
        let dir = tempfile::tempdir().unwrap();
        let file = image(dir.path());
        let whole = fs::read(&file).unwrap();
        let (damaged, cache) = (dir.path().join("damaged.tar"), dir.path().join("cache"));
        let mut refused = 0;
        let mut one = |bytes: &[u8]| {
            fs::write(&damaged, bytes).unwrap();
            match open(&damaged, &cache) {
                Ok(found) => {
                    assert_eq!(
                        tree(&found.folder.join("programs/root")),
                        tree(&dir.path().join("programs/root"))
                    );
                    assert_eq!(tree(&found.folder.join("kernel")), tree(&dir.path().join("kernel")));
                }
                Err(_) => refused += 1,
            }
        };
        for at in (0..whole.len()).step_by(13) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            one(&bytes);
        }
        for end in (0..whole.len()).step_by(509) {
            one(&whole[..end]);
        }
        assert!(refused > 100, "{refused}");
    }
}
