// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual machines in a host's recording, from its packets alone; no code is needed.
//!
//! In: a CPU's stream. Out: for the host and for each virtual CPU, named by the address of its VMCS, how often it was entered
//! and left, and bounds of its time. A PIP packet with the NR bit tells an entry, one without it an exit (SDM volume 3,
//! "Tracing Considerations" of VMX); a VMCS packet tells which virtual CPU is the current one. This is what
//! tuxology/vmpt calls bundles of PIP, VMCS and TSC.
//!
//! Packets without a time lie between two that have one. So a place that was alone between them has that time; one that
//! shares it with others has it at most. Nothing is interpolated.
//!
//! In a guest, TSC packets tell the guest's TSC, which the hypervisor may have offset. So two times are compared only if both
//! are the host's, or both are of one stay in a guest. A TSC that the hypervisor scales is not told apart.

use std::collections::{BTreeMap, BTreeSet};

use kprism_pt::{Packet, PacketReader};

use crate::decode::clock::{Clock, ClockConfig};
use crate::decode::errata::Errata;

/// The place in which a CPU runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// VMX root operation, or no virtual machine at all.
    Host,
    /// VMX non-root operation, on the virtual CPU with this VMCS, a physical address; `None` if no packet has named it yet.
    Guest(Option<u64>),
}

/// Counts and time of a place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stay {
    /// Number of times that packets tell its begin.
    pub entries: u64,
    /// Number of times that packets tell its end.
    pub exits: u64,
    /// Time that it has at least, ns (ticks of the TSC where its frequency is not known).
    pub least: u64,
    /// Time that it has at most, in the same unit.
    pub most: u64,
    /// Address spaces: values of CR3.
    pub spaces: BTreeSet<u64>,
}

/// A change of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Offset of its packet in the stream.
    pub offset: usize,
    /// Last time that was told before it, if any.
    pub after: Option<u64>,
    /// Next time that was told behind it, if any.
    pub before: Option<u64>,
    /// Place that was left.
    pub from: Place,
    /// Place that was entered.
    pub to: Place,
    /// CR3 there.
    pub cr3: u64,
}

/// A CPU's time, by place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Residency {
    /// Places in their order.
    pub places: BTreeMap<Place, Stay>,
    /// Changes in order of the stream.
    pub changes: Vec<Change>,
    /// Time between the first and the last time that packets tell of the host.
    pub observed: u64,
    /// Part of it in which the place is not known, or not all the time: packets were lost, or tracing was off.
    pub unknown: u64,
    /// Number of times that packets tell.
    pub times: u64,
    /// The longest time between two of the host.
    pub widest: u64,
    /// Changes that a PSB+ shows and no packet before it told.
    pub unseen: u64,
    /// Number of times before the one of the same clock that they follow: the time between is not counted.
    pub backwards: u64,
    /// Overflows.
    pub overflows: u64,
    /// Bytes that are no packets.
    pub skipped: u64,
}

/// Reads a stream.
pub fn residency(bytes: &[u8], config: ClockConfig, errata: Errata) -> Residency {
    let mut reader = PacketReader::new(bytes).with_errata(errata.bytes);
    let mut walk = Walk::new(config);
    let mut from = reader.offset();
    while reader.resync().is_some() {
        walk.found.skipped += reader.offset().saturating_sub(from) as u64;
        walk.lose();
        loop {
            from = reader.offset();
            match reader.next() {
                Some(Ok((offset, packet))) => walk.take(offset, &packet),
                Some(Err(_)) if reader.skip_broken_tma().is_some() => {}
                Some(Err(_)) => break,
                None => return walk.finish(),
            }
        }
    }
    walk.found.skipped += bytes.len().saturating_sub(from) as u64;
    walk.finish()
}

/// The state after the packets so far.
struct Walk {
    clock: Clock,
    knows_time: bool,
    found: Residency,
    /// The last time of the host.
    now: Option<u64>,
    /// The last time of this stay in a guest.
    guest_now: Option<u64>,
    place: Option<Place>,
    vmcs: Option<u64>,
    in_psb: bool,
    /// NR bit and CR3, and time, that the current PSB+ states.
    stated: Option<(bool, u64)>,
    stated_time: Option<u64>,
    is_on: bool,
    /// Places since the host's last time, and the time that they certainly had; false if not all of them are known.
    since: BTreeMap<Place, u64>,
    since_known: bool,
    /// The first of the changes that have no time behind them yet.
    open: usize,
}

impl Walk {
    fn new(config: ClockConfig) -> Self {
        Walk {
            clock: Clock::new(config),
            knows_time: false,
            found: Residency::default(),
            now: None,
            guest_now: None,
            place: None,
            vmcs: None,
            in_psb: false,
            stated: None,
            stated_time: None,
            is_on: true,
            since: BTreeMap::new(),
            since_known: false,
            open: 0,
        }
    }

