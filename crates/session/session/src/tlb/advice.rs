// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays a run with larger pages for the objects that miss most.

use anyhow::{Context, Result};
use kprism_tlb::geometry::PageSize;
use kprism_tlb::profile::Profile;
use kprism_tlb::whatif::{self, Begun, ByObject, Change, Prediction};
use kprism_tlb::{Geometry, presets};

use super::{Loaded, readers};
use crate::progress::Progress;

/// Objects whose pages are changed one by one.
const CANDIDATES: usize = 8;

/// The predicted effect of larger pages.
#[derive(Debug, Clone)]
pub struct Advice {
    /// Misses of each object as they were.
    pub now: ByObject,
    /// Misses after each change: of one object, or of all that can be changed.
    pub predictions: Vec<Prediction>,
    /// Ranges of huge pages of each object by their first access.
    pub begun: Begun,
}

impl Loaded {
    /// Predicts what larger pages would save, by the first geometry.
    ///
    /// # Errors
    /// A stream does not begin as one, or no geometry is known.
    pub fn advice(&mut self, profile: &Profile, progress: &Progress) -> Result<Advice> {
        let geometry = self.geometries()?.first().cloned().or_else(|| presets::preset(presets::DEFAULT));
        let geometry = geometry.context("the run names no geometry")?;
        let now = self.replay(&geometry, &[Change::Nothing])?.pop().unwrap_or_default();
        let recorded = profile.all()[0];
        let replayed: u64 = now.values().sum();
        if recorded != replayed {
            let note = format!("a replay of the run gives {replayed} misses where {recorded} were recorded");
            self.notes.push(note);
        }
        let mut candidates: Vec<(u64, u32)> = (0..)
            .zip(self.objects.all())
            .filter(|(_, o)| whatif::may_be_huge(o.kind) && o.bytes >= 64 << 10)
            .filter_map(|(number, _)| Some((*now.get(&number)?, number)))
            .collect();
        candidates.sort_by_key(|&(misses, number)| (std::cmp::Reverse(misses), number));
        let one_by_one = candidates.iter().take(CANDIDATES);
        let mut changes: Vec<Change> =
            one_by_one.map(|&(_, number)| Change::One(number, PageSize::M2)).collect();
        changes.extend([Change::All(PageSize::M2), Change::All(PageSize::G1)]);
        progress.step("replaying with larger pages");
        let replays = self.replay(&geometry, &changes)?;
        let predictions: Vec<_> = changes
            .into_iter()
            .zip(replays)
            .filter_map(|(change, misses)| match change {
                Change::One(object, size) => Some(Prediction { object: Some(object), size, misses }),
                Change::All(size) => Some(Prediction { object: None, size, misses }),
                Change::Nothing => None,
            })
            .collect();
        let mut begun = Begun::new();
        let mut objects = self.objects.clone();
        for reader in readers(&self.streams)? {
            if let Err(error) = whatif::begun(reader, &mut objects, &mut begun) {
                self.notes.push(format!("`read first` is known only up to {error}"));
            }
        }
        let read = |p: &Prediction| p.object.and_then(|o| begun.get(&o)).is_some_and(|b| b.read > 0);
        if predictions.iter().any(read) {
            self.notes.push(
                "`read first`: such ranges were read before they were written. With transparent huge pages the kernel gives them \
                 its huge zero page, and at the first write pages of 4K: the saving comes only if the program writes to each \
                 range first, or has the memory from hugetlbfs"
                    .into(),
            );
        }
        Ok(Advice { now, predictions, begun })
    }

    /// Misses by object after each of some changes.
    fn replay(&mut self, geometry: &Geometry, changes: &[Change]) -> Result<Vec<ByObject>> {
        let mut misses = vec![ByObject::new(); changes.len()];
        let results = readers(&self.streams)?
            .into_iter()
            .map(|r| whatif::replay(r, geometry, &mut self.objects, changes, &mut misses))
            .collect();
        self.note(results);
        Ok(misses)
    }
}
