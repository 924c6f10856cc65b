// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism gate`: rules over a run's exact counts, for continuous integration.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_gate::render::{FORMS, Form, json, text};
use kprism_gate::summary::{self, Summary, Wanted};
use kprism_gate::{Damage, Rule, Side, judge, metric, names};
use kprism_session::{DEFAULT_RUN, Progress};

use super::cover::read_patch;
use super::output::{print_json, style, write_file};
use super::strict::StrictArgs;
use crate::exit::{self, Outcome};

/// The help that stands after the options.
pub fn help() -> String {
    format!(
        "\
Rules:
  METRIC OP LIMIT, OP one of > >= < <= == !=. The gate fails where a rule is true.
  5M, 20us          a value
  +1000, -10        a change against the baseline
  +0.5%             the same, in percent of the baseline

Metrics; names in brackets may have `*` and `?`, but those of wall times:
{}
Two runs of a command in one environment of the lab are the same to the
instruction: `insns > +0` fires on one instruction more. Of recordings that
vary give four runs or more on each side: medians are compared, and a change
fires only if a rank test calls it significant.

  kprism lab run -o now -- ls /bin
  kprism gate now --save baseline.json
  kprism gate now --baseline baseline.json --fail-if 'kernel_insns > +0.1%'

Changes between runs that did not record the same (windows, conditions, CPUs,
TLB models, recorder) have no verdict, which fails like a rule that fired. So
do rules that are not true of a run that is not whole (but see --allow-loss).

Exit codes: 0 no rule fired, 2 error, 3 a rule fired or has no verdict, 4 none fired and a run is not whole.",
        metric::help()
    )
}

/// Options of `kprism gate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder, or several of one command where counts vary
    #[arg(value_name = "RUN", default_value = DEFAULT_RUN)]
    pub runs: Vec<PathBuf>,
    /// Run folder, a file that --save wrote, or a lake, of which the newest run of this command is taken, to compare with (can be
    /// repeated)
    #[arg(short, long, value_name = "RUN|FILE|LAKE")]
    pub baseline: Vec<PathBuf>,
    /// Suite of the lake's runs; needed if the command is in several
    #[arg(long, value_name = "NAME", requires = "baseline")]
    pub suite: Option<String>,
    /// The newest N runs of the lake, where counts vary
    #[arg(long, value_name = "N", requires = "baseline", value_parser = clap::value_parser!(u16).range(1..))]
    pub last: Option<u16>,
    /// A rule; the gate fails where it is true (can be repeated)
    #[arg(short, long = "fail-if", value_name = "RULE", required_unless_present = "save")]
    pub fail_if: Vec<String>,
    /// A unified diff (git diff, diff -u), whose lines patch_coverage is about; `-` is standard input
    #[arg(long, value_name = "FILE", requires = "fail_if")]
    pub patch: Option<PathBuf>,
    /// Refuse to compare with runs of another environment
    #[arg(long, requires = "baseline")]
    pub same_environment: bool,
    /// Write the numbers of the first run into a file: the next baseline
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write the verdict for another tool (can be repeated): markdown, junit, sarif, json,
    /// github-action-benchmark, bencher
    #[arg(long, value_name = "FORM=FILE", requires = "fail_if")]
    pub write: Vec<String>,
    /// Print as JSON
    #[arg(long, requires = "fail_if")]
    pub json: bool,
    /// Judge runs that are not whole by what was recorded, with a note: without it a rule that is not true of them fails
    #[arg(long, requires = "fail_if", conflicts_with = "strict")]
    pub allow_loss: bool,
    #[command(flatten)]
    pub strict: StrictArgs,
}

