// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that a run holds, as screens.
//!
//! In: a run folder, finished or still being recorded. Out: its screens, and those behind a row. The numbers are those of
//! `kprism report`: they come from the same tables of `kprism-report`.

use std::path::Path;

use anyhow::Result;
use kprism_profile::{Filter, Profile};
use kprism_report::header::{Header, account_text};
use kprism_report::{Style, boot, deltas, probe, tables, tlb};
use kprism_session::cover::{self, Options as CoverOptions, Part};
use kprism_session::kernel_tests::{self, Tests};
use kprism_session::probe::Loaded as Probes;
use kprism_session::{Progress, durations, flow, tlb as misses};
use kprism_store::{Account, Instrument, Manifest, Run};

use crate::calls::{Calls, Weight};
use crate::covered::Covered;
use crate::screen::{Screen, Target};
use crate::timed::{self, Timed};
use crate::{probes, tested};

/// Bytes of an output that are shown, from its end.
const OUTPUT: u64 = 1 << 20;
/// Records of probes that are shown.
const RECORDS: usize = 10_000;

/// Distance between growing streams and their decode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Behind {
    /// Bytes of packets that were decoded.
    pub decoded: u64,
    /// Bytes of packets in the run folder when that was done.
    pub written: u64,
}

/// Contents of a run, read.
pub struct Contents {
    /// The command, or where the run is from.
    pub title: String,
    screens: Vec<Screen>,
    calls: Option<Calls>,
    timed: Option<Timed>,
    probes: Option<Probes>,
    intervals: Vec<(String, Vec<Screen>)>,
    covered: Option<Covered>,
    tests: Option<Tests>,
    /// Of streams that grow.
    pub behind: Option<Behind>,
}

impl Contents {
    /// Reads a finished run; decodes it first if that was not done yet. `options` say where the notes and sources of
    /// coverage are.
    ///
    /// # Errors
    /// The folder is no run, or its manifest cannot be read. A part that cannot be read is named on its screen.
    pub fn open(run: &Run, options: &CoverOptions, progress: &Progress) -> Result<Self> {
        read(run, Some(options), progress)
    }

    /// Reads counters of gcov that belong to no run: a file, or a folder of them.
    ///
    /// # Errors
    /// They cannot be read, or none of them can be used.
    pub fn of_counters(input: &Path, options: &CoverOptions, progress: &Progress) -> Result<Self> {
        let mut all = Contents::empty(input.display().to_string());
        let mut own = Vec::new();
        let account = of_coverage(input, options, &mut all, &mut own, progress)?;
        let covered = all.covered.as_ref().map(Covered::head).unwrap_or_default();
        let account =
            [String::new(), account_text(Some(&account), Style { detail: true, ..Style::default() })];
        let text = [vec![all.title.clone()], covered, account.to_vec()].concat().join("\n");
        own.push(Screen::text("run and account", text.lines()));
        all.screens = own;
        Ok(all)
    }

    fn empty(title: String) -> Self {
        Contents {
            title,
            screens: Vec::new(),
            calls: None,
            timed: None,
            probes: None,
            intervals: Vec::new(),
            covered: None,
            tests: None,
            behind: None,
        }
    }

    /// Reads what there is of a run that is being recorded. Writes nothing into it.
    ///
    /// # Errors
    /// As [`Contents::open`].
    pub fn so_far(run: &Run) -> Result<Self> {
        read(run, None, &Progress::silent())
    }

    /// The run's screens.
    pub fn screens(&self) -> Vec<Screen> {
        self.screens.clone()
    }

    /// The title and the screens behind a row. `None` if it is not there (any more).
    pub fn behind_row(&self, target: &Target) -> Option<(String, Vec<Screen>)> {
        match target {
            Target::Function { name, module } => {
                let screens = match (&self.timed, &self.calls) {
                    (Some(timed), calls) => timed.function(name, module, calls.as_ref()),
                    (None, Some(calls)) => calls.function(name, module),
                    (None, None) => return None,
                }?;
                Some((name.clone(), screens))
            }
            Target::Node(path) => Some((path.last()?.clone(), vec![self.calls.as_ref()?.children(path)?])),
            Target::Interval(name) => {
                let (_, screens) = self.intervals.iter().find(|(own, _)| own == name)?;
                Some((name.clone(), screens.clone()))
            }
            Target::Source { path, function } => {
                let function = function.as_ref().map(|(name, line)| (name.as_str(), *line));
                self.covered.as_ref()?.behind(path, function)
            }
            Target::Suite(name) => Some((name.clone(), tested::suite(self.tests.as_ref()?, name)?)),
            Target::Test(place) => tested::test(self.tests.as_ref()?, *place),
            Target::Keys { probe, keys } => {
                Some((keys.clone(), probes::histograms(self.probes.as_ref()?, *probe, keys)?))
            }
        }
    }
}

