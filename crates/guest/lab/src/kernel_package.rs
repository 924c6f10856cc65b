// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows the dependencies of a kernel package of Debian's to the packages that hold the kernel.
//!
//! Input: a package's name, and the `Depends` of packages. Output: the packages to unpack. A meta package
//! (`linux-image-amd64`) only depends on a kernel's package. From Linux 6.19 on, a kernel's package has parts: it depends on
//! `linux-binary-…`, which holds the image, and on `linux-modules-…`.

use crate::error::{Error, Result};
use crate::options::KernelSource;

/// Beginnings of the names of packages that hold a part of a kernel.
const PARTS: [&str; 2] = ["linux-binary-", "linux-modules-"];

/// Maximum number of meta packages in a row. Debian's have one or two.
const MOST_STEPS: usize = 8;

/// A package, as apt is asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name.
    pub name: String,
    /// The one version that will do; without it, apt's candidate.
    pub version: Option<String>,
}

impl Package {
    /// apt's candidate for this name.
    pub fn candidate(name: &str) -> Self {
        Self { name: name.to_owned(), version: None }
    }

    /// The argument for apt: `name` or `name=version`.
    pub fn argument(&self) -> String {
        match &self.version {
            Some(version) => format!("{}={version}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The packages of one kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packages {
    /// The package `linux-image-…` that the kernel is known by.
    pub image: Package,
    /// The packages that hold its image and its modules, if `image` does not.
    pub parts: Vec<Package>,
}

impl Packages {
    /// Arguments for apt.
    pub fn arguments(&self) -> Vec<String> {
        std::iter::once(&self.image).chain(&self.parts).map(Package::argument).collect()
    }
}

/// Finds the packages of the kernel `name`. `depends` returns the `Depends` of a package; an empty text if apt knows none.
///
/// # Errors
/// Those of `depends`; or meta packages depend on each other.
pub(crate) fn resolve(name: &str, depends: impl Fn(&Package) -> Result<String>) -> Result<Packages> {
    let mut image = Package::candidate(name);
    for _ in 0..MOST_STEPS {
        let needed = dependencies(&depends(&image)?);
        let mut parts: Vec<Package> = needed.iter().filter(|package| is_part(package)).cloned().collect();
        if parts.is_empty() {
            let is_kernel = |package: &Package| {
                package.name.starts_with(KernelSource::PACKAGE) && package.name != image.name
            };
            match needed.into_iter().find(is_kernel) {
                Some(next) => image = next,
                None => return Ok(Packages { image, parts }),
            }
            continue;
        }
        // The modules may be a dependency of the binary only.
        for part in parts.clone() {
            for more in dependencies(&depends(&part)?).into_iter().filter(is_part) {
                if parts.iter().all(|known| known.name != more.name) {
                    parts.push(more);
                }
            }
        }
        return Ok(Packages { image, parts });
    }
    Err(Error::Option(format!(
        "{name} depends on {MOST_STEPS} meta packages in a row: name a kernel's own package (`apt-cache pkgnames \
         linux-image-` lists them)"
    )))
}

/// The key of the kernel whose packages have these file names, without `.deb`: the image's, `NAME_VERSION_ARCH`. Parts of
/// another version are named too, as a package's content never changes under one version.
pub(crate) fn key(image: &str, parts: &[String]) -> String {
    let version = |stem: &str| stem.split('_').nth(1).unwrap_or_default().to_owned();
    let mut key = image.to_owned();
    for part in parts.iter().filter(|part| version(part) != version(image)) {
        key += "+";
        key += part;
    }
    key
}

fn is_part(package: &Package) -> bool {
    PARTS.iter().any(|start| package.name.starts_with(start))
}

/// The packages in a `Depends`: `a (= 1), b | c (>= 2), d:any`. Of alternatives, the first.
fn dependencies(text: &str) -> Vec<Package> {
    let package = |words: &str| {
        let first = words.split('|').next().unwrap_or_default().trim();
        let name = first.split([' ', '(', ':', '[']).next().unwrap_or_default();
        let fixed = first.split_once("(=").and_then(|(_, rest)| rest.split(')').next());
        let version = fixed.map(|version| version.trim().to_owned());
        (!name.is_empty()).then(|| Package { name: name.to_owned(), version })
    };
    text.split([',', '\n']).filter_map(package).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(name: &str, known: &[(&str, &str)]) -> Result<Packages> {
        resolve(name, |package| {
            let found = known.iter().find(|(name, _)| *name == package.name);
            Ok(found.map(|(_, depends)| (*depends).to_owned()).unwrap_or_default())
        })
    }

    #[test]
    fn a_meta_package_leads_to_the_kernel_it_depends_on() {
        let known = [
            ("linux-image-rt-amd64", "linux-image-6.1.0-56-rt-amd64 (= 6.1.192-2)"),
            (
                "linux-image-6.1.0-56-rt-amd64",
                "kmod, initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool",
            ),
        ];
        let found = resolved("linux-image-rt-amd64", &known).unwrap();
        assert_eq!(found.arguments(), ["linux-image-6.1.0-56-rt-amd64=6.1.192-2"]);
        let found = resolved("linux-image-6.1.0-56-rt-amd64", &known).unwrap();
        assert_eq!(found.arguments(), ["linux-image-6.1.0-56-rt-amd64"]);
    }

    #[test]
    fn a_kernel_in_parts_is_all_of_them() {
        let (image, binary) = ("linux-image-6.19.6+deb14-amd64", "linux-binary-6.19.6+deb14-amd64");
        let both = "linux-binary-6.19.6+deb14-amd64 (= 6.19.6-1), linux-modules-6.19.6+deb14-amd64 (= 6.19.6-1), kmod";
        let whole = [
            "linux-image-6.19.6+deb14-amd64=6.19.6-1",
            "linux-binary-6.19.6+deb14-amd64=6.19.6-1",
            "linux-modules-6.19.6+deb14-amd64=6.19.6-1",
        ];
        let meta = ("linux-image-amd64", "linux-image-6.19.6+deb14-amd64 (= 6.19.6-1)");
        let found = resolved("linux-image-amd64", &[meta, (image, both)]).unwrap();
        assert_eq!(found.arguments(), whole);
        // The modules are a dependency of the binary.
        let chain = [meta, (image, "linux-binary-6.19.6+deb14-amd64 (= 6.19.6-1)"), (binary, both)];
        assert_eq!(resolved("linux-image-amd64", &chain).unwrap().arguments(), whole);
    }

    #[test]
    fn meta_packages_in_a_circle_are_an_error() {
        let circle = [("linux-image-a", "linux-image-b"), ("linux-image-b", "linux-image-a")];
        assert!(resolved("linux-image-a", &circle).unwrap_err().to_string().contains("in a row"));
    }

    #[test]
    fn a_key_names_parts_of_another_version() {
        let same = ["linux-binary-x_1_amd64".to_owned(), "linux-modules-x_1_amd64".to_owned()];
        assert_eq!(key("linux-image-x_1_amd64", &same), "linux-image-x_1_amd64");
        let other = ["linux-binary-x_2_amd64".to_owned()];
        assert_eq!(key("linux-image-x_1_amd64", &other), "linux-image-x_1_amd64+linux-binary-x_2_amd64");
    }

    #[test]
    fn any_text_is_a_list_of_names() {
        for text in ["", ",", "(", "a (= ", "|b", " : ", "\n\n", "a(=1)"] {
            assert!(dependencies(text).iter().all(|package| !package.name.is_empty()), "{text:?}");
        }
    }
}
