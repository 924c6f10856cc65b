// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts counters and notes of all objects together, on all CPUs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use kprism_cover::Cover;
use kprism_cover::counters::window::Windowed;
use kprism_cover::counters::{Collector, Marks, Object, Runs};
use kprism_cover::path::Prefixes;
use kprism_gcov::notes::Notes;
use kprism_gcov::{Data, Gaps, Unit, UnitCounter, gaps, notes};

use super::account::reset_object_text;
use super::many::{Inputs, Resets};
use super::notes::{read_file, read_notes};
use crate::cover::loaded::{Footprint, Problem, ProblemKind};
use crate::cover::options::Options;
use crate::cover::sources::{self, Built};

/// The objects of all runs, merged.
pub struct Merged {
    /// The coverage.
    pub cover: Cover,
    /// Of several runs, which executed what.
    pub runs: Option<Runs>,
    /// Facts on the objects.
    pub facts: Facts,
}

/// Facts on the objects.
#[derive(Default)]
pub struct Facts {
    /// Of each run, objects whose counters were reset in its window.
    pub resets: Vec<Resets>,
    /// Counts that reading the counters added.
    pub footprint: Footprint,
    /// Objects left out, or not whole.
    pub problems: Vec<Problem>,
    /// Counters that do not go with their notes, by object.
    pub gaps: Vec<(String, Gaps)>,
    /// The age of each source file's oldest notes, if it is wanted.
    pub built: Built,
}

/// Merges the objects of all runs, on all CPUs. `wants_ages`: notes the age of each source file's oldest notes.
pub fn merge(all: &Inputs, options: &Options, wants_ages: bool) -> Merged {
    let merging = Merging::new(all, options, wants_ages);
    let next = AtomicUsize::new(0);
    let work = || {
        let counter = match options.every_block {
            true => UnitCounter::of_every_block(),
            false => UnitCounter::default(),
        };
        let mut tools = Tools { counter, bytes: Vec::new() };
        while merging.one(next.fetch_add(1, Ordering::Relaxed), &mut tools) {}
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    merging.finish()
}

/// A thread's memory, used for one object after the other.
struct Tools {
    counter: UnitCounter,
    bytes: Vec<u8>,
}

/// The objects merged so far, by all threads.
struct Merging<'a> {
    all: &'a Inputs,
    never_ran: &'a [PathBuf],
    build_dir: Option<&'a Path>,
    prefixes: Prefixes,
    wants_ages: bool,
    collector: Collector,
    /// Lines by run, if there are several.
    marks: Option<Marks>,
    facts: Mutex<Facts>,
}

impl<'a> Merging<'a> {
    fn new(all: &'a Inputs, options: &'a Options, wants_ages: bool) -> Self {
        let prefixes = sources::prefixes(&options.source_prefix);
        let resets = vec![Resets::default(); all.runs.len()];
        Merging {
            all,
            never_ran: all.never_ran.as_deref().unwrap_or_default(),
            build_dir: options.build_dir.as_deref(),
            wants_ages,
            collector: Collector::renaming(prefixes.clone()),
            marks: (all.runs.len() > 1).then(|| Marks::renaming(prefixes.clone())),
            prefixes,
            facts: Mutex::new(Facts { resets, ..Facts::default() }),
        }
    }

    /// The mutex is poisoned only by a panic, which is propagated anyway.
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Merges the object of this number: first those with counters, then those that never ran. Returns false if there is
    /// none.
    fn one(&self, index: usize, tools: &mut Tools) -> bool {
        let (name, result) = if let Some((object, _)) = self.all.objects.get(index) {
            (object, self.object(index, tools))
        } else if let Some(notes) = self.never_ran.get(index - self.all.objects.len()) {
            (notes, self.never_ran(index, notes, tools))
        } else {
            return false;
        };
        if let Err(error) = result {
            let text = format!("{}: {error:#}", name.display());
            self.facts().problems.push(Problem { kind: ProblemKind::LeftOut, text });
        }
        true
    }