/// Judges, writes, prints.
pub fn run(
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let rules = args.fail_if.iter().map(|text| Rule::parse(text)).collect::<Result<Vec<_>>>()?;
    let writes = args.write.iter().map(|text| form(text)).collect::<Result<Vec<_>>>()?;
    let cover = rules.iter().any(|rule| rule.metric.needs_coverage());
    let old_wants = Wanted { cover, patch: None };
    let new_wants = Wanted { patch: patch(args, &rules)?, ..old_wants.clone() };
    let new = side(&args.runs, &new_wants, progress)?;
    let old = match args.baseline.as_slice() {
        [] => None,
        paths => {
            let (lakes, others): (Vec<_>, Vec<_>) =
                paths.iter().cloned().partition(|path| kprism_lake::is_lake(path));
            if lakes.is_empty() && (args.suite.is_some() || args.last.is_some()) {
                bail!("--suite and --last are of a lake, and no --baseline is one");
            }
            let mut old = side(&others, &old_wants, progress)?;
            for lake in &lakes {
                old.summaries.extend(of_lake(args, lake, &new, progress)?);
            }
            Some(old)
        }
    };
    progress.clear();
    if let Some(file) = &args.save {
        let text = serde_json::to_string_pretty(&new.summaries[0])? + "\n";
        write_file(file, text, progress)?;
    }
    let sides = old.iter().chain([&new]);
    let fault = sides.flat_map(|side| &side.summaries).find_map(|summary| summary.fault.as_ref());
    let passed = match fault.filter(|_| args.strict.strict) {
        Some(reason) => {
            progress.say(&format!("kprism: --strict: a run is not whole: {reason}"));
            Outcome::Incomplete
        }
        None => Outcome::Done,
    };
    if rules.is_empty() {
        return Ok(passed);
    }
    names::check(&rules, old.as_ref(), &new, &args.runs)?;
    let damage = if args.allow_loss { Damage::IsJudged } else { Damage::Fails };
    let verdict = judge(&rules, old.as_ref(), &new, damage)?;
    if args.same_environment
        && let Some(environment) = verdict.environment.as_ref().filter(|environment| !environment.is_same())
    {
        let why = match environment.to_text() {
            text if text.is_empty() => "neither run states its environment".to_owned(),
            text => text.trim_end().to_owned(),
        };
        bail!("--same-environment: {why}");
    }
    for (form, file) in writes {
        std::fs::write(file, form.write(&verdict, &new.summaries[0])).with_context(|| file.to_owned())?;
    }
    match args.json {
        true => print_json(&json::value(&verdict), out)?,
        false => write!(out, "{}", text::write(&verdict, style(color, progress)))?,
    }
    Ok(match (verdict.failed_by_damage(), verdict.failed()) {
        (true, _) => Outcome::Incomplete,
        (false, true) => Outcome::Code(exit::GATE),
        (false, false) => passed,
    })
}

/// The lines of `--patch`.
fn patch(args: &Args, rules: &[Rule]) -> Result<Option<BTreeMap<String, Vec<u32>>>> {
    let rule = rules.iter().find(|rule| rule.metric.is_of_patch());
    match (&args.patch, rule) {
        (Some(file), Some(_)) => Ok(Some(read_patch(file)?)),
        (Some(_), None) => bail!("--patch: no rule is about patch_coverage"),
        (None, Some(rule)) => bail!("--fail-if {:?}: needs the patch: --patch FILE", rule.text),
        (None, None) => Ok(None),
    }
}

/// The newest runs of a lake of the command that is judged.
fn of_lake(args: &Args, path: &Path, new: &Side, progress: &Progress) -> Result<Vec<Summary>> {
    let judged = kprism_store::Run::open(&args.runs[0]).and_then(|run| run.manifest());
    let but = judged.map(|manifest| manifest.run_id()).unwrap_or_default();
    let command = new.summaries[0].command.join(" ");
    let lake = kprism_lake::Lake::open(path)?;
    let found =
        kprism_lake::newest(&lake, args.suite.as_deref(), &command, &but, args.last.unwrap_or(1).into())?;
    let one = |baseline: &kprism_lake::Baseline| {
        progress.say(&format!("baseline: run {} of {}", baseline.run_id, baseline.created));
        summary::parse(baseline.summary.as_bytes(), &path.display().to_string())
    };
    found.iter().map(one).collect()
}

/// Reads runs or summaries. Of the first the profile is kept, for the paths behind a difference.
fn side(paths: &[PathBuf], wanted: &Wanted, progress: &Progress) -> Result<Side> {
    let mut side = Side::default();
    for path in paths {
        progress.step(&format!("reading {}", path.display()));
        let (summary, profile) = summary::load(path, wanted, progress.clone())?;
        if side.summaries.is_empty() {
            side.profile = profile;
        }
        side.summaries.push(summary);
    }
    Ok(side)
}

/// `junit=gate.xml`.
fn form(text: &str) -> Result<(Form, &str)> {
    match text.split_once('=') {
        Some((name, file)) if !file.is_empty() && Path::new(file).file_name().is_some() => {
            Ok((Form::parse(name).with_context(|| format!("--write {text}"))?, file))
        }
        _ => {
            let names: Vec<&str> = FORMS.iter().map(|(name, _)| *name).collect();
            bail!("--write {text}: expected FORM=FILE, with one of the forms {}", names.join(", "))
        }
    }
}
