// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places code in a stream's address spaces, with its changes along the stream.

use std::collections::{BTreeMap, HashSet};

use super::evidence::Use;
use super::files::Finder;
use super::spaces::Spaces;
use super::tasks::{History, Life};
use crate::capture::{Capture, Module, Placed, Region};
use kprism_perfdata::Mapped;

/// The file behind a mapping: path, build id, offset, length.
type Source = (String, Vec<u8>, u64, u64);

/// Regions of files, each read once.
#[derive(Debug, Default)]
pub(super) struct Regions {
    known: BTreeMap<Source, Option<usize>>,
    /// Mapped files that the capture lists already.
    modules: HashSet<Module>,
}

impl Regions {
    fn get(&mut self, m: &Mapped, finder: &mut Finder, all: &mut Vec<Region>) -> Option<usize> {
        let key = (m.path.clone(), m.build_id.clone(), m.pgoff, m.len);
        *self.known.entry(key).or_insert_with(|| {
            let found = finder.find(&m.path, &m.build_id)?;
            let from = usize::try_from(m.pgoff).unwrap_or(usize::MAX).min(found.bytes.len());
            let len = usize::try_from(m.len).unwrap_or(usize::MAX);
            let shown = found.bytes.slice(from..from.saturating_add(len));
            if shown.is_empty() {
                return None;
            }
            all.push(Region { va: m.start, bytes: shown, file: Some((found.place, from as u64)) });
            Some(all.len() - 1)
        })
    }
}

/// Times of all mappings and of all programs' starts, ns: input of [`super::spaces::find`].
pub(super) fn times(lives: &[Life], ns: impl Fn(u64) -> u64) -> Vec<u64> {
    lives.iter().flat_map(|l| l.maps.iter().map(|(t, _)| *t).chain([l.from])).map(ns).collect()
}

/// Places the programs' code of one stream. `offset_at` gives the stream offset of a time.
pub(super) fn user(
    spaces: &Spaces,
    history: &History<'_>,
    ns: impl Fn(u64) -> u64,
    offset_at: impl Fn(u64) -> u64,
    regions: &mut Regions,
    finder: &mut Finder,
    capture: &mut Capture,
) -> Vec<Placed> {
    let mut placed = Vec::new();
    for group in spaces.uses.chunk_by(|a, b| a.asid == b.asid) {
        // Contents by start: (end, region). They do not overlap.
        let mut there: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        for (when, m) in in_order(group, history, &ns) {
            let asid = group[0].asid;
            let module = Module {
                path: m.path.clone(),
                file: finder.find(&m.path, &m.build_id).map(|found| found.place),
                pid: m.pid,
                start: m.start,
                end: m.start.saturating_add(m.len),
                pgoff: m.pgoff,
                asid,
                t: when,
            };
            if regions.modules.insert(module.clone()) {
                capture.modules.push(module);
            }
            let Some(region) = regions.get(m, finder, &mut capture.regions) else { continue };
            let end = m.start.saturating_add(capture.regions[region].bytes.len() as u64);
            if there.get(&m.start) == Some(&(end, region)) {
                continue;
            }
            let covered = there.range(..end).rev().take_while(|(_, there)| there.0 > m.start);
            let covered: Vec<u64> = covered.map(|(start, _)| *start).collect();
            let clash = !covered.is_empty();
            let offset = if clash { offset_at(when) } else { 0 };
            // The covered regions are gone, as far as this list is concerned.
            for start in covered {
                there.remove(&start);
            }
            there.insert(m.start, (end, region));
            placed.push(Placed { region, va: m.start, asid, offset, replaces: clash });
        }
    }
    placed
}

/// The mappings of an address space's programs in order of time.
fn in_order<'h>(uses: &[Use], history: &'h History<'_>, ns: &impl Fn(u64) -> u64) -> Vec<(u64, &'h Mapped)> {
    let mut maps = Vec::new();
    for (i, used) in uses.iter().enumerate() {
        // A reused space counts from the first time that the next program is seen in it.
        let since = if i == 0 { 0 } else { used.ns };
        let life = &history.lives[used.life];
        maps.extend(life.maps.iter().map(|(t, m)| (ns(*t).max(since), m)));
    }
    maps.sort_by_key(|(t, _)| *t);
    maps
}
