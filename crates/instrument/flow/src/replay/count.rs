// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts for each instruction of chosen functions how often it ran, how long it took, and where it went next: a
//! listener of a [`replay`](crate::replay).
//!
//! An instruction is identified by its function, its offset in it, and its bytes. So processes that map a file at
//! different addresses share it. Patched code is a different instruction.

use std::collections::HashMap;

use kprism_image::Image;
use kprism_image::insn::{Kind, Mode, classify};
use kprism_image::resolve::{FuncRef, Resolve};

use crate::decode::event::{Event, EventKind, flag};
use crate::measure::window::Window;
use crate::replay::{Code, Listener, Task, TracePosition};
use crate::stack::frames::is_kernel;

/// One instruction, with its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Its function.
    pub func: u32,
    /// Distance from the function's entry; wraps for parts that lie before it.
    pub offset: u64,
    /// One of the addresses at which it ran.
    pub ip: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Mode of the code.
    pub mode: Mode,
    /// Its effect on the control flow.
    pub kind: Kind,
    /// Number of executions.
    pub count: u64,
    /// Time that it took, ns.
    pub ns: u64,
    /// For a conditional branch: how often it did not continue at the next instruction.
    pub taken: u64,
    /// Targets of an indirect jump or call, most frequent first. Also the targets of a call to an indirect branch
    /// thunk, and of a return used as a jump.
    pub targets: Vec<Target>,
    /// Time of its first execution, ns.
    pub first_ns: u64,
    /// Time of its last execution, ns.
    pub last_ns: u64,
}

/// A target of an indirect branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The function.
    pub func: u32,
    /// Distance from its entry.
    pub offset: u64,
    /// One of its addresses.
    pub ip: u64,
    /// True if a symbol covers the target.
    pub known: bool,
    /// Number of times.
    pub count: u64,
}

/// The counts of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sorted by function, offset and time of first execution.
    pub sites: Vec<Site>,
    /// Instructions of the selected tasks, in any function.
    pub insns: u64,
    /// Their time on a CPU, ns.
    pub ns: u64,
    /// Instructions of functions that were not chosen, by number of the function. A block with instructions of several
    /// functions counts for the first of them.
    pub elsewhere: Vec<u64>,
}

/// Prefix of the functions that stand for an indirect jump through a register (Linux, arch/x86/lib/retpoline.S).
const THUNK: &str = "__x86_indirect_";

const NO_SITE: u32 = u32::MAX;

/// A block, and the start of its entries in [`LaneCounts::list`] if it has instructions of the chosen functions.
#[derive(Debug, Clone, Copy)]
struct Block {
    first_ip: u64,
    asid: u64,
    /// Index into [`LaneCounts::list`]; [`NO_SITE`] if it has none.
    sites: u32,
    /// The first of its functions that is not chosen.
    other: u32,
}

#[derive(Debug, Default)]
struct LaneCounts {
    blocks: Vec<Block>,
    /// Sites, each with its address in this lane.
    list: Vec<(u32, u64)>,
    /// The site that ran last, with its address. `None` if the last instruction was not a site.
    last: Option<(u32, u64)>,
    /// A site that called a thunk. The thunk's jump is still to come.
    thunk: Option<u32>,
    /// The task and the count of renames for which `taken` is valid.
    who: Option<(usize, u32)>,
    taken: bool,
    space: u64,
}

/// The listener that counts.
pub struct Counter<'a, R> {
    resolver: &'a R,
    /// Chosen functions, by number.
    chosen: &'a [bool],
    takes: &'a dyn Fn(u16, &Task) -> bool,
    stop: &'a dyn Fn() -> bool,
    window: Option<Window>,
    lanes: Vec<LaneCounts>,
    sites: Vec<Site>,
    /// For each site, true if it calls or jumps to a thunk.
    thunks: Vec<bool>,
    /// Sites by function, offset and bytes.
    by_key: HashMap<(u32, u64, Vec<u8>), u32>,
    insns: u64,
    ns: u64,
    elsewhere: Vec<u64>,
    /// Number of calls received; `stop` is asked once in a while.
    heard: u32,
    stopped: bool,
}