    /// Forgets the place: packets were lost.
    fn lose(&mut self) {
        self.in_psb = false;
        self.stated = None;
        if let Some(now) = self.stated_time.take() {
            self.time(now);
        }
        self.place = None;
        self.since_known = false;
    }

    fn take(&mut self, offset: usize, packet: &Packet) {
        match *packet {
            Packet::Psb => self.in_psb = true,
            Packet::PsbEnd => self.synced(),
            Packet::Pip { cr3, non_root } if self.in_psb => self.stated = Some((non_root, cr3)),
            Packet::Pip { cr3, non_root } => self.paging(offset, non_root, cr3),
            Packet::Vmcs { base } => {
                self.vmcs = Some(base);
                if let (false, Some(Place::Guest(_))) = (self.in_psb, self.place) {
                    self.enter(Place::Guest(Some(base)));
                }
            }
            Packet::Ovf => {
                self.found.overflows += 1;
                self.lose();
            }
            Packet::TipPgd { .. } => {
                self.is_on = false;
                self.since_known = false;
            }
            Packet::TipPge { .. } => self.is_on = true,
            _ => {}
        }
        let tells_time = matches!(packet, Packet::Tsc { .. } | Packet::Mtc { .. } | Packet::Cyc { .. });
        self.knows_time |= matches!(packet, Packet::Tsc { .. });
        self.clock.on_packet(packet);
        if tells_time && self.knows_time {
            let now = self.clock.ns();
            match self.in_psb {
                true => self.stated_time = Some(now),
                false => self.time(now),
            }
        }
    }

    /// The end of a PSB+: its packets state what is so, and no change.
    fn synced(&mut self) {
        self.in_psb = false;
        if let Some((non_root, cr3)) = self.stated.take() {
            let place = self.place_of(non_root);
            if self.place.is_some_and(|known| known != place) {
                self.found.unseen += 1;
                self.since_known = false;
            }
            self.found.places.entry(place).or_default().spaces.insert(cr3);
            self.enter(place);
        }
        if let Some(now) = self.stated_time.take() {
            self.time(now);
        }
    }

    fn place_of(&self, non_root: bool) -> Place {
        if non_root { Place::Guest(self.vmcs) } else { Place::Host }
    }

    /// A PIP packet: CR3 was written, or a virtual machine was entered or left.
    fn paging(&mut self, offset: usize, non_root: bool, cr3: u64) {
        let place = self.place_of(non_root);
        if let Some(from) = self.place.filter(|from| *from != place) {
            self.found.places.entry(from).or_default().exits += 1;
            self.found.places.entry(place).or_default().entries += 1;
            self.found.changes.push(Change { offset, after: self.now, before: None, from, to: place, cr3 });
        }
        self.found.places.entry(place).or_default().spaces.insert(cr3);
        self.enter(place);
    }

    fn enter(&mut self, place: Place) {
        if self.place.replace(place) != Some(place) {
            self.guest_now = None;
        }
        self.since.entry(place).or_default();
    }

    /// A packet told the time, by the clock of the place.
    fn time(&mut self, now: u64) {
        self.found.times += 1;
        match self.place {
            Some(Place::Host) => self.host_time(now),
            Some(guest) => {
                if let Some(before) = self.guest_now.replace(now) {
                    self.found.backwards += u64::from(now < before);
                    add(self.since.entry(guest).or_default(), now.saturating_sub(before));
                }
            }
            // Whose clock it is, is not known.
            None => {}
        }
    }

    /// Counts the time between the host's last time and this one.
    fn host_time(&mut self, now: u64) {
        let before = self.now.replace(now);
        let length = before.map_or(0, |before| now.saturating_sub(before));
        self.found.backwards += u64::from(before.is_some_and(|before| now < before));
        add(&mut self.found.observed, length);
        self.found.widest = self.found.widest.max(length);
        for change in &mut self.found.changes[self.open..] {
            change.before = Some(now);
        }
        self.open = self.found.changes.len();
        if !self.since_known {
            add(&mut self.found.unknown, length);
        }
        let since = std::mem::take(&mut self.since);
        let alone = self.since_known && since.len() == 1;
        let certain = since.values().fold(0_u64, |sum, had| sum.saturating_add(*had));
        for (place, had) in since {
            let stay = self.found.places.entry(place).or_default();
            let most = length.saturating_sub(certain.saturating_sub(had));
            add(&mut stay.most, most);
            add(&mut stay.least, if alone { length } else { had.min(most) });
        }
        self.since.extend(self.place.map(|place| (place, 0)));
        self.since_known = self.is_on && self.place.is_some();
    }

    fn finish(self) -> Residency {
        self.found
    }
}

