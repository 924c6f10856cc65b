// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two runs of one instrument, read and compared: [`kprism_report::compared`] of their folders.
//!
//! Input: two run folders. Output: a [`Comparison`], or the reason why the two cannot be compared. Flows and boots have their own
//! comparisons (`kprism_report::diff`, `boot`).

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_profile::{Filter, Profile};
use kprism_report::compared::{Comparison, Section, Side, cover, durations, faults, probe, tlb};
use kprism_report::cover::{chosen, diff};
use kprism_report::environment::{Compared, unknown};
use kprism_session::cover as covers;
use kprism_session::probe as probes;
use kprism_session::tlb::{Loaded, Method};
use kprism_session::{Progress, flow, open_profile};
use kprism_store::{Account, Instrument, Manifest, Run, load_times};

/// The instrument that both runs are compared by: the first of this order that both hold.
const ORDER: [Instrument; 6] = [
    // A run with these may hold a flow, too.
    Instrument::Tlb,
    Instrument::Probe,
    Instrument::Flow,
    Instrument::Durations,
    Instrument::Cover,
    Instrument::Boot,
];

/// The instrument by which two runs can be compared.
///
/// # Errors
/// They have none in common; the error says what each holds.
pub fn instrument(old: &Path, new: &Path) -> Result<Instrument> {
    let [a, b] = [Run::open(old)?, Run::open(new)?];
    if let Some(both) = ORDER.into_iter().find(|&one| a.holds(one) && b.holds(one)) {
        return Ok(both);
    }
    // A flow and durations have times in common; which option compares them, that comparison says.
    let has_calls = |run: &Run| run.holds(Instrument::Flow) || run.holds(Instrument::Durations);
    if has_calls(&a) && has_calls(&b) {
        return Ok(Instrument::Flow);
    }
    let held = |run: &Run| {
        let all: Vec<&str> = run.instruments().into_iter().map(|one| one.about().result).collect();
        if all.is_empty() { "nothing that was recorded".to_owned() } else { all.join(", ") }
    };
    bail!(
        "{} holds {}, {} holds {}: they cannot be compared; record both with the same instrument",
        old.display(),
        held(&a),
        new.display(),
        held(&b)
    )
}

fn side(path: &Path, manifest: &Manifest, about: &str, account: Option<&Account>) -> Side {
    let kernel = manifest.kernel.as_ref().map(|kernel| format!("Linux {}", kernel.release));
    let about: Vec<String> =
        kernel.into_iter().chain([about.to_owned()]).filter(|text| !text.is_empty()).collect();
    let account = account.map(|account| manifest.with_recording(account.clone()));
    let mut all = match &account {
        Some(account) => faults(account),
        None => vec!["not known what was lost: an older kprism made these tables".to_owned()],
    };
    all.extend(manifest.stopped.as_ref().map(|why| format!("the recording ended early: {why}")));
    Side {
        path: path.display().to_string(),
        title: manifest.command.join(" "),
        about: about.join(" · "),
        faults: all,
        account,
    }
}

/// Remarks on the properties in which the guests differ from a machine, as far as they matter to the runs.
fn guest_notes(runs: [(&Manifest, Option<&Profile>); 2]) -> Vec<String> {
    let notes = |(name, (manifest, profile)): (&str, (&Manifest, Option<&Profile>))| {
        let mut conditions = manifest.conditions(profile);
        conditions.retain(|condition| !condition.is_of_every_run());
        conditions.iter().map(|condition| format!("{name}: {}", condition.text)).collect::<Vec<_>>()
    };
    ["OLD", "NEW"].into_iter().zip(runs).flat_map(notes).collect()
}

/// Durations of functions of two runs; `filter` chooses tasks.
///
/// # Errors
/// A run cannot be read.
pub fn of_durations(paths: [&Path; 2], filter: &Filter, progress: &Progress) -> Result<Comparison> {
    let open = |path: &Path| -> Result<_> {
        let (run, profile, manifest) = open_profile(path, progress)?;
        progress.clear();
        let times = load_times(&run, &profile)?;
        Ok((profile, times, manifest))
    };
    let (old, new) = (open(paths[0])?, open(paths[1])?);
    let (facts, section) = {
        let accounts = [&old.2, &new.2].map(|manifest| manifest.account(Instrument::Durations));
        let recorded = [old.2.recorded(), new.2.recorded()];
        let unknown = unknown(recorded.each_ref(), accounts.each_ref().map(Option::as_ref));
        durations::compare([(&old.0, &old.1), (&new.0, &new.1)], filter, unknown)
    };
    let one =
        |path, run: &(_, _, Manifest)| side(path, &run.2, "", run.2.accounts.get(&Instrument::Durations));
    let mut notes = Vec::new();
    if *filter != Filter::default() {
        notes
            .push("distributions are of all tasks together, so there are none of the chosen ones".to_owned());
    }
    let costs = [&old.2, &new.2].map(|manifest| manifest.durations.tracing_cost.map(|cost| cost.call_ns));
    if let [Some(before), Some(after)] = costs
        && before.abs_diff(after) * 4 > before.max(after)
    {
        notes.push(format!(
            "tracing a call cost {before} ns in OLD and {after} ns in NEW: short functions differ for that reason alone"
        ));
    }
    notes.extend(guest_notes([(&old.2, Some(&old.0)), (&new.2, Some(&new.0))]));
    Ok(Comparison {
        what: "durations of functions",
        sides: [one(paths[0], &old), one(paths[1], &new)],
        environment: Some(Compared::of_runs([&old.2, &new.2])),
        facts,
        notes,
        sections: vec![section],
    })
}

