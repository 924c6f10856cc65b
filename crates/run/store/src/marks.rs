// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a table is the run's own.
//!
//! In: the marks of tables in a run's manifest, and the tables' files. Out: an error for a table of another mark. Equal runs
//! have equal tables, so no table names its run, and one that was copied from another run reads as well as the run's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kprism_manifest::hash::Mark;
use kprism_manifest::{Manifest, table_path};

use crate::{Result, Run, StoreError, io_at};

/// The marks of a run's tables, by name. A run of an older version has none, and its tables are taken as they are: its
/// account says so ([`Manifest::unmarked`]).
#[derive(Debug, Default)]
pub(crate) struct Marks(BTreeMap<String, String>);

impl Marks {
    /// Those of a run's manifest; none if it has no readable manifest.
    pub fn of(run: &Run) -> Marks {
        Marks(run.plain_manifest().map(|manifest| manifest.tables).unwrap_or_default())
    }

    /// Fails if the table at `path` has another mark than the manifest names. `found` computes the mark of the file.
    pub fn check(&self, path: &Path, found: impl FnOnce() -> String) -> Result<()> {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(expected) = self.0.get(name) else { return Ok(()) };
        let found = found();
        match found == *expected {
            true => Ok(()),
            false => {
                Err(StoreError::OtherTable { path: path.to_path_buf(), expected: expected.clone(), found })
            }
        }
    }
}

impl Run {
    /// Checks that a table is the one that the manifest names, for readers of other kinds than this crate's. A table that is not
    /// there, or of which the manifest has no mark, passes.
    ///
    /// # Errors
    /// [`StoreError::OtherTable`] if it is another one; [`StoreError::Io`] if it cannot be read.
    pub fn check_table(&self, name: &str) -> Result<()> {
        let path = self.table(name);
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        let bytes = fs::read(&path).map_err(io_at(&path))?;
        Marks::of(self).check(&path, || Mark::of(&bytes))
    }
}

/// The tables of a run that its manifest does not name, as paths below the run's folder.
pub(crate) fn unmarked(run: &Run, manifest: &Manifest) -> Vec<String> {
    let entries = fs::read_dir(run.tables()).into_iter().flatten().flatten();
    let names =
        entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".parquet")?.to_owned()));
    let mut names: Vec<String> = names.filter(|name| !manifest.tables.contains_key(name)).collect();
    names.sort_unstable();
    names.iter().map(|name| table_path(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MissRow, RunKind, load_profile, load_profile_if_made, save_profile, save_tlb_misses};
    use kprism_profile::{Func, Profile};

    /// A run with the tables of a profile with this function.
    fn run(folder: &Path, function: &str) -> Run {
        let run = Run::create(&folder.join(function)).unwrap();
        let func = Func { name: function.into(), module: String::new(), start: 1, kernel: true };
        let tables = save_profile(&run, &Profile { funcs: vec![func], ..Profile::default() }).unwrap();
        run.write_manifest(&Manifest { tables, ..Manifest::new(RunKind::Lab, 1) }).unwrap();
        run
    }

    #[test]
    fn a_table_of_another_run_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (run(folder.path(), "own"), run(folder.path(), "other"));
        assert_eq!(load_profile(&own).unwrap().funcs[0].name, "own");
        own.check_table("functions").unwrap();
        fs::copy(other.table("functions"), own.table("functions")).unwrap();
        let error = load_profile(&own).unwrap_err();
        assert!(matches!(error, StoreError::OtherTable { .. }), "{error}");
        let marks = [&own, &other].map(|run| run.manifest().unwrap().tables["functions"].clone());
        for part in marks.iter().map(String::as_str).chain(["functions.parquet"]) {
            assert!(error.to_string().contains(part), "{error} has no {part}");
        }
        assert!(own.check_table("functions").is_err());
        // It is not taken for a run without tables.
        assert!(load_profile_if_made(&own).is_err());
        assert!(load_profile_if_made(&other).unwrap().is_some());
        other.remove_tables();
        assert!(load_profile_if_made(&other).unwrap().is_none());
    }

    #[test]
    fn equal_tables_are_the_runs_own_wherever_they_come_from() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (run(folder.path(), "own"), run(folder.path(), "other"));
        fs::copy(other.table("nodes"), own.table("nodes")).unwrap();
        own.check_table("nodes").unwrap();
    }

    #[test]
    fn tables_of_an_older_run_open_and_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let run = run(folder.path(), "f");
        assert_eq!(run.manifest().unwrap().unmarked, [""; 0]);
        let mut manifest = run.manifest().unwrap();
        manifest.tables.clear();
        run.write_manifest(&manifest).unwrap();
        assert_eq!(load_profile(&run).unwrap().funcs[0].name, "f");
        assert_eq!(run.manifest().unwrap().unmarked.len(), crate::TABLES.len());
    }

    #[test]
    fn the_table_of_misses_has_a_mark_too() {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        let mark = save_tlb_misses(&run, std::iter::empty::<MissRow>()).unwrap();
        assert_eq!(mark, Mark::of(&fs::read(run.table("tlb_misses")).unwrap()));
    }
}
