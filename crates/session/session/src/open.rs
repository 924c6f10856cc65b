// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens a run: the first call of a program that uses this library.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kprism_boot::Boot;
use kprism_profile::{Profile, Times};
use kprism_store::{Instrument, Manifest, Run, StoreError};

use crate::cover::{self, Loaded, Options, Part};
use crate::progress::Progress;
use crate::{boot, durations, flow, held, probe, tlb};

/// A run, opened. Results are read, or decoded first, when they are asked for.
#[derive(Debug)]
pub struct Session {
    /// The run's folder.
    pub run: Run,
    /// Facts on the recording: the command, the kernel, the clock, what was lost.
    pub manifest: Manifest,
    progress: Progress,
}

/// Opens the run at `path` and tells nobody what it is doing.
///
/// # Errors
/// The folder is not a run, its manifest cannot be read, or something in it leads out of it.
pub fn open(path: impl AsRef<Path>) -> Result<Session> {
    open_with(path, Progress::silent())
}

/// The same, with steps and notes told to `progress`.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: impl AsRef<Path>, progress: Progress) -> Result<Session> {
    let run = Run::open(path.as_ref())?;
    let manifest = run.manifest()?;
    Ok(Session { run, manifest, progress })
}

/// Opens the run at `path` with its profile, whether that is of a flow or of durations, and its manifest. Decodes the run
/// first if that was not done yet.
///
/// # Errors
/// No run there, or one that cannot be decoded.
pub fn open_profile(path: &Path, progress: &Progress) -> Result<(Run, Profile, Manifest)> {
    let run = Run::open(path)?;
    let (profile, manifest) = match run.holds(Instrument::Durations) {
        true => (durations::open(&run, progress)?.0, run.manifest()?),
        false => flow::open(&run, progress)?,
    };
    Ok((run, profile, manifest))
}

impl Session {
    /// The instruments that recorded into the run.
    pub fn instruments(&self) -> Vec<Instrument> {
        self.run.instruments()
    }

    /// The profile of the flow of instructions; decodes the run if that was not done yet.
    ///
    /// # Errors
    /// The run holds no flow, or its streams cannot be read.
    pub fn flow(&self) -> Result<Profile> {
        self.need(Instrument::Flow)?;
        Ok(flow::open(&self.run, &self.progress)?.0)
    }

    /// Durations of functions, recorded as such or measured in a flow, with the profile that they go with.
    ///
    /// # Errors
    /// The run holds neither, or it cannot be read.
    pub fn durations(&self) -> Result<(Profile, Times)> {
        match self.run.holds(Instrument::Durations) {
            true => durations::open(&self.run, &self.progress),
            false => {
                let (profile, times, _) = durations::flow::measure(&self.run, &self.progress)?;
                Ok((profile, times))
            }
        }
    }

    /// The initcalls of a boot.
    ///
    /// # Errors
    /// The run holds no boot, or it cannot be read.
    pub fn boot(&self) -> Result<Boot> {
        self.need(Instrument::Boot)?;
        boot::load(self.run.dir())
    }

    /// Coverage: by gcov's counters where there are some, else by the flow.
    ///
    /// # Errors
    /// The run holds neither, or nothing of it could be used.
    pub fn cover(&self, options: &Options) -> Result<Loaded> {
        cover::load(self.run.dir(), options, &Part::default(), &self.progress)
    }

    /// The TLB misses, with the objects that they fall into.
    ///
    /// # Errors
    /// The run holds none, or they cannot be read.
    pub fn tlb(&self) -> Result<tlb::Loaded> {
        self.need(Instrument::Tlb)?;
        tlb::Loaded::open(&self.run)
    }

    /// The records of probes, and what they counted.
    ///
    /// # Errors
    /// The run holds none, or they cannot be read.
    pub fn probe(&self) -> Result<probe::Loaded> {
        probe::Loaded::open(&self.run)
    }

    fn need(&self, instrument: Instrument) -> Result<()> {
        match self.run.holds(instrument) {
            true => Ok(()),
            false => Err(held::missing(&self.run, instrument)),
        }
    }
}

/// The runs of a folder.
#[derive(Debug, Default)]
pub struct Runs {
    /// By name.
    pub runs: Vec<(PathBuf, Manifest)>,
    /// Folders with a manifest that cannot be read, and why not.
    pub broken: Vec<(PathBuf, StoreError)>,
}

/// The runs directly in `folder`, and `folder` itself if it is one.
///
/// # Errors
/// The folder, or one of its entries, cannot be read.
pub fn runs_in(folder: &Path) -> Result<Runs> {
    let own = |path: PathBuf| path.strip_prefix("./").map(Path::to_owned).unwrap_or(path);
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths: Vec<PathBuf> = vec![folder.to_owned()];
    for entry in entries {
        paths.push(own(entry.with_context(|| folder.display().to_string())?.path()));
    }
    paths.sort();
    let mut found = Runs::default();
    for path in paths {
        match Run::open(&path).and_then(|run| run.manifest()) {
            Ok(manifest) => found.runs.push((path, manifest)),
            Err(StoreError::NotARun { .. }) => {}
            // Nobody can tell of a folder that this user may not enter.
            Err(StoreError::Io { path, source })
                if source.kind() == ErrorKind::PermissionDenied && path.symlink_metadata().is_err() => {}
            Err(error) => found.broken.push((path, error)),
        }
    }
    Ok(found)
}
