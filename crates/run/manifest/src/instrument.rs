// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instruments, with their names and commands.

use std::fmt;

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