/// Times of a damaged stream may be anything.
fn add(sum: &mut u64, length: u64) {
    *sum = sum.saturating_add(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: ClockConfig = ClockConfig {
        tsc_hz: 1_000_000_000,
        perf: None,
        art_num: 0,
        art_den: 0,
        mtc_freq: 0,
        nom_ratio: 10,
        cyc_threshold: 0,
    };
    const A: Place = Place::Guest(Some(0xa000));
    const B: Place = Place::Guest(Some(0xb000));

    fn pip(cr3: u64, non_root: bool) -> Packet {
        Packet::Pip { cr3, non_root }
    }

    fn of(packets: &[Packet]) -> Residency {
        let mut bytes = Vec::new();
        packets.iter().for_each(|packet| packet.encode(&mut bytes));
        residency(&bytes, CLOCK, Errata::NONE)
    }

    fn begin(state: &[Packet]) -> Vec<Packet> {
        let mut all = vec![Packet::Psb];
        all.extend(state.iter().cloned());
        all.push(Packet::PsbEnd);
        all
    }

    fn tsc(tsc: u64) -> Packet {
        Packet::Tsc { tsc }
    }

    #[test]
    fn time_between_two_packets_is_of_the_one_place_there() {
        let mut all = begin(&[pip(0x1000, false), Packet::Vmcs { base: 0xa000 }, tsc(1100)]);
        // The guest's clock is 1,000 behind.
        all.extend([tsc(1200), pip(0x5000, true), tsc(230), tsc(330), pip(0x6000, true), tsc(400)]);
        all.extend([pip(0x1000, false), tsc(1410), Packet::Vmcs { base: 0xb000 }, pip(0x7000, true)]);
        all.extend([pip(0x1000, false), tsc(1420)]);
        let found = of(&all);
        let stay = |place: Place| {
            let stay = &found.places[&place];
            (stay.entries, stay.exits, stay.least, stay.most, stay.spaces.len())
        };
        assert_eq!(stay(Place::Host), (2, 2, 100, 100 + 40 + 10, 1));
        assert_eq!(stay(A), (1, 1, 170, 210, 2));
        assert_eq!(stay(B), (1, 1, 0, 10, 1));
        assert_eq!((found.observed, found.unknown, found.widest, found.times), (320, 0, 210, 7));
        assert_eq!(found.backwards, 0);
        let last = found.changes[2];
        assert_eq!((last.from, last.to, last.after, last.before), (Place::Host, B, Some(1410), Some(1420)));
    }

    #[test]
    fn what_was_lost_is_of_no_place() {
        let mut all = begin(&[pip(0x1000, false), Packet::Vmcs { base: 0xa000 }, tsc(100)]);
        all.extend([tsc(200), Packet::Ovf, tsc(300), pip(0x5000, true), tsc(400), tsc(500)]);
        let found = of(&all);
        assert_eq!((found.overflows, found.observed, found.unknown), (1, 100, 0));
        assert_eq!((found.places[&A].entries, found.places[&Place::Host].exits), (0, 0));
        // A PSB+ that shows another place than the packets before it.
        all.extend(begin(&[pip(0x1000, false), Packet::Vmcs { base: 0xa000 }, tsc(600)]));
        let found = of(&all);
        assert_eq!((found.observed, found.unknown), (500, 400));
        assert_eq!((found.places[&A].least, found.places[&A].most), (100, 400));
        assert_eq!((found.unseen, found.places[&Place::Host].entries, found.places[&A].exits), (1, 0, 0));
    }

    #[test]
    fn impossible_times_end_in_no_overflow() {
        let mut all = begin(&[pip(0x1000, false)]);
        for _ in 0..600 {
            all.extend([tsc(0), tsc((1 << 55) - 1)]);
        }
        let found = of(&all);
        assert_eq!((found.observed, found.backwards), (u64::MAX, 599));
    }

    /// Any order of packets: no place has more time than was observed, and every change is an entry and an exit.
    #[test]
    fn no_place_has_more_than_was_observed() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..3000 {
            let mut all = vec![Packet::Psb];
            for _ in 0..random(60) {
                all.push(match random(9) {
                    0 => Packet::Psb,
                    1 => Packet::PsbEnd,
                    2 => Packet::Ovf,
                    3 => Packet::Vmcs { base: random(3) << 12 },
                    4 | 5 => pip(random(4) << 12, random(2) == 1),
                    _ => tsc(random(1000)),
                });
            }
            let found = of(&all);
            assert!(found.unknown <= found.observed && found.widest <= found.observed, "{all:?}");
            for (place, stay) in &found.places {
                assert!(
                    stay.least <= stay.most && stay.most <= found.observed,
                    "{place:?} {stay:?}: {all:?}"
                );
                let exits = found.changes.iter().filter(|change| change.from == *place).count();
                let entries = found.changes.iter().filter(|change| change.to == *place).count();
                assert_eq!((stay.entries, stay.exits), (entries as u64, exits as u64), "{all:?}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_packets_are_counted() {
        assert_eq!(residency(&[0x55; 40], CLOCK, Errata::NONE).skipped, 40);
        assert_eq!(residency(&[], CLOCK, Errata::NONE), Residency::default());
    }
}