impl<'a, R: Resolve> Counter<'a, R> {
    /// Counts in the functions that `chosen` marks by number, while `takes` accepts the CPU and its task. Ends when
    /// `stop` returns true.
    pub fn new(
        lanes: usize,
        resolver: &'a R,
        chosen: &'a [bool],
        takes: &'a dyn Fn(u16, &Task) -> bool,
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        Self {
            resolver,
            chosen,
            takes,
            stop,
            window: None,
            lanes: (0..lanes).map(|_| LaneCounts::default()).collect(),
            sites: Vec::new(),
            thunks: Vec::new(),
            by_key: HashMap::new(),
            insns: 0,
            ns: 0,
            elsewhere: Vec::new(),
            heard: 0,
            stopped: false,
        }
    }

    /// Restricts the counts to the window's task and time.
    #[must_use]
    pub fn within(self, window: Option<Window>) -> Self {
        Self { window, ..self }
    }

    /// Returns the counts of the instructions that ran.
    pub fn finish(self) -> Counts {
        let mut sites: Vec<Site> = self.sites.into_iter().filter(|s| s.count > 0).collect();
        sites.sort_by_key(|s| (s.func, s.offset, s.first_ns));
        for site in &mut sites {
            site.targets.sort_by_key(|t| (std::cmp::Reverse(t.count), t.func, t.offset));
        }
        Counts { sites, insns: self.insns, ns: self.ns, elsewhere: self.elsewhere }
    }

    /// Returns true if there is no window, or if this moment is in it.
    #[inline]
    fn holds(&self, at: &TracePosition<'_>) -> bool {
        self.window.is_none_or(|window| {
            let task = &at.tasks[at.task];
            (task.pid, task.tgid) == (window.pid, window.tgid) && window.holds(at.ns())
        })
    }

    fn site(&mut self, func: &FuncRef, ip: u64, bytes: &[u8], mode: Mode) -> u32 {
        let insn = classify(bytes, ip, mode).ok();
        let bytes = &bytes[..insn.map_or(bytes.len(), |i| usize::from(i.len))];
        let offset = ip.wrapping_sub(func.entry);
        let next = self.sites.len() as u32;
        let key = (func.id, offset, bytes.to_vec());
        let index = *self.by_key.entry(key).or_insert(next);
        if index == next {
            let thunk = match insn.map(|i| i.kind) {
                Some(Kind::Call { target } | Kind::Jump { target }) if is_kernel(target) => {
                    let func = self.resolver.function_at(0, target, 0);
                    self.resolver.describe(func.id).name.starts_with(THUNK)
                }
                _ => false,
            };
            self.thunks.push(thunk);
            self.sites.push(Site {
                func: func.id,
                offset,
                ip,
                bytes: bytes.to_vec(),
                mode,
                kind: insn.map_or(Kind::Other, |i| i.kind),
                count: 0,
                ns: 0,
                taken: 0,
                targets: Vec::new(),
                first_ns: 0,
                last_ns: 0,
            });
        }
        index
    }

    /// The site that ran last continued at `ip`.
    #[inline(never)]
    fn went(&mut self, at: &TracePosition<'_>, (index, from): (u32, u64), ip: u64, asid: u64) {
        let site = &mut self.sites[index as usize];
        match site.kind {
            Kind::CondJump { .. } => {
                site.taken += u64::from(ip.wrapping_sub(from) != site.bytes.len() as u64);
            }
            Kind::IndirectCall | Kind::IndirectJump => self.target(at, index, ip, asid),
            Kind::Ret => {
                let func = self.resolver.function_at(asid, ip, at.ns());
                if func.known && func.entry == ip {
                    self.target(at, index, ip, asid);
                }
            }
            _ => {}
        }
    }

    /// An indirect branch went to `ip`.
    fn target(&mut self, at: &TracePosition<'_>, site: u32, ip: u64, asid: u64) {
        let site = &mut self.sites[site as usize];
        let func = self.resolver.function_at(asid, ip, at.ns());
        let offset = ip.wrapping_sub(func.entry);
        match site.targets.iter_mut().find(|t| (t.func, t.offset) == (func.id, offset)) {
            Some(target) => target.count += 1,
            None => {
                let known = func.known;
                site.targets.push(Target { func: func.id, offset, ip, known, count: 1 });
            }
        }
    }
}

