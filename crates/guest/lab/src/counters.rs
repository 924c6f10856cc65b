// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the kernel's coverage counters from the memory of a stopped guest.
//!
//! Input: a stopped guest, and its `kallsyms`. Output: an archive in the form of `/sys/kernel/debug/gcov`. The guest
//! executes nothing for it. At a mark in user mode the observer holds it; or, where guest time follows the host's, it
//! stops itself by writing to a port. Then the host reads its memory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use kprism_gcov::memory::{Roots, read, symbol};
use kprism_kmem::paging::Paged;
use kprism_layout::GcovFiles;
use serde_json::json;

use crate::archive::Archive;
use crate::error::{Context, Error, Result};
use crate::hold::Holder;
use crate::machine::memory::GuestMemory;
use crate::qemu::Running;
use crate::snapshot::wait_stopped;

/// Reads counters each time the guest stops for it.
#[derive(Debug)]
pub(crate) struct CounterReader {
    kallsyms: PathBuf,
    /// Folder of the run.
    folder: PathBuf,
    scratch: PathBuf,
    next: Option<String>,
    /// The observer, which holds the guest. Without it, the machine has stopped itself.
    holder: Option<Holder>,
}

impl CounterReader {
    pub fn new(kallsyms: PathBuf, folder: &Path, scratch: &Path, holder: Option<Holder>) -> Self {
        Self { kallsyms, folder: folder.to_owned(), scratch: scratch.to_owned(), next: None, holder }
    }

    /// Announces that the guest comes to a stop mark, or is there. `name` is that of the reading's archive, as in [`GcovFiles`];
    /// there are several readings before the window, and one after it.
    pub fn come(&mut self, name: String) {
        self.next = Some(name);
    }

    /// Reads counters if the guest has stopped for it, and resumes it.
    pub fn read(&mut self, qemu: &mut Running) -> Result<()> {
        let Some(name) = self.next.take() else { return Ok(()) };
        match &mut self.holder {
            Some(holder) => holder.wait()?,
            None => wait_stopped(qemu)?,
        }
        let symbols = fs::read(&self.kallsyms).at("read", &self.kallsyms)?;
        let roots = Roots::find(&symbols).zip(symbol(&symbols, "init_top_pgt"));
        let (roots, table) = roots.ok_or_else(|| Error::BadFile {
            path: self.kallsyms.clone(),
            reason:
                "the guest's kernel has no gcov_info_head and init_top_pgt: it needs CONFIG_GCOV_KERNEL and \
                     CONFIG_KALLSYMS_ALL"
                    .into(),
        })?;
        let piece = self.scratch.join("counters");
        let memory = GuestMemory::new(&mut qemu.qmp, &piece);
        // The lab boots with nokaslr: the image is at its link address. Page tables have four levels (la57 is off).
        let found = read(&mut Paged::new(memory, table, 0, false), roots).map_err(|error| Error::Qemu {
            reason: format!("the kernel's coverage counters in the guest's memory: {error}"),
        })?;
        let files = GcovFiles::of(&self.folder);
        let folder = files.folder();
        fs::create_dir_all(folder).at("create", folder)?;
        // The name comes from the guest, whose programs may be anybody's.
        if ![GcovFiles::BEFORE, GcovFiles::AFTER].contains(&name.as_str()) {
            return Err(Error::BadFile {
                path: name.into(),
                reason: "the guest gave its counters a name that is not theirs".into(),
            });
        }
        let path = folder.join(&name);
        let mut archive = Archive::new(BufWriter::new(File::create(&path).at("create", &path)?));
        for (object, data) in &found {
            archive.file(object.trim_start_matches('/'), 0o400, &data.to_bytes()).at("write", &path)?;
        }
        archive.finish().and_then(|mut output| output.flush()).at("write", &path)?;
        match &mut self.holder {
            Some(holder) => holder.release(),
            None => qemu.qmp.call("cont", json!({})).map(|_| ()),
        }
    }
}
