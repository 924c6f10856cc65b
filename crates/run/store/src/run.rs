// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder itself: creating with rotation, opening, and where everything is.

use serde::Deserialize;

use crate::{Manifest, Result, StoreError, io_at, write_atomically};
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of the tables, without folder and suffix.
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
/// A run that was made by [`Run::create`] stays locked until the last clone of that value goes: nobody else can record
/// into it, or rotate it away, meanwhile.
#[derive(Debug, Clone)]
pub struct Run {
    dir: PathBuf,
    _lock: Option<Arc<File>>,
}

impl Run {
    /// Makes a new, empty run at `dir`.
    ///
    /// Only its owner may read it: it holds what was in memory, and where the kernel is.
    ///
    /// A run that is already there is renamed to `dir.old`, and the one before it (`dir.old`) removed.
    /// Anything that is not a run is left alone.
    ///
    /// # Errors
    /// [`StoreError::Occupied`] if `dir` or `dir.old` is something else, [`StoreError::Io`] otherwise.
    pub fn create(dir: &Path) -> Result<Run> {
        if let Ok(there) = dir.symlink_metadata()
            && there.uid() != own_uid()
            && is_empty_dir(dir)
        {
            // Whoever made it could put links into it while we write.
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
            // It is our own, and empty.
            Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists && is_empty_dir(dir) => {}
            made => made.map_err(io_at(dir))?,
        }
        let run = Run { dir: dir.to_path_buf(), _lock: lock(dir)?.map(Arc::new) };
        for folder in [run.streams(), run.symbols(), run.tables()] {
            fs::create_dir(&folder).map_err(io_at(&folder))?;
        }
        Ok(run)
    }

    /// Opens a run that was recorded before, perhaps elsewhere by somebody else: reading it reads nothing but it, and writing
    /// its tables writes nowhere else.
    ///
    /// # Errors
    /// [`StoreError::NotARun`] if there is no manifest, [`StoreError::Leaves`] if something in it is a link that leads out of it,
    /// or neither a file nor a folder.
    pub fn open(dir: &Path) -> Result<Run> {
        let run = Run { dir: dir.to_path_buf(), _lock: None };
        if run.manifest_path().symlink_metadata().is_err() {
            return Err(StoreError::NotARun { path: dir.to_path_buf() });
        }
        let inside = dir.canonicalize().map_err(io_at(dir))?;
        stays(dir, &inside)?;
        Ok(run)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `manifest.json`.
    pub fn manifest_path(&self) -> PathBuf {
        self.dir.join("manifest.json")
    }

    /// Folder of the raw streams.
    pub fn streams(&self) -> PathBuf {
        self.dir.join("streams")
    }

    /// The Intel PT stream of a CPU.
    pub fn pt(&self, cpu: u32) -> PathBuf {
        self.streams().join(format!("cpu{cpu}.pt"))
    }

    /// When which code fragment became visible to a CPU's stream.
    pub fn code_map(&self, cpu: u32) -> PathBuf {
        self.streams().join(format!("cpu{cpu}.map"))
    }

    /// The code fragments as they ran.
    pub fn code_dict(&self) -> PathBuf {
        self.streams().join("code.dict")
    }

    /// Context switches, renames, mappings, marks: one JSON object a line.
    pub fn sideband(&self) -> PathBuf {
        self.streams().join("sideband.jsonl")
    }

    /// The recorder's own counts.
    pub fn counts(&self) -> PathBuf {
        self.streams().join("counts.json")
    }

    /// Folder of TLB misses.
    pub fn tlb(&self) -> PathBuf {
        self.streams().join("tlb")
    }

    /// TLB misses of a CPU.
    pub fn tlb_misses(&self, cpu: u32) -> PathBuf {
        self.tlb().join(format!("cpu{cpu}.miss"))
    }

    /// Counts of the TLB models.
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

    /// Folder of gcov's counters.
    pub fn gcov(&self) -> PathBuf {
        self.streams().join("gcov")
    }

    /// Folder of probes and their records.
    pub fn probe(&self) -> PathBuf {
        self.streams().join("probe")
    }

    /// The probes that were set.
    pub fn probes(&self) -> PathBuf {
        self.probe().join("probes.json")
    }

    /// Folder of symbols.
    pub fn symbols(&self) -> PathBuf {
        self.dir.join("symbols")
    }

    /// The kernel's symbols, as /proc/kallsyms has them.
    pub fn kallsyms(&self) -> PathBuf {
        self.symbols().join("kallsyms")
    }

    /// The mapped programs and libraries, below the paths that they had.
    pub fn root(&self) -> PathBuf {
        self.symbols().join("root")
    }

    /// Folder of the tables.
    pub fn tables(&self) -> PathBuf {
        self.dir.join("tables")
    }

    /// One table; `name` is one of [`TABLES`].
    pub fn table(&self, name: &str) -> PathBuf {
        self.tables().join(format!("{name}.parquet"))
    }

    /// The kernel's console.
    pub fn console_log(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// The command's standard output.
    pub fn stdout(&self) -> PathBuf {
        self.dir.join("stdout")
    }

    /// The command's standard error.
    pub fn stderr(&self) -> PathBuf {
        self.dir.join("stderr")
    }

    /// Reads the manifest.
    ///
    /// # Errors
    /// [`StoreError::Manifest`] with line and column if it is not the JSON expected.
    pub fn manifest(&self) -> Result<Manifest> {
        let path = self.manifest_path();
        let bytes = fs::read(&path).map_err(io_at(&path))?;
        serde_json::from_slice(&bytes).map_err(|source| StoreError::Manifest { path, source })
    }

    /// Writes the manifest in one step; a reader never sees half of it.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the disk refuses.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.manifest_path();
        let mut json = serde_json::to_vec_pretty(manifest)
            .map_err(|source| StoreError::Manifest { path: path.clone(), source })?;
        json.push(b'\n');
        write_atomically(&path, &json)
    }

    /// Puts the sideband together that the recorder wrote CPU by CPU (`cpuN.side.jsonl`): in order of time, ties in
    /// order of CPU. A line that a recorder's sudden end cut short is dropped. Nothing to do is no error.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the disk refuses.
    pub fn merge_sideband(&self) -> Result<()> {
        let parts = self.sideband_parts();
        if parts.is_empty() {
            return Ok(());
        }
        write_atomically(&self.sideband(), &merged(&parts)?)?;
        parts.iter().try_for_each(|path| fs::remove_file(path).map_err(io_at(path)))
    }

    /// The sideband, whether or not its parts could be put together on the disk; empty if there is none.
    ///
    /// # Errors
    /// [`StoreError::Io`] if a file is there and cannot be read.
    pub fn sideband_text(&self) -> Result<Vec<u8>> {
        let parts = self.sideband_parts();
        if !parts.is_empty() {
            return merged(&parts);
        }
        let path = self.sideband();
        match fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(io_at(&path)),
        }
    }

