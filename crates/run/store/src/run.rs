// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a run: creates it and rotates an older one, opens it, and gives the paths of its files. The input is a
//! path; the output is a [`Run`]. A run may come from another user, so opening one checks that nothing in it leads
//! elsewhere.

use kprism_layout::GcovFiles;
use serde::Deserialize;

use crate::{Manifest, Result, StoreError, files, io_at, marks, write_atomically};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of a profile's tables, without folder and suffix.
pub const TABLES: [&str; 12] = [
    "functions",
    "tasks",
    "nodes",
    "syscalls",
    "slices",
    "errors",
    "cpus",
    "deltas",
    "delta_bins",
    "delta_longest",
    "delta_sites",
    "counts",
];

/// An existing run folder.
///
/// A run that was made by [`Run::create`] stays locked until its last clone is dropped. Until then, no other process
/// can record into it or rotate it away.
#[derive(Debug, Clone)]
pub struct Run {
    dir: PathBuf,
    _lock: Option<Arc<File>>,
}

impl Run {
    /// Creates a new, empty run at `dir`.
    ///
    /// The new folder can be read only by its owner, because a run contains memory contents and the kernel's addresses.
    /// An empty folder that exists already is used with its permissions.
    ///
    /// A run that exists at `dir` is renamed to `dir.old`, and an older run at `dir.old` is removed. Anything else is
    /// left alone.
    ///
    /// # Errors
    /// [`StoreError::Occupied`] if `dir` or `dir.old` is not a run, [`StoreError::Foreign`] if `dir` is another user's
    /// empty folder, [`StoreError::Busy`] if another process is recording into it, and [`StoreError::Io`] otherwise.
    pub fn create(dir: &Path) -> Result<Run> {
        if let Ok(there) = dir.symlink_metadata()
            && there.uid() != own_uid()
            && is_empty_dir(dir)
        {
            // The owner of the folder could put links into it while we write.
            return Err(StoreError::Foreign { path: dir.to_path_buf(), uid: there.uid() });
        }
        if dir.symlink_metadata().is_ok() && !is_empty_dir(dir) {
            drop(lock(dir)?);
            let old = old_of(dir);
            for taken in [dir, &old] {
                if taken.symlink_metadata().is_ok() && !looks_like_run(taken) {
                    return Err(StoreError::Occupied { path: taken.to_path_buf() });
                }
            }
            if old.exists() {
                fs::remove_dir_all(&old).map_err(io_at(&old))?;
            }
            fs::rename(dir, &old).map_err(io_at(dir))?;
        }
        if let Some(parent) = dir.parent() {
            fs::create_dir_all(parent).map_err(io_at(parent))?;
        }
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            // The folder is our own, and empty.
            Err(why) if why.kind() == ErrorKind::AlreadyExists && is_empty_dir(dir) => {}
            made => made.map_err(io_at(dir))?,
        }
        let run = Run { dir: dir.to_path_buf(), _lock: lock(dir)?.map(Arc::new) };
        for folder in [run.streams(), run.symbols(), run.tables()] {
            fs::create_dir(&folder).map_err(io_at(&folder))?;
        }
        Ok(run)
    }

    /// Opens a recorded run, which may come from another machine and user. Reading the run reads no other files, and
    /// writing its tables writes no other files.
    ///
    /// # Errors
    /// [`StoreError::NotARun`] if there is no manifest; [`StoreError::Leaves`] if an entry is a link that leads out of
    /// the run, or neither a file nor a folder.
    pub fn open(dir: &Path) -> Result<Run> {
        let run = Run { dir: dir.to_path_buf(), _lock: None };
        if let Err(error) = run.manifest_path().symlink_metadata() {
            return Err(match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => {
                    StoreError::NotARun { path: dir.to_path_buf() }
                }
                _ => io_at(&run.manifest_path())(error),
            });
        }
        let inside = dir.canonicalize().map_err(io_at(dir))?;
        stays(dir, &inside)?;
        Ok(run)
    }

    /// Path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of `manifest.json`.
    pub fn manifest_path(&self) -> PathBuf {
        self.dir.join("manifest.json")
    }

    /// Folder of the raw streams.
    pub fn streams(&self) -> PathBuf {
        self.dir.join("streams")
    }

    /// Path of a CPU's Intel PT stream.
    pub fn pt(&self, cpu: u32) -> PathBuf {
        self.streams().join(format!("cpu{cpu}.pt"))
    }

    /// Path of a CPU's code map, which tells when each code fragment became visible to the CPU's stream.
    pub fn code_map(&self, cpu: u32) -> PathBuf {
        self.streams().join(format!("cpu{cpu}.map"))
    }

    /// Path of the code dictionary, which has the code fragments as they ran.
    pub fn code_dict(&self) -> PathBuf {
        self.streams().join("code.dict")
    }

    /// Path of the list of parts of files that code maps refer to: one JSON object per line.
    pub fn code_files(&self) -> PathBuf {
        self.streams().join("code.files")
    }

    /// Path of the sideband: context switches, renames, mappings and marks, as one JSON object per line.
    pub fn sideband(&self) -> PathBuf {
        self.streams().join("sideband.jsonl")
    }

    /// Path of the recorder's own counts.
    pub fn counts(&self) -> PathBuf {
        self.streams().join("counts.json")
    }

    /// Folder of TLB misses.
    pub fn tlb(&self) -> PathBuf {
        self.streams().join("tlb")
    }

    /// Path of a CPU's TLB misses.
    pub fn tlb_misses(&self, cpu: u32) -> PathBuf {
        self.tlb().join(format!("cpu{cpu}.miss"))
    }

    /// Path of the counts of the TLB models.
    pub fn tlb_counts(&self) -> PathBuf {
        self.tlb().join("counts.json")
    }

    /// Folder of a trace of ftrace, or of another tool that has its events.
    pub fn ftrace(&self) -> PathBuf {
        self.streams().join("ftrace")
    }

    /// The kernel's log of a boot.
    pub fn dmesg(&self) -> PathBuf {
        self.ftrace().join("dmesg")
    }

    /// Facts on a traced boot.
    pub fn boot_facts(&self) -> PathBuf {
        self.ftrace().join("boot.json")
    }

    /// Folder of durations that BPF measured.
    pub fn bpf(&self) -> PathBuf {
        self.streams().join("bpf")
    }

    /// Single calls that BPF kept.
    pub fn bpf_calls(&self) -> PathBuf {
        self.bpf().join("calls.bin")
    }

    /// Functions' durations that BPF summed up.
    pub fn bpf_functions(&self) -> PathBuf {
        self.bpf().join("functions.jsonl")
    }

    /// Paths of gcov's counters.
    pub fn gcov(&self) -> GcovFiles {
        GcovFiles::of(&self.dir)
    }

    /// Folder of probes and their records.
    pub fn probe(&self) -> PathBuf {
        self.streams().join("probe")
    }

    /// The probes that were set.
    pub fn probes(&self) -> PathBuf {
        self.probe().join("probes.json")
    }

    /// The records of probes.
    pub fn hits(&self) -> PathBuf {
        self.probe().join("hits.bin")
    }

    /// Folder of the symbols.
    pub fn symbols(&self) -> PathBuf {
        self.dir.join("symbols")
    }

    /// The kernel's symbols, as /proc/kallsyms has them.
    pub fn kallsyms(&self) -> PathBuf {
        self.symbols().join("kallsyms")
    }

    /// The kernel's modules with their addresses: `symbols/modules`, as `/proc/modules` lists them.
    pub fn modules(&self) -> PathBuf {
        self.symbols().join("modules")
    }

    /// The file of a module that the user built, unpacked, as it was loaded: `symbols/ko/NAME.ko`. `name` is that in
    /// `/proc/modules`.
    pub fn module_file(&self, name: &str) -> PathBuf {
        // No name leads out of the folder.
        self.symbols().join("ko").join(format!("{}.ko", name.replace('/', "_")))
    }

    /// The mapped programs and libraries, below the paths that they had.
    pub fn root(&self) -> PathBuf {
        self.symbols().join("root")
    }

    /// Folder of the tables.
    pub fn tables(&self) -> PathBuf {
        self.dir.join("tables")
    }

    /// Path of a table. `name` is one of [`TABLES`] or the name of another instrument's table.
    pub fn table(&self, name: &str) -> PathBuf {
        self.tables().join(format!("{name}.parquet"))
    }

    /// The second pass of a recording of durations, a run of its own: `remeasured`.
    pub fn remeasured(&self) -> PathBuf {
        self.dir().join("remeasured")
    }

    /// Path of the kernel's console output.
    pub fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// The folder with the results of the kernel's own tests.
    pub fn tests(&self) -> PathBuf {
        self.dir.join("tests")
    }

    /// Path of the command's standard output.
    pub fn stdout(&self) -> PathBuf {
        self.dir.join("stdout")
    }

    /// Path of the command's standard error.
    pub fn stderr(&self) -> PathBuf {
        self.dir.join("stderr")
    }

    /// Reads the manifest, and finds out which of the recorded files are missing or shorter ([`Manifest::absent`]) or longer
    /// ([`Manifest::grown`]), and which tables have no mark ([`Manifest::unmarked`]).
    ///
    /// # Errors
    /// [`StoreError::Manifest`] with line and column if it is not the expected JSON; [`StoreError::Io`] if it cannot be
    /// read.
    pub fn manifest(&self) -> Result<Manifest> {
        let mut manifest = self.plain_manifest()?;
        manifest.absent = files::absent(self, &manifest);
        manifest.grown = files::grown(self, &manifest);
        manifest.unlisted = files::is_unlisted(self, &manifest);
        manifest.unmarked = marks::unmarked(self, &manifest);
        Ok(manifest)
    }

    /// The manifest for a recorder that has just written files anew: that they are longer than before is no fault.
    ///
    /// # Errors
    /// As [`Run::manifest`].
    pub fn own_manifest(&self) -> Result<Manifest> {
        Ok(Manifest { grown: BTreeMap::new(), ..self.manifest()? })
    }

    /// The manifest alone, without a look at other files.
    pub(crate) fn plain_manifest(&self) -> Result<Manifest> {
        let path = self.manifest_path();
        let bytes = fs::read(&path).map_err(io_at(&path))?;
        serde_json::from_slice(&bytes).map_err(|source| StoreError::Manifest { path, source })
    }

    /// Writes the manifest in one step, with the lengths of the recorded files. A reader never sees a part of it.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file cannot be written.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.manifest_path();
        let manifest = Manifest { files: files::list(self, manifest), ..manifest.clone() };
        let mut json = serde_json::to_vec_pretty(&manifest)
            .map_err(|source| StoreError::Manifest { path: path.clone(), source })?;
        json.push(b'\n');
        write_atomically(&path, &json)
    }

    /// Merges the sidebands that the recorder wrote for each CPU (`cpuN.side.jsonl`), ordered by time and then by CPU.
    /// An incomplete last line, left by a sudden end of the recorder, is dropped. Does nothing if there are none.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a file cannot be read or written.
    pub fn merge_sideband(&self) -> Result<()> {
        let parts = self.sideband_parts()?;
        if parts.is_empty() {
            return Ok(());
        }
        write_atomically(&self.sideband(), &merged(&parts)?)?;
        parts.iter().try_for_each(|path| fs::remove_file(path).map_err(io_at(path)))
    }

    /// The sideband's text, from its file or merged from its parts. Empty if there is none.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a file exists and cannot be read.
    pub fn sideband_text(&self) -> Result<Vec<u8>> {
        let parts = self.sideband_parts()?;
        if !parts.is_empty() {
            return merged(&parts);
        }
        let path = self.sideband();
        match fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(io_at(&path)),
        }
    }

    fn sideband_parts(&self) -> Result<Vec<PathBuf>> {
        let number = |path: &Path| -> Option<u32> {
            path.file_name()?.to_str()?.strip_prefix("cpu")?.strip_suffix(".side.jsonl")?.parse().ok()
        };
        let entries = match fs::read_dir(self.streams()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io_at(&self.streams()))?,
        };
        let mut parts = Vec::new();
        for entry in entries {
            let path = entry.map_err(io_at(&self.streams()))?.path();
            parts.extend(number(&path).map(|number| (number, path)));
        }
        parts.sort_unstable();
        Ok(parts.into_iter().map(|(_, path)| path).collect())
    }

    /// Removes all tables of the profile, so that an incomplete set is not mistaken for a complete one. Tables that
    /// cannot be removed stay.
    pub fn remove_tables(&self) {
        for table in TABLES {
            let _ = fs::remove_file(self.table(table));
        }
    }

    /// True if all tables of the profile exist, which means that the run has been decoded.
    pub fn has_tables(&self) -> bool {
        TABLES.iter().all(|t| self.table(t).exists())
    }
}

