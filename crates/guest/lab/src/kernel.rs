// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the guest's kernel: Debian's stock one from apt, another of Debian's packages, the user's image or tree.

use std::fs;
use std::path::{Path, PathBuf};

use kprism_agent::content;

use crate::apt;
use crate::cache::{Cache, Key};
use crate::error::{Context, Error, Result};
use crate::kernel_package;
use crate::modules::ModuleFolder;
use crate::options::{KernelSource, Options, Progress, Report};
use crate::packed::is_packed;
use crate::tree::{self, TreeFacts};

const PACKAGE: &str = KernelSource::PACKAGE;

/// The series that is used if none is named.
const SERIES: &str = "linux-image-6.12.";

/// A bootable kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    /// Its release as in `uname -r`; empty if the image does not state it.
    pub release: String,
    /// Its modules: those of its package, of its tree, or of the host if that has the same release.
    pub(crate) modules: Option<ModuleFolder>,
    /// Identifies its content: package and version, or a hash.
    pub key: String,
    /// The tree that it was built in, if that is known.
    pub tree: Option<TreeFacts>,
}

impl Kernel {
    /// The kernel for people: its package, or its release and hash.
    pub(crate) fn name(&self) -> String {
        match self.key.contains(&self.release) {
            true => self.key.clone(),
            false => format!("{} ({})", self.release, self.key),
        }
    }

    /// Returns the given kernel. Debian's are downloaded if needed.
    pub(crate) fn find(options: &Options, cache: &Cache, report: Report<'_>) -> Result<Self> {
        let refresh = options.refresh;
        match &options.kernel {
            KernelSource::Newest => {
                Self::from_cache("debian", cache, refresh, |report| fetch(cache, report), report)
            }
            KernelSource::Package(name) => {
                Self::from_cache(name, cache, refresh, |report| download_named(name, cache, report), report)
            }
            KernelSource::Image(image) => {
                let contents = fs::read(image).at("read", image)?;
                require_bootable(image, &contents)?;
                let mut release = release(&contents).unwrap_or_default();
                let modules = match &options.module_folder {
                    Some(given) => {
                        let folder = modules_in(given, &release)?;
                        release = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                        Some(folder)
                    }
                    None => {
                        let folder = Path::new("/lib/modules").join(&release);
                        (!release.is_empty() && has_modules(&folder)).then_some(folder)
                    }
                };
                let modules = modules.map(ModuleFolder::Installed);
                let key = Key::default().add(&contents).finish();
                Ok(Self { image: image.to_owned(), release, modules, key, tree: None })
            }
            KernelSource::Tree(folder) => {
                let (build, facts) = tree::open(folder, options.smp)?;
                let image = build.image();
                let contents = fs::read(&image).at("read", &image)?;
                if !has_boot_header(&contents) {
                    let reason = "not a kernel image for x86: it has no boot header".into();
                    return Err(Error::BadFile { path: image, reason });
                }
                let release = tree::release(&build, release(&contents))?;
                let key = Key::default().add(&contents).finish();
                let modules = Some(ModuleFolder::Built(build));
                Ok(Self { image, release, modules, key, tree: Some(facts) })
            }
        }
    }

