// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts counters and notes of all objects together, on all CPUs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use kprism_cover::counters::{Collector, Marks, Object};
use kprism_gcov::{Data, Gaps, Solver, gaps, notes};
use kprism_store::Account;

use super::account::anew_text;
use super::many::{Before, Many};
use super::notes::{read_file, read_notes};
use crate::cover::loaded::{Footprint, Loaded, Problem, ProblemKind};
use crate::cover::options::Options;
use crate::cover::sources::{self, Built};

/// Facts that merging gives beside the coverage.
pub struct Merged {
    /// Of each run.
    pub before: Vec<Before>,
    /// Counters that do not go with their notes, by name.
    pub gaps: Vec<(String, Gaps)>,
}

/// Locks a mutex. A mutex is poisoned only by a panic, which is propagated anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Merges the objects of all runs. `wants_ages`: notes the age of each source file's oldest notes.
pub fn merge(all: &Many, options: &Options, wants_ages: bool) -> (Loaded, Merged) {
    let before = Mutex::new(vec![Before::default(); all.runs.len()]);
    let prefixes = sources::prefixes(&options.source_prefix);
    let build_dir = options.build_dir.as_deref();
    let marks = (all.runs.len() > 1).then(|| Marks::renaming(prefixes.clone()));
    let collector = Collector::renaming(prefixes.clone());
    let built = Mutex::new(Built::default());
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let footprint = Mutex::new(Footprint::default());
    let damaged = Mutex::new(Vec::new());
    let complain = |kind: ProblemKind, text: String| {
        lock(&problems).push(Problem { kind, text });
    };
    let one = |index: usize, solver: &mut Solver, bytes: &mut Vec<u8>| -> Result<()> {
        let mut sum: Option<Data> = None;
        let (mut read, mut gaps_here, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for (run, windowed) in all.windows(index) {
            read.push((run, windowed?));
        }
        let path = read_notes(all, index, build_dir, bytes)?;
        let notes = notes::read(bytes)?;
        if wants_ages {
            lock(&built).add_notes(&notes, &path, &prefixes);
        }
        for (run, windowed) in read {
            let found = gaps(&notes, &windowed.data);
            if found != Gaps::default() {
                let copies = all.objects[index].1.iter().find(|(with, _)| *with == run);
                let object = copies.map(|&(_, at)| all.runs[run].1.object(at)).unwrap_or_default();
                gaps_here.push((object.display().to_string(), found));
            }
            let mut found = lock(&footprint);
            found.counters += windowed.footprint;
            found.varying += windowed.varying;
            found.unsure += windowed.unsure;
            drop(found);
            lock(&before)[run].add(&windowed);
            if windowed.anew {
                complain(ProblemKind::Anew, anew_text(&all.objects[index].0));
            }
            if marks.is_some() {
                let unit =
                    solver.unit(&notes, Some(&windowed.data)).with_context(|| all.runs[run].0.clone())?;
                units.push((u16::try_from(run).unwrap_or(u16::MAX), unit));
            }
            match &mut sum {
                None => sum = Some(windowed.data),
                Some(sum) => sum.add(&windowed.data).with_context(|| all.runs[run].0.clone())?,
            }
        }
        let sum = sum.context("no run has it")?;
        if let Some(marks) = &marks {
            units.iter().for_each(|(run, unit)| marks.mark(*run, &notes, unit));
        }
        let object = Object { number: index as u32, path: all.objects[index].0.to_str() };
        collector.add_read(solver, object, &notes, &sum)?;
        lock(&damaged).extend(gaps_here);
        Ok(())
    };
    let never_ran = all.never_ran.as_deref().unwrap_or_default();
    let unexecuted = |index: usize, solver: &mut Solver, bytes: &mut Vec<u8>| -> Result<()> {
        let path = &never_ran[index];
        read_file(path, bytes).with_context(|| path.display().to_string())?;
        let notes = notes::read(bytes)?;
        let path = path.with_extension("");
        let object = Object { number: (all.objects.len() + index) as u32, path: path.to_str() };
        collector.add_never_ran(solver, object, &notes)?;
        if notes.unknown > 0 {
            let gaps = Gaps { unknown: notes.unknown.into(), ..Gaps::default() };
            let name = path.display().to_string();
            lock(&damaged).push((name, gaps));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let (mut solver, mut bytes) = (Solver::default(), Vec::new());
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (name, result) = if let Some((object, _)) = all.objects.get(index) {
                        (object, one(index, &mut solver, &mut bytes))
                    } else if let Some(notes) = never_ran.get(index - all.objects.len()) {
                        (notes, unexecuted(index - all.objects.len(), &mut solver, &mut bytes))
                    } else {
                        break;
                    };
                    if let Err(error) = result {
                        complain(ProblemKind::LeftOut, format!("{}: {error:#}", name.display()));
                    }
                }
            });
        }
    });
    let mut problems = problems.into_inner().unwrap_or_else(PoisonError::into_inner);
    problems.extend(all.runs.iter().flat_map(|(_, run)| run.unloaded()).map(|name| Problem {
        kind: ProblemKind::Unloaded,
        text: format!(
            "/{name}: unloaded in the window, and what it counted is lost: boot with gcov_persist=1"
        ),
    }));
    problems.extend(all.runs.iter().flat_map(|(_, run)| &run.others).map(|path| Problem {
        kind: ProblemKind::LeftOut,
        text: format!("{}: not a regular file, so not counters that were written", path.display()),
    }));
    problems.sort_unstable();
    let mut gaps = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    gaps.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let footprint = footprint.into_inner().unwrap_or_else(PoisonError::into_inner);
    let names = all.runs.iter().map(|(name, _)| name.clone()).collect();
    let loaded = Loaded {
        cover: collector.finish(),
        problems,
        footprint: all.runs.iter().any(|(_, run)| run.earlier.len() > 1).then_some(footprint),
        unsettled: None,
        runs: marks.map(|marks| marks.finish(names)),
        account: Account::new(),
        built: built.into_inner().unwrap_or_else(PoisonError::into_inner),
        inferred: None,
        resets: Vec::new(),
    };
    let before = before.into_inner().unwrap_or_else(PoisonError::into_inner);
    (loaded, Merged { before, gaps })
}
