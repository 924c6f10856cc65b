// SPDX-License-Identifier: MIT OR Apache-2.0
//! One revision after the other: built, recorded in the guest, and judged by the rules of a gate.
//!
//! In: [`Settings`]. Out: [`Found`]. The good revision's run is the baseline of all others. A revision that cannot be built
//! or whose guest does not come to its end is skipped, with the reason; if that is one of the two given, it is an error.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use kprism_gate::metric::Metric;
use kprism_gate::summary::{self, Wanted};
use kprism_gate::verdict::Finding;
use kprism_gate::{self as gate, Damage, Rule, Side, Verdict, blame, judge};
use kprism_lab::{Ended as GuestEnd, Full, Job, KernelSource, Options};
use kprism_record::{guest, written};
use kprism_session::Progress;
use kprism_store::Instrument;

use crate::git::{self, Bisection};
use crate::search::{self, Search};

/// The revisions to search, and how to try one.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The good revision: a commit, or a package of Debian's kernels (`linux-image-…`).
    pub good: String,
    /// The bad revision.
    pub bad: String,
    /// The repository of commits.
    pub repository: PathBuf,
    /// A shell command that builds a commit, run where it is checked out.
    pub build: Option<String>,
    /// A revision is bad if one of these is true of it, with the good one as the baseline. If there are none: if it executes
    /// more instructions than the mean of the two given.
    pub rules: Vec<Rule>,
    /// Folder for the runs and for the commit that is checked out.
    pub output: PathBuf,
    /// All runs are kept, not only those of the result.
    pub keep: bool,
    /// The guest. Paths of files that are relative are those of the commit that is checked out.
    pub guest: Options,
    /// The command. Its shares are relative in the same way.
    pub job: Job,
}

/// A commit or a kernel package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The commit's hash, or the package's name.
    pub id: String,
    /// The commit's subject, author and date.
    pub title: String,
}

/// The result of trying a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// No rule is true.
    Good,
    /// A rule is true.
    Bad,
    /// It could not be judged, for this reason.
    Skipped(String),
}

/// A revision that was tried.
#[derive(Debug, Clone)]
pub struct Tried {
    /// The revision.
    pub revision: Revision,
    /// The result.
    pub state: State,
    /// The values of the rules' metrics, in the order of the rules; none if it was skipped.
    pub values: Vec<f64>,
    /// Its run, if that is kept.
    pub run: Option<PathBuf>,
}

/// The result of a search.
#[derive(Debug)]
pub struct Found {
    /// The first bad revision, as far as it is known.
    pub ended: Ended,
    /// The rules.
    pub rules: Vec<Rule>,
    /// All revisions tried, in this order.
    pub tried: Vec<Tried>,
}

/// The end of a search.
#[derive(Debug)]
pub enum Ended {
    /// The first bad revision is known.
    First {
        /// That revision.
        bad: Revision,
        /// The revision before it.
        before: Revision,
        /// The revision that the verdict compares it with: the one before it, or GOOD if that could not be run.
        baseline: Revision,
        /// The run of the first bad revision, held against that of the baseline.
        verdict: Box<Verdict>,
    },
    /// One of these is the first bad revision: the others of them could not be judged.
    OneOf(Vec<Revision>),
    /// Ctrl-C.
    Interrupted,
}

/// Searches the first bad revision.
///
/// # Errors
/// The good revision is bad or the bad one is not, one of them cannot be tried, git or apt fails, or the disk refuses.
pub fn bisect(settings: &Settings, progress: &Progress) -> Result<Found> {
    if settings.rules.iter().any(|rule| rule.metric.is_of_patch()) {
        bail!("patch_coverage is of one change: it cannot be bisected");
    }
    if let Some(rule) = settings.rules.iter().find(|rule| rule.metric.recorded_by() != Instrument::Flow) {
        bail!("--fail-if {:?}: a bisection records the flow, which has no {}", rule.text, rule.metric);
    }
    let mut tester =
        Tester { settings, rules: settings.rules.clone(), good: None, tried: Vec::new(), progress };
    let ended = match (is_kernel(&settings.good), is_kernel(&settings.bad)) {
        (true, true) => kernels(&mut tester),
        (false, false) => commits(&mut tester),
        _ => bail!(
            "{} and {}: expected two commits, or two packages linux-image-…",
            settings.good,
            settings.bad
        ),
    };
    let ended = match ended {
        Err(error) if guest::is_interrupt(&error) => Ended::Interrupted,
        ended => ended?,
    };
    progress.clear();
    Ok(tester.finish(ended))
}

