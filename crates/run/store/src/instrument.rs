// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instruments, and which of them recorded into a run.
//!
//! A recorder writes its instruments into the manifest when it ends. Runs of older versions, and of recorders that were
//! killed, do not have that field: for those, [`Run::instruments`] goes by the files of the run. No other place guesses.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Run;

/// One of kprism's instruments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instrument {
    /// The initcalls and long functions of a boot.
    Boot,
    /// gcov's counters of a kernel.
    Cover,
    /// Durations of functions, by ftrace, BPF, or a trace of another tool.
    Durations,
    /// The flow of instructions.
    Flow,
    /// Records of probes.
    Probe,
    /// TLB misses.
    Tlb,
}

impl Instrument {
    /// All of them, in the order in which reports name them.
    pub const ALL: [Instrument; 6] = [
        Instrument::Flow,
        Instrument::Boot,
        Instrument::Durations,
        Instrument::Tlb,
        Instrument::Probe,
        Instrument::Cover,
    ];

    /// Its names and commands.
    pub fn about(self) -> About {
        let (name, result, report, recorder) = match self {
            Instrument::Flow => ("flow", "flow of instructions", "report", "lab run"),
            Instrument::Boot => ("boot", "traced boot", "report boot", "lab boot"),
            Instrument::Durations => {
                ("durations", "durations of functions", "report durations", "record durations")
            }
            Instrument::Tlb => ("tlb", "TLB misses", "report tlb", "record tlb"),
            Instrument::Probe => ("probe", "records of probes", "report probe", "record probe"),
            Instrument::Cover => ("cover", "counters of gcov", "report cover", "record cover"),
        };
        About { name, result, report, recorder }
    }

    /// Its name in manifests.
    pub fn name(self) -> &'static str {
        self.about().name
    }
}

/// Names and commands of an instrument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Name in manifests.
    pub name: &'static str,
    /// Its result in words.
    pub result: &'static str,
    /// The command that shows it, after `kprism`.
    pub report: &'static str,
    /// The command that records it, after `kprism`.
    pub recorder: &'static str,
}

impl fmt::Display for Instrument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

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

    /// A new variant does not compile here, and is not forgotten in the list of all.
    #[test]
    fn all_has_every_instrument() {
        let number = |instrument| match instrument {
            Instrument::Flow => 0,
            Instrument::Boot => 1,
            Instrument::Durations => 2,
            Instrument::Tlb => 3,
            Instrument::Probe => 4,
            Instrument::Cover => 5,
        };
        assert_eq!(Instrument::ALL.map(number), [0, 1, 2, 3, 4, 5]);
    }

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