    /// The kernel of this name in the cache; `fetch` puts it there and returns its key.
    fn from_cache(
        name: &str,
        cache: &Cache,
        refresh: bool,
        fetch: impl Fn(Report<'_>) -> Result<String>,
        report: Report<'_>,
    ) -> Result<Self> {
        let key = cache.remembered("kernel", name, refresh, || fetch(report))?;
        let folder = cache.folder().join("kernel").join(&key);
        if folder.exists() {
            return Self::from_folder(&folder, key);
        }
        // The files were deleted by hand: start over.
        let key = cache.remembered("kernel", name, true, || fetch(report))?;
        Self::from_folder(&cache.folder().join("kernel").join(&key), key)
    }

    /// The name of its package, if it is one of Debian's: the part of the key before the version.
    pub(crate) fn package(&self) -> Option<&str> {
        self.key.split_once('_').map(|(name, _)| name).filter(|name| name.starts_with(PACKAGE))
    }

    /// The folder `lib/modules/RELEASE` of its modules, unless they are beside their sources.
    pub(crate) fn installed_modules(&self) -> Option<&Path> {
        match &self.modules {
            Some(ModuleFolder::Installed(folder)) => Some(folder),
            _ => None,
        }
    }

    /// The kernel that [`arrange`] arranged in `folder`.
    pub(crate) fn from_folder(folder: &Path, key: String) -> Result<Self> {
        let modules = folder.join("lib/modules");
        let modules = only_entry(&modules)?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let modules = Some(ModuleFolder::Installed(modules));
        Ok(Self { image: folder.join("vmlinuz"), release, modules, key, tree: None })
    }
}

/// Downloads the newest kernel of the series, and returns its key.
fn fetch(cache: &Cache, report: Report<'_>) -> Result<String> {
    let mut names: Vec<String> = apt::names(SERIES)?.into_iter().filter(|name| is_stock(name)).collect();
    names.sort_unstable_by_key(|name| std::cmp::Reverse(version(name)));
    let mut failure = Error::Apt {
        package: format!("{SERIES}*-amd64"),
        reason: "no such package is known".into(),
        remedy: "Remedy: the kernel is in bookworm-backports; scripts/setup.sh adds it to apt's sources",
    };
    // apt may know the newest name without being able to download it.
    for name in names.iter().take(3) {
        match download(name, cache, report) {
            Err(Error::Apt { package, reason, remedy }) if not_offered(&reason) => {
                failure = Error::Apt { package, reason, remedy };
            }
            other => return other,
        }
    }
    Err(failure)
}

/// Downloads the package of this name, if apt knows it, and returns its key.
fn download_named(name: &str, cache: &Cache, report: Report<'_>) -> Result<String> {
    if !apt::names(name)?.iter().any(|known| known == name) {
        return Err(Error::Apt {
            package: name.to_owned(),
            reason: "no such package is known".into(),
            remedy: "Remedy: `apt-cache pkgnames linux-image-` names those that apt knows",
        });
    }
    download(name, cache, report)
}

/// Downloads and unpacks a kernel package that apt knows, or that of the kernel on which a meta package depends, and returns
/// its key.
fn download(name: &str, cache: &Cache, report: Report<'_>) -> Result<String> {
    let packages = kernel_package::resolve(name, apt::depends)?;
    let kernel = &packages.image.name;
    let asked = if kernel == name { String::new() } else { format!(", on which {name} depends") };
    report(Progress::Step(&format!("downloading {kernel}{asked} (about 105 MB)")));
    let scratch = crate::cache::Scratch::new(cache.folder(), ".download.")?;
    let scratch = scratch.path();
    crate::cache::require_space(scratch, 450)?;
    let files = apt::download(&packages.arguments(), scratch)?;
    let stem = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // NAME_VERSION_ARCH.deb is the key: a package's content never changes under one version.
    let (image, parts): (Vec<String>, Vec<String>) = files
        .iter()
        .map(stem)
        .partition(|stem| stem.strip_prefix(kernel.as_str()).is_some_and(|rest| rest.starts_with('_')));
    let [image] = &image[..] else {
        return Err(Error::BadFile {
            path: scratch.to_owned(),
            reason: format!("one package {kernel} was to come"),
        });
    };
    let key = kernel_package::key(image, &parts);
    report(Progress::Step(&format!("unpacking {kernel}")));
    cache.entry("kernel", &key, 350, |folder| {
        files.iter().try_for_each(|package| apt::unpack(package, folder))?;
        arrange(folder, Path::new(kernel))
    })?;
    if kernel != name {
        // A run's manifest names the kernel's own package, by which it is asked for when the run is repeated.
        cache.remembered("kernel", kernel, true, || Ok(key.clone()))?;
    }
    Ok(key)
}

/// Debian's stock kernels that apt knows, the oldest first.
///
/// # Errors
/// apt is missing, or fails.
pub fn packages() -> Result<Vec<String>> {
    let mut names: Vec<String> = apt::names(PACKAGE)?.into_iter().filter(|name| is_stock(name)).collect();
    names.sort_unstable_by_key(|name| version(name));
    Ok(names)
}

/// Returns true if apt's error means that no source has the package, rather than that it could not be reached.
fn not_offered(reason: &str) -> bool {
    ["Unable to locate", "Can't find a source", "404"].iter().any(|words| reason.contains(words))
}

/// Moves the kernel below `folder`, which was unpacked from `source`, to `vmlinuz`, and its modules to `lib/modules`.
pub(crate) fn arrange(folder: &Path, source: &Path) -> Result<()> {
    // Newer packages have a merged /usr.
    let merged = folder.join("usr/lib/modules");
    let modules = folder.join("lib/modules");
    if merged.exists() {
        let place = folder.join("lib");
        fs::create_dir_all(&place).at("create", &place)?;
        fs::rename(&merged, &modules).at("rename", &merged)?;
    }
    let boot = folder.join("boot");
    let image = packed_image(&boot, &modules).ok_or_else(|| Error::BadFile {
        path: source.to_owned(),
        reason: "neither boot/vmlinuz-* nor usr/lib/modules/*/vmlinuz in it".into(),
    })?;
    fs::rename(&image, folder.join("vmlinuz")).at("rename", &image)?;
    crate::cache::remove(&boot)?;
    crate::cache::remove(&folder.join("usr"))
}

/// The image in an unpacked kernel package: `boot/vmlinuz-RELEASE`, or from Linux 6.19 on `lib/modules/RELEASE/vmlinuz`. A link
/// from one to the other is not it.
fn packed_image(boot: &Path, modules: &Path) -> Option<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_image = |path: &PathBuf| path.symlink_metadata().is_ok_and(|facts| facts.is_file());
    let in_boot = entries(boot)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"))
        .map(|entry| entry.path());
    let beside_modules = entries(modules).map(|entry| entry.path().join("vmlinuz"));
    in_boot.chain(beside_modules).find(is_image)
}

