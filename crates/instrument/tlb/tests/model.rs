// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the models with closed forms, and with a model too simple to be wrong.

use kprism_tlb::bank::missed;
use kprism_tlb::geometry::{Array, Geometry, WalkCaches};
use kprism_tlb::presets::{NAMES, preset};
use kprism_tlb::sieve::WIDEST;
use kprism_tlb::{Access, Bank, Outcome, Page, PageSize, Policy, Sieve, Tlb};
use proptest::prelude::*;

const BASE: u64 = 0x7f00_0000_0000;

/// Sets and ways for data pages of this size on a level; banks count as more ways.
fn shape(g: &Geometry, level: usize, access: Access, size: PageSize) -> Vec<(u64, u64)> {
    let of = |a: &&Array| a.serves.contains(&access) && a.pages.contains(&size);
    g.levels[level].iter().filter(of).map(|a| (u64::from(a.sets()), u64::from(a.ways()))).collect()
}

/// Misses of one round over `pages` consecutive pages, after the first round, by LRU: sets with more pages than ways
/// miss all of them, other sets none.
fn cyclic(pages: u64, (sets, ways): (u64, u64)) -> u64 {
    let of_set = |s: u64| pages / sets + u64::from(s < pages % sets);
    (0..sets).map(of_set).filter(|&n| n > ways).sum()
}

#[test]
fn rounds_over_pages_miss_as_computed() {
    for name in NAMES {
        let g = preset(name).unwrap();
        for size in [PageSize::K4, PageSize::M2] {
            let last = g.levels.len() - 1;
            let l1 = shape(&g, 0, Access::Load, size)[0];
            let l2 = shape(&g, last, Access::Load, size);
            // Consecutive pages fill two banks in turn. With a whole number of turns each gets its share of every set.
            let banks = l2.len().max(1) as u64;
            let capacity: u64 = l2.iter().map(|(s, w)| s * w).sum();
            let sets = l2.first().map_or(1, |s| s.0);
            for pages in [
                1,
                16,
                l1.0 * l1.1,
                l1.0 * l1.1 + 1,
                300,
                capacity,
                capacity + banks * sets / 2,
                3 * capacity,
            ] {
                // In between, hits of the first level do not reach the second. Away from its edge all or none miss.
                let first = cyclic(pages, l1);
                let second = match l2.first() {
                    None => pages,
                    Some(&(s, w)) => cyclic(pages / banks, (s, w)) * banks,
                };
                if first != 0 && first != pages && second != 0 || pages % banks != 0 && second != 0 {
                    continue;
                }
                let mut tlb = Tlb::new(&g);
                let base = BASE;
                let round = |tlb: &mut Tlb| {
                    let before = tlb.counts;
                    for p in 0..pages {
                        let page = Page { size, global: false };
                        tlb.access(base + p * size.bytes(), Access::Load, || page);
                    }
                    (tlb.counts.first[0] - before.first[0], tlb.counts.last[0] - before.last[0])
                };
                assert_eq!(round(&mut tlb), (pages, pages), "{name}: a cold start misses all");
                for n in 0..3 {
                    let expected = (first, if first == 0 { 0 } else { second.min(first) });
                    assert_eq!(round(&mut tlb), expected, "{name} {} {pages} pages, round {n}", size.name());
                }
            }
        }
    }
}

#[test]
fn random_pages_hit_by_their_share() {
    for name in NAMES {
        let g = preset(name).unwrap();
        for policy in [Policy::Lru, Policy::Random] {
            // One level alone: by symmetry each page of a set is present with the same probability.
            let mut alone = g.clone();
            alone.levels.truncate(1);
            alone.levels[0].iter_mut().for_each(|a| a.policy = policy);
            let (sets, ways) = shape(&alone, 0, Access::Load, PageSize::K4)[0];
            let pages = sets * ways * 8;
            let mut tlb = Tlb::new(&alone);
            let mut state = 88_172_645_463_325_252_u64;
            let rounds = 400_000;
            for _ in 0..rounds {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let p = ((u128::from(state) * u128::from(pages)) >> 64) as u64;
                tlb.access(BASE + p * 4096, Access::Load, || Page::K4);
            }
            let missed = tlb.counts.first[0] as f64 / f64::from(rounds);
            // One in eight is present. Three standard deviations of a binomial are 0.0016.
            assert!((missed - 7.0 / 8.0).abs() < 0.002, "{name} {policy:?}: {missed}");
        }
    }
}