fn is_kernel(revision: &str) -> bool {
    revision.starts_with(KernelSource::PACKAGE)
}

/// Written into the folder of a bisection: git does not list the folder, and the next bisection knows it as one.
const MARKER: (&str, &str) = (".gitignore", "# Of kprism bisect.\n*\n");

/// Makes the folder of a bisection, or takes that of an earlier one.
fn make_output(output: &Path) -> Result<()> {
    let marker = output.join(MARKER.0);
    let is_empty = !output.exists() || fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty && !fs::read_to_string(&marker).is_ok_and(|text| text == MARKER.1) {
        bail!("{}: it is there, and not of kprism bisect: choose another folder by -o", output.display());
    }
    fs::create_dir_all(output).with_context(|| output.display().to_string())?;
    fs::write(&marker, MARKER.1).with_context(|| marker.display().to_string())
}

/// Searches the commits between two.
fn commits(tester: &mut Tester<'_>) -> Result<Ended> {
    let Settings { repository, output, good, bad, .. } = tester.settings;
    let (good, bad) = git::ends(repository, good, bad)?;
    make_output(output)?;
    let worktree = output.canonicalize().context("its own folder")?.join("tree");
    let bisection = Bisection::open(repository, &worktree, &bad)?;
    bisection.check_out(&good)?;
    tester.begin_with_good(&good.clone().into(), Some(&worktree))?;
    bisection.check_out(&bad)?;
    tester.begin_with_bad(&bad.clone().into(), Some(&worktree))?;
    let mut step = bisection.start(&good, &bad)?;
    let first = loop {
        step = match step {
            git::Step::Try(commit, left) => {
                let word = match tester.test(&commit.into(), Some(&worktree), &left)? {
                    State::Good => "good",
                    State::Bad => "bad",
                    State::Skipped(_) => "skip",
                };
                bisection.mark(word)?
            }
            git::Step::First(commit) => break commit,
            git::Step::OneOf(all) => return Ok(Ended::OneOf(all.into_iter().map(Into::into).collect())),
        };
    };
    let before = git::commit(repository, &format!("{}^", first.id))?;
    if tester.run_of(&before.id).is_none() {
        let tried = bisection.check_out(&before).and_then(|()| {
            tester.test(&before.clone().into(), Some(&worktree), "the commit before the first bad one")
        });
        match tried {
            // The first bad one is known: it is compared with GOOD instead.
            Err(error) if guest::is_interrupt(&error) => {}
            tried => drop(tried?),
        }
    }
    tester.compared(first.into(), before.into())
}

/// Searches Debian's kernels between two.
fn kernels(tester: &mut Tester<'_>) -> Result<Ended> {
    let Settings { good, bad, build, output, guest, .. } = tester.settings;
    if build.is_some() {
        bail!("--build is for commits: packages are built");
    }
    if guest.kernel != KernelSource::Newest {
        bail!("--kernel and --tree are for commits: here GOOD and BAD are the kernels");
    }
    let all = kprism_lab::kernel_packages()?;
    let place = |name: &str| {
        all.iter()
            .position(|known| known == name)
            .with_context(|| format!("{name}: apt knows no such kernel; it knows {}", all.join(" ")))
    };
    let (from, to) = (place(good)?, place(bad)?);
    if from >= to {
        bail!("{good} is not older than {bad}: GOOD comes first");
    }
    make_output(output)?;
    let all: Vec<Revision> =
        all[from..=to].iter().map(|name| Revision { id: name.clone(), title: String::new() }).collect();
    tester.begin_with_good(&all[0], None)?;
    tester.begin_with_bad(&all[all.len() - 1], None)?;
    let mut search = Search::new(all.len());
    loop {
        match search.next() {
            search::Step::Try(number) => {
                let left = format!("{} kernels left", search.left());
                match tester.test(&all[number], None, &left)? {
                    State::Good => search.good(number),
                    State::Bad => search.bad(number),
                    State::Skipped(_) => search.skip(number),
                }
            }
            search::Step::First(number) => {
                return tester.compared(all[number].clone(), all[number - 1].clone());
            }
            search::Step::OneOf(numbers) => {
                return Ok(Ended::OneOf(numbers.into_iter().map(|number| all[number].clone()).collect()));
            }
        }
    }
}

