// SPDX-License-Identifier: MIT OR Apache-2.0
//! Misses over address and time: the objects with the most misses, each cut into bands of equal size, each band into
//! bins of time.

use foldhash::{HashMap, HashMapExt as _};

use crate::analysis::map::bin;
use crate::analysis::profile::Profile;
use crate::objects::Objects;
use crate::stream::{Reader, StreamError, for_each};

/// A band of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Band {
    /// The object.
    pub object: u32,
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Misses in each bin of time.
    pub bins: Vec<u64>,
}

/// Misses over address and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heat {
    /// Start of the first bin and end of the last, ns.
    pub span: (u64, u64),
    /// Objects with the most misses first; within an object, by address.
    pub bands: Vec<Band>,
}

impl Heat {
    /// Bands for the `objects` objects with the most misses of the first geometry: `bands` each, with `bins` bins of
    /// time.
    pub fn new(profile: &Profile, objects: usize, bands: usize, bins: usize) -> Self {
        let mut most: Vec<(u64, u32)> =
            profile.objects.iter().map(|m| m[0]).zip(0..).filter(|m| m.0 > 0).collect();
        most.sort_by_key(|&(misses, number)| (std::cmp::Reverse(misses), number));
        let mut rows = Vec::new();
        for &(_, object) in most.iter().take(objects) {
            // Whole pages of the range that missed.
            let (low, high) = profile.extents[object as usize];
            let pages = (high >> 12) - (low >> 12) + 1;
            let bands = (bands.max(1) as u64).min(pages);
            let height = pages.div_ceil(bands) * 4096;
            let first = low & !0xfff;
            for band in 0..pages.div_ceil(pages.div_ceil(bands)) {
                let start = first.saturating_add(band.saturating_mul(height));
                let end = start.saturating_add(height);
                rows.push(Band { object, start, end, bins: vec![0; bins.max(1)] });
            }
        }
        Heat { span: profile.span.unwrap_or_default(), bands: rows }
    }

    /// Adds a CPU's stream.
    ///
    /// # Errors
    /// The stream is damaged. Misses before the damage were added.
    pub fn add(&mut self, reader: Reader<'_>, objects: &mut Objects) -> Result<(), StreamError> {
        let mut of: HashMap<u32, (usize, usize)> = HashMap::new();
        for (at, band) in self.bands.iter().enumerate() {
            of.entry(band.object).or_insert((at, at)).1 = at + 1;
        }
        let (begin, end) = self.span;
        let length = end.saturating_sub(begin);
        for_each(reader, |context, m| {
            if m.last & 1 == 0 {
                return;
            }
            let Some(&(first, behind)) = of.get(&objects.find(context, m.va)) else { return };
            let bands = &mut self.bands[first..behind];
            // The pieces of an object may lie apart. Misses outside a band count at the edge.
            let at = bands.partition_point(|b| b.end <= m.va).min(bands.len() - 1);
            let bins = &mut bands[at].bins;
            let at = bin(m.ns.saturating_sub(begin), bins.len(), length);
            bins[at] += context.weight();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::geometry::{Access, PageSize};
    use crate::stream::{Event, Miss, Writer};
    use kprism_image::sideband::parse;

    #[test]
    fn misses_are_in_their_band_and_bin() {
        let line = br#"{"k":"mmap","t":0,"cpu":0,"pid":7,"tgid":7,"asid":4096,"start":1048576,"end":1064960,"pgoff":0,"exec":false,"path":""}"#;
        let records = parse(line).unwrap();
        let mut objects = Objects::new(&records, |_| None);
        let mut w = Writer::new(&[crate::model::presets::preset("zen4").unwrap()]);
        w.event(&Event::Task { pid: 7, tgid: 7 });
        // A page a microsecond, two rounds over four pages.
        for i in 0..8u64 {
            let (ns, va) = (1000 * i, 1_048_576 + i % 4 * 4096);
            w.event(&Event::Miss(Miss {
                ns,
                va,
                ip: 0,
                access: Access::Load,
                size: PageSize::K4,
                first: 1,
                last: 1,
            }));
        }
        let reader = Reader::new(&w.bytes).unwrap();
        let mut profile = Profile::default();
        profile.add(reader.clone(), &mut objects).unwrap();
        let mut heat = Heat::new(&profile, 3, 2, 4);
        heat.add(reader, &mut objects).unwrap();
        let bins: Vec<_> = heat.bands.iter().map(|b| (b.start, b.bins.clone())).collect();
        assert_eq!(bins, [(1_048_576, vec![2, 0, 2, 0]), (1_056_768, vec![0, 2, 0, 2])]);
    }
}
