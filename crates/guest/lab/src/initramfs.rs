// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the initramfs: the root file system (or the user's initramfs, or nothing if the root is on a disk), and over it
//! the agent as /init, modules and the first device nodes.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use kprism_agent::{
    AGENT_FOLDER, DEPMOD_WANTED, MODULE_LIST, OPTIONAL_MODULE, OWN_INIT, ROOT_FILE, RootPlan, STORAGE_FILE,
    StoragePlan,
};

use serde::Serialize;

use crate::archive::Archive;
use crate::cache::{Cache, Key};
use crate::error::{Context, Result};
use crate::memory_root::MemoryRoot;
use crate::modules::Module;
use crate::rootfs::RootFs;

/// The lower layer.
pub(crate) enum Base<'a> {
    /// Debian's programs.
    Root(&'a RootFs),
    /// The user's file, compressed or not.
    File(&'a Path),
    /// The user's root file system.
    Memory(&'a MemoryRoot),
    /// Nothing: the guest's programs are on a disk.
    Disk,
}

impl Base<'_> {
    /// True if its files are the user's, `/init` among them.
    fn is_the_users(&self) -> bool {
        matches!(self, Base::File(_) | Base::Memory(_))
    }
}

/// The layer over it.
pub(crate) struct Overlay<'a> {
    /// The program that becomes /init; [`OWN_INIT`] over the user's files, whose own `/init` stays.
    pub agent: &'a Path,
    pub modules: &'a [Module],
    /// What to do with a root file system of the user's.
    pub root: Option<&'a RootPlan>,
    /// The device that the command's files are on.
    pub storage: Option<&'a StoragePlan>,
}

/// An initramfs in the cache.
#[derive(Debug, Clone)]
pub struct Initramfs {
    /// The file to boot with.
    pub image: PathBuf,
    /// Identifies its content.
    pub key: String,
    /// True if its files are the user's: its `/init`, if it has one, is the user's too.
    pub(crate) is_the_users_root: bool,
}

impl Initramfs {
    /// Finds the initramfs in the cache, and builds it if needed.
    pub(crate) fn find(base: &Base<'_>, over: &Overlay<'_>, cache: &Cache) -> Result<Self> {
        let modules = over.modules;
        let agent = fs::read(over.agent).at("read", over.agent)?;
        let root = json(over.root, over.agent)?;
        let storage = json(over.storage, over.agent)?;
        let mut key = Key::default().add("layout 1").add(&agent);
        let lower = match base {
            Base::Root(rootfs) => {
                key = key.add(&rootfs.key);
                Vec::new()
            }
            Base::File(path) => {
                let contents = fs::read(path).at("read", path)?;
                key = key.add("file 2").add(&contents);
                contents
            }
            Base::Memory(root) => {
                key = key.add("memory 2").add(&root.key);
                Vec::new()
            }
            Base::Disk => Vec::new(),
        };
        if !root.is_empty() {
            key = key.add("root").add(&root);
        }
        if !storage.is_empty() {
            key = key.add("storage").add(&storage);
        }
        for module in modules {
            key = key
                .add(&module.guest)
                .add(&module.contents)
                .add([u8::from(module.load) | u8::from(module.optional) << 1]);
        }
        let key = key.finish();
        let need_mib = match base {
            Base::Memory(root) => 150 + crate::disk::space_mib(&root.archive),
            _ => 150,
        };
        let place = cache.entry("initramfs", &key, need_mib, |folder| {
            let path = folder.join("initramfs");
            let mut output = BufWriter::new(File::create(&path).at("create", &path)?);
            let written = match base {
                Base::Root(rootfs) => {
                    let mut archive = Archive::new(&mut output);
                    archive.tree(&rootfs.root, "")?;
                    archive.finish().map(|_| ())
                }
                // The kernel unpacks archives one after the other. Each begins at a multiple of 4.
                Base::File(_) => {
                    let padding = lower.len().next_multiple_of(4) - lower.len();
                    output.write_all(&lower).and_then(|()| output.write_all(&[0; 3][..padding]))
                }
                Base::Memory(root) => {
                    let mut archive = File::open(&root.archive).at("open", &root.archive)?;
                    std::io::copy(&mut archive, &mut output).map(drop)
                }
                Base::Disk => Ok(()),
            };
            written.at("write", &path)?;
            let init = if base.is_the_users() { OWN_INIT } else { "/init" };
            overlay(&mut output, (init, &agent), modules, [(ROOT_FILE, &root), (STORAGE_FILE, &storage)])
                .and_then(|()| output.flush())
                .at("write", &path)
        })?;
        cache.keep_recent("initramfs", &place, 8);
        Ok(Self { image: place.join("initramfs"), key, is_the_users_root: base.is_the_users() })
    }
}

/// A plan as the agent reads it; empty if there is none.
fn json<T: Serialize>(plan: Option<&T>, agent: &Path) -> Result<Vec<u8>> {
    let text = plan.map(serde_json::to_vec).transpose().map_err(std::io::Error::other).at("write", agent)?;
    Ok(text.unwrap_or_default())
}

fn overlay(
    output: &mut dyn Write,
    (init, agent): (&str, &[u8]),
    modules: &[Module],
    plans: [(&str, &[u8]); 2],
) -> std::io::Result<()> {
    let mut archive = Archive::new(output);
    archive.folder(AGENT_FOLDER.trim_start_matches('/'), 0o755)?;
    archive.file(init.trim_start_matches('/'), 0o755, agent)?;
    archive.folder("dev", 0o755)?;
    // The kernel opens this for init before anything can mount devtmpfs.
    archive.device("dev/console", 0o600, 5, 1)?;
    archive.device("dev/null", 0o666, 1, 3)?;
    for module in modules {
        archive.parents(&module.guest)?;
        archive.file(&module.guest, 0o644, &module.contents)?;
    }
    let line = |module: &Module| {
        let mark = if module.optional { OPTIONAL_MODULE } else { "" };
        format!("{mark}/{}\n", module.guest)
    };
    let list: String = modules.iter().filter(|module| module.load).map(line).collect();
    archive.file(MODULE_LIST.trim_start_matches('/'), 0o644, list.as_bytes())?;
    if !modules.is_empty() {
        archive.file(DEPMOD_WANTED.trim_start_matches('/'), 0o644, &[])?;
    }
    for (file, plan) in plans.into_iter().filter(|(_, plan)| !plan.is_empty()) {
        archive.file(file.trim_start_matches('/'), 0o644, plan)?;
    }
    archive.finish()?;
    Ok(())
}
