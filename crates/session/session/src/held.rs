// SPDX-License-Identifier: MIT OR Apache-2.0
//! The refusal of a view that needs what a run does not hold: names what it holds, and the commands that show it.

use kprism_store::{About, Instrument, Run};

/// The error of a view whose instrument the run does not hold: names those that it holds.
pub fn missing(run: &Run, wanted: Instrument) -> anyhow::Error {
    let dir = run.dir().display();
    let place = crate::input_option(run);
    let shown = |instrument: Instrument| {
        let About { result, report, .. } = instrument.about();
        format!("{result} (see: kprism {report}{place})")
    };
    let held: Vec<String> = run.instruments().into_iter().map(shown).collect();
    let About { result, recorder, .. } = wanted.about();
    let instead = match held.is_empty() {
        true => format!(": a command was run and nothing recorded (see: kprism info{place})"),
        false => format!(", but {}", held.join(" and ")),
    };
    anyhow::anyhow!("{dir}: holds no {result}{instead}; to record that: kprism {recorder}")
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
