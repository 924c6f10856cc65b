// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's programs: Debian packages, unpacked without root and without running their scripts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::apt;
use crate::cache::{Cache, Key};
use crate::error::{Context, Result};
use crate::options::{Progress, Report};

/// A small Debian with the real tools. `usr-is-merged` keeps apt from choosing `usrmerge`, and Perl with it.
const PACKAGES: [&str; 19] = [
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "kmod",
    "libc-bin",
    "mawk",
    "procps",
    "sed",
    "tar",
    "usr-is-merged",
    "util-linux",
];

/// Files that no command needs: a third of the packages' size, which every boot would unpack.
const DROPPED: [&str; 8] = [
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/bash-completion",
    "usr/share/doc-base",
    "usr/share/bug",
];

/// Top-level folders that are links in a merged /usr.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// An unpacked root file system in the cache.
#[derive(Debug, Clone)]
pub struct RootFs {
    /// Its root folder.
    pub root: PathBuf,
    /// Identifies its content.
    pub key: String,
}

impl RootFs {
    /// Returns the standard packages and `more`. They are downloaded if needed.
    pub(crate) fn find(more: &[String], cache: &Cache, refresh: bool, report: Report<'_>) -> Result<Self> {
        let mut packages: Vec<String> =
            PACKAGES.iter().map(|&name| name.to_owned()).chain(more.to_vec()).collect();
        packages.sort_unstable();
        packages.dedup();
        let question = Key::default().add(packages.join(" ")).finish();
        let versions = cache.remembered("rootfs", &question, refresh, || {
            report(Progress::Step("asking apt which packages the guest needs"));
            Ok(apt::closure(&packages)?.join("\n"))
        })?;
        // The layout number is raised whenever `build` makes different files from the same packages.
        let key = Key::default().add("layout 1").add(&versions).finish();
        let place = cache.entry("rootfs", &key, 350, |folder| build(&versions, folder, report))?;
        Ok(Self { root: place.join("root"), key })
    }

    /// Its packages, a line `name=version` each.
    pub(crate) fn packages(&self) -> Result<String> {
        let list = self.root.with_file_name("packages");
        fs::read_to_string(&list).at("read", &list)
    }
}

fn build(versions: &str, folder: &Path, report: Report<'_>) -> Result<()> {
    let packages: Vec<String> = versions.lines().map(str::to_owned).collect();
    let downloads = folder.join("downloads");
    let root = folder.join("root");
    for path in [&downloads, &root] {
        fs::create_dir(path).at("create", path)?;
    }
    report(Progress::Step(&format!("downloading {} packages for the guest (about 20 MB)", packages.len())));
    let files = apt::download(&packages, &downloads)?;
    report(Progress::Step("unpacking the guest's packages"));
    for package in files {
        apt::unpack(&package, &root)?;
    }
    crate::cache::remove(&downloads)?;
    readable(&root)?;
    merge_usr(&root)?;
    for path in DROPPED {
        crate::cache::remove(&root.join(path))?;
    }
    configure(&root)?;
    let list = folder.join("packages");
    fs::write(&list, versions).at("write", &list)
}

/// Makes files readable to their owner, which is this process. A package may contain others.
fn readable(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).at("read", path)?;
    let mode = found.permissions().mode();
    if !found.is_symlink() && mode & 0o400 == 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o400)).at("change the mode of", path)?;
    }
    if found.is_dir() {
        for entry in fs::read_dir(path).at("read", path)? {
            readable(&entry.at("read", path)?.path())?;
        }
    }
    Ok(())
}

/// Moves /bin, /lib and so on below /usr, as Debian's installer does. Packages of this release still contain both.
fn merge_usr(root: &Path) -> Result<()> {
    for name in MERGED {
        let (old, new) = (root.join(name), root.join("usr").join(name));
        if old.is_dir() && !old.is_symlink() {
            merge_folder(&old, &new)?;
        }
        if new.exists() && !old.exists() {
            symlink(Path::new("usr").join(name), &old).at("create", &old)?;
        }
    }
    Ok(())
}

/// Moves the contents of `old` into `new`. Existing files of `new` are kept.
fn merge_folder(old: &Path, new: &Path) -> Result<()> {
    fs::create_dir_all(new).at("create", new)?;
    for entry in fs::read_dir(old).at("read", old)? {
        let entry = entry.at("read", old)?;
        let (from, to) = (entry.path(), new.join(entry.file_name()));
        if from.is_dir() && !from.is_symlink() && to.is_dir() {
            merge_folder(&from, &to)?;
        } else if !to.exists() && !to.is_symlink() {
            fs::rename(&from, &to).at("rename", &from)?;
        }
    }
    crate::cache::remove(old)
}

/// Does the work of the packages' scripts: users, standard folders, alternatives.
fn configure(root: &Path) -> Result<()> {
    for name in ["dev", "proc", "sys", "tmp", "run", "root", "etc", "home", "mnt", "var/tmp", "var/log"] {
        let path = root.join(name);
        fs::create_dir_all(&path).at("create", &path)?;
    }
    let files = [
        ("etc/hostname", "kprism\n"),
        ("etc/hosts", "127.0.0.1 localhost kprism\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ];
    for (name, contents) in files {
        let path = root.join(name);
        if !path.exists() {
            fs::write(&path, contents).at("write", &path)?;
        }
    }
    for (name, fallback) in [("passwd", "root:x:0:0:root:/root:/bin/bash\n"), ("group", "root:x:0:\n")] {
        let (path, master) = (root.join("etc").join(name), root.join("usr/share/base-passwd").join(name));
        let contents =
            fs::read_to_string(master.with_extension("master")).unwrap_or_else(|_| fallback.into());
        // The master file locks every account with `*`. Only root gets a shell.
        fs::write(&path, contents).at("write", &path)?;
    }
    for (link, target) in [("bin/sh", "dash"), ("usr/bin/awk", "mawk")] {
        let path = root.join(link);
        if !path.exists() && path.with_file_name(target).exists() {
            symlink(target, &path).at("create", &path)?;
        }
    }
    Ok(())
}