/// Reads a run: a finished one with these options, or one that is being recorded.
fn read(run: &Run, finished: Option<&CoverOptions>, progress: &Progress) -> Result<Contents> {
    let live = finished.is_none();
    let mut manifest = run.manifest()?;
    let title = match kprism_profile::units::quoted(&manifest.command) {
        command if command.is_empty() => run.dir().display().to_string(),
        command => command,
    };
    let mut all = Contents::empty(title);
    let (mut head, mut faults, mut accounts) = (Vec::new(), Vec::new(), manifest.accounts.clone());
    let mut own = Vec::new();
    for instrument in run.instruments() {
        let told = match instrument {
            Instrument::Flow if run.holds(Instrument::Durations) => Ok(()),
            Instrument::Flow => of_flow(run, live, &mut manifest, &mut all, (&mut head, &mut own), progress),
            Instrument::Durations => {
                of_durations(run, live, &mut manifest, &mut all, (&mut head, &mut own), progress)
            }
            Instrument::Probe => of_probes(run, &manifest, &mut all, &mut own).map(|account| {
                accounts.insert(instrument, account);
            }),
            // These are read from whole files only.
            _ if live => Ok(()),
            Instrument::Tlb => of_misses(run, &mut own).map(|account| {
                accounts.insert(instrument, account);
            }),
            Instrument::Boot => of_boot(run, &mut own),
            Instrument::Cover => {
                let options = finished.cloned().unwrap_or_default();
                of_coverage(run.dir(), &options, &mut all, &mut own, progress).map(|account| {
                    accounts.insert(instrument, account);
                })
            }
        };
        if let Err(error) = told {
            faults.push(format!("{}: {error:#}", instrument.about().result));
        }
    }
    // An account that was drawn up just now is of what is shown.
    for (instrument, account) in &manifest.accounts {
        accounts.entry(*instrument).or_insert_with(|| account.clone());
    }
    if !live {
        accounts.values_mut().for_each(|account| *account = manifest.with_recording(std::mem::take(account)));
    }
    if manifest.tests.is_some() && !live {
        match kernel_tests::load(run.dir(), &finished.cloned().unwrap_or_default().debug, progress) {
            Ok((tests, account)) => {
                // They are what such a run was made for.
                own.splice(0..0, tested::screens(&tests));
                head.insert(0, kprism_report::kernel_tests::summary(&tests));
                faults.extend(tests.notes.clone());
                accounts.insert(Instrument::Flow, account);
                all.tests = Some(tests);
            }
            Err(error) => faults.push(format!("tests: {error:#}")),
        }
    }
    head.extend(all.covered.as_ref().map(Covered::head).unwrap_or_default());
    if head.is_empty() {
        head.push(all.title.clone());
        if let Some(kernel) = &manifest.kernel {
            head.push(format!("on {}", kernel.release));
        }
    }
    if let Some(why) = manifest.stopped.as_ref().filter(|_| !live) {
        let line = format!("recording ended early: {why}");
        if !head.iter().any(|own| own.contains(&line)) {
            head.push(line);
        }
    }
    head.extend(faults);
    for (instrument, account) in &accounts {
        head.push(String::new());
        head.push(format!("{instrument}: {}", if account.is_whole() { "whole" } else { "not whole" }));
        head.push(account_text(Some(account), Style { detail: true, ..Style::default() }));
    }
    if accounts.is_empty() && live {
        head.push("account: drawn up when the recording has ended".to_owned());
    }
    own.extend(outputs(run));
    let text = head.join("\n");
    let account = Screen::text("run and account", text.lines());
    // The tables first: they are what somebody comes for.
    own.push(account);
    all.screens = own;
    Ok(all)
}

/// The head's lines, and the screens.
type Told<'t> = (&'t mut Vec<String>, &'t mut Vec<Screen>);

