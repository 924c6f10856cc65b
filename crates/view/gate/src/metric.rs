// SPDX-License-Identifier: MIT OR Apache-2.0
//! One number of a summary, by name: `insns`, `kernel_insns[openat]`, `irqs_off.max`.
//!
//! In: the text of a metric, and a summary. Out: its value and unit. All metrics are one list, which is also their help.

use anyhow::{Result, bail};
use kprism_image::glob::glob;
use kprism_profile::units;
use kprism_store::Instrument;

use crate::summary::{Flow, Spread, Summary};

/// A number that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Its entry in the list [`METRICS`].
    pub kind: &'static Kind,
    /// In brackets: a system call, a function, a path, a TLB.
    pub argument: Option<String>,
}

/// The unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Instructions, calls, misses, lines.
    Count,
    /// Nanoseconds of the run's clock.
    Ns,
    /// Parts of a hundred.
    Percent,
}

/// The meaning of the text in brackets behind a metric's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A system call.
    Syscall,
    /// A function.
    Function,
    /// A TLB model.
    Tlb,
    /// A file or folder of sources.
    Path,
}

impl Subject {
    /// As the help writes it.
    fn placeholder(self) -> &'static str {
        match self {
            Subject::Syscall => "SYSCALL",
            Subject::Function => "FUNC",
            Subject::Tlb => "TLB",
            Subject::Path => "PATH",
        }
    }
}

/// The text in brackets behind a metric's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Nothing.
    No,
    /// This, or nothing.
    May(Subject),
    /// This.
    Must(Subject),
}

