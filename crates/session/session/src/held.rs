// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run holds, by its streams and tables, and which command shows it: for views that need something else.

use kprism_store::Run;

/// Something a run can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// A flow of instructions.
    Flow,
    /// A traced boot.
    Boot,
    /// Durations of functions.
    Durations,
    /// TLB misses.
    Tlb,
    /// Records of probes.
    Probe,
    /// Counters of a kernel with gcov.
    Cover,
}

impl Held {
    const ALL: [Held; 6] = [Held::Flow, Held::Boot, Held::Durations, Held::Tlb, Held::Probe, Held::Cover];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Held::Flow => "flow of instructions",
            Held::Boot => "traced boot",
            Held::Durations => "durations of functions",
            Held::Tlb => "TLB misses",
            Held::Probe => "records of probes",
            Held::Cover => "counters of gcov",
        }
    }

    /// What shows it.
    fn command(self) -> &'static str {
        match self {
            Held::Flow => "report",
            Held::Boot => "report boot",
            Held::Durations => "report func",
            Held::Tlb => "report tlb",
            Held::Probe => "report probe",
            Held::Cover => "report cover",
        }
    }

    /// What records it.
    fn recorder(self) -> &'static str {
        match self {
            Held::Flow => "kprism lab run",
            Held::Boot => "kprism lab boot",
            Held::Durations => "kprism record func",
            Held::Tlb => "kprism record tlb",
            Held::Probe => "kprism record probe",
            Held::Cover => "kprism record cover",
        }
    }

    /// Whether a run has it.
    pub fn is_in(self, run: &Run) -> bool {
        let streams = run.streams();
        let numbered = |folder: &str, suffix: &str| {
            let entries = std::fs::read_dir(streams.join(folder)).into_iter().flatten().flatten();
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).any(|n| n.ends_with(suffix))
        };
        match self {
            Held::Flow => {
                let decoded = run.has_tables() && !Held::Durations.is_in(run);
                run.code_dict().exists() || numbered("", ".pt") || decoded
            }
            Held::Boot => crate::boot::is_boot(run.dir()),
            Held::Durations => crate::durations::is_recorded(run),
            Held::Tlb => numbered("tlb", ".miss"),
            Held::Probe => streams.join("probe/probes.json").is_file(),
            Held::Cover => streams.join("gcov").is_dir(),
        }
    }
}

/// Why a view has nothing to show: what the run holds instead.
pub fn lacks(run: &Run, wanted: Held) -> anyhow::Error {
    let dir = run.dir().display();
    let place = if run.dir() == std::path::Path::new(crate::DEFAULT_RUN) {
        String::new()
    } else {
        format!(" -i {dir}")
    };
    let held: Vec<String> = Held::ALL
        .into_iter()
        .filter(|held| held.is_in(run))
        .map(|held| format!("{} (see: kprism {}{place})", held.name(), held.command()))
        .collect();
    let (name, recorder) = (wanted.name(), wanted.recorder());
    let instead = match held.is_empty() {
        true => format!(": a command was run and nothing recorded (see: kprism info{place})"),
        false => format!(", but {}", held.join(" and ")),
    };
    anyhow::anyhow!("{dir}: holds no {name}{instead}; to record that: {recorder}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_by_its_streams() {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        let text = |wanted| lacks(&run, wanted).to_string();
        assert!(text(Held::Flow).contains("nothing recorded"), "{}", text(Held::Flow));
        std::fs::create_dir(run.streams().join("probe")).unwrap();
        std::fs::write(run.streams().join("probe/probes.json"), "{}").unwrap();
        std::fs::create_dir(run.streams().join("tlb")).unwrap();
        std::fs::write(run.streams().join("tlb/cpu0.miss"), "").unwrap();
        assert!(Held::Probe.is_in(&run) && Held::Tlb.is_in(&run));
        assert!(!Held::Flow.is_in(&run) && !Held::Durations.is_in(&run));
        let text = text(Held::Flow);
        for part in
            ["holds no flow of instructions, but TLB misses", "kprism report probe -i", "kprism lab run"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
