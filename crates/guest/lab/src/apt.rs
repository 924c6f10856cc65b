// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian packages without root: selects, downloads and unpacks them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::error::{Context, Error, Result};
use crate::files;
use crate::kernel_package::Package;

const NO_APT: &str = "the guest's kernel and programs are Debian packages, and there is no apt here to fetch them; \
                      give a guest image (--guest-image FILE, which `kprism lab save-guest` writes on Debian), or \
                      a kernel of your own and a root file system (--kernel or --tree, and --root or --initrd)";
const REMEDY: &str = "Remedy: check the network, then `sudo apt-get update`; if bookworm-backports is not among \
                      the sources yet, scripts/setup.sh adds it";

/// Returns true if this machine has apt, and dpkg to unpack what it fetches.
pub(crate) fn is_here() -> bool {
    ["apt-get", "apt-cache", "dpkg-deb"].iter().all(|name| !files::in_path(Path::new(name)).is_empty())
}

/// Package names that begin with `prefix`, as far as apt knows any.
pub(crate) fn names(prefix: &str) -> Result<Vec<String>> {
    let output = call("apt-cache", Path::new("/"), &["pkgnames", prefix])?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The version of `package` that apt would install.
pub(crate) fn candidate(package: &str) -> Result<String> {
    let output = call("apt-cache", Path::new("/"), &["policy", package])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    version.filter(|version| *version != "(none)").map(str::to_owned).ok_or_else(|| Error::Apt {
        package: package.to_owned(),
        reason: "no such package is known".into(),
        remedy: REMEDY,
    })
}

/// The `Depends` of a package, `Pre-Depends` among them, a line each; empty if no source offers the package.
pub(crate) fn depends(package: &Package) -> Result<String> {
    let argument = package.argument();
    let output = call("apt-cache", Path::new("/"), &["--no-all-versions", "show", &argument])?;
    Ok(depends_in(&String::from_utf8_lossy(&output.stdout)))
}

/// The dependencies in the first paragraph of `apt-cache show`.
fn depends_in(text: &str) -> String {
    let paragraph = text.lines().take_while(|line| !line.trim().is_empty());
    let needs = paragraph
        .filter_map(|line| line.strip_prefix("Depends: ").or_else(|| line.strip_prefix("Pre-Depends: ")));
    needs.collect::<Vec<_>>().join("\n")
}

/// `name=version` of `packages` and all their dependencies, as if nothing was installed; sorted.
pub(crate) fn closure(packages: &[String]) -> Result<Vec<String>> {
    // Packages that are installed, or still in apt's own cache (as after debootstrap), must be included.
    let mut arguments =
        vec!["-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache::archives=/nonexistent/"];
    arguments.extend(["-o", "Debug::NoLocking=1", "--print-uris", "-y"]);
    arguments.extend(["--no-install-recommends", "install"]);
    arguments.extend(packages.iter().map(String::as_str));
    let output = call("apt-get", Path::new("/"), &arguments)?;
    let failed = |reason: String| Error::Apt { package: packages.join(" "), reason, remedy: REMEDY };
    if !output.status.success() {
        return Err(failed(complaint(&output)));
    }
    // Lines like: 'http://…/libc6_2.36_amd64.deb' libc6_2.36_amd64.deb 2757720 SHA256:…
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| {
            let mut parts = line.split(' ').nth(1)?.split('_');
            Some(format!("{}={}", parts.next()?, parts.next()?.replace("%3a", ":")))
        })
        .collect();
    if found.is_empty() {
        return Err(failed("it names no package to fetch".into()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Downloads `packages` (`name` or `name=version`) into `folder` and returns the .deb files.
pub(crate) fn download(packages: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
    let mut arguments = vec!["-q", "-o", "Acquire::Retries=3", "download"];
    arguments.extend(packages.iter().map(String::as_str));
    let output = call("apt-get", folder, &arguments)?;
    if !output.status.success() {
        return Err(Error::Apt {
            package: if packages.len() > 3 { "the guest's packages".into() } else { packages.join(" ") },
            reason: complaint(&output),
            remedy: REMEDY,
        });
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).at("read", folder)? {
        let path = entry.at("read", folder)?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Unpacks a .deb below `root`.
pub(crate) fn unpack(package: &Path, root: &Path) -> Result<()> {
    let (package_text, root_text) = (package.to_string_lossy(), root.to_string_lossy());
    let output = call("dpkg-deb", Path::new("/"), &["-x", &package_text, &root_text])?;
    if output.status.success() {
        return Ok(());
    }
    let reason = complaint(&output);
    if reason.contains("No space left") {
        return Err(Error::NoSpace { path: root.to_owned(), need_mib: 600 });
    }
    Err(Error::BadFile { path: package.to_owned(), reason })
}

fn call(program: &str, folder: &Path, arguments: &[&str]) -> Result<Output> {
    let output = Command::new(program).args(arguments).current_dir(folder).env("LC_ALL", "C").output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::MissingProgram { program: program.into(), remedy: NO_APT },
        _ => Error::Io { what: "run", path: program.into(), source: error },
    })?;
    if kprism_signals::end_requested() { Err(Error::Interrupted) } else { Ok(output) }
}

/// apt's error lines; without any, the last line of its output.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> =
        text.lines().filter(|line| line.starts_with("E:") || line.contains("error")).collect();
    if errors.is_empty() {
        text.lines().last().unwrap_or("no reason given").to_owned()
    } else {
        errors.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_those_of_the_candidate() {
        let text = "Package: linux-image-amd64\nVersion: 2\nPre-Depends: a\nDepends: linux-image-2-amd64 (= 2)\n\n\
                    Package: linux-image-amd64\nVersion: 1\nDepends: linux-image-1-amd64 (= 1)\n";
        assert_eq!(depends_in(text), "a\nlinux-image-2-amd64 (= 2)");
        assert_eq!(depends_in(""), "");
    }
}
