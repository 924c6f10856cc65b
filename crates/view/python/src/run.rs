// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as Python sees it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use kprism_session::Session;
use kprism_session::progress::{Progress, Update};
use kprism_store::{Instrument, Run as Folder, load_profile_if_made};
use pyo3::prelude::*;

use crate::error::{KprismError, refused};
use crate::table::Table;
use crate::work::beside;

/// A property of the guest: its kind, its text, its numbers, and what to do about it.
type Told = (&'static str, String, BTreeMap<String, u64>, String);

/// A run's folder, opened.
#[pyclass(frozen, module = "kprism._kprism")]
pub struct Run {
    folder: PathBuf,
    notes: Arc<Mutex<Vec<String>>>,
}

#[pymethods]
impl Run {
    /// Opens the run in this folder.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let folder = path.clone();
        beside(py, move || kprism_session::open(&folder).map(drop))?;
        Ok(Run { folder: path, notes: Arc::default() })
    }

    /// The folder.
    #[getter]
    fn path(&self) -> PathBuf {
        self.folder.clone()
    }

    /// The text of `manifest.json`, which is known to be one.
    fn manifest(&self) -> PyResult<String> {
        let text = || -> anyhow::Result<String> {
            let run = Folder::open(&self.folder)?;
            run.manifest()?;
            let path = run.manifest_path();
            fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        text().map_err(|error| refused(&error))
    }

    /// Why the run is not whole; none if nothing was lost, guessed or not understood. Known once it was decoded.
    fn fault(&self) -> PyResult<Option<String>> {
        let manifest = Folder::open(&self.folder).and_then(|run| run.manifest());
        Ok(manifest.map_err(|error| refused(&error.into()))?.fault())
    }

    /// Properties in which the run's guest differs from a machine. Those that depend on its calls are known once it was decoded.
    fn guest(&self) -> PyResult<Vec<Told>> {
        let run = Folder::open(&self.folder).map_err(|error| refused(&error.into()))?;
        let manifest = run.manifest().map_err(|error| refused(&error.into()))?;
        let profile = load_profile_if_made(&run).map_err(|error| refused(&error.into()))?;
        let conditions = manifest.conditions(profile.as_ref()).into_iter();
        Ok(conditions.map(|one| (one.what.name(), one.text, one.numbers, one.remedy)).collect())
    }

    /// Names of the instruments that recorded into the run.
    fn instruments(&self) -> PyResult<Vec<&'static str>> {
        let run = Folder::open(&self.folder).map_err(|error| refused(&error.into()))?;
        Ok(run.instruments().into_iter().map(Instrument::name).collect())
    }

    /// Decodes the run if that was not done yet, or by a version with other tables. A run of another instrument has no profile, and is whole
    /// as it is.
    fn decode(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.session()?;
        beside(py, move || {
            if session.run.holds(Instrument::Durations) {
                session.durations().map(drop)
            } else if session.run.holds(Instrument::Flow) {
                session.flow().map(drop)
            } else if session.instruments().is_empty() && !session.run.has_tables() {
                bail!(
                    "{}: nothing was recorded into it: it has neither streams nor tables",
                    session.run.dir().display()
                )
            } else {
                Ok(())
            }
        })
    }

    /// Names of the tables that are there, sorted. [`Run::decode`] makes those of the profile.
    fn tables(&self) -> PyResult<Vec<String>> {
        let folder = Folder::open(&self.folder).map_err(|error| refused(&error.into()))?.tables();
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".parquet")).map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// A table by its name.
    fn table(&self, name: &str) -> PyResult<Table> {
        let there = self.tables()?;
        if !there.iter().any(|known| known == name) {
            return Err(KprismError::new_err(match there.is_empty() {
                true => format!("{}: no table '{name}': the run has no tables", self.folder.display()),
                false => {
                    format!("{}: no table '{name}'; there are {}", self.folder.display(), there.join(", "))
                }
            }));
        }
        let run = Folder::open(&self.folder).map_err(|error| refused(&error.into()))?;
        run.check_table(name).map_err(|error| refused(&error.into()))?;
        Table::open(name.to_owned(), run.table(name)).map_err(|error| refused(&error))
    }

    /// The HTML report, one page that needs no other file.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let Session { run, .. } = self.session()?;
        let progress = self.progress();
        beside(py, move || {
            if !run.holds(Instrument::Durations) && !run.holds(Instrument::Flow) {
                let held: Vec<_> = run.instruments().iter().map(|held| held.about().report).collect();
                bail!("{}: no page for this run; see kprism {}", run.dir().display(), held.join(", kprism "));
            }
            let (run, profile, manifest) = kprism_session::open_profile(run.dir(), &progress)?;
            kprism_export::report_page(&run, &manifest, &profile, &progress)
        })
    }

    /// Remarks made since the last call, such as on what could not be decoded.
    fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Run {
    fn session(&self) -> PyResult<Session> {
        kprism_session::open_with(&self.folder, self.progress()).map_err(|error| refused(&error))
    }

    fn progress(&self) -> Progress {
        let notes = Arc::clone(&self.notes);
        Progress::new(false, move |update| {
            if let Update::Note(text) | Update::Error(text) = update {
                notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(text.to_owned());
            }
        })
    }
}