/// Tries revisions, and keeps what came of each.
struct Tester<'a> {
    settings: &'a Settings,
    rules: Vec<Rule>,
    /// The baseline.
    good: Option<Side>,
    tried: Vec<Tried>,
    progress: &'a Progress,
}

impl Tester<'_> {
    /// Records the good revision, the baseline of all others.
    fn begin_with_good(&mut self, revision: &Revision, tree: Option<&Path>) -> Result<()> {
        let (run, side) =
            self.record(revision, tree).with_context(|| format!("GOOD, {}", self.settings.good))?;
        // A shell's codes: the command was not found, or is no program.
        if let Some(code @ (126 | 127)) = exit_code(&side) {
            bail!("GOOD, {}: the command could not be run (exit code {code})", self.settings.good);
        }
        self.good = Some(side);
        // Its values are known as soon as the rules are: see begin_with_bad.
        let values = Vec::new();
        self.tried.push(Tried { revision: revision.clone(), state: State::Good, values, run: Some(run) });
        Ok(())
    }

    /// Records the bad revision, and checks that the rules tell the two apart.
    fn begin_with_bad(&mut self, revision: &Revision, tree: Option<&Path>) -> Result<()> {
        let (run, side) =
            self.record(revision, tree).with_context(|| format!("BAD, {}", self.settings.bad))?;
        let Some(good) = &self.good else { bail!("the good revision comes first") };
        if self.rules.is_empty() {
            self.rules.push(between(good, &side)?);
        }
        let of_good = judge(&self.rules, Some(good), good, Damage::Fails)?;
        let fired = |finding: &&Finding| finding.state == gate::State::Fired;
        if let Some(finding) = of_good.findings.iter().find(fired) {
            bail!("GOOD, {}, is bad already: {}", self.settings.good, finding.rule.text);
        }
        if let Some(why) = of_good.no_verdict() {
            bail!("GOOD, {}, cannot be judged: {why}", self.settings.good);
        }
        if let Some(first) = self.tried.first_mut() {
            first.values = values(&of_good);
        }
        let verdict = judge(&self.rules, Some(good), &side, Damage::Fails)?;
        if let Some(why) = verdict.no_verdict() {
            bail!("BAD, {}, cannot be judged: {why}", self.settings.bad);
        }
        if !verdict.failed() {
            let found = verdict.findings.iter().map(|finding| {
                let shown = |value| finding.rule.metric.show(value);
                let old = finding.old.map_or_else(String::new, |old| format!("{} → ", shown(old)));
                format!("{}: {old}{}", finding.rule.text, shown(finding.new))
            });
            let found: Vec<String> = found.collect();
            bail!("BAD, {}, is not bad: {}", self.settings.bad, found.join("; "));
        }
        let values = values(&verdict);
        self.tried.push(Tried { revision: revision.clone(), state: State::Bad, values, run: Some(run) });
        Ok(())
    }

    /// Tries a revision between the two.
    fn test(&mut self, revision: &Revision, tree: Option<&Path>, left: &str) -> Result<State> {
        if let Some(known) = self.tried.iter().find(|tried| tried.revision.id == revision.id) {
            return Ok(known.state.clone());
        }
        self.progress.step(&format!("trying {}", revision.short()));
        let judged = self.record(revision, tree).and_then(|(run, side)| {
            let verdict = judge(&self.rules, self.good.as_ref(), &side, Damage::Fails)?;
            match verdict.no_verdict() {
                Some(why) => bail!("{why}"),
                None => Ok((run, verdict)),
            }
        });
        let (state, values, run) = match judged {
            Ok((run, verdict)) => {
                (if verdict.failed() { State::Bad } else { State::Good }, values(&verdict), Some(run))
            }
            Err(error) if guest::is_interrupt(&error) || is_disk_full(&error) => return Err(error),
            Err(error) => {
                let run = Some(self.run_folder(revision)).filter(|run| run.exists());
                (State::Skipped(format!("{error:#}")), Vec::new(), run)
            }
        };
        self.progress.clear();
        let tried = Tried { revision: revision.clone(), state: state.clone(), values, run };
        self.progress.say(&format!("{} ({left})", crate::render::line(&self.rules, &tried)));
        self.tried.push(tried);
        Ok(state)
    }

    /// Builds a revision and records the command.
    fn record(&self, revision: &Revision, tree: Option<&Path>) -> Result<(PathBuf, Side)> {
        if let (Some(build), Some(tree)) = (&self.settings.build, tree) {
            self.progress.step(&format!("building {}", revision.short()));
            self.build(build, tree, revision)?;
        }
        let output = self.run_folder(revision);
        if output.exists() {
            // Of an earlier bisection in this folder.
            fs::remove_dir_all(&output).with_context(|| output.display().to_string())?;
        }
        let (mut options, mut job) = (self.settings.guest.clone(), self.settings.job.clone());
        match tree {
            Some(tree) => in_tree(&mut options, &mut job, tree),
            None => options.kernel = KernelSource::Package(revision.id.clone()),
        }
        let settings = guest::Settings::new(output, options, job);
        let (run, ran) = guest::run(&settings, self.progress, &mut |p| guest::show(self.progress, p))?;
        match ran.ended {
            GuestEnd::Normal => {}
            GuestEnd::Interrupted => return Err(kprism_lab::Error::Interrupted.into()),
            GuestEnd::Timeout => bail!("--timeout ended the command"),
            GuestEnd::Full(Full::Disk(_)) => {
                return Err(kprism_lab::Error::Full { path: run.dir().to_owned() }.into());
            }
            GuestEnd::Full(full) => bail!("{}", written::reason(full)),
            GuestEnd::Panic(why) => bail!("the guest's kernel panicked: {why}"),
            GuestEnd::Failed(why) => bail!("the guest failed: {why}"),
        }
        let side = self.side(run.dir())?;
        if let Some(fault) = side.summaries.iter().find_map(|summary| summary.fault.as_ref()) {
            bail!("its run is not whole: {fault}");
        }
        // A command that ends otherwise did other work: its cost says nothing.
        if let Some(good) = &self.good
            && exit_code(good) != exit_code(&side)
        {
            let code = |side| exit_code(side).map_or_else(|| "none".to_owned(), |code| code.to_string());
            bail!("the command's exit code is {}, with GOOD it is {}", code(&side), code(good));
        }
        Ok((run.dir().to_owned(), side))
    }

    /// The folder of a revision's run.
    fn run_folder(&self, revision: &Revision) -> PathBuf {
        self.settings.output.join(format!("{}.data", revision.short()))
    }

    fn side(&self, run: &Path) -> Result<Side> {
        let cover = self.rules.iter().any(|rule| rule.metric.needs_coverage());
        let (summary, profile) = summary::load(run, &Wanted { cover, patch: None }, self.progress.clone())?;
        Ok(Side { summaries: vec![summary], profile })
    }

    /// Runs the build, whose output goes to `build.log` beside the runs.
    fn build(&self, command: &str, tree: &Path, revision: &Revision) -> Result<()> {
        let log = self.settings.output.join(format!("{}.build.log", revision.short()));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(tree).stdin(Stdio::null());
        shell.stdout(file.try_clone().context("the build's log")?).stderr(file);
        let status = shell.status().context("sh")?;
        if kprism_signals::end_requested() {
            return Err(kprism_lab::Error::Interrupted.into());
        }
        if !status.success() {
            bail!("the build failed ({status}); see {}", log.display());
        }
        Ok(())
    }

    fn run_of(&self, id: &str) -> Option<&Path> {
        let judged = |tried: &&Tried| tried.revision.id == id && !matches!(tried.state, State::Skipped(_));
        self.tried.iter().find(judged)?.run.as_deref()
    }

    /// Holds the first bad revision against the one before it, or against GOOD if that could not be run: the search is not
    /// lost for it.
    fn compared(&self, bad: Revision, before: Revision) -> Result<Ended> {
        let side = |revision: &Revision| -> Result<Side> {
            let run = self
                .run_of(&revision.id)
                .with_context(|| format!("{} could not be run", revision.short()))?;
            self.side(run)
        };
        let baseline = match (self.run_of(&before.id), self.tried.first()) {
            (None, Some(good)) => good.revision.clone(),
            _ => before.clone(),
        };
        let (old, new) = (side(&baseline)?, side(&bad)?);
        let mut verdict = judge(&self.rules, Some(&old), &new, Damage::Fails)?;
        // A rule that is true against GOOD need not be true against the revision before.
        verdict.blame = Some(blame::find(&self.rules.iter().collect::<Vec<_>>(), &old, &new));
        Ok(Ended::First { bad, before, baseline, verdict: Box::new(verdict) })
    }

    /// Removes the runs that are not of the result.
    fn finish(mut self, ended: Ended) -> Found {
        let ends = [0, 1].map(|n| self.tried.get(n).map(|tried| tried.revision.id.clone()));
        let mut kept: Vec<String> = ends.into_iter().flatten().collect();
        if let Ended::First { bad, before, .. } = &ended {
            kept.extend([bad.id.clone(), before.id.clone()]);
        }
        for tried in self.tried.iter_mut().filter(|tried| !kept.contains(&tried.revision.id)) {
            if let Some(run) = tried.run.take_if(|_| !self.settings.keep)
                && let Err(error) = fs::remove_dir_all(&run)
            {
                self.progress.note(&format!("{}: it stays: {error}", run.display()));
                tried.run = Some(run);
            }
        }
        Found { ended, rules: self.rules, tried: self.tried }
    }
}