/// Returns true for a folder like `lib/modules/RELEASE`.
fn has_modules(folder: &Path) -> bool {
    folder.join("kernel").is_dir()
}

/// The folder `lib/modules/RELEASE` that the user means by `given`: itself, or one below it. An image that does not state its
/// release (empty) takes the only one that there is.
///
/// # Errors
/// There are no modules, or those of another release.
fn modules_in(given: &Path, release: &str) -> Result<PathBuf> {
    let given = given.canonicalize().at("find", given)?;
    let bad = |reason: String| Error::BadFile { path: given.clone(), reason };
    if has_modules(&given) {
        let name = given.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if release.is_empty() || name == release {
            return Ok(given);
        }
        return Err(bad(format!(
            "these are the modules of {name}, by the folder's name, and the kernel is {release}"
        )));
    }
    let places = ["lib/modules", "usr/lib/modules"].map(|place| given.join(place));
    let found = places.iter().find_map(|place| match release {
        "" => only_entry(place).ok().filter(|folder| has_modules(folder)),
        release => Some(place.join(release)).filter(|folder| has_modules(folder)),
    });
    found.ok_or_else(|| {
        let wanted =
            if release.is_empty() { "one release, as the kernel does not state its own" } else { release };
        bad(format!(
            "no modules of {wanted} here: give the folder lib/modules/RELEASE, or one with lib/modules in it"
        ))
    })
}

/// Refuses what QEMU cannot boot on an x86-64: it would say less, or nothing.
fn require_bootable(path: &Path, image: &[u8]) -> Result<()> {
    let other = match image {
        _ if has_boot_header(image) => return Ok(()),
        // A vmlinux with an entry point for PVH, which QEMU finds by itself.
        _ if content::machine(image) == Some(content::X86_64) => return Ok(()),
        // Documentation/arch/arm64/booting.rst
        _ if image.get(56..60) == Some(b"ARM\x64") => {
            "a kernel for arm64, and the guest is an x86-64".to_owned()
        }
        _ => match content::machine(image) {
            Some(machine) => {
                format!("a program for {}, and the guest is an x86-64", content::machine_name(machine))
            }
            None if is_packed(image) => {
                "packed as a whole: unpack it first (`gunzip`, `unxz`, `unzstd`)".to_owned()
            }
            None => {
                "not a kernel image for x86: it has no boot header. Give a bzImage, as /boot/vmlinuz-… is"
                    .to_owned()
            }
        },
    };
    Err(Error::BadFile { path: path.to_owned(), reason: other })
}

fn has_boot_header(image: &[u8]) -> bool {
    image.get(0x202..0x206) == Some(b"HdrS")
}

/// The release in a bzImage's header: `kernel_version` (Documentation/arch/x86/boot.rst).
fn release(image: &[u8]) -> Option<String> {
    if !has_boot_header(image) {
        return None;
    }
    let at = 0x200 + usize::from(u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?));
    let text = image.get(at..(at + 256).min(image.len()))?;
    let word = text.split(|&byte| byte == b' ' || byte == 0).next()?;
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b".+-_~".contains(byte);
    (!word.is_empty() && word.iter().all(good)).then(|| String::from_utf8_lossy(word).into_owned())
}

/// Returns true for the stock flavour: not cloud, rt, unsigned or debugging symbols, and no package that only depends on
/// another (`linux-image-6.12-amd64`).
fn is_stock(name: &str) -> bool {
    let number = name.strip_suffix("-amd64").and_then(|rest| rest.strip_prefix(PACKAGE));
    number.is_some_and(|number| {
        number.starts_with(|first: char| first.is_ascii_digit())
            && version(name).len() > 2
            && !["cloud", "rt"].iter().any(|flavour| number.ends_with(flavour))
    })
}

