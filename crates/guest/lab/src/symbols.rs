// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects the symbols of a run: the kernel's, copies of the programs that were mapped, and of their separate debug files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use kprism_agent::OWN_INIT;
use kprism_debuginfo::separate;

use crate::error::{Context, Error, Result};
use crate::lab::Prepared;
use crate::options::{Job, Share};

/// Path of the vDSO's mappings, which no file system has.
const VDSO: &str = "[vdso]";

/// The fields of the observer's mapping records that are used here.
#[derive(Deserialize)]
struct Record {
    k: String,
    #[serde(default)]
    exec: bool,
    #[serde(default)]
    path: String,
}

/// Writes the kernel's symbols from before the run into `symbols/` of the run in `folder`.
pub(crate) fn begin(prepared: &Prepared, folder: &Path) -> Result<()> {
    let (from, to) = (&prepared.snapshot.folder, folder.join("symbols"));
    fs::create_dir_all(&to).at("create", &to)?;
    for name in ["kallsyms", "modules"] {
        copy(&from.join(name), &to.join(name))?;
    }
    Ok(())
}

/// Copies a file. A full disk is reported for the target, other errors for the source.
fn copy(source: &Path, target: &Path) -> Result<()> {
    let copied = fs::copy(source, target).map(drop);
    match &copied {
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => copied.at("write", target),
        _ => copied.at("copy", source),
    }
}

/// Mapped files of a run.
pub(crate) struct Mapped {
    /// Paths of all of them.
    pub paths: BTreeSet<String>,
    /// Those that are not available here.
    pub missing: Vec<String>,
}

/// Completes `symbols/` after the run: changes of the kernel's symbols, and the mapped files. Returns the paths of these.
pub(crate) fn collect(
    prepared: &Prepared,
    job: &Job,
    folder: &Path,
    modules: Option<&(String, String)>,
) -> Result<Mapped> {
    let symbols = folder.join("symbols");
    if let Some((modules, lines)) = modules {
        write_modules(prepared, &symbols, modules, lines)?;
    }
    let root = symbols.join("root");
    crate::cache::remove(&root)?;
    let mut missing = Vec::new();
    let mut paths = mapped(&folder.join("streams"), |path| path == VDSO || path.starts_with('/'))?;
    if !paths.is_empty() {
        // The agent was mapped before it could be recorded.
        paths.insert("/init".into());
    }
    let mut full = false;
    for path in &paths {
        if full {
            missing.push(path.clone());
            continue;
        }
        let Some(inside) = inside(path) else { continue };
        match find(prepared, job, path, &inside) {
            Some(source) => {
                let target = root.join(&inside);
                let parent = target.parent().unwrap_or(&root);
                let copied =
                    fs::create_dir_all(parent).at("create", parent).and_then(|()| copy(&source, &target));
                match copied {
                    // The recording is worth more than its symbols.
                    Err(Error::Full { .. }) => {
                        full = true;
                        missing.push(path.clone());
                    }
                    other => other?,
                }
            }
            None => missing.push(path.clone()),
        }
    }
    Ok(Mapped { paths, missing })
}

/// Copies the separate debug files of the mapped files in `symbols/root` of the run in `folder`. Returns those that were not copied, each
/// with the reason.
pub(crate) fn keep_debug(
    prepared: &Prepared,
    job: &Job,
    folder: &Path,
    paths: &BTreeSet<String>,
) -> Vec<(PathBuf, String)> {
    let root = folder.join("symbols/root");
    let mut not_kept = Vec::new();
    for path in paths {
        let Some(inside) = inside(path) else { continue };
        // One of the guest's own root file system is only in the run.
        let file = find(prepared, job, path, &inside).unwrap_or_else(|| root.join(&inside));
        not_kept.extend(separate::keep(&file, Path::new(path), &prepared.debug_folders, &root).err());
    }
    not_kept
}

/// Writes the symbols of modules from after the run.
fn write_modules(prepared: &Prepared, to: &Path, modules: &str, lines: &str) -> Result<()> {
    fs::write(to.join("modules"), modules).at("write", &to.join("modules"))?;
    let path = prepared.snapshot.folder.join("kallsyms");
    let old = fs::read(&path).at("read", &path)?;
    let mut all = Vec::with_capacity(old.len() + lines.len());
    // Unloaded modules stay: their code may have run before. If both lists have an address, the newer line is the later
    // one.
    all.extend_from_slice(&old);
    let known: BTreeSet<&str> =
        std::str::from_utf8(&old).unwrap_or_default().lines().filter(|line| line.ends_with(']')).collect();
    for line in lines.lines().filter(|line| !known.contains(line)) {
        writeln!(all, "{line}").at("write", to)?;
    }
    fs::write(to.join("kallsyms"), all).at("write", to)
}

/// All files mapped as executable, from the sidebands of all vCPUs. A run without an observer has none.
pub fn mapped_files(streams: &Path) -> Result<BTreeSet<String>> {
    mapped(streams, |path| path.starts_with('/'))
}

/// Paths of executable mappings that are `wanted`.
fn mapped(streams: &Path, wanted: impl Fn(&str) -> bool) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for sideband in (0..).map(|cpu| streams.join(format!("cpu{cpu}.side.jsonl"))) {
        let Ok(file) = File::open(&sideband) else { break };
        for line in BufReader::new(file).lines() {
            // The last line may be incomplete, if QEMU was killed. The decoder reports that.
            let Ok(record) = serde_json::from_str::<Record>(&line.at("read", &sideband)?) else { continue };
            if record.k == "mmap" && record.exec && wanted(&record.path) {
                found.insert(record.path);
            }
        }
    }
    Ok(found)
}

/// The path relative to a root; `None` if it would leave the root.
pub fn inside(path: &str) -> Option<PathBuf> {
    let relative = PathBuf::from(path.trim_start_matches('/'));
    relative.components().all(|part| matches!(part, Component::Normal(_))).then_some(relative)
}

/// The source of a file of the guest.
fn find(prepared: &Prepared, job: &Job, path: &str, inside: &Path) -> Option<PathBuf> {
    if path == OWN_INIT || path == "/init" && !prepared.initramfs.is_the_users_root {
        return Some(prepared.agent.clone());
    }
    if path == VDSO {
        return Some(prepared.snapshot.folder.join("vdso")).filter(|file| is_elf(file));
    }
    let shared = job.shares.iter().filter_map(|share| shared(share, path));
    let packaged = prepared.rootfs.iter().map(|rootfs| rootfs.root.join(inside));
    shared.chain(packaged).find(|source| is_elf(source))
}

fn shared(share: &Share, path: &str) -> Option<PathBuf> {
    let rest = path.strip_prefix(share.guest.trim_end_matches('/'))?;
    match rest.strip_prefix('/') {
        Some(below) => Some(share.host.join(below)),
        None => rest.is_empty().then(|| share.host.clone()),
    }
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out() {
        assert_eq!(inside("/usr/bin/ls"), Some("usr/bin/ls".into()));
        assert_eq!(inside("/../etc/passwd"), None);
    }

    #[test]
    fn a_shared_file_is_found_on_the_host() {
        let share = Share::parse("/home/me/build:/work");
        assert_eq!(shared(&share, "/work/a/b"), Some("/home/me/build/a/b".into()));
        assert_eq!(shared(&share, "/workshop"), None);
        assert_eq!(Share::parse("dir"), Share { host: "dir".into(), guest: "/share".into() });
    }
}