/// TLB misses of two runs.
///
/// # Errors
/// A run cannot be read, or the misses were found by different methods or models.
pub fn of_misses(paths: [&Path; 2], progress: &Progress) -> Result<Comparison> {
    let open = |path: &Path| -> Result<_> {
        progress.step("reading the misses");
        let mut loaded = Loaded::open(&Run::open(path)?)?;
        let geometries = loaded.geometries()?;
        let profile = loaded.profile()?;
        loaded.name_objects()?;
        let account = loaded.account(&profile);
        let symbols = match loaded.method() {
            Method::Bus => None,
            Method::Model | Method::Sampled | Method::Unknown => Some(loaded.symbols()?),
        };
        Ok((loaded, geometries, profile, account, symbols))
    };
    let (old, new) = (open(paths[0])?, open(paths[1])?);
    progress.clear();
    let method = |loaded: &Loaded| loaded.method().words();
    if old.0.method() != new.0.method() {
        bail!(
            "{} has misses {}, {} {}: their numbers do not mean the same; record both with one --method",
            paths[0].display(),
            method(&old.0),
            paths[1].display(),
            method(&new.0)
        );
    }
    if old.1.first() != new.1.first() {
        let name = |run: &[kprism_tlb::Geometry]| run.first().map_or("no model".into(), |g| g.name.clone());
        bail!(
            "{} is of the TLB {}, {} of {}: misses of different TLBs cannot be compared; record both with one --geometry first",
            paths[0].display(),
            name(&old.1),
            paths[1].display(),
            name(&new.1)
        );
    }
    let comms = [old.0.comms(), new.0.comms()];
    let inputs = [(&old, &comms[0]), (&new, &comms[1])].map(|(run, comms)| tlb::Input {
        profile: &run.2,
        objects: &run.0.objects,
        symbols: run.4.as_ref(),
        comms,
    });
    let environments = [&old, &new].map(|run| run.0.manifest.environment.as_ref());
    let recorded = [old.0.recorded()?, new.0.recorded()?];
    let unknown = unknown(recorded.each_ref(), [Some(&old.3), Some(&new.3)]);
    let unknown = between_samples(old.0.method(), unknown);
    let (facts, sections) = tlb::compare([&inputs[0], &inputs[1]], unknown);
    let environment = Compared::new(environments, recorded.each_ref().map(Some));
    let about = |run: &[kprism_tlb::Geometry], loaded: &Loaded| match run.first() {
        Some(geometry) => {
            let condition = loaded.condition().map(|text| format!(" for which `{text}`"));
            format!("misses of the last level of {}{}", geometry.name, condition.unwrap_or_default())
        }
        None => format!("misses {}", method(loaded)),
    };
    let mut notes = Vec::new();
    if old.1.len().max(new.1.len()) > 1 {
        notes.push("misses are those of the first model; `kprism report tlb` shows the others".to_owned());
    }
    if old.0.condition() != new.0.condition() || old.0.is_chosen() != new.0.is_chosen() {
        notes
            .push("not the same misses were recorded (--if): counts differ for that reason alone".to_owned());
    }
    if old.0.method() == Method::Sampled {
        notes.push(
            "sampled, not complete: small differences may be chance, and what only one run has may have missed between samples of the \
             other"
                .to_owned(),
        );
    }
    for (name, run) in [("OLD", &old), ("NEW", &new)] {
        notes.extend(run.0.notes.iter().map(|note| format!("{name}: {note}")));
    }
    notes.extend(guest_notes([(&old.0.manifest, None), (&new.0.manifest, None)]));
    Ok(Comparison {
        what: "TLB misses",
        sides: [
            side(paths[0], &old.0.manifest, &about(&old.1, &old.0), Some(&old.3)),
            side(paths[1], &new.0.manifest, &about(&new.1, &new.0), Some(&new.3)),
        ],
        environment: Some(environment),
        facts,
        notes,
        sections,
    })
}

/// Whether what a run does not have is not known there: of samples it never is, whatever else was lost.
fn between_samples(method: Method, unknown: [bool; 2]) -> [bool; 2] {
    match method {
        Method::Model | Method::Bus => unknown,
        Method::Sampled | Method::Unknown => [true; 2],
    }
}

