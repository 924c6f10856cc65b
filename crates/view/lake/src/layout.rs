// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths in a lake. Input: table, suite, day, run. Output: the file, and the names that are allowed.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Version of the tables' columns, which is part of every path.
pub const SCHEMA: u32 = 2;

/// Name of the folder that takes the place of the day in merged files.
pub const MERGED: &str = "merged";

/// A folder of many runs.
#[derive(Debug, Clone)]
pub struct Lake {
    root: PathBuf,
}

/// The way to a lake in object storage.
pub(crate) const OBJECT_STORAGE: &str = "mount the object storage, or copy it into a folder, and name that";

impl Lake {
    /// Opens a lake, which may be empty; makes the folder if it is missing.
    ///
    /// # Errors
    /// The folder holds something else, or cannot be made.
    pub fn create(root: &Path) -> Result<Self> {
        let lake = Lake { root: root.to_path_buf() };
        // Looked for again after the listing: a process that makes the lake at this moment makes `_lake` before all else.
        let holds = || fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some());
        if !lake.own().is_dir() && holds() && !lake.own().is_dir() {
            bail!("{}: not a lake, and not empty; name a new folder", root.display());
        }
        // Runs hold what was in memory: a new lake is its owner's alone, as they are.
        if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        match fs::DirBuilder::new().mode(0o700).create(root) {
            Err(why) if why.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(why).with_context(|| root.display().to_string());
            }
            _ => {}
        }
        if !root.is_dir() {
            bail!("{}: not a folder; name a new one for the lake", root.display());
        }
        let own = lake.staging();
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        Ok(lake)
    }

    /// Opens an existing lake.
    ///
    /// # Errors
    /// The folder is no lake.
    pub fn open(root: &Path) -> Result<Self> {
        if root.to_str().is_some_and(|text| text.contains("://")) {
            bail!("{}: only folders are read; {OBJECT_STORAGE}", root.display());
        }
        let lake = Lake { root: root.to_path_buf() };
        match lake.own().is_dir() {
            true => Ok(lake),
            false => bail!("{}: not a lake; `kprism lake add RUN --to {0}` makes one", root.display()),
        }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of locks, journal and files being written.
    pub fn own(&self) -> PathBuf {
        self.root.join("_lake")
    }

    /// Folder of files being written.
    pub fn staging(&self) -> PathBuf {
        self.own().join("staging")
    }

    /// The folder of a table's files of one suite, relative to the lake.
    pub fn suite_dir(table: &str, suite: &str) -> PathBuf {
        PathBuf::from(format!("{table}/schema={SCHEMA}/suite={suite}"))
    }

    /// A run's file of a table, relative to the lake.
    pub fn run_file(table: &str, suite: &str, day: &str, run: &str) -> PathBuf {
        Lake::suite_dir(table, suite).join(format!("day={day}")).join(format!("{run}.parquet"))
    }

    /// A merged file of a table, relative to the lake.
    pub fn part_file(table: &str, suite: &str, part: i64) -> PathBuf {
        Lake::suite_dir(table, suite).join(format!("day={MERGED}")).join(format!("part-{part}.parquet"))
    }

    /// Names of the tables, sorted.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn tables(&self) -> Result<Vec<String>> {
        let inside = |name: &String| self.root.join(name).join(format!("schema={SCHEMA}")).is_dir();
        Ok(names(&self.root)?
            .into_iter()
            .filter(|name| !name.starts_with(['_', '.']))
            .filter(inside)
            .collect())
    }

    /// All files of a table, sorted, relative to the lake.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn files(&self, table: &str) -> Result<Vec<TableFile>> {
        let mut all = Vec::new();
        let base = PathBuf::from(table).join(format!("schema={SCHEMA}"));
        for suite_dir in names(&self.root.join(&base))? {
            let Some(suite) = suite_dir.strip_prefix("suite=") else { continue };
            for day in names(&self.root.join(&base).join(&suite_dir))? {
                let folder = base.join(&suite_dir).join(&day);
                for name in names(&self.root.join(&folder))? {
                    if let Some(stem) =
                        name.strip_suffix(".parquet").filter(|stem| !stem.starts_with(['_', '.']))
                    {
                        let (path, stem) = (folder.join(&name), stem.to_owned());
                        all.push(TableFile { path, suite: suite.to_owned(), stem });
                    }
                }
            }
        }
        Ok(all)
    }
}

/// A file of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFile {
    /// Relative to the lake.
    pub path: PathBuf,
    /// The suite of its runs.
    pub suite: String,
    /// Name without the suffix: a run id, or `part-` and a number.
    pub stem: String,
}

impl TableFile {
    /// The part of its rows if it is a merged file.
    pub fn part(&self) -> Option<i64> {
        self.stem.strip_prefix("part-")?.parse().ok()
    }
}

/// Names of a folder's entries, sorted; none if the folder is missing.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.with_context(|| folder.display().to_string())?.file_name();
        names.extend(name.into_string());
    }
    names.sort();
    Ok(names)
}

/// Refuses a name that cannot be part of a path in every engine.
///
/// # Errors
/// It is empty, or has other characters than letters, digits, `.`, `_` and `-`, or begins with `.` or `_`.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 128 || name.starts_with(['.', '_']) || !name.chars().all(allowed) {
        bail!(
            "{what} {name:?}: expected 1 to 128 letters, digits, `.`, `_`, `-`, beginning with a letter or digit"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_make_one_lake_at_once() {
        let place = tempfile::tempdir().unwrap();
        for round in 0..300 {
            let root = place.path().join(round.to_string());
            let begin = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                let made = || {
                    begin.wait();
                    Lake::create(&root)
                };
                let makers: Vec<_> = (0..4).map(|_| scope.spawn(made)).collect();
                for maker in makers {
                    maker.join().unwrap().unwrap();
                }
            });
        }
        std::fs::write(place.path().join("0/x"), "").unwrap();
        Lake::create(&place.path().join("0")).unwrap();
        let refused = Lake::create(place.path()).unwrap_err().to_string();
        assert!(refused.contains("not a lake, and not empty"), "{refused}");
    }
}
