// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals between markers in the page: histograms with fewer bins, the places where intervals began, the longest
//! ones.

use super::names::Names;
use crate::deltas::{self, SiteGroup};
use kprism_profile::{Bin, Delta, Histogram, NO_PARENT, Profile, Scope};
use serde::Serialize;
use std::collections::HashMap;

/// Maximum of bins per histogram in the page.
const BINS: usize = 200;
/// Maximum of rows with places where intervals began, for each kind.
const SITES: usize = 300;

/// One kind of interval.
#[derive(Serialize)]
pub(super) struct Kind {
    name: String,
    from: String,
    to: String,
    per_task: bool,
    restarted: u64,
    unfinished: u64,
    halts: Option<u64>,
    ns: Values,
    insns: Values,
    sites: Vec<Site>,
    sites_omitted: usize,
    longest: Vec<Longest>,
}

#[derive(Serialize)]
pub(super) struct Values {
    count: u64,
    sum: u64,
    mean: f64,
    min: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
    /// Flat triples: smallest value, largest value plus one, count.
    bins: Vec<u64>,
}

#[derive(Serialize)]
struct Site {
    context: i64,
    contexts: usize,
    count: u64,
    ns: u64,
    insns: u64,
    max_ns: u64,
}

#[derive(Serialize)]
struct Longest {
    task: u32,
    cpu: u16,
    start_ns: u64,
    ns: u64,
    insns: u64,
    from_ip: String,
    to_ip: String,
    from: i64,
    to: i64,
}

/// Calling contexts of intervals, each once: its caller and function. Callers come first.
#[derive(Default, Serialize)]
pub(super) struct Contexts {
    parent: Vec<i64>,
    func: Vec<u32>,
    #[serde(skip)]
    known: HashMap<(i64, u32), i64>,
}

impl Contexts {
    /// Index of a node's context; -1 if unknown.
    fn add(&mut self, profile: &Profile, names: &mut Names, node: u32) -> i64 {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(n) = profile.nodes.get(at as usize).filter(|n| n.parent != NO_PARENT) {
            path.push(n.func);
            at = n.parent;
        }
        let mut context = -1;
        for func in path.into_iter().rev() {
            let func = names.func(profile, func);
            let next = self.parent.len() as i64;
            let found = *self.known.entry((context, func)).or_insert(next);
            if found == next {
                self.parent.push(context);
                self.func.push(func);
            }
            context = found;
        }
        context
    }
}

/// The kinds that occurred.
pub(super) fn embed(profile: &Profile, names: &mut Names) -> (Vec<Kind>, Contexts) {
    let mut contexts = Contexts::default();
    let occurred = profile.deltas.iter().filter(|d| d.ns.count > 0);
    let kinds = occurred.map(|delta| kind(profile, delta, names, &mut contexts)).collect();
    (kinds, contexts)
}

fn kind(profile: &Profile, delta: &Delta, names: &mut Names, contexts: &mut Contexts) -> Kind {
    let mut groups = deltas::site_groups(profile, delta);
    let sites_omitted = groups.len().saturating_sub(SITES);
    groups.truncate(SITES);
    let site = |SiteGroup { sum, heaviest, contexts: n, .. }: SiteGroup| Site {
        context: contexts.add(profile, names, heaviest),
        contexts: n,
        count: sum.count,
        ns: sum.ns,
        insns: sum.insns,
        max_ns: sum.max_ns,
    };
    let sites = groups.into_iter().map(site).collect();
    let longest = delta
        .longest
        .iter()
        .map(|i| Longest {
            task: i.task,
            cpu: i.cpu,
            start_ns: i.start_ns,
            ns: i.ns,
            insns: i.insns,
            from_ip: format!("{:#x}", i.from_ip),
            to_ip: format!("{:#x}", i.to_ip),
            from: contexts.add(profile, names, i.from_node),
            to: contexts.add(profile, names, i.to_node),
        })
        .collect();
    Kind {
        name: delta.name.clone(),
        from: delta.from.clone(),
        to: delta.to.clone(),
        per_task: delta.scope == Scope::Task,
        restarted: delta.restarted,
        unfinished: delta.unfinished,
        halts: delta.halts,
        ns: values(&delta.ns),
        insns: values(&delta.insns),
        sites,
        sites_omitted,
        longest,
    }
}

