// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules held against summaries.
//!
//! In: rules, the runs to be judged, and those of the baseline. Out: [`Verdict`], which every rendering is made from.

use anyhow::{Result, anyhow, bail};
use kprism_profile::{Profile, units};
use kprism_report::environment::Compared;
use kprism_store::Recorded;

use crate::blame::{self, Blame};
use crate::comparable;
use crate::rank;
use crate::rule::Rule;
use crate::summary::{Patched, Summary};

/// Runs of one command: one, or several where counts vary.
#[derive(Debug, Default)]
pub struct Side {
    /// The numbers of each run.
    pub summaries: Vec<Summary>,
    /// The profile of the first run; `None` of a saved summary.
    pub profile: Option<Profile>,
}

/// A rule's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is not true: all is well.
    Passed,
    /// It is true.
    Fired,
    /// It is true of the medians, but the runs do not differ significantly.
    Noise,
    /// Its numbers do not mean the same, or do not mean what it says. This is no success.
    NoVerdict,
    /// It is not true of what was recorded, and a run that it is about is not whole. This is no success either.
    NotWhole,
}

impl State {
    /// True if the gate fails by it.
    pub fn fails(self) -> bool {
        !matches!(self, State::Passed | State::Noise)
    }
}

/// The meaning of a run that is not whole for rules that are not true of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// They are [`State::NotWhole`]: the missing part might have made them true.
    Fails,
    /// The rest is judged, with a note.
    IsJudged,
}

/// A rule held against the runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// The baseline's value, or the median of several; `None` without a baseline.
    pub old: Option<f64>,
    /// The value, or the median of several.
    pub new: f64,
    /// The result.
    pub state: State,
    /// The probability of such a difference by chance; `None` where values are exact.
    pub probability: Option<f64>,
    /// Why there is no verdict.
    pub why: Option<String>,
}

/// All rules held against the runs.
#[derive(Debug)]
pub struct Verdict {
    /// The command.
    pub command: String,
    /// The kernel's release.
    pub kernel: String,
    /// Numbers of runs of the baseline and of those judged.
    pub runs: [usize; 2],
    /// Each rule, in the order given.
    pub findings: Vec<Finding>,
    /// The environments; `None` without a baseline.
    pub environment: Option<Compared>,
    /// Functions and paths behind the rules that fired; `None` if none did, or without a baseline.
    pub blame: Option<Blame>,
    /// Remarks on how far the verdict can be trusted.
    pub notes: Vec<String>,
}

impl Verdict {
    /// True if a rule fired, or one could not be judged.
    pub fn failed(&self) -> bool {
        self.findings.iter().any(|finding| finding.state.fails())
    }

    /// True if it failed, and only because a run is not whole.
    pub fn failed_by_damage(&self) -> bool {
        self.failed() && !self.findings.iter().any(|f| matches!(f.state, State::Fired | State::NoVerdict))
    }

    /// Why a rule could not be judged; `None` if all could.
    pub fn no_verdict(&self) -> Option<&str> {
        self.findings.iter().find_map(|finding| finding.why.as_deref())
    }
}

impl Finding {
    /// The change against the baseline, in the metric's unit; `None` without one, or without a verdict.
    pub fn change(&self) -> Option<f64> {
        self.why.is_none().then_some(self.new - self.old?)
    }

    /// The change in percent of the baseline; `None` if that is 0.
    pub fn percent(&self) -> Option<f64> {
        let old = self.old.filter(|old| *old != 0.0)?;
        Some(100.0 * self.change()? / old)
    }

    /// The change as text: `+1,024 (+0.31 %)`; empty without a baseline.
    pub fn change_text(&self) -> String {
        let Some(change) = self.change() else { return String::new() };
        let sign = if change < 0.0 { "-" } else { "+" };
        let size = self.rule.metric.show(change.abs());
        match self.percent() {
            Some(percent) => format!("{sign}{size} ({percent:+.2} %)"),
            None => format!("{sign}{size}"),
        }
    }
}