/// Each array of each preset alone, for every page size that it holds and every access that it serves. In a cyclic
/// pattern the sets that are too full miss; in a random pattern the share of absent pages misses.
#[test]
fn every_array_of_every_preset_misses_as_computed() {
    for name in NAMES {
        for array in preset(name).unwrap().levels.into_iter().flatten() {
            let (sets, ways) = (u64::from(array.sets()), u64::from(array.ways()));
            let geometry = Geometry {
                name: name.into(),
                source: String::new(),
                levels: vec![vec![array.clone()]],
                walk_caches: WalkCaches::default(),
                pcid: false,
            };
            for (&size, &access) in array.pages.iter().flat_map(|s| array.serves.iter().map(move |a| (s, a)))
            {
                let what = format!("{name}, {sets} sets of {ways}, {} {}", size.name(), access.name());
                let page = Page { size, global: false };
                for pages in
                    [1, ways, sets * ways, sets * ways + 1, sets * ways + sets / 2 + 1, sets * ways * 2]
                {
                    let mut tlb = Tlb::new(&geometry);
                    for round in 0..3 {
                        let before = tlb.counts.last[access as usize];
                        (0..pages).for_each(|p| {
                            tlb.access(p * size.bytes(), access, || page);
                        });
                        let expected = if round == 0 { pages } else { cyclic(pages, (sets, ways)) };
                        let got = tlb.counts.last[access as usize] - before;
                        assert_eq!(got, expected, "{what}: {pages} pages, round {round}");
                    }
                }
                // Four times as many pages as entries, in random order.
                let pages = sets * ways * 4;
                let mut tlb = Tlb::new(&geometry);
                let mut random = xorshift();
                let mut next = || ((u128::from(random()) * u128::from(pages)) >> 64) as u64;
                (0..pages * 8).for_each(|_| {
                    tlb.access(next() * size.bytes(), access, || page);
                });
                let before = tlb.counts.last[access as usize];
                let times = 300_000;
                (0..times).for_each(|_| {
                    tlb.access(next() * size.bytes(), access, || page);
                });
                let missed = (tlb.counts.last[access as usize] - before) as f64 / times as f64;
                // Four standard deviations of a binomial of three quarters are 0.0032.
                assert!((missed - 0.75).abs() < 0.0032, "{what}: {missed}");
            }
        }
    }
}

