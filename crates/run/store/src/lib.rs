// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run folder: one directory that holds everything that one run recorded and everything derived from it.
//!
//! The input is raw streams written by the recorders, a [`Manifest`] from the program that made the run, and a
//! [`Profile`](kprism_profile::Profile) from the analyses. The output is the same data read from disk, so that reports
//! and comparisons work without decoding again.
//!
//! ```text
//! kprism.data/
//!   manifest.json        command, machine, clock, losses
//!   streams/             raw: Intel PT, code dictionary, sideband
//!   symbols/             kallsyms, modules, root/<mapped ELF files>, ko/<modules that the user built>
//!   tables/*.parquet     the profile, readable by DuckDB, Polars, Spark, pandas
//!   console.log stdout stderr
//! ```
//!
//! The tables are Parquet files because people already have tools to analyse many runs in this format. The tables
//! contain no dates and no host names, so two identical runs have identical bytes; dates and names are in the manifest.

mod column;
mod delta_tables;
mod duration_tables;
mod files;
mod instrument;
mod keys;
mod manifest_tables;
mod marks;
mod records;
mod rows;
mod run;
mod tables;
mod tlb_table;

pub use column::guarded;
pub use duration_tables::{has_times, load_times, save_times};
pub use keys::stack_keys;
pub use kprism_layout::GcovFiles;
pub use kprism_manifest::{
    About, Account, Bearing, CallLosses, Clock, Condition, ConditionKind, Difference, DurationFacts, Entry,
    Environment, Fate, HugePageMode, HugePages, Instrument, Kernel, KernelModule, KernelTests, KernelTree,
    LIKE_HOST_NOTE, Manifest, NO_CLOCK, NOT_ENDED, NOT_WHOLE, OptionFacts, OptionKey, PLACES, PerfClock,
    ProbeFacts, Processor, Recorded, RunKind, StorageFacts, WHOLE, begun, date, recorded, this_kernel,
};
pub use manifest_tables::{NamedTable, manifest_tables};
pub use records::{Values, save_records};
pub use run::{Run, TABLES};
pub use tables::{load_profile, load_profile_if_made, save_profile};
pub use tlb_table::{MissRow, save_tlb_misses};

use std::io::Write as _;
use std::path::PathBuf;

/// The errors of a run folder. Every variant names the file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder concerned.
        path: PathBuf,
        /// Error returned by the system.
        source: std::io::Error,
    },
    /// The folder is not a run.
    #[error("{}: not a kprism run (no manifest.json); record one with `kprism lab run` or `kprism import`", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// The path for a new run is taken by something that is not a run.
    #[error(
        "{}: exists and is not a kprism run, so it is left alone; choose another place with -o",
        path.display()
    )]
    Occupied {
        /// The file or folder in the way.
        path: PathBuf,
    },
    /// Another process is recording into the folder.
    #[error("{}: another kprism is recording into it; choose another place with -o, or wait for it to end", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The folder for a new run belongs to another user.
    #[error("{}: user {uid}'s, who could change what is written there; choose another place with -o", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// User ID of the owner.
        uid: u32,
    },
    /// An entry of a run would cause other files to be read or written.
    #[error("{}: {what}; a run holds files and folders of its own: remove it, or put a copy there", path.display())]
    Leaves {
        /// The entry in the run.
        path: PathBuf,
        /// Description of the entry.
        what: &'static str,
    },
    /// The manifest is not valid JSON or does not have the expected fields.
    #[error("{}: line {} column {}: {source}", path.display(), source.line(), source.column())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Error of the JSON reader.
        source: serde_json::Error,
    },
    /// A table is missing: the run was recorded but not yet analysed.
    #[error("{}: no such table; the run has not been decoded yet", path.display())]
    NoTable {
        /// The table's file.
        path: PathBuf,
    },
    /// A table is of another version of kprism.
    #[error(
        "{}: a table of schema {found}, and this kprism has schema 2; a run with its streams is decoded anew, another must be \
         recorded or imported again",
        path.display()
    )]
    OtherSchema {
        /// The table's file.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// A table is not the one that was made of this run.
    #[error(
        "{}: not this run's table: the manifest names one of mark {expected}, and this has {found}; remove tables/ to have them \
         made again",
        path.display()
    )]
    OtherTable {
        /// The table's file.
        path: PathBuf,
        /// The mark that the manifest names.
        expected: String,
        /// The mark of the file.
        found: String,
    },
    /// A table's bytes are not Parquet or break a rule of it.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The table's file.
        path: PathBuf,
        /// Error of the Parquet reader.
        source: parquet::errors::ParquetError,
    },
    /// A table is valid Parquet, but its contents break a rule of the profile.
    #[error("{}: row {row}: {what}", path.display())]
    Table {
        /// The table's file.
        path: PathBuf,
        /// Zero-based row at which the rule is broken.
        row: usize,
        /// The rule that is broken.
        what: String,
    },
}

/// Result with this crate's error type.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Attaches the path to an I/O error.
pub(crate) fn io_at(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> StoreError + '_ {
    move |source| StoreError::Io { path: path.to_path_buf(), source }
}

/// Creates a new file. An existing entry of that name is removed first, so that nothing is written through a link.
pub(crate) fn fresh(path: &std::path::Path) -> std::io::Result<std::fs::File> {
    match std::fs::remove_file(path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    std::fs::OpenOptions::new().write(true).create_new(true).open(path)
}

/// Writes a whole file so that readers see either the old or the new contents, never a part.
pub(crate) fn write_atomically(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".part");
    let part = path.with_file_name(name);
    let written =
        fresh(&part).and_then(|mut file| file.write_all(bytes)).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // On a full disk, an incomplete file would only take space.
        let _ = std::fs::remove_file(&part);
    }
    written.map_err(io_at(path))
}