/// An entry of the list of metrics.
#[derive(Debug)]
pub struct Kind {
    /// As rules write it.
    pub name: &'static str,
    /// The text in brackets.
    pub argument: Argument,
    /// The unit.
    pub unit: Unit,
    /// Meaning, for the help.
    pub about: &'static str,
    /// The instrument that records it.
    pub instrument: Instrument,
    value: fn(&Summary, Option<&str>) -> Option<f64>,
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

/// All metrics. A value is `None` if the instrument did not record.
pub const METRICS: [Kind; 23] = [
    entry("insns", Argument::No, Unit::Count, "instructions of kernel and programs", |s, _| {
        s.flow.as_ref().map(|f| f.kernel_insns.saturating_add(f.user_insns) as f64)
    }),
    entry(
        "kernel_insns",
        Argument::May(Subject::Syscall),
        Unit::Count,
        "instructions in the kernel, or in a system call",
        |s, of| {
            let flow = s.flow.as_ref()?;
            Some(match of {
                Some(name) => sum(flow.syscalls.iter().filter(|c| glob(name, &c.name)).map(|c| c.insns)),
                None => flow.kernel_insns as f64,
            })
        },
    ),
    entry("user_insns", Argument::No, Unit::Count, "instructions in programs", |s, _| {
        s.flow.as_ref().map(|f| f.user_insns as f64)
    }),
    entry("cpu_time", Argument::No, Unit::Ns, "time on a CPU", |s, _| {
        s.flow.as_ref().map(|f| f.cpu_ns as f64)
    }),
    entry("syscalls", Argument::May(Subject::Syscall), Unit::Count, "system calls made", |s, of| {
        let taken = |name: &str| of.is_none_or(|of| glob(of, name));
        let flow = s.flow.as_ref()?;
        Some(sum(flow.syscalls.iter().filter(|c| taken(&c.name)).map(|c| c.wall.count)))
    }),
    entry(
        "wall",
        Argument::Must(Subject::Syscall),
        Unit::Ns,
        "sum of a system call's wall times",
        |s, of| wall(s, of, |w| w.sum),
    ),
    entry(
        "p50",
        Argument::Must(Subject::Syscall),
        Unit::Ns,
        "median of a system call's wall times",
        |s, of| wall(s, of, |w| w.p50),
    ),
    entry("p90", Argument::Must(Subject::Syscall), Unit::Ns, "90th percentile", |s, of| {
        wall(s, of, |w| w.p90)
    }),
    entry("p99", Argument::Must(Subject::Syscall), Unit::Ns, "99th percentile", |s, of| {
        wall(s, of, |w| w.p99)
    }),
    entry("max", Argument::Must(Subject::Syscall), Unit::Ns, "longest wall time", |s, of| {
        wall(s, of, |w| w.max)
    }),
    entry(
        "calls",
        Argument::Must(Subject::Function),
        Unit::Count,
        "calls of a function, of a flow or of durations",
        |s, of| {
            let of = of?;
            match (&s.flow, &s.durations) {
                (Some(flow), _) => Some(sum(functions(flow, of).map(|f| f.calls))),
                (None, Some(all)) => {
                    Some(sum(all.iter().filter(|f| glob(of, &f.name)).map(|f| f.durations.count)))
                }
                (None, None) => None,
            }
        },
    ),
    entry(
        "self_insns",
        Argument::Must(Subject::Function),
        Unit::Count,
        "a function's own instructions",
        |s, of| Some(sum(functions(s.flow.as_ref()?, of?).map(|f| f.self_insns))),
    ),
    entry(
        "total_insns",
        Argument::Must(Subject::Function),
        Unit::Count,
        "instructions of a function and its callees",
        |s, of| Some(sum(functions(s.flow.as_ref()?, of?).map(|f| f.total_insns))),
    ),
    entry(
        "time",
        Argument::Must(Subject::Function),
        Unit::Ns,
        "sum of a function's durations (record durations)",
        |s, of| {
            let (all, of) = (s.durations.as_ref()?, of?);
            Some(sum(all.iter().filter(|f| glob(of, &f.name)).map(|f| f.durations.sum)))
        },
    )
    .of(Instrument::Durations),
    entry(
        "longest",
        Argument::Must(Subject::Function),
        Unit::Ns,
        "a function's longest call (record durations)",
        |s, of| {
            let (all, of) = (s.durations.as_ref()?, of?);
            Some(all.iter().filter(|f| glob(of, &f.name)).map(|f| f.durations.max).max().unwrap_or(0) as f64)
        },
    )
    .of(Instrument::Durations),
    entry(
        "irqs_off.max",
        Argument::No,
        Unit::Ns,
        "longest time with interrupts off, idle left out",
        |s, _| interval(s, "irqs", |i| i.max),
    ),
    entry("irqs_off.p99", Argument::No, Unit::Ns, "99th percentile of those times", |s, _| {
        interval(s, "irqs", |i| i.p99)
    }),
    entry(
        "preempt_off.max",
        Argument::No,
        Unit::Ns,
        "longest time with preemption off, idle left out",
        |s, _| interval(s, "preempt", |i| i.max),
    ),
    entry("preempt_off.p99", Argument::No, Unit::Ns, "99th percentile of those times", |s, _| {
        interval(s, "preempt", |i| i.p99)
    }),
    entry(
        "tlb_misses",
        Argument::May(Subject::Tlb),
        Unit::Count,
        "misses of the last level, of the first TLB or a named one",
        |s, of| {
            let all = s.tlb.as_ref()?;
            match of {
                Some(name) => all.iter().find(|(of, _)| of == name).map(|(_, misses)| *misses as f64),
                None => all.first().map(|(_, misses)| *misses as f64),
            }
        },
    )
    .of(Instrument::Tlb),
    entry(
        "cover.lines",
        Argument::May(Subject::Path),
        Unit::Count,
        "lines that ran, in files below a path",
        |s, of| Some(lines(s, of)?.1),
    ),
    entry(
        "cover.percent",
        Argument::May(Subject::Path),
        Unit::Percent,
        "lines that ran, of those with code",
        |s, of| {
            let (all, ran) = lines(s, of)?;
            (all > 0.0).then(|| 100.0 * ran / all)
        },
    ),
    entry(
        PATCH_COVERAGE,
        Argument::No,
        Unit::Percent,
        "lines that ran, of those with code that --patch adds",
        |s, _| {
            // Without any of its files in the run, nothing was judged.
            let patch =
                s.patch.as_ref().filter(|patch| patch.files == 0 || patch.not_in_run.len() < patch.files)?;
            // Nothing with code was added, so nothing is missing; a note says so.
            Some(if patch.lines == 0 { 100.0 } else { 100.0 * patch.executed as f64 / patch.lines as f64 })
        },
    ),
];

const PATCH_COVERAGE: &str = "patch_coverage";

/// A metric of the flow, or of coverage, which a flow has too; see [`Kind::of`] for others.
const fn entry(
    name: &'static str,
    argument: Argument,
    unit: Unit,
    about: &'static str,
    value: fn(&Summary, Option<&str>) -> Option<f64>,
) -> Kind {
    Kind { name, argument, unit, about, instrument: Instrument::Flow, value }
}

impl Kind {
    const fn of(self, instrument: Instrument) -> Self {
        Kind { instrument, ..self }
    }
}

fn sum(numbers: impl Iterator<Item = u64>) -> f64 {
    numbers.fold(0u64, u64::saturating_add) as f64
}

fn functions<'s>(flow: &'s Flow, of: &str) -> impl Iterator<Item = &'s crate::summary::Function> {
    flow.functions.iter().filter(move |f| glob(of, &f.name))
}

/// Of one system call. One that was not made took no time.
fn wall(s: &Summary, of: Option<&str>, part: fn(&Spread) -> u64) -> Option<f64> {
    let (flow, of) = (s.flow.as_ref()?, of?);
    Some(flow.syscalls.iter().find(|c| c.name == of).map_or(0, |c| part(&c.wall)) as f64)
}

/// Of an interval. A flow of user code alone has none.
fn interval(s: &Summary, name: &str, part: fn(&Spread) -> u64) -> Option<f64> {
    s.flow.as_ref()?.intervals.get(name).map(|spread| part(spread) as f64)
}