/// The lines of all parts, ordered by time. A damaged line stays behind the line before it, so that its reader can
/// count it. An incomplete last line, left by a sudden end of the recorder, is dropped.
fn merged(parts: &[PathBuf]) -> Result<Vec<u8>> {
    let mut lines = Vec::new();
    for path in parts {
        let bytes = fs::read(path).map_err(io_at(path))?;
        let mut last = 0;
        for line in String::from_utf8_lossy(&bytes).split_inclusive('\n') {
            match serde_json::from_str(line) {
                Ok(Timed { t }) => last = t,
                Err(_) if !line.ends_with('\n') || line.trim().is_empty() => continue,
                Err(_) => {}
            }
            lines.push((last, line.trim_end_matches(['\r', '\n']).to_owned()));
        }
    }
    lines.sort_by_key(|(t, _)| *t);
    let text: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
    Ok(text.into_bytes())
}

/// Locks the folder itself. The lock is released with the file descriptor, however the process ends. Returns `None` if
/// `dir` cannot be opened, or if the file system has no locks.
fn lock(dir: &Path) -> Result<Option<File>> {
    let Ok(folder) = File::open(dir) else { return Ok(None) };
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => Err(StoreError::Busy { path: dir.to_path_buf() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// The time of a sideband line, the only field that merging needs.
#[derive(Deserialize)]
struct Timed {
    t: u64,
}

/// Path with `.old` appended to its last component.
fn old_of(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".old");
    dir.with_file_name(name)
}

/// True if the folder is a run. A recording that ended before its manifest was written counts as a run too, because
/// otherwise it could never be rotated away.
fn looks_like_run(dir: &Path) -> bool {
    let is_real_dir = dir.symlink_metadata().is_ok_and(|m| m.is_dir());
    is_real_dir
        && (dir.join("manifest.json").exists()
            || (dir.join("streams").is_dir() && dir.join("tables").is_dir()))
}

/// Fails if an entry of this folder, or of one below it, leads out of `inside` or is neither a file nor a folder.
fn stays(folder: &Path, inside: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(io_at(folder))? {
        let entry = entry.map_err(io_at(folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(io_at(&path))?;
        if kind.is_dir() {
            stays(&path, inside)?;
        } else if kind.is_symlink() {
            if !path.canonicalize().is_ok_and(|to| to.starts_with(inside)) {
                return Err(StoreError::Leaves { path, what: "a link that leads out of the run" });
            }
        } else if !kind.is_file() {
            return Err(StoreError::Leaves { path, what: "neither a file nor a folder" });
        }
    }
    Ok(())
}

/// Effective user ID of this process, which owns the files that it creates.
fn own_uid() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // The fields are the real, effective, saved and file system IDs.
    line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn is_empty_dir(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}