fn of_flow(
    run: &Run,
    live: bool,
    manifest: &mut Manifest,
    all: &mut Contents,
    (head, own): Told<'_>,
    progress: &Progress,
) -> Result<()> {
    let profile: Profile;
    if live {
        let so_far = flow::so_far(run)?;
        all.behind = Some(Behind { decoded: so_far.decoded, written: written(run, manifest.vcpus) });
        (profile, *manifest) = (so_far.profile, so_far.manifest);
    } else {
        (profile, *manifest) = flow::open(run, progress)?;
    }
    head.push(Header::new(manifest, &profile).to_text(&profile, Style::default()));
    let filter = Filter::default();
    let functions = tables::functions(&profile, &filter);
    own.push(Screen::of_table(
        "functions",
        &functions,
        ("function", "self_instructions"),
        function_at(&functions),
    ));
    let calls = tables::syscalls(&profile, &filter);
    own.push(Screen::of_table("syscalls", &calls, ("syscall", "wall_ns"), |_| None));
    let tasks = tables::tasks(&profile, &filter);
    own.push(Screen::of_table("tasks", &tasks, ("comm", "instructions"), |_| None));
    let mut table = deltas::summary(&profile);
    table.rows.retain(|row| row[0] != kprism_report::table::Cell::Int(0));
    if !table.rows.is_empty() {
        own.push(Screen::of_table("intervals", &table, ("name", ""), |cells| match cells.last() {
            Some(kprism_report::table::Cell::Text(name)) => Some(Target::Interval(name.clone())),
            _ => None,
        }));
        all.intervals = profile
            .deltas
            .iter()
            .map(|delta| {
                let text = deltas::to_text(&profile, delta, 40, Style::default());
                let sites =
                    Screen::of_table("sites", &deltas::sites(&profile, delta), ("stack", ""), |_| None);
                (delta.name.clone(), vec![Screen::text("histogram", text.lines()), sites])
            })
            .collect();
    }
    let errors = tables::errors(&profile);
    if !errors.rows.is_empty() {
        own.push(Screen::of_table("errors", &errors, ("kind", ""), |_| None));
    }
    let calls = Calls::new(profile, Weight::Instructions);
    own.insert(1, calls.root());
    all.calls = Some(calls);
    Ok(())
}

/// Bytes of packets in the folder.
fn written(run: &Run, vcpus: u32) -> u64 {
    let length = |cpu: u32| std::fs::metadata(run.pt(cpu)).map_or(0, |file| file.len());
    (0..vcpus.min(u32::from(u16::MAX))).map(length).sum()
}

/// The function of a row of this table.
pub(crate) fn function_at(
    table: &kprism_report::Table,
) -> impl Fn(&[kprism_report::table::Cell]) -> Option<Target> {
    use kprism_report::table::Cell;
    let place = |key: &str| table.columns.iter().position(|column| column.key == key);
    let (function, module) = (place("function"), place("module"));
    move |cells| match (cells.get(function?)?, cells.get(module?)?) {
        (Cell::Text(name), Cell::Text(module)) => {
            Some(Target::Function { name: name.clone(), module: module.clone() })
        }
        _ => None,
    }
}

fn of_durations(
    run: &Run,
    live: bool,
    manifest: &mut Manifest,
    all: &mut Contents,
    (head, own): Told<'_>,
    progress: &Progress,
) -> Result<()> {
    let (profile, times) = if live {
        let measured = durations::again(run, &mut durations::Consumer::None, progress)?;
        (measured.profile, measured.times)
    } else {
        let opened = durations::open(run, progress)?;
        *manifest = run.manifest()?;
        opened
    };
    let header = Header::new(manifest, &profile);
    let text = kprism_report::durations::header(&header, &profile, &times.counts, Style::default());
    head.push(text.trim_end().to_owned());
    head.extend(manifest.durations.tracing_cost.as_ref().map(kprism_report::durations::cost_line));
    let timed = Timed::new(times, manifest.durations.tracing_cost);
    own.push(timed.functions(&profile));
    if profile.nodes.len() > profile.tasks.len() {
        own.push(timed::by_task(&profile, &timed));
        let tasks = Calls::new(profile.clone(), Weight::Time);
        own.push(tasks.root());
    }
    all.calls = Some(Calls::new(profile, Weight::Time));
    all.timed = Some(timed);
    Ok(())
}

