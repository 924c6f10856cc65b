// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes that ran user code in each address space, with start times. The flow gives the start of user
//! code and its CR3, the sideband gives the process.

use std::collections::{BTreeMap, HashMap};

use kprism_flow::clock::ClockConfig;
use kprism_flow::errata::Errata;
use kprism_flow::event::{Event, EventKind, Sink};
use kprism_flow::{Decoder, Setup};
use kprism_image::Image;
use kprism_image::is_kernel;
use kprism_image::resolve::{FuncInfo, FuncRef, Resolve};
use kprism_image::sideband::{Mmap, Switch};
use kprism_image::x86::address::task_space;

/// A process in an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub asid: u64,
    pub pid: u32,
    pub tgid: u32,
    /// Its first user instruction there, ns.
    pub ns: u64,
    /// When it last entered user code there, ns.
    pub last: u64,
    /// From then on the address space is another process's, or the process has another one; ns.
    pub until: u64,
}

/// Joins what the CPUs saw of each process in an address space, and finds when each of them had left it: page tables are used again
/// for other processes, and a program that is executed has new ones. In order of their first instructions.
pub(super) fn joined(found: Vec<Owner>) -> Vec<Owner> {
    let mut all: BTreeMap<(u64, u32), Owner> = BTreeMap::new();
    for owner in found {
        let known = all.entry((owner.asid, owner.tgid)).or_insert(owner);
        let (pid, ns) = if owner.ns < known.ns { (owner.pid, owner.ns) } else { (known.pid, known.ns) };
        *known = Owner { pid, ns, last: known.last.max(owner.last), ..*known };
    }
    let mut owners: Vec<Owner> = all.into_values().collect();
    owners.sort_by_key(|owner| owner.ns);
    let mut of_space: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut of_process: HashMap<u32, Vec<u64>> = HashMap::new();
    for owner in &owners {
        of_space.entry(owner.asid).or_default().push(owner.ns);
        of_process.entry(owner.tgid).or_default().push(owner.ns);
    }
    // All of these begin after the owner's last entry, so they are not its own.
    let after = |begins: Option<&Vec<u64>>, last: u64| {
        let begins = begins.map_or(&[][..], Vec::as_slice);
        begins.get(begins.partition_point(|&ns| ns <= last)).copied().unwrap_or(NEVER)
    };
    for owner in &mut owners {
        let (space, process) = (of_space.get(&owner.asid), of_process.get(&owner.tgid));
        owner.until = after(space, owner.last).min(after(process, owner.last));
    }
    owners
}

/// A process that executes another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exec {
    /// Time of the first mapping of the new program, ns.
    pub ns: u64,
    pub cpu: u32,
    pub tgid: u32,
}

/// The processes' changes of program: those that map code in another address space than the one they had. The mappings of the
/// program before end there, which matters where programs lie at the same addresses (without ASLR).
pub(super) fn execs(owners: &[Owner], mmaps: &[&Mmap]) -> Vec<Exec> {
    let mut begun: HashMap<u32, Vec<&Owner>> = HashMap::new();
    for owner in owners {
        begun.entry(owner.tgid).or_default().push(owner);
    }
    let mut own: Vec<&&Mmap> = mmaps.iter().filter(|m| m.exec).collect();
    own.sort_by_key(|m| m.t);
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut found = Vec::new();
    for m in own {
        let space = task_space(m.asid);
        let had = match last.insert(m.tgid, space) {
            Some(before) => before != space,
            None => {
                let other = |owner: &&Owner| owner.ns < m.t && task_space(owner.asid) != space;
                begun.get(&m.tgid).is_some_and(|all| all.iter().any(other))
            }
        };
        if had {
            found.push(Exec { ns: m.t, cpu: m.cpu, tgid: m.tgid });
        }
    }
    found
}

/// A resolver with three functions: user code, the kernel, and the watched address. A jump to the watched address is
/// reported only if it is a jump between functions. The call structure does not matter here.
struct Parts {
    watch: u64,
}

impl Resolve for Parts {
    fn function_at(&self, _asid: u64, va: u64, _at_ns: u64) -> FuncRef {
        let (id, start, end) = match va {
            _ if !is_kernel(va) => (0, 0, 1 << 63),
            _ if va == self.watch => (2, va, va + 1),
            _ if va < self.watch => (1, 1 << 63, self.watch),
            _ => (1, self.watch.saturating_add(1).max(1 << 63), u64::MAX),
        };
        FuncRef { id, entry: va, known: false, start, end }
    }

    fn describe(&self, _id: u32) -> FuncInfo {
        FuncInfo::default()
    }
}

struct Watch<'a> {
    switches: std::slice::Iter<'a, &'a Switch>,
    /// The switches' times, and not their order, tell which task runs.
    near: bool,
    task: (u32, u32),
    asid: u64,
    now: u64,
    /// Numbers of the owners, and that of the last one.
    known: HashMap<(u64, u32), usize>,
    current: usize,
    owners: Vec<Owner>,
    first: u64,
}