/// Lines with code, and lines that ran.
fn lines(s: &Summary, of: Option<&str>) -> Option<(f64, f64)> {
    let below = |path: &str| {
        of.is_none_or(|of| {
            let of = of.trim_end_matches('/');
            glob(of, path) || path == of || path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'))
        })
    };
    let files = || s.cover.iter().flatten().filter(|f| below(&f.path));
    s.cover.as_ref()?;
    Some((sum(files().map(|f| f.lines)), sum(files().map(|f| f.executed))))
}

impl Metric {
    /// Reads `NAME`, `NAME[ARGUMENT]` or `NAME(ARGUMENT)`.
    ///
    /// # Errors
    /// No such metric, or its argument is missing or too much.
    pub fn parse(text: &str) -> Result<Self> {
        let open = text.find(['[', '(']);
        let (name, argument) = match open {
            Some(at) => {
                let close = if text.as_bytes()[at] == b'[' { ']' } else { ')' };
                let Some(inside) = text[at + 1..].strip_suffix(close) else {
                    bail!("{text}: expected `{close}` at its end");
                };
                (&text[..at], Some(inside.trim().to_owned()).filter(|inside| !inside.is_empty()))
            }
            None => (text, None),
        };
        let Some(entry) = METRICS.iter().find(|entry| entry.name == name) else {
            let names: Vec<&str> = METRICS.iter().map(|entry| entry.name).collect();
            bail!("no metric {name:?}; there are: {}", names.join(", "));
        };
        match (entry.argument, &argument) {
            (Argument::Must(Subject::Syscall), Some(one)) if one.contains(['*', '?']) => {
                bail!("{text}: {name} is of one system call, and takes no pattern")
            }
            (Argument::No, Some(_)) => bail!("{text}: {name} takes nothing in brackets"),
            (Argument::Must(what), None) => {
                bail!("{text}: {name} needs brackets: {name}[{}]", what.placeholder())
            }
            _ => Ok(Metric { kind: entry, argument }),
        }
    }

    /// Its value in a run; `None` if the run has no such numbers.
    pub fn value(&self, summary: &Summary) -> Option<f64> {
        (self.kind.value)(summary, self.argument.as_deref())
    }

    /// True if a file of the summary with lines of code is below its path.
    pub(crate) fn has_lines(&self, summary: &Summary) -> bool {
        lines(summary, self.argument.as_deref()).is_some_and(|(all, _)| all > 0.0)
    }

    /// The meaning of its brackets; `None` if it has none.
    pub fn subject(&self) -> Option<Subject> {
        match self.kind.argument {
            Argument::No => None,
            Argument::May(subject) | Argument::Must(subject) => Some(subject),
        }
    }

    /// The instrument that records it. Calls of a function are counted by durations too, and lines by gcov's counters.
    pub fn recorded_by(&self) -> Instrument {
        self.kind.instrument
    }

    /// True if it is about lines of sources: coverage must be worked out.
    pub fn needs_coverage(&self) -> bool {
        self.subject() == Some(Subject::Path) || self.is_of_patch()
    }

    /// True if it is about the lines that a patch adds.
    pub fn is_of_patch(&self) -> bool {
        self.kind.name == PATCH_COVERAGE
    }

    /// A value as people read it.
    pub fn show(&self, value: f64) -> String {
        match self.kind.unit {
            Unit::Count => units::grouped(value.round().max(0.0) as u64),
            Unit::Ns => units::duration(value.round().max(0.0) as u64),
            Unit::Percent => format!("{value:.2} %"),
        }
    }
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.argument {
            Some(argument) => write!(f, "{}[{argument}]", self.kind.name),
            None => f.write_str(self.kind.name),
        }
    }
}

/// The list of metrics, for the help.
pub fn help() -> String {
    let mut text = String::new();
    for entry in &METRICS {
        let written = match entry.argument {
            Argument::No => entry.name.to_owned(),
            Argument::May(what) => format!("{0}, {0}[{1}]", entry.name, what.placeholder()),
            Argument::Must(what) => format!("{}[{}]", entry.name, what.placeholder()),
        };
        text += &format!("  {written:<40} {}\n", entry.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_are_read_and_checked() {
        let metric = Metric::parse("kernel_insns[openat]").unwrap();
        assert_eq!(metric.to_string(), "kernel_insns[openat]");
        assert_eq!(
            Metric::parse("cover.lines(kernel/sched)").unwrap().to_string(),
            "cover.lines[kernel/sched]"
        );
        for (text, reason) in [
            ("insns[x]", "takes nothing in brackets"),
            ("calls", "calls[FUNC]"),
            ("calls[]", "calls[FUNC]"),
            ("calls[f", "expected `]`"),
            ("max[open*]", "takes no pattern"),
            ("instructions", "there are: insns, "),
        ] {
            let error = Metric::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn an_instrument_that_did_not_record_has_no_value() {
        let summary = Summary::default();
        for entry in &METRICS {
            let argument = (entry.argument != Argument::No).then(|| "x".to_owned());
            assert_eq!(Metric { kind: entry, argument }.value(&summary), None, "{}", entry.name);
        }
    }
}
