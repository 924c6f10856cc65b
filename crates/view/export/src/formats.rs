// SPDX-License-Identifier: MIT OR Apache-2.0
//! The formats: one list.
//!
//! A new format is one entry of `FORMATS`: its suffixes, what it is written from, what it is for, and the function that
//! writes it. The choice of a format by a file's name, the help and the errors follow from the list.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use crate::request::{Request, Subject, Written};
use crate::{cover, ctf, probes, profile};

/// Source of a format's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The profile of a flow, or of durations.
    Profile,
    /// TLB misses.
    Misses,
    /// Records of probes.
    Probes,
    /// Coverage: counters of gcov, or a flow.
    Coverage,
    /// The same, for a compiler that optimises by it.
    Compiler,
}

/// Writes a format: to a file, or to standard output.
type WriteFormat = fn(&Request<'_>, &mut dyn Write) -> Result<Written>;

/// What an error message calls the format, and the options that it honours, which may depend on the subject.
type Honours = fn(Subject) -> (&'static str, &'static str);

/// A format.
pub struct Format {
    /// Source of its data.
    pub of: Of,
    /// Writes it.
    pub(crate) write: WriteFormat,
    honours: Honours,
    /// Suffixes of the file with their dots, as the help shows them.
    suffixes: &'static str,
    /// Suffixes that the help does not show.
    also: &'static str,
    /// The suffixes as an error tells them, if otherwise.
    told: &'static str,
    /// True if the suffix alone picks the format, whatever the subject is.
    any_subject: bool,
    /// True if gcov's counters alone are not enough.
    needs_flow: bool,
    /// True if it is a folder, or a file that is not written from its beginning to its end: standard output takes none.
    pub(crate) needs_name: bool,
    /// Its line in the help; none if empty.
    what: &'static str,
}

impl Format {
    /// A format for one subject: those of others may have the same suffix.
    const fn new(
        of: Of,
        suffixes: &'static str,
        write: WriteFormat,
        honours: Honours,
        what: &'static str,
    ) -> Self {
        Format {
            of,
            write,
            honours,
            suffixes,
            also: "",
            told: "",
            any_subject: false,
            needs_flow: false,
            needs_name: false,
            what,
        }
    }

    /// A format that its suffix alone picks.
    const fn any(
        of: Of,
        suffixes: &'static str,
        write: WriteFormat,
        honours: Honours,
        what: &'static str,
    ) -> Self {
        Format { any_subject: true, ..Format::new(of, suffixes, write, honours, what) }
    }

    const fn also(self, also: &'static str) -> Self {
        Format { also, ..self }
    }

    const fn told(self, told: &'static str) -> Self {
        Format { told, ..self }
    }

    const fn named(self) -> Self {
        Format { needs_name: true, ..self }
    }

    const fn of_flow(self) -> Self {
        Format { needs_flow: true, ..self }
    }

    /// The words by which options are refused that it would ignore, and the names of those that it honours, with blanks
    /// between them.
    pub fn honours(&self, subject: Subject) -> (&'static str, &'static str) {
        (self.honours)(subject)
    }

    fn is_named(&self, path: &Path) -> bool {
        let all = self.suffixes.split(' ').chain(self.also.split(' ').filter(|suffix| !suffix.is_empty()));
        all.into_iter().any(|suffix| has_suffix(path, suffix))
    }
}

/// All formats, in the order of the help.
#[rustfmt::skip]
const FORMATS: &[Format] = &[
    Format::new(Of::Profile, ".perfetto-trace .pftrace", profile::timeline, honours::timeline, "timeline for ui.perfetto.dev"),
    Format::new(Of::Profile, ".ctf", ctf::of_run, honours::all, "all of a flow, in order of time: folder for babeltrace2, Trace Compass").named(),
    Format::new(Of::Profile, ".folded", profile::stacks, honours::stacks, "call stacks for flame graph tools"),
    Format::new(Of::Profile, ".pprof .pb.gz", profile::profile, honours::pprof,
        "pprof's profile: calls, time on a CPU; of durations, time off it and in interrupts"),
    Format::new(Of::Profile, ".json", profile::table_json, honours::tables, "the table of SUBJECT, or the tree"),
    Format::new(Of::Profile, ".csv", profile::table_csv, honours::tables, "the table of SUBJECT"),
    Format::new(Of::Misses, ".json", profile::misses_json, honours::misses, "a view of `tlb`"),
    Format::new(Of::Misses, ".csv", profile::misses_csv, honours::misses, "a view of `tlb`"),
    Format::new(Of::Probes, ".parquet", probes::parquet, honours::records, "what probes collected").named(),
    Format::new(Of::Probes, ".csv", probes::csv_file, honours::records, "what probes collected"),
    Format::new(Of::Probes, ".json", probes::json_file, honours::records, "what probes collected"),
    Format::new(Of::Probes, ".ctf", probes::ctf, honours::records, "what probes collected: folder for babeltrace2, Trace Compass").named(),
    Format::new(Of::Probes, ".tf", probes::gdb, honours::records, "what probes collected with --for-gdb: target tfile FILE").also(".tfile").named(),
    Format::new(Of::Probes, ".perfetto-trace .pftrace", probes::timeline, honours::records, "what probes collected"),
    Format::new(Of::Profile, ".html", profile::page, honours::page, "the report of `kprism report --html`"),
    Format::new(Of::Misses, ".html", profile::page, honours::page, ""),
    Format::new(Of::Probes, ".html", profile::page, honours::page, ""),
    Format::any(Of::Coverage, ".info .xml", cover::lcov_or_cobertura, honours::coverage,
        "coverage for lcov and genhtml, Cobertura; `cover` with .json is gcov's").told(".info (lcov), .xml (Cobertura)"),
    Format::new(Of::Coverage, ".json", cover::json, honours::coverage, "").told(".json (gcov)"),
    Format::any(Of::Coverage, ".llvm.json", cover::llvm, honours::coverage, "coverage as llvm-cov exports it"),
    Format::new(Of::Coverage, ".csv", cover::csv, honours::coverage, ""),
    Format::new(Of::Coverage, ".html", profile::page, honours::page, ""),
    Format::any(Of::Compiler, ".gcda", cover::counters, honours::counters, "folder of counters for gcc -fprofile-use=FILE").named(),
    Format::any(Of::Compiler, ".afdo .prof", cover::samples, honours::samples,
        "of a flow, samples for gcc -fauto-profile=FILE, clang -fprofile-sample-use=FILE").of_flow(),
    Format::any(Of::Profile, ".perf.data", profile::for_perf, honours::for_perf,
        "folder for perf: perf script -i FILE --symfs FILE/symfs --itrace=...").named(),
];

/// Options that formats honour, as [`Format::honours`] gives them.
mod honours {
    use super::Subject;

    type Words = (&'static str, &'static str);

    pub fn timeline(_: Subject) -> Words {
        ("a timeline of all tasks", "input output syscall func call")
    }

    pub fn all(_: Subject) -> Words {
        ("a CTF trace of all", "input output")
    }

    pub fn stacks(_: Subject) -> Words {
        ("folded stacks", "input output syscall func call pids comms by")
    }

    pub fn pprof(_: Subject) -> Words {
        ("a profile for pprof", "input output syscall func call pids comms")
    }

    pub fn page(subject: Subject) -> Words {
        match subject {
            Subject::Tlb | Subject::Probe | Subject::Cover | Subject::Boot => {
                ("a page of all views and tasks", "subject input output")
            }
            Subject::Tree | Subject::Tasks | Subject::Syscalls => {
                ("a page of all views and tasks", "subject input output syscall func call")
            }
            _ => ("a page of all views and tasks", "input output syscall func call"),
        }
    }

    pub fn tables(subject: Subject) -> Words {
        match subject {
            Subject::Errors | Subject::Delta => ("this table", "input output syscall func call subject"),
            Subject::Tree => ("the tree", "input output syscall func call subject pids comms by"),
            _ => ("this table", "input output syscall func call subject pids comms"),
        }
    }

    pub fn misses(_: Subject) -> Words {
        ("an export of TLB misses", "subject name input output pids")
    }

    /// A record has its task's number, no name.
    pub fn records(_: Subject) -> Words {
        ("an export of probes", "subject input output pids")
    }

    pub fn coverage(_: Subject) -> Words {
        (
            "an export of coverage",
            "subject input output build_dir since_boot by_flow merge vmlinux module_file debug_dir source_dir \
             source_prefix pids comms syscall func call",
        )
    }

    pub fn counters(_: Subject) -> Words {
        ("a folder of .gcda", "subject input output build_dir since_boot merge relative")
    }

    pub fn samples(_: Subject) -> Words {
        ("samples for a compiler", "input output pids comms syscall func call vmlinux module_file debug_dir")
    }

    pub fn for_perf(_: Subject) -> Words {
        ("a .perf.data", "input output")
    }
}

/// The list of formats: a line for the same suffixes of different subjects.
pub fn after_help() -> String {
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for format in FORMATS.iter().filter(|format| !format.what.is_empty()) {
        match lines.iter_mut().find(|(head, _)| *head == format.suffixes) {
            Some((_, whats)) => whats.push(format.what),
            None => lines.push((format.suffixes, vec![format.what])),
        }
    }
    let lines = lines.iter().map(|(head, whats)| format!("  {head:<24}  {}\n", whats.join("; ")));
    format!(
        "Formats by suffix of FILE:\n{}\nThe tables of the run itself are Parquet files: RUN/tables/*.parquet",
        lines.collect::<String>()
    )
}

/// Returns true if the name of a file ends in this suffix, in letters of any case.
fn has_suffix(path: &Path, suffix: &str) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let is_whole = name == "perf.data" && suffix == ".perf.data";
    is_whole || path.extension().is_some() && name.ends_with(suffix)
}