impl Sink for Watch<'_> {
    fn event(&mut self, event: Event) {
        match event.kind {
            EventKind::Switch if !self.near => {
                if let Some(switch) = self.switches.next() {
                    self.task = (switch.pid, switch.tgid);
                }
            }
            EventKind::Space => self.asid = event.ip,
            EventKind::Exit | EventKind::Start | EventKind::Resume if !is_kernel(event.ip) => self.user(),
            _ => {}
        }
    }

    fn time(&mut self, _insns: u32, ns: u64) {
        self.now = ns;
        if self.first == 0 {
            self.first = ns;
        }
    }
}

impl Watch<'_> {
    fn user(&mut self) {
        // Records or entries may be missing: their times tell which task runs.
        while self.near && self.switches.as_slice().first().is_some_and(|switch| switch.t <= self.now) {
            self.task = self.switches.next().map_or(self.task, |switch| (switch.pid, switch.tgid));
        }
        let (pid, tgid) = self.task;
        let is_last = |owner: &Owner| (owner.asid, owner.tgid) == (self.asid, tgid);
        if !self.owners.get(self.current).is_some_and(is_last) {
            let next = self.owners.len();
            self.current = *self.known.entry((self.asid, tgid)).or_insert(next);
            if self.current == next {
                let (asid, now) = (self.asid, self.now);
                self.owners.push(Owner { asid, pid, tgid, ns: now, last: now, until: NEVER });
            }
        }
        self.owners[self.current].last = self.now;
    }
}

/// One CPU's owners in order of time, and the CPU's first time.
pub(super) fn find(
    pt: &[u8],
    image: &Image,
    (clock, errata): (ClockConfig, Errata),
    first: (u32, u32),
    switches: &[&Switch],
) -> (Vec<Owner>, u64) {
    let watch = switches.first().map(|s| s.ip).filter(|&ip| ip != 0);
    let resolver = Parts { watch: watch.unwrap_or(0) };
    let setup = Setup { image, resolver: &resolver, clock, watch, errata };
    let mut sink = Watch {
        switches: switches.iter(),
        near: switches.first().is_some_and(|s| s.near),
        task: first,
        asid: 0,
        now: 0,
        known: HashMap::new(),
        current: 0,
        owners: Vec::new(),
        first: 0,
    };
    Decoder::new(pt, setup, false).run(0, pt.len(), &mut sink);
    let Watch { mut owners, first, .. } = sink;
    owners.iter_mut().for_each(|o| (o.ns, o.last) = (o.ns.max(first), o.last.max(first)));
    (owners, first)
}

/// Time of something that never happens.
pub(super) const NEVER: u64 = u64::MAX;

struct FirstRuns<'a> {
    asid: u64,
    places: &'a [(u64, u64)],
    times: Vec<Option<u64>>,
    space: u64,
    now: u64,
}

impl Sink for FirstRuns<'_> {
    const IPS: bool = true;

    fn event(&mut self, event: Event) {
        if event.kind == EventKind::Space {
            self.space = event.ip;
        }
    }

    fn time(&mut self, _insns: u32, ns: u64) {
        self.now = ns;
    }

    fn ips(&mut self, ips: &[u64]) {
        for ip in ips.iter().filter(|ip| is_kernel(**ip) || self.space == self.asid) {
            for (time, (start, end)) in self.times.iter_mut().zip(self.places) {
                if time.is_none() && start <= ip && ip < end {
                    *time = Some(self.now);
                }
            }
        }
    }
}

/// Time of the first execution of each of these places in an address space, or [`NEVER`].
pub(super) fn first_runs(
    pt: &[u8],
    image: &Image,
    (clock, errata): (ClockConfig, Errata),
    asid: u64,
    places: &[(u64, u64)],
) -> Vec<u64> {
    let setup = Setup { image, resolver: &Parts { watch: 0 }, clock, watch: None, errata };
    let times = vec![None; places.len()];
    let mut sink = FirstRuns { asid, places, times, space: 0, now: 0 };
    Decoder::new(pt, setup, true).run(0, pt.len(), &mut sink);
    sink.times.iter().map(|time| time.unwrap_or(NEVER)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_maps_code_in_another_space_executes_a_program() {
        let mmap = |t, tgid, asid| Mmap {
            t,
            cpu: 0,
            pid: tgid,
            tgid,
            asid,
            start: 0x40_0000,
            end: 0x40_1000,
            pgoff: 0,
            exec: true,
            path: "/x".into(),
        };
        let owner = |tgid, asid, ns| Owner { asid, pid: tgid, tgid, ns, last: ns, until: NEVER };
        // 7 has had a program and executes another one. 8 began in its parent's space. 9 is new, and has a library more.
        let maps = [
            mmap(10, 7, 0x2000),
            mmap(20, 9, 0x8000),
            mmap(25, 9, 0x8000),
            mmap(30, 7, 0x4000),
            mmap(31, 7, 0x4000),
            mmap(40, 8, 0x6000),
        ];
        let owners = [owner(7, 0x2000, 11), owner(7, 0x4000, 32), owner(8, 0x4000, 35), owner(9, 0x8000, 21)];
        let found = execs(&owners, &maps.iter().collect::<Vec<_>>());
        let expected = [(30, 7), (40, 8)].map(|(ns, tgid)| Exec { ns, cpu: 0, tgid });
        assert_eq!(found, expected);
    }
}
