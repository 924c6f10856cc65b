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

/// A mapping, or the part of one that no later one covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct There {
    end: u64,
    /// `None` if its contents are not known: memory without a file, a file that is not here, what lies behind a file's end.
    region: Option<usize>,
    /// Time of the mapping, ns.
    ns: u64,
    /// Stream offset from which it counts.
    offset: u64,
}

/// The mappings of an address space, by their first address. They do not overlap.
///
/// perf records no munmap. So a mapping is there until others cover it, and of one that is covered in part the rest stays, as in
/// perf (`maps__fixup_overlap_and_insert` in tools/perf/util/maps.c).
#[derive(Debug, Default)]
struct Mappings(BTreeMap<u64, There>);

impl Mappings {
    /// First address of the first mapping that reaches beyond `start`, or `start`.
    fn first_beyond(&self, start: u64) -> u64 {
        let before = self.0.range(..start).next_back();
        before.filter(|(_, there)| there.end > start).map_or(start, |(at, _)| *at)
    }

    /// The parts of mappings that a new one of these addresses covers: (start, the rest of it).
    fn covered(&self, start: u64, end: u64) -> Vec<(u64, There)> {
        let all = self.0.range(self.first_beyond(start)..end);
        all.map(|(at, was)| ((*at).max(start), There { end: was.end.min(end), ..*was })).collect()
    }

    /// Puts a mapping over those that are there.
    fn put(&mut self, start: u64, new: There) {
        let end = new.end;
        let old: Vec<(u64, There)> =
            self.0.range(self.first_beyond(start)..end).map(|(at, was)| (*at, *was)).collect();
        for (at, was) in old {
            self.0.remove(&at);
            if at < start {
                self.0.insert(at, There { end: start, ..was });
            }
            if was.end > end {
                self.0.insert(end, was);
            }
        }
        self.0.insert(start, new);
    }
}

/// The stream offset from which a mapping of this time counts, if all that it covers is of the same time: of the two the covered one
/// was never there, and its successor counts from where it would. The time's own offset is that of a later packet, and code that ran
/// before that would be the covered mapping's.
fn takes_over(covered: &[(u64, There)], ns: u64) -> Option<u64> {
    let first = covered.first()?.1.offset;
    covered.iter().all(|(_, old)| old.ns == ns && old.offset == first).then_some(first)
}

/// Times of a stream that are at most this far apart tell when a mapping takes another one's place, ns: MTC packets are closer.
const CLOSE: u64 = 100_000;

/// A time's stream offset, and how far apart the times are that the stream states around it, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: u64,
    pub apart: u64,
}

/// Places the programs' code of one stream. `at` gives the place of a time. Returns also the number of mappings that take the place
/// of other code between two times that are far apart: which of the two ran there is not known.
pub(super) fn user(
    spaces: &Spaces,
    history: &History<'_>,
    ns: impl Fn(u64) -> u64,
    at: impl Fn(u64) -> Place,
    regions: &mut Regions,
    finder: &mut Finder,
    capture: &mut Capture,
) -> (Vec<Placed>, u64) {
    let (mut placed, mut doubtful) = (Vec::new(), 0);
    for group in spaces.uses.chunk_by(|a, b| a.asid == b.asid) {
        let asid = group[0].asid;
        let mut there = Mappings::default();
        for (when, m) in in_order(group, history, &ns) {
            let end = m.start.saturating_add(m.len);
            let module = Module {
                path: m.path.clone(),
                file: finder.find(&m.path, &m.build_id).map(|found| found.place),
                pid: m.pid,
                start: m.start,
                end,
                pgoff: m.pgoff,
                asid,
                t: when.ns,
            };
            if regions.modules.insert(module.clone()) {
                capture.modules.push(module);
            }
            let region = regions.get(m, finder, &mut capture.regions);
            let shown = region.map_or(0, |region| capture.regions[region].bytes.len() as u64);
            let known = m.start.saturating_add(shown).min(end);
            let is_it = |old: &There| old.end == known && old.region == region;
            if region.is_some() && there.0.get(&m.start).is_some_and(is_it) {
                continue;
            }
            // Where it counts from, if it covers these.
            let place = |covered: &[(u64, There)]| match (covered, takes_over(covered, when.ns), when.offset)
            {
                ([], _, _) => Place { offset: 0, apart: 0 },
                (_, Some(offset), _) | (_, None, Some(offset)) => Place { offset, apart: 0 },
                (_, None, None) => at(when.ns),
            };
            let mut doubt = 0;
            if let Some(number) = region {
                let covered = there.covered(m.start, known);
                let Place { offset, apart } = place(&covered);
                there.put(m.start, There { end: known, region, ns: when.ns, offset });
                let unknown = covered.iter().filter(|(_, old)| old.region.is_none());
                placed.extend(unknown.map(|&(va, There { end, .. })| nothing(va, end, asid, None)));
                doubt = apart;
                let replaces = !covered.is_empty();
                placed.push(Placed { region: number, va: m.start, asid, offset, replaces, gone: 0 });
            }
            if known < end {
                let covered = there.covered(known, end);
                let Place { offset, .. } = place(&covered);
                there.put(known, There { end, region: None, ns: when.ns, offset });
                for &(va, old) in covered.iter().filter(|(_, old)| old.region.is_some()) {
                    let Place { offset, apart } = place(&[(va, old)]);
                    doubt = doubt.max(apart);
                    placed.push(nothing(va, old.end, asid, Some(offset)));
                }
            }
            doubtful += u64::from(doubt > CLOSE);
        }
    }
    (placed, doubtful)
}