impl Revision {
    /// The name in messages and of its run.
    pub fn short(&self) -> &str {
        match self.id.bytes().all(|b| b.is_ascii_hexdigit()) {
            true => &self.id[..self.id.len().min(12)],
            false => &self.id,
        }
    }
}

impl From<git::Commit> for Revision {
    fn from(commit: git::Commit) -> Self {
        Revision { id: commit.id, title: commit.title }
    }
}

/// The exit code of the command.
fn exit_code(side: &Side) -> Option<i32> {
    side.summaries.first()?.exit_code
}

/// True if there is no room for further runs, so that no other revision can be tried either.
fn is_disk_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        cause.downcast_ref().is_some_and(full)
            || matches!(
                cause.downcast_ref(),
                Some(kprism_lab::Error::NoSpace { .. } | kprism_lab::Error::Full { .. })
            )
    })
}

/// The values of the rules' metrics, in the order of the rules.
fn values(verdict: &Verdict) -> Vec<f64> {
    verdict.findings.iter().map(|finding| finding.new).collect()
}

/// The rule if none is given: more instructions than the mean of the two.
fn between(good: &Side, bad: &Side) -> Result<Rule> {
    let insns = Metric::parse("insns")?;
    let count = |side: &Side| insns.value(side.summaries.first()?);
    let (Some(old), Some(new)) = (count(good), count(bad)) else { bail!("the runs have no instructions") };
    if new <= old {
        bail!(
            "BAD executes no more instructions than GOOD ({} and {}): say with --fail-if what is bad",
            insns.show(new),
            insns.show(old)
        );
    }
    Rule::parse(&format!("insns > {}", (old + (new - old) / 2.0).floor()))
}

/// Takes relative paths to be those of the commit that is checked out.
fn in_tree(options: &mut Options, job: &mut Job, tree: &Path) {
    let kernel = match &mut options.kernel {
        KernelSource::Image(path) | KernelSource::Tree(path) => Some(path),
        KernelSource::Newest | KernelSource::Package(_) => None,
    };
    for path in kernel.into_iter().chain(&mut options.module_folder).chain(&mut options.initrd) {
        *path = tree.join(&*path);
    }
    for module in options.modules.iter_mut().chain(&mut options.with_modules) {
        if kprism_lab::is_module_file(module) {
            *module = tree.join(&*module).display().to_string();
        }
    }
    for share in &mut job.shares {
        share.host = tree.join(&share.host);
    }
}