/// The format of any subject that the suffix of `output` names.
pub(crate) fn of_any_subject(output: &Path) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.any_subject && format.is_named(output))
}

/// The format of this kind that the suffix of `output` names.
///
/// # Errors
/// There is none; the error lists those that there are.
pub(crate) fn find(of: Of, output: &Path) -> Result<&'static Format> {
    let found = FORMATS.iter().find(|format| format.of == of && format.is_named(output));
    found.ok_or_else(|| no_format(of, output))
}

/// The error of a file whose suffix is none of these formats.
pub(crate) fn no_format(of: Of, output: &Path) -> anyhow::Error {
    let output = output.display();
    let formats = FORMATS.iter().filter(|format| format.of == of);
    let told = |format: &Format| if format.told.is_empty() { format.suffixes } else { format.told };
    let all: Vec<&str> = formats.map(told).collect();
    let either = || {
        let (last, others) = all.split_last().map_or(("", &[][..]), |(last, others)| (*last, others));
        format!("{} or {last}", others.join(", "))
    };
    match of {
        Of::Profile | Of::Compiler => {
            anyhow!("{output}: the suffix picks the format: one of {}", all.join(" "))
        }
        Of::Misses => anyhow!(
            "{output}: TLB misses are written as {}; each miss is a row of RUN/tables/tlb_misses.parquet",
            either()
        ),
        Of::Probes => anyhow!("{output}: what probes collected is written as {}", either()),
        Of::Coverage => anyhow!("{output}: the suffix picks the format of coverage: {}", all.join(", ")),
    }
}

