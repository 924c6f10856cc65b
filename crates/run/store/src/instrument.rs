// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which instruments recorded into a run.
//!
//! A recorder writes its instruments into the manifest when it ends. Runs of older versions, and of recorders that were
//! killed, do not have that field: for those, [`Run::instruments`] goes by the files of the run. No other place guesses.

use std::fs;
use std::path::Path;

use kprism_manifest::Instrument;

use crate::Run;

impl Run {
    /// The instruments that recorded into this run. Without a readable manifest, those whose files are there.
    pub fn instruments(&self) -> Vec<Instrument> {
        match self.manifest() {
            Ok(manifest) if !manifest.instruments.is_empty() => manifest.instruments,
            _ => Instrument::ALL.into_iter().filter(|&instrument| self.has_files_of(instrument)).collect(),
        }
    }

    /// Whether an instrument recorded into this run.
    pub fn holds(&self, instrument: Instrument) -> bool {
        self.instruments().contains(&instrument)
    }

    /// Whether the run has files that only this instrument writes.
    pub fn has_files_of(&self, instrument: Instrument) -> bool {
        match instrument {
            Instrument::Flow => {
                let decoded = self.has_tables() && !self.has_files_of(Instrument::Durations);
                self.code_dict().exists() || named(&self.streams(), ".pt") || decoded
            }
            Instrument::Boot => self.boot_facts().exists(),
            Instrument::Durations => {
                // The kernel's log of a boot alone has initcalls and no calls.
                self.bpf().is_dir() || self.ftrace().is_dir() && (self.has_trace() || !self.dmesg().is_file())
            }
            Instrument::Tlb => named(&self.tlb(), ".miss"),
            Instrument::Probe => self.probes().is_file(),
            Instrument::Cover => self.gcov().folder().is_dir(),
        }
    }

    /// Whether there is a trace of ftrace in any of its forms.
    fn has_trace(&self) -> bool {
        let entries = fs::read_dir(self.ftrace()).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| {
            ["trace.txt", "trace.dat", "perf.data"].contains(&name.as_str())
                || name.starts_with("cpu") && name.ends_with(".raw")
        })
    }
}

/// Whether a folder has a file whose name ends so.
fn named(folder: &Path, end: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Manifest, RunKind};

    #[test]
    fn the_manifest_says_it_and_the_files_where_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        assert!(run.instruments().is_empty());
        fs::create_dir(run.tlb()).unwrap();
        fs::write(run.tlb_misses(3), "").unwrap();
        fs::create_dir(run.ftrace()).unwrap();
        fs::write(run.dmesg(), "").unwrap();
        assert_eq!(run.instruments(), [Instrument::Tlb]);
        fs::write(run.ftrace().join("cpu1.raw"), "").unwrap();
        assert_eq!(run.instruments(), [Instrument::Durations, Instrument::Tlb]);
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        run.write_manifest(&manifest).unwrap();
        assert_eq!(run.instruments(), [Instrument::Durations, Instrument::Tlb]);
        manifest.instruments = vec![Instrument::Probe];
        run.write_manifest(&manifest).unwrap();
        assert_eq!(run.instruments(), [Instrument::Probe]);
        for instrument in Instrument::ALL {
            assert_eq!(serde_json::to_value(instrument).unwrap(), instrument.name());
        }
    }
}
