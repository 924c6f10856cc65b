// SPDX-License-Identifier: MIT OR Apache-2.0
//! The refusal of a view that needs what a run does not hold: names what it holds, and the commands that show it.

use kprism_store::{Instrument, Run};

/// The instrument's result in words, the command that shows it, and the command that records it.
fn words(instrument: Instrument) -> (&'static str, &'static str, &'static str) {
    match instrument {
        Instrument::Flow => ("flow of instructions", "report", "kprism lab run"),
        Instrument::Boot => ("traced boot", "report boot", "kprism lab boot"),
        Instrument::Durations => ("durations of functions", "report durations", "kprism record durations"),
        Instrument::Tlb => ("TLB misses", "report tlb", "kprism record tlb"),
        Instrument::Probe => ("records of probes", "report probe", "kprism record probe"),
        Instrument::Cover => ("counters of gcov", "report cover", "kprism record cover"),
    }
}

/// The error of a view whose instrument the run does not hold: names those that it holds.
pub fn missing(run: &Run, wanted: Instrument) -> anyhow::Error {
    let dir = run.dir().display();
    let place = crate::input_option(run);
    let shown = |instrument| {
        let (name, command, _) = words(instrument);
        format!("{name} (see: kprism {command}{place})")
    };
    let held: Vec<String> = run.instruments().into_iter().map(shown).collect();
    let (name, _, recorder) = words(wanted);
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
        let text = |wanted| missing(&run, wanted).to_string();
        assert!(text(Instrument::Flow).contains("nothing recorded"), "{}", text(Instrument::Flow));
        std::fs::create_dir(run.probe()).unwrap();
        std::fs::write(run.probes(), "{}").unwrap();
        std::fs::create_dir(run.tlb()).unwrap();
        std::fs::write(run.streams().join("tlb/cpu0.miss"), "").unwrap();
        assert!(run.holds(Instrument::Probe) && run.holds(Instrument::Tlb));
        assert!(!run.holds(Instrument::Flow) && !run.holds(Instrument::Durations));
        let text = text(Instrument::Flow);
        for part in
            ["holds no flow of instructions, but TLB misses", "kprism report probe -i", "kprism lab run"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
