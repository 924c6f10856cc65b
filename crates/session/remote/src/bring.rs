// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run that arrives: into a folder beside the place where it belongs, and then there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kprism_placed::archive::Unpack;
use kprism_placed::frame::Frame;
use kprism_store::{Manifest, Run};

/// A run that is not complete yet.
pub struct Incoming {
    folder: PathBuf,
    output: PathBuf,
    unpack: Unpack,
}

/// Fails if a run could not be put there. Asked before anything is recorded.
///
/// # Errors
/// There is something that is not a run.
pub fn may_be_put(output: &Path) -> Result<()> {
    let is_taken = match fs::read_dir(output) {
        Ok(mut entries) => entries.next().is_some() && !output.join("manifest.json").exists(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    if is_taken {
        bail!("{} exists and is not a run of kprism; choose another folder with -o", output.display());
    }
    Ok(())
}

impl Incoming {
    /// Makes the folder for it.
    pub fn begin(output: &Path, nonce: &str) -> Result<Self> {
        let name = output.file_name().context("-o must name a folder")?.to_string_lossy();
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        let folder = parent.join(format!(".{name}.{nonce}"));
        Ok(Incoming { unpack: Unpack::into(&folder)?, folder, output: output.to_owned() })
    }

    /// Takes a frame; true at the end.
    pub fn take(&mut self, frame: &Frame) -> Result<bool> {
        self.unpack.take(frame)
    }

    /// Bytes that have arrived.
    pub fn bytes(&self) -> u64 {
        self.unpack.bytes
    }

    /// Files and folders that have arrived.
    pub fn entries(&self) -> u64 {
        self.unpack.entries
    }

    /// Puts what has arrived where it belongs; an older run there is renamed. `None`: nothing arrived by which it could be read,
    /// and nothing is kept.
    ///
    /// # Errors
    /// It cannot be put there; then it stays where it is, which the error says.
    pub fn keep(self, edit: &dyn Fn(&mut Manifest)) -> Result<Option<Run>> {
        let arrived = Run::open(&self.folder).and_then(|run| run.manifest().map(|manifest| (run, manifest)));
        let Ok((_, mut manifest)) = arrived else {
            fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
            return Ok(None);
        };
        edit(&mut manifest);
        let put = || -> Result<Run> {
            let run = Run::create(&self.output)?;
            for entry in fs::read_dir(&self.folder)? {
                let entry = entry?;
                let place = self.output.join(entry.file_name());
                // `create` made the empty folders of a run.
                if place.is_dir() {
                    fs::remove_dir(&place).with_context(|| place.display().to_string())?;
                }
                fs::rename(entry.path(), &place).with_context(|| place.display().to_string())?;
            }
            fs::remove_dir(&self.folder)?;
            run.write_manifest(&manifest)?;
            Ok(run)
        };
        put().map(Some).with_context(|| format!("the run is here and stays in {}", self.folder.display()))
    }
}