    /// Merges an object with counters. Nothing of it is in the result if it fails.
    fn object(&self, index: usize, Tools { counter, bytes }: &mut Tools) -> Result<()> {
        let windows = self
            .all
            .windows(index)
            .map(|(run, windowed)| Ok((run, windowed?)))
            .collect::<Result<Vec<(usize, Windowed)>>>()?;
        let path = read_notes(self.all, index, self.build_dir, bytes)?;
        let notes = notes::read(bytes)?;
        if self.wants_ages {
            self.facts().built.add_notes(&notes, &path, &self.prefixes);
        }
        let mut sum: Option<Data> = None;
        let (mut found_gaps, mut units) = (Vec::new(), Vec::new());
        for (run, windowed) in windows {
            found_gaps.extend(self.gaps(index, run, &notes, &windowed.data));
            self.count(index, run, &windowed);
            let of_run = || self.all.runs[run].0.clone();
            if self.marks.is_some() {
                units.push((run, counter.unit(&notes, Some(&windowed.data)).with_context(of_run)?));
            }
            match &mut sum {
                None => sum = Some(windowed.data),
                Some(sum) => sum.add(&windowed.data).with_context(of_run)?,
            }
        }
        let sum = sum.context("no run has it")?;
        self.mark(&notes, &units);
        let object = Object { number: index as u32, path: self.all.objects[index].0.to_str() };
        self.collector.add(counter, object, &notes, &sum)?;
        self.facts().gaps.extend(found_gaps);
        Ok(())
    }

    /// Counters of an object in a run that do not go with its notes.
    fn gaps(&self, index: usize, run: usize, notes: &Notes<'_>, data: &Data) -> Option<(String, Gaps)> {
        let found = gaps(notes, data);
        if found == Gaps::default() {
            return None;
        }
        let copy = self.all.objects[index].1.iter().find(|(with, _)| *with == run);
        let object = copy.map(|&(_, at)| self.all.runs[run].1.object(at)).unwrap_or_default();
        Some((object.display().to_string(), found))
    }

    /// Counts what is to be said of an object's window in a run.
    fn count(&self, index: usize, run: usize, windowed: &Windowed) {
        let mut facts = self.facts();
        facts.footprint.counters += windowed.footprint;
        facts.footprint.varying += windowed.varying;
        facts.footprint.unsure += windowed.unsure;
        facts.resets[run].add(windowed);
        if windowed.restarted {
            let text = reset_object_text(&self.all.objects[index].0);
            facts.problems.push(Problem { kind: ProblemKind::Reset, text });
        }
    }

    fn mark(&self, notes: &Notes<'_>, units: &[(usize, Unit)]) {
        if let Some(marks) = &self.marks {
            for (run, unit) in units {
                marks.mark(u16::try_from(*run).unwrap_or(u16::MAX), notes, unit);
            }
        }
    }

    /// Merges an object of a folder that has notes only: it never ran.
    fn never_ran(&self, index: usize, path: &Path, Tools { counter, bytes }: &mut Tools) -> Result<()> {
        read_file(path, bytes).with_context(|| path.display().to_string())?;
        let notes = notes::read(bytes)?;
        let path = path.with_extension("");
        let object = Object { number: index as u32, path: path.to_str() };
        self.collector.add_never_ran(counter, object, &notes)?;
        if notes.unknown > 0 {
            let gaps = Gaps { unknown: notes.unknown.into(), ..Gaps::default() };
            self.facts().gaps.push((path.display().to_string(), gaps));
        }
        Ok(())
    }

    fn finish(self) -> Merged {
        let runs = &self.all.runs;
        let mut facts = self.facts.into_inner().unwrap_or_else(PoisonError::into_inner);
        facts.problems.extend(runs.iter().flat_map(|(_, run)| run.unloaded()).map(unloaded));
        facts.problems.extend(self.all.counted().flat_map(|(_, counted)| {
            let restarted = counted
                .restarted
                .iter()
                .map(|name| Problem { kind: ProblemKind::Reset, text: reset_object_text(Path::new(name)) });
            let gone = counted.unloaded.iter().map(|name| unloaded(name.trim_start_matches('/')));
            restarted.chain(gone)
        }));
        facts.problems.extend(runs.iter().flat_map(|(_, run)| &run.others).map(|path| Problem {
            kind: ProblemKind::LeftOut,
            text: format!("{}: not a regular file, so not counters that were written", path.display()),
        }));
        facts.problems.sort_unstable();
        facts.gaps.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let names = runs.iter().map(|(name, _)| name.clone()).collect();
        Merged { cover: self.collector.finish(), runs: self.marks.map(|marks| marks.finish(names)), facts }
    }
}

/// An object, by its name without the first slash, that was gone at the end of a window.
fn unloaded(name: &str) -> Problem {
    let text =
        format!("/{name}: unloaded in the window, and what it counted is lost: boot with gcov_persist=1");
    Problem { kind: ProblemKind::Unloaded, text }
}