    fn sideband_parts(&self) -> Vec<PathBuf> {
        let part = |cpu: u32| self.streams().join(format!("cpu{cpu}.side.jsonl"));
        (0..).map(part).take_while(|path| path.exists()).collect()
    }

    /// Removes what there is of the tables, so that nobody takes a part for the whole. What cannot be removed stays.
    pub fn remove_tables(&self) {
        for table in TABLES {
            let _ = fs::remove_file(self.table(table));
        }
    }

    /// Whether the tables are there, that is whether the run has been decoded.
    pub fn has_tables(&self) -> bool {
        TABLES.iter().all(|t| self.table(t).exists())
    }
}

/// The lines of all parts in order of time. One that is damaged stays behind the line before it, for who reads them to
/// count; but a last line without its end was cut short by a recorder's sudden end, and is dropped.
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

/// Takes the lock of the folder itself, which goes with the file descriptor, however the process ends. `None` for what is
/// no folder, or on a file system that knows no locks.
fn lock(dir: &Path) -> Result<Option<File>> {
    let Ok(folder) = File::open(dir) else { return Ok(None) };
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => Err(StoreError::Busy { path: dir.to_path_buf() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// A line of the sideband, as far as merging needs it.
#[derive(Deserialize)]
struct Timed {
    t: u64,
}

/// `dir` with `.old` appended to its last part.
fn old_of(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".old");
    dir.with_file_name(name)
}

/// A recording cut short before its manifest was written still counts as a run, else it could never be
/// rotated away.
fn looks_like_run(dir: &Path) -> bool {
    let is_real_dir = dir.symlink_metadata().is_ok_and(|m| m.is_dir());
    is_real_dir
        && (dir.join("manifest.json").exists()
            || (dir.join("streams").is_dir() && dir.join("tables").is_dir()))
}

/// Whether all that is in this folder, and in those in it, is within `inside`.
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

/// As whom we run: whose the files are that we make.
fn own_uid() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // Real, effective, saved, of files.
    line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn is_empty_dir(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}