/// Addresses of which nothing is known from this offset on, or, without one, in the beginning.
fn nothing(va: u64, end: u64, asid: u64, offset: Option<u64>) -> Placed {
    let (offset, replaces) = (offset.unwrap_or(0), offset.is_some());
    Placed { region: 0, va, asid, offset, replaces, gone: end - va }
}

/// Time of a mapping, ns, and its stream offset where that is not the time's.
#[derive(Debug, Clone, Copy)]
struct When {
    ns: u64,
    offset: Option<u64>,
}

/// The mappings of an address space's programs in order of time.
fn in_order<'h>(uses: &[Use], history: &'h History<'_>, ns: &impl Fn(u64) -> u64) -> Vec<(When, &'h Mapped)> {
    let mut maps = Vec::new();
    for (i, used) in uses.iter().enumerate() {
        // A reused space counts from the first time that the next program is seen in it.
        let since = if i == 0 { 0 } else { used.ns };
        let life = &history.lives[used.life];
        let when = |t: u64| match ns(t) {
            ns if ns < since => When { ns: since, offset: Some(used.offset) },
            ns => When { ns, offset: None },
        };
        maps.extend(life.maps.iter().map(|(t, m)| (when(*t), &**m)));
    }
    maps.sort_by_key(|(when, _)| when.ns);
    maps
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::PAGE;

    const SPACE: u64 = 0x1000;
    const FIRST: u64 = 0x7f00_0000_0000;

    fn mapped(start: u64, pages: u64, path: &str) -> Mapped {
        let path = path.to_owned();
        Mapped { pid: 1, tid: 1, start, len: pages * PAGE, path, ..Mapped::default() }
    }

    /// The image of a process with these mappings at these times, which are stream offsets too. Files: `/a` and `/b`, of 4 pages
    /// and 1 page.
    fn image(maps: Vec<(u64, Mapped)>) -> kprism_image::Image {
        let dir = tempfile::tempdir().unwrap();
        for (name, byte, pages) in [("a", 0xaa, 4), ("b", 0xbb, 1)] {
            std::fs::write(dir.path().join(name), vec![byte; pages * PAGE as usize]).unwrap();
        }
        let mut finder = Finder { symfs: Some(dir.path().to_owned()), ..Finder::default() };
        let maps = maps.into_iter().map(|(t, m)| (t, Rc::new(m))).collect();
        let history = History { lives: vec![Life { pid: 1, from: 0, maps }], ..History::default() };
        let uses = vec![Use { asid: SPACE, life: 0, ns: 0, offset: 0 }];
        let spaces = Spaces { uses, ..Spaces::default() };
        let mut capture = Capture::default();
        let mut regions = Regions::default();
        let at = |offset| Place { offset, apart: if offset == 40 { CLOSE + 1 } else { CLOSE } };
        let (placed, doubtful) = user(&spaces, &history, |t| t, at, &mut regions, &mut finder, &mut capture);
        assert_eq!(doubtful, u64::from(history.lives[0].maps.last().is_some_and(|last| last.0 == 40)));
        let (streams, symbols) = (dir.path().join("streams"), dir.path().join("symbols"));
        let regions = placed;
        capture.streams.push(crate::Stream {
            label: String::new(),
            pt: Vec::new().into(),
            regions,
            first: None,
        });
        crate::write(&capture, &streams, &symbols).unwrap();
        let read = |name: &str| std::fs::read(streams.join(name)).unwrap();
        let (mut dict, None) = kprism_image::maps::Dict::parse(read("code.dict")) else {
            panic!("a dictionary")
        };
        if streams.join("code.files").exists() {
            assert_eq!(dict.open_files(&read("code.files"), &symbols.join("root")), Vec::<String>::new());
        }
        let (map, None) = kprism_image::maps::parse_map(&read("cpu0.map")) else { panic!("a map") };
        let (image, missing) = kprism_image::maps::image(&dict, &map);
        assert_eq!(missing, 0);
        image
    }

    /// The first byte of each of the first six pages at an offset; 0 if it is not known.
    fn pages(image: &kprism_image::Image, at: u64) -> Vec<u8> {
        let byte = |page: u64| image.bytes(SPACE, FIRST + page * PAGE, at).first().copied().unwrap_or(0);
        (0..6).map(byte).collect()
    }

    #[test]
    fn a_smaller_file_in_the_hole_leaves_the_rest_and_the_next_one_covers_that() {
        let image = image(vec![
            (10, mapped(FIRST, 4, "/a")),
            (20, mapped(FIRST, 1, "/b")),
            (30, mapped(FIRST + PAGE, 1, "/b")),
            (40, mapped(FIRST, 4, "/a")),
        ]);
        assert_eq!(pages(&image, 10), [0xaa, 0xaa, 0xaa, 0xaa, 0, 0]);
        assert_eq!(pages(&image, 20), [0xbb, 0xaa, 0xaa, 0xaa, 0, 0]);
        assert_eq!(pages(&image, 30), [0xbb, 0xbb, 0xaa, 0xaa, 0, 0]);
        assert_eq!(pages(&image, 40), [0xaa, 0xaa, 0xaa, 0xaa, 0, 0]);
    }

    #[test]
    fn a_mapping_without_contents_has_no_other_files_code() {
        let image = image(vec![
            (10, mapped(FIRST, 4, "/a")),
            (20, mapped(FIRST + PAGE, 2, "/is/not/here")),
            (30, mapped(FIRST + 2 * PAGE, 1, "/b")),
        ]);
        assert_eq!(pages(&image, 19), [0xaa, 0xaa, 0xaa, 0xaa, 0, 0]);
        assert_eq!(pages(&image, 20), [0xaa, 0, 0, 0xaa, 0, 0]);
        assert_eq!(pages(&image, 30), [0xaa, 0, 0xbb, 0xaa, 0, 0]);
    }

    /// Both times around it are far apart: the image's own check counts it as doubtful.
    #[test]
    fn nobody_knows_when_code_gives_way_to_nothing_if_times_are_far_apart() {
        let image = image(vec![(10, mapped(FIRST, 4, "/a")), (40, mapped(FIRST + PAGE, 2, "//anon"))]);
        assert_eq!(pages(&image, 40), [0xaa, 0, 0, 0xaa, 0, 0]);
    }

    #[test]
    fn a_file_over_memory_without_contents_counts_from_its_own_time_on() {
        let image = image(vec![(10, mapped(FIRST, 6, "//anon")), (20, mapped(FIRST + PAGE, 1, "/b"))]);
        assert_eq!(pages(&image, 19), [0; 6]);
        assert_eq!(pages(&image, 20), [0, 0xbb, 0, 0, 0, 0]);
    }

    /// A loader maps a library whole, and a part of it anew within the same ns. Nothing ran of the first there.
    #[test]
    fn of_two_mappings_of_one_time_the_second_counts_from_where_the_first_would() {
        let twice = image(vec![(20, mapped(FIRST, 4, "/a")), (20, mapped(FIRST, 1, "/b"))]);
        assert_eq!(pages(&twice, 0), [0xbb, 0xaa, 0xaa, 0xaa, 0, 0]);
        let later = image(vec![
            (10, mapped(FIRST, 4, "/a")),
            (20, mapped(FIRST, 1, "//anon")),
            (20, mapped(FIRST, 1, "/b")),
        ]);
        assert_eq!(pages(&later, 19), [0xaa; 4].into_iter().chain([0, 0]).collect::<Vec<u8>>());
        assert_eq!(pages(&later, 20), [0xbb, 0xaa, 0xaa, 0xaa, 0, 0]);
        let gone = image(vec![(20, mapped(FIRST, 4, "/a")), (20, mapped(FIRST + PAGE, 1, "//anon"))]);
        assert_eq!(pages(&gone, 0), [0xaa, 0, 0xaa, 0xaa, 0, 0]);
    }

    #[test]
    fn behind_the_end_of_a_file_is_no_code_of_the_one_before() {
        let image = image(vec![(10, mapped(FIRST, 4, "/a")), (20, mapped(FIRST, 3, "/b"))]);
        assert_eq!(pages(&image, 20), [0xbb, 0, 0, 0xaa, 0, 0]);
    }
}