/// Holds the rules against the runs.
///
/// # Errors
/// A rule needs a baseline and there is none, or it is about numbers that a run does not have.
pub fn judge(rules: &[Rule], old: Option<&Side>, new: &Side, damage: Damage) -> Result<Verdict> {
    let Some(first) = new.summaries.first() else { bail!("no run to judge") };
    let findings = rules.iter().map(|rule| find(rule, old, new, damage)).collect::<Result<Vec<_>>>()?;
    let environment = old.and_then(|old| Some((old, old.summaries.first()?))).map(|(old, first_old)| {
        let environments = [first_old, first].map(|summary| summary.environment.as_ref());
        Compared::new(environments, [old, new].map(recorded_by))
    });
    let fired: Vec<&Rule> = findings.iter().filter(|f| f.state == State::Fired).map(|f| &f.rule).collect();
    let blame = match (fired.is_empty(), old) {
        (false, Some(old)) => Some(blame::find(&fired, old, new)),
        _ => None,
    };
    Ok(Verdict {
        command: units::quoted(&first.command),
        kernel: first.kernel.clone(),
        runs: [old.map_or(0, |old| old.summaries.len()), new.summaries.len()],
        notes: notes(old, new, &findings),
        findings,
        environment,
        blame,
    })
}

/// What the first run of a side recorded; `None` if one of its runs does not tell.
fn recorded_by(side: &Side) -> Option<&Recorded> {
    let all: Option<Vec<&Recorded>> =
        side.summaries.iter().map(|summary| summary.recorded.as_ref()).collect();
    all?.first().copied()
}

fn find(rule: &Rule, old: Option<&Side>, new: &Side, damage: Damage) -> Result<Finding> {
    let values =
        |side: &Side| -> Option<Vec<f64>> { side.summaries.iter().map(|s| rule.metric.value(s)).collect() };
    let missing = |side: &str| {
        anyhow!("--fail-if {:?}: {side} has no {}: what it needs was not recorded", rule.text, rule.metric)
    };
    let patch = new.summaries.first().and_then(|summary| summary.patch.as_ref());
    let news = values(new).ok_or_else(|| match patch.filter(|_| rule.metric.is_of_patch()) {
        Some(patch) => anyhow!(
            "--fail-if {:?}: no file of the patch is in the run: {}",
            rule.text,
            patch.not_in_run.join(" ")
        ),
        None => missing("the run"),
    })?;
    let olds = match (rule.is_relative(), old) {
        (true, None) => bail!("--fail-if {:?}: a change is against a baseline: --baseline RUN", rule.text),
        (true, Some(old)) => Some(values(old).ok_or_else(|| missing("the baseline"))?),
        // Shown beside the value, if it is there.
        (false, old) => old.and_then(values),
    };
    let middle = |values: &[f64]| rank::median(values).unwrap_or(0.0);
    let (old_value, new_value) = (olds.as_deref().map(middle), middle(&news));
    let several = news.len() > 1 || olds.as_ref().is_some_and(|olds| olds.len() > 1);
    let tested = several && rule.is_relative() && !are_exact(old, new);
    let probability = match olds.as_deref().filter(|_| tested) {
        Some(olds) => {
            can_differ(rule, olds.len(), news.len())?;
            Some(rank::probability(olds, &news))
        }
        None => None,
    };
    let mut why = comparable::why_not(rule, old, new);
    let mut state = match (rule.holds(old_value, new_value), probability) {
        _ if why.is_some() => State::NoVerdict,
        (false, _) => State::Passed,
        (true, Some(probability)) if probability >= rank::LEVEL => State::Noise,
        (true, _) => State::Fired,
    };
    if damage == Damage::Fails
        && !state.fails()
        && let Some(fault) = faults(old.filter(|_| rule.is_relative()), new).next()
    {
        (state, why) = (State::NotWhole, Some(fault));
    }
    Ok(Finding { rule: rule.clone(), old: old_value, new: new_value, state, probability, why })
}