/// Hits of probes of two runs, of these processes and threads in what is read from records (all if empty).
///
/// # Errors
/// A run cannot be read, or no probe is in both.
pub fn of_probes(paths: [&Path; 2], tasks: &[u32], progress: &Progress) -> Result<Comparison> {
    let open = |path: &Path| -> Result<_> {
        progress.step("reading the records");
        let run = Run::open(path)?;
        let manifest = run.manifest()?;
        let mut loaded = probes::Loaded::open(&run)?;
        loaded.tasks = tasks.to_vec();
        let mut records = probe::Records::default();
        loaded.each(|hit, values| {
            let place = &loaded.description.probes[usize::from(hit.probe)].place;
            for (name, value) in &values {
                if let Ok(value) = value {
                    records.add(place, name, value);
                }
            }
            Ok(true)
        })?;
        let account = loaded.account(&manifest);
        Ok((loaded, records, manifest, account))
    };
    let (old, new) = (open(paths[0])?, open(paths[1])?);
    progress.clear();
    if probe::in_common([&old.0.description, &new.0.description]) == 0 {
        let places = |run: &probes::Loaded| {
            run.description.probes.iter().map(|p| p.place.clone()).collect::<Vec<_>>().join(", ")
        };
        bail!(
            "{} has probes at {}, {} at {}: no place is in both; record both with the same probes",
            paths[0].display(),
            places(&old.0),
            paths[1].display(),
            places(&new.0)
        );
    }
    let mut notes = Vec::new();
    if !tasks.is_empty() {
        notes.push(
            "hits, and counts by keys, are of all tasks; values in records of the chosen ones".to_owned(),
        );
    }
    for (name, run) in [("OLD", &old), ("NEW", &new)] {
        if run.0.description.counts.is_empty() {
            notes.push(format!(
                "{name}: the recorder did not end properly: nothing is known of what was lost"
            ));
        }
    }
    let conditions = |run: &probes::Loaded| -> Vec<(String, Option<String>)> {
        run.description.probes.iter().map(|p| (p.place.clone(), p.condition.clone())).collect()
    };
    if conditions(&old.0) != conditions(&new.0) {
        notes.push(
            "places or conditions of the probes differ: counts may differ for that reason alone".to_owned(),
        );
    }
    let names = [&old.0, &new.0].map(|run| |item: &kprism_probe::stream::Item, value| run.named(item, value));
    let inputs = [(&old, &names[0]), (&new, &names[1])].map(|(run, named)| probe::Input {
        description: &run.0.description,
        records: &run.1,
        named,
    });
    let (facts, sections) = probe::compare([&inputs[0], &inputs[1]]);
    notes.extend(guest_notes([(&old.2, None), (&new.2, None)]));
    Ok(Comparison {
        what: "probes",
        sides: [side(paths[0], &old.2, "", Some(&old.3)), side(paths[1], &new.2, "", Some(&new.3))],
        environment: Some(Compared::of_runs([&old.2, &new.2])),
        facts,
        notes,
        sections,
    })
}

/// Coverage of two runs, or of two folders with counters; `filter` chooses folders or files.
pub fn of_coverage(
    paths: [&Path; 2],
    runs: [&covers::Loaded; 2],
    filter: Option<&str>,
) -> Result<Comparison> {
    let covers = runs.map(|run| &run.cover);
    let changes = diff::changes(covers[0], covers[1], filter);
    let [(_, before), (_, after)] = covers.map(|cover| chosen(cover, filter));
    let (facts, sections): (_, Vec<Section>) = cover::compare(covers, [&before, &after], &changes, filter);
    let manifests = paths.map(|path| Run::open(path).and_then(|run| run.manifest()).ok());
    let environment = match &manifests {
        [Some(old), Some(new)] => Some(Compared::of_runs([old, new])),
        _ => None,
    };
    let one = |path: &Path, loaded: &covers::Loaded| -> Result<Side> {
        let mut manifest = Manifest::new(kprism_store::RunKind::Import, 0);
        if let Ok(run) = Run::open(path) {
            manifest = run.manifest().context("manifest")?;
            // Coverage by counters has no flow, of which the recorder would leave an account.
            if run.holds(Instrument::Flow) {
                flow::complete(&run, &mut manifest);
            }
        }
        Ok(side(path, &manifest, "", Some(&loaded.account)))
    };
    Ok(Comparison {
        what: "coverage",
        sides: [one(paths[0], runs[0])?, one(paths[1], runs[1])?],
        environment,
        facts,
        notes: Vec::new(),
        sections,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_tell_what_matters_of_each_guest() {
        let mut guest = Manifest::new(kprism_store::RunKind::Lab, 2);
        guest.set(kprism_store::OptionKey::Pace, "exact");
        let machine = Manifest::new(kprism_store::RunKind::Host, 2);
        let notes = guest_notes([(&machine, None), (&guest, None)]);
        assert_eq!(notes, ["NEW: 2 CPUs take turns: times contain the turns of others"]);
    }

    #[test]
    fn what_samples_lack_is_not_zero() {
        assert_eq!(between_samples(Method::Model, [false, true]), [false, true]);
        assert_eq!(between_samples(Method::Sampled, [false; 2]), [true; 2]);
        assert_eq!(between_samples(Method::Unknown, [false; 2]), [true; 2]);
    }
}