/// Refuses formats that counters outside a run cannot be written in.
pub(crate) fn suits_counters_alone(input: &Path, output: &Path) -> Result<()> {
    let input = input.display();
    match of_any_subject(output) {
        Some(format) if format.needs_flow => bail!(
            "{input}: holds counters of gcov, and no flow to take samples of; for gcc -fprofile-use: -o FOLDER.gcda"
        ),
        Some(format) if matches!(format.of, Of::Coverage | Of::Compiler) => return Ok(()),
        _ => {}
    }
    match find(Of::Coverage, output) {
        Ok(_) => bail!(
            "{input}: holds counters of gcov, and no run: `kprism export cover` writes coverage as .{}",
            cover::suffix(output)
        ),
        Err(error) => bail!("{error}, or a folder .gcda"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_picks_the_format() {
        let found = |of, name: &str| find(of, Path::new(name)).ok().map(|format| format.suffixes);
        assert_eq!(found(Of::Profile, "a.PFTRACE"), Some(".perfetto-trace .pftrace"));
        assert_eq!(found(Of::Profile, "a.pb.gz"), Some(".pprof .pb.gz"));
        assert_eq!(found(Of::Profile, "a.gz"), None);
        assert_eq!(found(Of::Probes, "-.json"), Some(".json"));
        assert_eq!(found(Of::Probes, "a.tfile"), Some(".tf"));
        assert_eq!(found(Of::Misses, "json"), None);
        let any = |name: &str| of_any_subject(Path::new(name)).map(|format| format.suffixes);
        assert_eq!(any("x/perf.data"), Some(".perf.data"));
        assert_eq!((any("a.llvm.json"), any("a.json")), (Some(".llvm.json"), None));
        let told = |of| no_format(of, Path::new("a.x")).to_string();
        assert_eq!(
            told(Of::Probes),
            "a.x: what probes collected is written as .parquet, .csv, .json, .ctf, .tf, .perfetto-trace .pftrace or .html"
        );
        assert_eq!(
            told(Of::Coverage),
            "a.x: the suffix picks the format of coverage: .info (lcov), .xml (Cobertura), .json (gcov), .llvm.json, .csv, .html"
        );
        assert_eq!(
            told(Of::Profile),
            "a.x: the suffix picks the format: one of .perfetto-trace .pftrace .ctf .folded .pprof .pb.gz .json .csv .html .perf.data"
        );
    }
}