pub(super) fn values(h: &Histogram) -> Values {
    Values {
        count: h.count,
        sum: h.sum,
        mean: h.mean(),
        min: h.min,
        p50: h.percentile(50.0),
        p90: h.percentile(90.0),
        p99: h.percentile(99.0),
        max: h.max,
        bins: coarser(&h.bins).iter().flat_map(|b| [b.low, b.high, b.count]).collect(),
    }
}

/// Joins bins to as many per octave as [`BINS`] allow from the first to the last, at most 16. Fewer for few values,
/// which would otherwise appear as separate spikes.
fn coarser(bins: &[Bin]) -> Vec<Bin> {
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return Vec::new() };
    let octaves = (last.low.max(1).ilog2() - first.low.max(1).ilog2() + 1) as usize;
    let values = bins.iter().fold(0u64, |sum, bin| sum.saturating_add(bin.count));
    let limit = usize::try_from(values / 2).map_or(BINS, |half| half.clamp(20, BINS));
    let bits = (0..=4u32).rev().find(|bits| octaves << bits <= limit).unwrap_or(0);
    let mut joined: Vec<Bin> = Vec::new();
    for bin in bins {
        let (low, high) = around(bin.low, bits);
        match joined.last_mut() {
            Some(last) if last.low == low => last.count += bin.count,
            // The bin as counted, if that is wider.
            _ => joined.push(Bin { low, high: high.max(bin.high), count: bin.count }),
        }
    }
    joined
}

/// The bin of a value, with `2^bits` bins per octave. Values below `2^bits` have one bin each.
fn around(value: u64, bits: u32) -> (u64, u64) {
    let shift = value.max(1).ilog2().saturating_sub(bits);
    let low = value >> shift << shift;
    (low, low.saturating_add(1 << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_beyond_those_of_the_page_are_counted() {
        let mut profile = Profile::default();
        let node = |parent, func| kprism_profile::Node {
            parent,
            func,
            calls: 0,
            insns: 0,
            ns: 0,
            kind: kprism_profile::FrameKind::Call,
        };
        profile.nodes.push(node(NO_PARENT, 0));
        let mut delta = Delta::default();
        for n in 0..SITES as u32 + 5 {
            profile.funcs.push(kprism_profile::Func { name: format!("f{n}"), ..Default::default() });
            profile.nodes.push(node(0, n));
            let site =
                kprism_profile::Site { node: n + 1, count: 1, ns: 1000 - u64::from(n), ..Default::default() };
            delta.sites.push(site);
        }
        let kind = kind(&profile, &delta, &mut Names::default(), &mut Contexts::default());
        assert_eq!((kind.sites.len(), kind.sites_omitted), (SITES, 5));
    }

    #[test]
    fn joined_bins_keep_counts_and_borders() {
        // The decoder's bins: exact below 256, 128 per octave above.
        let width = |low: u64| 1u64 << low.max(1).ilog2().saturating_sub(7);
        for (from, to) in [(0u64, 40u64), (3, 5_000), (0, 1 << 22), (1 << 40, u64::MAX / 2)] {
            let mut bins = Vec::new();
            let mut low = from;
            while low < to {
                bins.push(Bin { low, high: low + width(low), count: low % 7 + 1 });
                low += width(low);
            }
            let joined = coarser(&bins);
            assert!(joined.len() <= BINS, "{} bins from {from} to {to}", joined.len());
            assert!(joined.windows(2).all(|w| w[0].high <= w[1].low));
            for b in &joined {
                let inside = bins.iter().filter(|i| b.low <= i.low && i.high <= b.high);
                assert_eq!(inside.map(|i| i.count).sum::<u64>(), b.count);
            }
        }
        assert_eq!(coarser(&[]), []);
    }
}
