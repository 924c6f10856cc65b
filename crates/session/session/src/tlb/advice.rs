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
        progress.step("replaying with larger pages");
        // As it was, to know which objects are worth a replay of their own.
        let all = [Change::All(PageSize::M2), Change::All(PageSize::G1)];
        let mut begun = Begun::new();
        let mut replays = self.replay(&geometry, &[Change::Nothing, all[0], all[1]], &mut begun)?;
        let now = replays.remove(0);
        let mut candidates: Vec<(u64, u32)> = (0..)
            .zip(self.objects.all())
            .filter(|(_, o)| whatif::may_be_huge(o.kind) && o.bytes >= 64 << 10)
            .filter_map(|(number, _)| Some((*now.get(&number)?, number)))
            .collect();
        candidates.sort_by_key(|&(misses, number)| (std::cmp::Reverse(misses), number));
        let one_by_one = candidates.iter().take(CANDIDATES);
        let ones: Vec<Change> = one_by_one.map(|&(_, number)| Change::One(number, PageSize::M2)).collect();
        let mut misses = match ones.is_empty() {
            true => Vec::new(),
            false => self.replay(&geometry, &ones, &mut Begun::new())?,
        };
        misses.append(&mut replays);
        let prediction = |(change, misses)| match change {
            Change::Nothing => None,
            Change::One(object, size) => Some(Prediction { object: Some(object), size, misses }),
            Change::All(size) => Some(Prediction { object: None, size, misses }),
        };
        let predictions: Vec<_> = ones.into_iter().chain(all).zip(misses).filter_map(prediction).collect();
        let (recorded, replayed) = (profile.all()[0], now.values().sum::<u64>());
        if recorded != replayed {
            let note = format!("a replay of the run gives {replayed} misses where {recorded} were recorded");
            self.notes.push(note);
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

    /// Misses by object after each of some changes. The streams are read once for all changes; first uses of ranges are
    /// added to `begun`.
    fn replay(
        &mut self,
        geometry: &Geometry,
        changes: &[Change],
        begun: &mut Begun,
    ) -> Result<Vec<ByObject>> {
        let mut misses = vec![ByObject::new(); changes.len()];
        let results = readers(&self.streams)?
            .into_iter()
            .map(|r| whatif::replay(r, geometry, &mut self.objects, changes, &mut misses, begun))
            .collect();
        self.note(results);
        Ok(misses)
    }
}