impl<R: Resolve> Listener for Counter<'_, R> {
    fn define(&mut self, at: &TracePosition<'_>, _block: u32, code: Code, image: &Image) {
        let mut sites = Vec::new();
        let mut other = None;
        let mut func = FuncRef { id: 0, entry: 0, known: false, start: 1, end: 0 };
        for &ip in &code.ips {
            if ip < func.start || func.end <= ip {
                func = self.resolver.function_at(code.asid, ip, at.ns());
            }
            if self.chosen.get(func.id as usize).copied().unwrap_or(false) {
                let mut bytes = [0; 15];
                let got = image.fetch(code.asid, ip, code.offset, &mut bytes);
                sites.push((self.site(&func, ip, &bytes[..got], code.mode), ip));
            } else {
                other.get_or_insert(func.id);
                sites.push((NO_SITE, ip));
            }
        }
        let lane = &mut self.lanes[at.lane];
        let some = sites.iter().any(|s| s.0 != NO_SITE);
        let first_ip = code.ips.first().copied().unwrap_or(0);
        let start = if some { lane.list.len() as u32 } else { NO_SITE };
        let other = other.unwrap_or(0);
        lane.blocks.push(Block { first_ip, asid: code.asid, sites: start, other });
        if self.elsewhere.len() <= other as usize {
            self.elsewhere.resize(other as usize + 1, 0);
        }
        if some {
            lane.list.extend(sites);
        }
    }

    #[inline]
    fn run(&mut self, at: &TracePosition<'_>, block: u32, from: u32, to: u32) {
        let lane = &mut self.lanes[at.lane];
        if lane.who != Some((at.task, at.names)) {
            lane.who = Some((at.task, at.names));
            lane.taken = (self.takes)(at.cpu, &at.tasks[at.task]);
        }
        let Block { first_ip, asid, sites, other } = lane.blocks[block as usize];
        if let Some(last) = lane.last.take()
            && from == 0
        {
            self.went(at, last, first_ip, asid);
        }
        if !self.lanes[at.lane].taken || !self.holds(at) {
            return;
        }
        self.insns += u64::from(to - from);
        self.ns += at.after(to - from) - at.ns();
        if sites == NO_SITE {
            self.elsewhere[other as usize] += u64::from(to - from);
            return;
        }
        let lane = &mut self.lanes[at.lane];
        let list = &lane.list[(sites + from) as usize..(sites + to) as usize];
        let mut now = at.ns();
        for (ran, &(site, _)) in (1..).zip(list) {
            let next = at.after(ran);
            if let Some(site) = self.sites.get_mut(site as usize) {
                if site.count == 0 {
                    site.first_ns = now;
                }
                site.count += 1;
                site.ns += next - now;
                site.last_ns = now;
            } else {
                self.elsewhere[other as usize] += 1;
            }
            now = next;
        }
        lane.last = list.last().copied().filter(|&(site, _)| site != NO_SITE);
    }

    fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        let lane = &self.lanes[at.lane];
        if !lane.taken || !self.holds(at) {
            return;
        }
        self.ns += ns;
        if let Some((site, _)) = lane.last {
            self.sites[site as usize].ns += ns;
        }
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        self.heard = self.heard.wrapping_add(1);
        if self.heard.is_multiple_of(1 << 16) {
            self.stopped = (self.stop)();
        }
        let lane = &mut self.lanes[at.lane];
        let through = lane.thunk.take();
        match (event.kind, lane.last) {
            // The thunk's own jump is the next event.
            (EventKind::Call | EventKind::Tail, Some((site, _))) if self.thunks[site as usize] => {
                lane.thunk = Some(site);
            }
            (EventKind::Ret | EventKind::Tail, _) if event.flags & flag::ENTRY != 0 => {
                if let Some(site) = through {
                    self.target(at, site, event.ip, 0);
                }
            }
            _ => {}
        }
        match event.kind {
            EventKind::Space => self.lanes[at.lane].space = event.ip,
            EventKind::Async => {
                // An event between two instructions states where the first one went.
                if let Some(last) = self.lanes[at.lane].last.take() {
                    let asid = if is_kernel(event.ip) { 0 } else { self.lanes[at.lane].space };
                    self.went(at, last, event.ip, asid);
                }
            }
            EventKind::Start | EventKind::Resume | EventKind::Stop => self.lanes[at.lane].last = None,
            _ => {}
        }
    }

    fn is_done(&self) -> bool {
        self.stopped
    }
}