fn of_probes(run: &Run, manifest: &Manifest, all: &mut Contents, own: &mut Vec<Screen>) -> Result<Account> {
    let loaded = Probes::open(run)?;
    own.extend(probes::screens(&loaded));
    let (mut lines, mut more) = (Vec::new(), 0_u64);
    loaded.each(|hit, values| {
        match lines.len() < RECORDS {
            true => lines.push(probe::line(&loaded.description.probes[usize::from(hit.probe)], hit, &values)),
            false => more += 1,
        }
        Ok(true)
    })?;
    if more > 0 {
        let more = kprism_profile::units::grouped(more);
        lines.push(format!("… {more} more records: kprism report probe --limit 0"));
    }
    if !lines.is_empty() {
        own.push(Screen::text("records", lines.iter().map(|line| line.trim_end())));
    }
    let account = loaded.account(manifest);
    all.probes = Some(loaded);
    Ok(account)
}

fn of_misses(run: &Run, own: &mut Vec<Screen>) -> Result<Account> {
    let mut loaded = misses::Loaded::open(run)?;
    let geometries = loaded.geometries()?;
    let profile = loaded.profile()?;
    loaded.name_objects()?;
    let names: Vec<&str> = geometries.iter().map(|geometry| geometry.name.as_str()).collect();
    let account = loaded.account(&profile);
    if let Some(condition) = loaded.condition() {
        let text = format!(
            "Only misses for which `{condition}` were recorded; references and L1 misses are of all accesses."
        );
        own.push(Screen::text("TLB condition", [text.as_str()]));
    } else if loaded.is_chosen() {
        let text = "Only misses that meet a condition were recorded, and the condition is not understood.";
        own.push(Screen::text("TLB condition", [text]));
    }
    let mut push = |name: &str, table: &kprism_report::Table, key: &str| {
        own.push(Screen::of_table(name, table, (key, "misses"), |_| None));
    };
    if !geometries.is_empty() {
        push("TLB models", &tlb::summary(&profile, &geometries, &loaded.counts), "geometry");
    }
    push("TLB objects", &tlb::objects(&profile, &names, &loaded.objects), "object");
    if loaded.method() != misses::Method::Bus {
        push("TLB functions", &tlb::functions(&profile, &names, &loaded.symbols()?), "function");
    }
    push("TLB processes", &tlb::tasks(&profile, &names, &loaded.comms(), false), "comm");
    Ok(account)
}

fn of_coverage(
    input: &Path,
    options: &CoverOptions,
    all: &mut Contents,
    own: &mut Vec<Screen>,
    progress: &Progress,
) -> Result<Account> {
    let options = CoverOptions { shows_text: true, ..options.clone() };
    let loaded = cover::load(input, &options, &Part::default(), progress)?;
    let covered = Covered::new(loaded, options.source_dir);
    own.extend(covered.screens());
    let account = covered.account().clone();
    all.covered = Some(covered);
    Ok(account)
}

fn of_boot(run: &Run, own: &mut Vec<Screen>) -> Result<()> {
    let boot = kprism_session::boot::load(run.dir())?;
    own.push(Screen::of_table("initcalls", &boot::initcalls(&boot), ("name", "duration_ns"), |_| None));
    own.push(Screen::of_table("boot functions", &boot::functions(&boot), ("function", "total_ns"), |_| None));
    own.push(Screen::of_table("boot levels", &boot::levels(&boot), ("level", ""), |_| None));
    Ok(())
}

/// The command's output, and the console's.
fn outputs(run: &Run) -> Vec<Screen> {
    let files = [("stdout", run.stdout()), ("stderr", run.stderr()), ("console", run.console_log())];
    files.iter().filter_map(|(name, path)| output(name, path)).collect()
}

/// The end of a file; `None` if it is empty or not there.
fn output(name: &str, path: &std::path::Path) -> Option<Screen> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    let skipped = length.saturating_sub(OUTPUT);
    file.seek(SeekFrom::Start(skipped)).ok()?;
    let mut bytes = Vec::new();
    file.take(OUTPUT).read_to_end(&mut bytes).ok()?;
    if bytes.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(&bytes);
    let mark = format!("… {skipped} bytes before this are in {}", path.display());
    let first = (skipped > 0).then_some(mark.as_str());
    // A console ends its lines in \r\n.
    Some(Screen::text(name, first.into_iter().chain(text.lines().map(|line| line.trim_end_matches('\r')))))
}