/// The numbers in a name, for comparison.
fn version(name: &str) -> Vec<u64> {
    name.trim_end_matches("-amd64")
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn only_entry(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder).at("read", folder)?.flatten().map(|entry| entry.path());
    match (entries.next(), entries.next()) {
        (Some(path), None) => Ok(path),
        _ => Err(Error::BadFile {
            path: folder.to_owned(),
            reason: "one kernel release was to be here".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_from_a_boot_header_only() {
        let mut image = vec![0; 0x400];
        assert_eq!(release(&image), None);
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x30c].copy_from_slice(b"6.1.0-x (me)");
        assert_eq!(release(&image).as_deref(), Some("6.1.0-x"));
        image[0x20e..0x210].copy_from_slice(&0xfff0u16.to_le_bytes());
        assert_eq!(release(&image), None);
    }

    /// The layouts of Debian's packages: up to 6.12, with a merged /usr, and from 6.19 on, whose image lies beside its modules.
    #[test]
    fn an_image_is_taken_from_where_the_package_has_it() {
        for (image, modules) in [
            ("boot/vmlinuz-6.1.0-x", "lib/modules/6.1.0-x"),
            ("boot/vmlinuz-6.12.1-x", "usr/lib/modules/6.12.1-x"),
            ("usr/lib/modules/6.19.6-x/vmlinuz", "usr/lib/modules/6.19.6-x"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path();
            fs::create_dir_all(folder.join("boot")).unwrap();
            fs::create_dir_all(folder.join(modules).join("kernel")).unwrap();
            let release = modules.rsplit('/').next().unwrap();
            if !image.starts_with("boot") {
                let link = folder.join(format!("boot/vmlinuz-{release}"));
                std::os::unix::fs::symlink(format!("../{image}"), link).unwrap();
            }
            fs::write(folder.join(image), "image").unwrap();
            arrange(folder, Path::new("package")).unwrap();
            assert_eq!(fs::read_to_string(folder.join("vmlinuz")).unwrap(), "image", "{image}");
            assert!(!folder.join("boot").exists() && !folder.join("usr").exists(), "{image}");
            let kernel = Kernel::from_folder(folder, "linux-image-x_1_amd64".into()).unwrap();
            assert_eq!((kernel.release.as_str(), kernel.package()), (release, Some("linux-image-x")));
            assert!(kernel.installed_modules().unwrap().join("kernel").is_dir(), "{image}");
        }
        let empty = tempfile::tempdir().unwrap();
        let error = arrange(empty.path(), Path::new("linux-image-x")).unwrap_err().to_string();
        assert!(error.contains("linux-image-x") && error.contains("vmlinuz"), "{error}");
    }

    #[test]
    fn modules_are_those_of_the_kernel_s_release() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let folder = root.join("lib/modules/6.1.0-x");
        fs::create_dir_all(folder.join("kernel")).unwrap();
        for given in [&root, &folder] {
            for release in ["6.1.0-x", ""] {
                assert_eq!(modules_in(given, release).unwrap(), folder, "{given:?} {release}");
            }
            let error = modules_in(given, "6.2").unwrap_err().to_string();
            assert!(error.contains("6.2"), "{error}");
        }
        fs::create_dir_all(root.join("lib/modules/6.2/kernel")).unwrap();
        assert_eq!(modules_in(&root, "6.2").unwrap(), root.join("lib/modules/6.2"));
        let error = modules_in(&root, "").unwrap_err().to_string();
        assert!(error.contains("one release"), "{error}");
        assert!(modules_in(&root.join("none"), "6.2").is_err());
    }

    #[test]
    fn what_is_no_kernel_for_x86_is_refused() {
        let said = |bytes: &[u8]| require_bootable(Path::new("k"), bytes).map_err(|error| error.to_string());
        let mut image = vec![0; 0x400];
        assert!(said(&image).unwrap_err().contains("no boot header"));
        image[56..60].copy_from_slice(b"ARM\x64");
        assert!(said(&image).unwrap_err().contains("arm64"));
        assert!(said(b"\x1f\x8b packed").unwrap_err().contains("gunzip"));
        image[0x202..0x206].copy_from_slice(b"HdrS");
        said(&image).unwrap();
    }

    #[test]
    fn the_stock_flavour_and_the_newest_version_are_chosen() {
        assert!(is_stock("linux-image-6.12.117+deb12-amd64"));
        for other in [
            "linux-image-6.12.9+deb12-rt-amd64",
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.9+deb12-amd64-dbg",
            "linux-image-6.12.9+deb12-amd64-unsigned",
            "linux-image-amd64",
            "linux-image-6.12-amd64",
        ] {
            assert!(!is_stock(other), "{other}");
        }
        assert!(version("linux-image-6.12.117+deb12-amd64") > version("linux-image-6.12.95+deb12-amd64"));
        assert!(version("linux-image-6.12.90+deb12.1-amd64") > version("linux-image-6.12.90+deb12-amd64"));
    }
}