fn xorshift() -> impl FnMut() -> u64 {
    let mut state = 88_172_645_463_325_252_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Misses of an LRU array by stack distances (Mattson et al. 1970): an access misses if, since the last access to its
/// page, at least as many other pages of its set came as the set has ways. Returns the accesses that missed.
fn by_distance(accesses: &[u64], set: impl Fn(u64) -> u64, ways: usize) -> Vec<u64> {
    let mut stacks: std::collections::HashMap<u64, Vec<u64>> = std::collections::HashMap::new();
    let mut missed = Vec::new();
    for &page in accesses {
        let stack = stacks.entry(set(page)).or_default();
        match stack.iter().rposition(|&p| p == page) {
            Some(at) => {
                if stack.len() - at > ways {
                    missed.push(page);
                }
                stack.remove(at);
            }
            None => missed.push(page),
        }
        stack.push(page);
    }
    missed
}

/// Random pages through both levels of every preset miss exactly as stack distances predict.
#[test]
fn random_pages_miss_both_levels_by_their_distances() {
    for name in NAMES {
        let g = preset(name).unwrap();
        for (size, access) in [
            (PageSize::K4, Access::Load),
            (PageSize::K4, Access::Store),
            (PageSize::K4, Access::Fetch),
            (PageSize::M2, Access::Load),
            (PageSize::M2, Access::Store),
        ] {
            let (first, last) = (shape(&g, 0, access, size), shape(&g, 1, access, size));
            let entries: u64 = first.iter().chain(&last).map(|(sets, ways)| sets * ways).sum();
            let mut random = xorshift();
            // Nearly as many pages as fit, so that both levels hit and miss.
            let pages = entries * 5 / 4;
            let accesses: Vec<u64> =
                (0..40_000).map(|_| ((u128::from(random()) * u128::from(pages)) >> 64) as u64).collect();
            let (sets, ways) = first[0];
            let reach = by_distance(&accesses, |p| p % sets, ways as usize);
            // Two banks: the bit above the set's index decides.
            let banks = last.len() as u64;
            let missed = match last.first() {
                None => reach.clone(),
                Some(&(sets, ways)) => {
                    by_distance(&reach, |p| (p >> 7) % banks * sets + p % sets, ways as usize)
                }
            };
            let mut tlb = Tlb::new(&g);
            for page in accesses {
                tlb.access(page * size.bytes(), access, || Page { size, global: false });
            }
            let got = (tlb.counts.first[access as usize], tlb.counts.last[access as usize]);
            let expected = (reach.len() as u64, missed.len() as u64);
            assert_eq!(got, expected, "{name} {} {}", size.name(), access.name());
        }
    }
}

/// Pages (number, size, global, tag of the address space), the newest first.
type Set = Vec<(u64, PageSize, bool, usize)>;

/// A simple model: two levels, lists in order of use.
struct Naive {
    g: Geometry,
    /// By level, array and set.
    arrays: Vec<Vec<Vec<Set>>>,
    /// With PCIDs: the address space of each tag that was ever given, and the tag in use.
    given: Vec<u64>,
    tag: usize,
}

impl Naive {
    fn new(g: &Geometry) -> Self {
        let sets = |a: &Array| vec![Vec::new(); a.sets() as usize];
        let arrays = g.levels.iter().map(|l| l.iter().map(sets).collect()).collect();
        Naive { g: g.clone(), arrays, given: Vec::new(), tag: 0 }
    }

    /// Tag 1 is the first that was given, and after six they begin again.
    fn cr3(&mut self, space: u64) {
        if !self.g.pcid {
            return self.forget(|_, _, global, _| !global);
        }
        let recent = self.given.len().saturating_sub(6);
        let old = self.given[recent..].iter().position(|&s| s == space).map(|at| recent + at);
        let number = old.unwrap_or(self.given.len());
        let tag = number % 6 + 1;
        if old.is_none() || self.tag == tag {
            self.forget(|_, _, global, of| !global && of == tag);
        }
        if old.is_none() {
            self.given.push(space);
        }
        self.tag = tag;
    }

    fn access(&mut self, va: u64, access: Access, page: Page) -> Outcome {
        for level in 0..self.g.levels.len() {
            for size in PageSize::ALL {
                for (i, a) in self.g.levels[level].iter().enumerate() {
                    if !a.serves.contains(&access) || !a.pages.contains(&size) {
                        continue;
                    }
                    let number = va >> size.shift() & ((1 << 45) - 1);
                    let set = &mut self.arrays[level][i][(number % u64::from(a.sets())) as usize];
                    if let Some(at) = set.iter().position(|e| (e.0, e.1, e.3) == (number, size, self.tag)) {
                        let entry = set.remove(at);
                        set.insert(0, entry);
                        self.fill(level, va, access, Page { size, global: entry.2 });
                        return Outcome::Hit(level as u8);
                    }
                }
            }
        }
        self.fill(self.g.levels.len(), va, access, page);
        Outcome::Miss
    }

    fn fill(&mut self, levels: usize, va: u64, access: Access, page: Page) {
        for level in 0..levels {
            let holds = |size: PageSize| {
                let of = |a: &Array| a.serves.contains(&access) && a.pages.contains(&size);
                let found: Vec<usize> =
                    (0..self.g.levels[level].len()).filter(|&i| of(&self.g.levels[level][i])).collect();
                (size, found)
            };
            let mut found = holds(page.size);
            for size in [PageSize::M2, PageSize::K4] {
                if level == 0 && found.1.is_empty() && size < page.size {
                    found = holds(size);
                }
            }
            let (size, banks) = found;
            if banks.is_empty() {
                continue;
            }
            let number = va >> size.shift() & ((1 << 45) - 1);
            let bank = banks[(va >> size.shift() >> 7) as usize % banks.len()];
            let a = &self.g.levels[level][bank];
            let set = &mut self.arrays[level][bank][(number % u64::from(a.sets())) as usize];
            set.insert(0, (number, size, page.global, self.tag));
            set.truncate(a.ways() as usize);
        }
    }

    fn forget(&mut self, mut which: impl FnMut(u64, PageSize, bool, usize) -> bool) {
        for set in self.arrays.iter_mut().flatten().flatten() {
            set.retain(|e| !which(e.0, e.1, e.2, e.3));
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Access(u64, Access),
    Cr3(u64),
    Invalidate(u64),
    All,
}

/// The mapping of `va`: sizes vary by gigabyte, so that they never overlap.
fn page_at(va: u64) -> Page {
    let gigabyte = va >> 30;
    Page { size: PageSize::ALL[(gigabyte % 3) as usize], global: gigabyte.is_multiple_of(5) }
}

fn step() -> impl Strategy<Value = Step> {
    let va = (0u64..6, 0u64..40, 0u64..30).prop_map(|(g, m, k)| BASE + (g << 30) + (m << 21) + (k << 12));
    let kind = prop_oneof![Just(Access::Load), Just(Access::Store), Just(Access::Fetch)];
    prop_oneof![
        60 => (va.clone(), kind).prop_map(|(va, kind)| Step::Access(va, kind)),
        1 => (0u64..9).prop_map(|space| Step::Cr3(space << 12)),
        2 => va.prop_map(Step::Invalidate),
        1 => Just(Step::All),
    ]
}

fn small() -> impl Strategy<Value = Geometry> {
    let array = |pages: Vec<PageSize>, serves: Vec<Access>| {
        (1u32..6, 1u32..5).prop_map(move |(sets, ways)| Array {
            entries: sets * ways,
            ways,
            pages: pages.clone(),
            serves: serves.clone(),
            policy: Policy::Lru,
        })
    };
    use Access::*;
    use PageSize::*;
    (
        array(vec![K4], vec![Load, Store]),
        array(vec![M2], vec![Load, Store]),
        array(vec![K4, M2], vec![Fetch]),
        array(vec![K4, M2], vec![Load, Store, Fetch]),
        array(vec![K4, G1], vec![Load, Store, Fetch]),
    )
        .prop_map(|(a, b, c, d, e)| Geometry {
            name: "small".into(),
            source: String::new(),
            levels: vec![vec![a, b, c], vec![d, e]],
            walk_caches: WalkCaches::default(),
            pcid: false,
        })
}

fn geometries() -> impl Strategy<Value = Geometry> {
    prop_oneof![4 => small(), 1 => proptest::sample::select(NAMES.to_vec()).prop_map(|n| preset(n).unwrap())]
}

proptest! {
    #[test]
    fn as_the_naive_model(g in geometries(), pcid in prop::bool::ANY, steps in prop::collection::vec(step(), 1..1500)) {
        let g = Geometry { pcid, ..g };
        g.check().unwrap();
        let mut naive = Naive::new(&g);
        let mut tlb = Tlb::new(&g);
        for (n, step) in steps.iter().enumerate() {
            match *step {
                Step::Access(va, access) => {
                    let expected = naive.access(va, access, page_at(va));
                    let got = tlb.access(va, access, || page_at(va));
                    prop_assert_eq!(got, expected, "step {}: {:?}", n, step);
                }
                Step::Cr3(space) => {
                    naive.cr3(space);
                    tlb.load_cr3(space);
                }
                Step::Invalidate(va) => {
                    let tag = naive.tag;
                    naive.forget(|number, size, _, of| number == va >> size.shift() && of == tag);
                    tlb.invalidate(va);
                }
                Step::All => {
                    naive.forget(|_, _, _, _| true);
                    tlb.flush_all();
                }
            }
        }
    }

    /// The filter in front does not change any count of any geometry.
    #[test]
    fn the_filter_is_exact(g in small(), near in prop::collection::vec((0u64..12, 0u8..3, 1u8..4), 1..800)) {
        let all = [g.clone(), preset("zen4").unwrap(), preset("sapphire-rapids").unwrap()];
        let mut bank = Bank::new(&all);
        let mut alone: Vec<Tlb> = all.iter().map(Tlb::new).collect();
        for (page, kind, times) in near {
            let access = Access::from_number(kind).unwrap();
            for _ in 0..times {
                let va = BASE + page * 4096;
                let missed = bank.access(va, access, || Page::K4);
                for (i, tlb) in alone.iter_mut().enumerate() {
                    let outcome = tlb.access(va, access, || Page::K4);
                    prop_assert_eq!(outcome == Outcome::Miss, missed.last >> i & 1 == 1);
                    prop_assert_eq!(outcome != Outcome::Hit(0), missed.first >> i & 1 == 1);
                }
            }
        }
    }
}

proptest! {
    /// Many accesses at once behind the sieve have the same effect as one by one, whatever the geometries: plain, with
    /// separate arrays for loads and stores, with data and code in one array.
    #[test]
    fn many_at_once_do_what_each_does(
        g in small(),
        others in prop::collection::vec(0usize..NAMES.len(), 0..3),
        own_first in prop::bool::ANY,
        shared in prop::bool::ANY,
        steps in prop::collection::vec((0u64..4, 0u64..600, 0u8..3), 1..1500),
        batch in 1usize..300,
    ) {
        let mut g = g;
        if shared {
            g.levels[0][0].serves.push(Access::Fetch);
            g.levels[0].remove(2);
        }
        let mut all: Vec<Geometry> = others.iter().map(|&n| preset(NAMES[n]).unwrap()).collect();
        all.insert(if own_first { 0 } else { all.len() }, g);
        let mut one_by_one = Bank::new(&all);
        let mut expected = Vec::new();
        let steps: Vec<_> = steps
            .into_iter()
            .map(|(near, page, kind)| (BASE + if near == 0 { page } else { page % 12 } * 4096, Access::from_number(kind).unwrap()))
            .collect();
        for (i, &(va, access)) in steps.iter().enumerate() {
            let missed = one_by_one.access(va, access, || Page::K4);
            if missed.is_told() {
                expected.push((i, missed));
            }
        }
        let mut bank = Bank::counting(&all);
        let mut sieve = Sieve::new(&all, true);
        let (mut code, mut got) = (u64::MAX, Vec::new());
        for (number, steps) in steps.chunks(batch).enumerate() {
            let (mut places, mut vas, mut kinds, mut marks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let shared = sieve.is_shared();
            let mut work = sieve.at_work::<WIDEST, false>();
            for (i, &(va, access)) in steps.iter().enumerate() {
                let mark = match access {
                    Access::Fetch if va >> 12 == code => 0,
                    Access::Fetch => {
                        code = va >> 12;
                        work.fetch(va)
                    }
                    _ => work.data(va, access == Access::Store),
                };
                if mark != 0 {
                    if shared && access != Access::Fetch {
                        code = u64::MAX;
                    }
                    places.push(number * batch + i);
                    vas.push(va);
                    kinds.push(access);
                    marks.push(mark);
                }
            }
            bank.look_up_many(&vas, &kinds, &mut marks);
            got.extend(places.iter().zip(marks).filter_map(|(&i, mark)| Some((i, missed(mark)?))));
        }
        prop_assert_eq!(got, expected);
        prop_assert!(bank.counts().eq(one_by_one.counts()));
    }
}

/// Tree PLRU with two ways is LRU. With any number of ways it never evicts the entry used last.
#[test]
fn plru_keeps_the_last_used() {
    for ways in [2u32, 4, 6, 8, 12, 16] {
        let array = Array {
            entries: ways,
            ways,
            pages: vec![PageSize::K4],
            serves: Access::ALL.to_vec(),
            policy: Policy::Plru,
        };
        let g = Geometry {
            name: "plru".into(),
            source: String::new(),
            levels: vec![vec![array]],
            walk_caches: WalkCaches::default(),
            pcid: false,
        };
        let mut tlb = Tlb::new(&g);
        let mut lru = Tlb::new(&{
            let mut g = g.clone();
            g.levels[0][0].policy = Policy::Lru;
            g
        });
        let mut state = 12345u64;
        let (mut last, mut same) = (None, true);
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let va = BASE + (state >> 40) % (u64::from(ways) * 2) * 4096;
            let hit = tlb.access(va, Access::Load, || Page::K4) != Outcome::Miss;
            assert!(hit || last != Some(va), "{ways} ways lost the last used");
            same &= hit == (lru.access(va, Access::Load, || Page::K4) != Outcome::Miss);
            last = Some(va);
        }
        assert_eq!(same, ways == 2);
    }
}

#[test]
fn spaces_keep_their_entries_with_pcids() {
    let mut g = preset("skylake-sp").unwrap();
    for (pcid, expected) in [(false, Outcome::Miss), (true, Outcome::Hit(0))] {
        g.pcid = pcid;
        let mut tlb = Tlb::new(&g);
        tlb.load_cr3(0x1000);
        tlb.access(BASE, Access::Load, || Page::K4);
        tlb.load_cr3(0x2000);
        assert_eq!(tlb.access(BASE, Access::Load, || Page::K4), Outcome::Miss, "another space's page");
        tlb.load_cr3(0x1000);
        assert_eq!(tlb.access(BASE, Access::Load, || Page::K4), expected);
        // The kernel's flush of the space that runs.
        tlb.load_cr3(0x1000);
        assert_eq!(tlb.access(BASE, Access::Load, || Page::K4), Outcome::Miss);
        // PCIDs are given in turn: with the one above, four others leave it its own, and the next takes it.
        for (others, expected) in [(4, expected), (1, Outcome::Miss)] {
            for other in 0..others {
                tlb.load_cr3(0x10000 * others + 0x1000 * other);
            }
            tlb.load_cr3(0x1000);
            assert_eq!(tlb.access(BASE, Access::Load, || Page::K4), expected, "{others} others");
        }
    }
}

#[test]
fn walk_caches_save_reads() {
    let mut g = preset("ivybridge-ep").unwrap();
    let reads = |g: &Geometry, size| {
        let mut tlb = Tlb::new(g);
        for p in 0..1024 {
            tlb.access(BASE + p * 2_097_152, Access::Load, || Page { size, global: false });
        }
        tlb.counts.walk_reads
    };
    assert_eq!(reads(&g, PageSize::K4), 4 * 1024);
    assert_eq!(reads(&g, PageSize::M2), 3 * 1024);
    g.walk_caches = WalkCaches { pml4e: 4, pdpte: 4, pde: 32 };
    // One PML4 entry, two page directories (a gigabyte each), a page table for every page.
    assert_eq!(reads(&g, PageSize::K4), 1024 + 1024 + 2 + 1);
    assert_eq!(reads(&g, PageSize::M2), 1024 + 2 + 1);
}

#[test]
fn descriptions_are_checked() {
    for name in NAMES {
        let g = preset(name).unwrap();
        g.check().unwrap();
        let text = serde_json::to_string(&g).unwrap();
        assert_eq!(Geometry::parse(&text).unwrap(), g);
    }
    let one = |array: &str| format!(r#"{{"name":"x","levels":[[{array}]]}}"#);
    Geometry::parse(&one(r#"{"entries":12,"ways":4,"pages":["4K"]}"#)).unwrap();
    for (text, expected) in [
        (one(r#"{"entries":10,"ways":4,"pages":["4K"]}"#), "multiple of ways"),
        (one(r#"{"entries":0,"pages":["4K"]}"#), "1 to 65536"),
        (one(r#"{"entries":4000000000,"pages":["4K"]}"#), "1 to 65536"),
        (one(r#"{"entries":4,"pages":["2M"]}"#), "first level to hold 4K"),
        (one(r#"{"entries":4,"pages":[]}"#), "expected pages"),
        (r#"{"name":"x","levels":[]}"#.into(), "one to three levels"),
        ("{".into(), "EOF"),
    ] {
        let error = Geometry::parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