/// A sentence for each run of both sides that is not whole.
fn faults<'s>(old: Option<&'s Side>, new: &'s Side) -> impl Iterator<Item = String> + use<'s> {
    let sides = old.map(|old| ("the baseline", old)).into_iter().chain([("the run", new)]);
    let faults =
        sides.flat_map(|(name, side)| side.summaries.iter().map(move |summary| (name, &summary.fault)));
    faults.filter_map(|(name, fault)| Some(format!("{name} is not whole: {}", fault.as_ref()?)))
}

/// True if no run's counts vary: each states its environment, in which the same command has the same counts.
fn are_exact(old: Option<&Side>, new: &Side) -> bool {
    let mut summaries = old.into_iter().chain([new]).flat_map(|side| &side.summaries);
    summaries.all(|summary| summary.environment.is_some())
}

/// Refuses a test that no values could pass: the rule would never fire.
fn can_differ(rule: &Rule, old: usize, new: usize) -> Result<()> {
    let least = rank::least(old, new);
    if least < rank::LEVEL {
        return Ok(());
    }
    let (text, runs, level) = (&rule.text, units::counted(old as u64, "runs"), rank::LEVEL);
    bail!(
        "--fail-if {text:?}: {runs} of the baseline and {new} to judge can never differ significantly: the least probability is \
         {least:.3}, and below {level} is asked for. Give {} runs or more of each, as their counts vary, or one of each, which are \
         compared as they are",
        rank::FEWEST
    )
}

fn notes(old: Option<&Side>, new: &Side, findings: &[Finding]) -> Vec<String> {
    let mut notes: Vec<String> = faults(old, new).collect();
    let sides = old.map(|old| ("the baseline", old)).into_iter().chain([("the run", new)]);
    for (name, side) in sides {
        let varies = side.summaries.iter().any(|summary| summary.environment.is_none());
        let relative = findings.iter().any(|finding| finding.rule.is_relative());
        if varies && relative && side.summaries.len() < rank::FEWEST {
            notes.push(format!(
                "{name} states no environment, so its counts may vary from run to run; with {} runs or more of each, changes are \
                 tested for significance",
                rank::FEWEST
            ));
        }
        if side.summaries.windows(2).any(|pair| pair[0].command != pair[1].command) {
            notes.push(format!("{name}: its runs are of different commands"));
        }
    }
    if let (Some(old), Some(new)) = (old.and_then(|old| old.summaries.first()), new.summaries.first()) {
        if old.command != new.command {
            let (old, new) = (units::quoted(&old.command), units::quoted(&new.command));
            notes.push(format!("the commands differ: {old} and {new}"));
        }
        if old.exit_code != new.exit_code {
            let code = |code: Option<i32>| code.map_or_else(|| "none".to_owned(), |code| code.to_string());
            let (old, new) = (code(old.exit_code), code(new.exit_code));
            notes.push(format!("the exit codes differ: {old} and {new}"));
        }
    }
    if findings.iter().any(|finding| finding.rule.metric.is_of_patch()) {
        notes.extend(
            new.summaries.iter().filter_map(|summary| summary.patch.as_ref()).flat_map(Patched::notes),
        );
    }
    for finding in findings.iter().filter(|finding| finding.new == 0.0 && finding.old.unwrap_or(0.0) == 0.0) {
        if finding.rule.metric.argument.is_some() {
            notes.push(format!("{} is 0: nothing of that name ran", finding.rule.metric));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Flow, Function};
    use kprism_store::Environment;

    fn summary(insns: u64, calls: u64) -> Summary {
        let function =
            Function { name: "work".into(), kernel: true, calls, self_insns: insns, ..Function::default() };
        Summary {
            environment: Some(Environment::new([("qemu".to_owned(), "10".to_owned())])),
            flow: Some(Flow { kernel_insns: insns, functions: vec![function], ..Flow::default() }),
            ..Summary::default()
        }
    }

    fn side(insns: &[u64]) -> Side {
        Side { summaries: insns.iter().map(|&n| summary(n, 1)).collect(), profile: None }
    }

    fn judge(rules: &[Rule], old: Option<&Side>, new: &Side) -> Result<Verdict> {
        super::judge(rules, old, new, Damage::Fails)
    }

    fn rules(texts: &[&str]) -> Vec<Rule> {
        texts.iter().map(|text| Rule::parse(text).unwrap()).collect()
    }

    #[test]
    fn one_instruction_more_fires_and_is_blamed() {
        let verdict = judge(
            &rules(&["insns > +0", "calls[work] > 1", "self_insns[nothing] > 0"]),
            Some(&side(&[1_000_000])),
            &side(&[1_000_001]),
        )
        .unwrap();
        let states: Vec<State> = verdict.findings.iter().map(|f| f.state).collect();
        assert_eq!(states, [State::Fired, State::Passed, State::Passed]);
        assert!(verdict.failed());
        assert_eq!(verdict.findings[0].change_text(), "+1 (+0.00 %)");
        assert_eq!(verdict.blame.unwrap().functions[0].name, "work");
        assert_eq!(verdict.notes, ["self_insns[nothing] is 0: nothing of that name ran"]);
    }

    #[test]
    fn runs_that_vary_fire_only_if_they_differ_significantly() {
        let mut old = side(&[100, 110, 105, 95, 102]);
        old.summaries.iter_mut().for_each(|s| s.environment = None);
        let same = judge(&rules(&["insns > +1%"]), Some(&old), &side(&[104, 99, 111, 98, 108])).unwrap();
        assert_eq!(same.findings[0].state, State::Noise);
        let more = judge(&rules(&["insns > +1%"]), Some(&old), &side(&[120, 121, 125, 119, 130])).unwrap();
        assert_eq!(more.findings[0].state, State::Fired);
        assert!(more.findings[0].probability.is_some_and(|p| p < 0.01));
    }

    #[test]
    fn exact_runs_are_compared_exactly_however_many_there_are() {
        let verdict = judge(&rules(&["insns > +0"]), Some(&side(&[100, 100, 100])), &side(&[101])).unwrap();
        assert_eq!((verdict.findings[0].state, verdict.findings[0].probability), (State::Fired, None));
        let verdict = judge(&rules(&["insns > +0"]), Some(&side(&[100, 90, 110])), &side(&[101])).unwrap();
        assert_eq!(verdict.findings[0].state, State::Fired, "of versions of the command");
    }

    #[test]
    fn a_rule_that_no_outcome_could_make_fire_is_refused() {
        let vary = |insns: &[u64]| {
            let mut side = side(insns);
            side.summaries.iter_mut().for_each(|summary| summary.environment = None);
            side
        };
        let judged =
            |texts: &[&str], old: &[u64], new: &[u64]| judge(&rules(texts), Some(&vary(old)), &vary(new));
        for (old, new) in [(&[1, 2, 3][..], &[9][..]), (&[1, 2, 3], &[7, 8, 9]), (&[1], &[7, 8, 9])] {
            let error = judged(&["insns > +0"], old, new).unwrap_err().to_string();
            assert!(
                error.contains("can never differ significantly") && error.contains("4 runs or more"),
                "{error}"
            );
            judged(&["insns > 5"], old, new).expect("a value needs no test");
        }
        assert!(judged(&["insns > +0"], &[1, 2, 3, 4], &[6, 7, 8, 9]).unwrap().failed());
        assert!(judged(&["insns > +0"], &[1], &[2]).unwrap().failed(), "one of each");
    }

    /// A side whose runs were recorded so.
    fn recorded(insns: u64, parts: &[(&str, &str)]) -> Side {
        let mut side = side(&[insns]);
        let mut recorded = kprism_store::Recorded::default();
        for (part, value) in parts {
            recorded.add(*part, *value);
        }
        side.summaries[0].recorded = Some(recorded);
        side.summaries[0].tlb = Some(vec![("skylake".into(), 1), ("zen".into(), 1)]);
        side
    }

    #[test]
    fn a_change_between_runs_that_recorded_something_else_has_no_verdict() {
        let old = recorded(100, &[("from", "a"), ("clock", "x")]);
        let judged = |texts: &[&str], new: &Side| judge(&rules(texts), Some(&old), new).unwrap();
        let same = judged(&["insns > +0"], &recorded(90, &[("from", "a"), ("clock", "y")]));
        assert_eq!((same.findings[0].state, same.failed()), (State::Passed, false));
        let window = judged(&["insns > +0", "insns > 1k"], &recorded(90, &[("clock", "x")]));
        let states: Vec<State> = window.findings.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [State::NoVerdict, State::Passed]);
        assert!(window.failed());
        assert_eq!(window.no_verdict(), Some("not the same was recorded: from: a → none"));
        assert!(window.blame.is_none());
        let times = judged(&["cpu_time > +0"], &recorded(90, &[("from", "a"), ("clock", "y")]));
        assert_eq!(times.findings[0].state, State::NoVerdict);
    }

    #[test]
    fn tlb_rules_are_about_their_own_model() {
        use kprism_store::recorded::{FIRST_TLB, tlb_model};
        let (first, zen) = (tlb_model("skylake"), tlb_model("zen"));
        let old = recorded(1, &[(FIRST_TLB, "skylake (1)"), (&first, "skylake (1)"), (&zen, "zen (1)")]);
        let new = recorded(1, &[(FIRST_TLB, "skylake (2)"), (&first, "skylake (2)"), (&zen, "zen (1)")]);
        let verdict = judge(
            &rules(&["tlb_misses > +0", "tlb_misses[skylake] > +0", "tlb_misses[zen] > +0", "insns > +0"]),
            Some(&old),
            &new,
        );
        let states: Vec<State> = verdict.unwrap().findings.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [State::NoVerdict, State::NoVerdict, State::Passed, State::Passed]);
    }

    #[test]
    fn a_clock_whose_frequency_is_not_known_gives_no_time_to_judge() {
        let mut manifest = kprism_store::Manifest::new(kprism_store::RunKind::Import, 1);
        manifest.clock.tsc_hz = 0;
        let mut new = side(&[1]);
        new.summaries[0].recorded = Some(manifest.recorded());
        let judged = |texts: &[&str]| judge(&rules(texts), None, &new).unwrap();
        assert_eq!(judged(&["cpu_time > 5us"]).findings[0].state, State::NoVerdict);
        assert_eq!(judged(&["insns > 5"]).findings[0].state, State::Passed);
    }

    #[test]
    fn a_baseline_that_does_not_tell_what_was_recorded_is_noted() {
        let noted = |old: &Side| {
            let verdict = judge(&rules(&["insns > +0"]), Some(old), &recorded(1, &[])).unwrap();
            verdict.environment.unwrap().to_text().contains("not known whether the same was recorded")
        };
        assert!(noted(&side(&[1])));
        let mut two = recorded(1, &[]);
        assert!(!noted(&two));
        two.summaries.extend(side(&[1]).summaries);
        assert!(noted(&two), "the second run does not tell");
    }

    #[test]
    fn damage_fails_unless_it_is_allowed() {
        let mut cut = side(&[50]);
        cut.summaries[0].fault = Some("lost 7 bytes".into());
        let all = rules(&["insns > +0", "insns < 60", "insns > 60"]);
        let verdict = judge(&all, Some(&side(&[100])), &cut).unwrap();
        let states: Vec<State> = verdict.findings.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [State::NotWhole, State::Fired, State::NotWhole]);
        assert_eq!(verdict.findings[0].why.as_deref(), Some("the run is not whole: lost 7 bytes"));
        let one = judge(&all[..1], Some(&side(&[100])), &cut).unwrap();
        assert!(one.failed() && one.failed_by_damage() && verdict.failed() && !verdict.failed_by_damage());
        // A value is judged of the run alone.
        assert!(!judge(&all[2..], Some(&cut), &side(&[50])).unwrap().failed());
        let allowed = super::judge(&all[..1], Some(&side(&[100])), &cut, Damage::IsJudged).unwrap();
        assert_eq!(
            (allowed.failed(), &allowed.notes[..]),
            (false, &["the run is not whole: lost 7 bytes".to_owned()][..])
        );
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        let refused = |texts, old| judge(&rules(texts), old, &side(&[1])).unwrap_err().to_string();
        assert!(refused(&["insns > +0"], None).contains("--baseline"));
        assert!(refused(&["tlb_misses > 5"], None).contains("was not recorded"));
    }
}
