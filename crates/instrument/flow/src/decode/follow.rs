// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows blocks: walks one, goes to its successor or to a branch's target, and reports the events on the way.
//!
//! `tnt` and `packets` decide where the flow goes; both go there by the functions of this file.

use kprism_image::insn::Far;
use kprism_image::is_kernel;
use kprism_image::resolve::Resolve;

use crate::decode::block::{Block, Cold, End, Key, NONE, PIVOTS, WATCHED};
use crate::decode::build::is_inner_call;
use crate::decode::event::{Event, EventKind, Sink, Walked, flag};
use crate::decode::flow::Flow;
use crate::decode::retstack::{GoesOn, Return};

/// Blocks that may be walked for one packet without consuming any of it.
const MAX_IDLE: u32 = 1 << 12;

/// Detects an endless loop: the flow goes round without consuming the current packet.
#[derive(Debug, Default)]
pub(crate) struct LoopDetector {
    passed: u32,
    /// A block walked earlier, and how much of the packet was left then.
    mark: (u32, u32),
}

impl LoopDetector {
    /// Counts a block that consumes nothing of the packet. Returns true if the loop is endless.
    ///
    /// Such blocks have one successor, so a block that comes again will always come again. A mark set at each power of
    /// two finds that within a few rounds.
    pub fn is_endless(&mut self, block: u32, left: u32) -> bool {
        let again = self.passed > 0 && (block, left) == self.mark;
        self.passed += 1;
        if self.passed.is_power_of_two() {
            self.mark = (block, left);
        }
        again || self.passed > MAX_IDLE
    }
}

impl<R: Resolve, S: Sink> Flow<'_, '_, R, S> {
    /// Applies a block, except for its end.
    #[inline(always)]
    pub fn run_ops(&mut self, block: &Block) {
        let first = block.ops as usize;
        for site in first..first + usize::from(block.nops) {
            let op = self.cache.blocks.ops[site];
            self.acc += u64::from(op.insns);
            if matches!(op.kind, EventKind::Call | EventKind::Push) {
                self.ret.push(Return { ip: op.ip, site: site as u32, epoch: self.cache.epoch });
            }
            if op.kind != EventKind::Push {
                let insns = self.take_insns();
                self.sink.event(Event { insns, ..op });
            }
        }
        self.acc += u64::from(block.insns);
    }

    /// Walks a whole block. Its end is decided by the caller.
    #[inline]
    pub fn run_block(&mut self, cur: u32) {
        if S::BLOCKS {
            self.tell_block(cur);
        }
        if S::IPS {
            let (start, n) = self.cache.blocks.cold[cur as usize].ips;
            self.sink.ips(&self.cache.blocks.ips[start as usize..(start + n) as usize]);
        }
        let block = self.cache.blocks.hot[cur as usize];
        self.run_ops(&block);
    }

    /// Reports the block to sinks that set [`Sink::BLOCKS`].
    #[inline(always)]
    pub fn tell_block(&mut self, cur: u32) {
        let cold = &self.cache.blocks.cold[cur as usize];
        let (start, n) = cold.ips;
        self.sink.walked(Walked {
            ips: &self.cache.blocks.ips[start as usize..(start + n) as usize],
            number: cur,
            epoch: self.cache.epoch,
            version: self.cache.version(),
            asid: cold.key.asid,
            mode: cold.key.mode,
            offset: self.pos,
        });
    }

    /// Returns the successor of a block with direct successors.
    #[inline(always)]
    pub fn follow(&mut self, cur: u32, way: usize) -> u32 {
        match self.cache.blocks.hot[cur as usize].next[way] {
            NONE => self.link(cur, way),
            next => next,
        }
    }

    /// Finds a successor that is not linked yet.
    #[cold]
    #[inline(never)]
    pub fn link(&mut self, from: u32, way: usize) -> u32 {
        let (hot, cold) = (self.cache.blocks.hot[from as usize], self.cache.blocks.cold[from as usize]);
        let epoch = self.cache.epoch;
        let at = self.at();
        self.cache.expect(hot.func);
        let to = if hot.end == End::Dead {
            self.cache.get(cold.key, at)
        } else {
            let ip = if way == 0 { cold.next_ip } else { cold.target };
            let key = Key { ip, crossed: false, ..cold.key };
            let to = self.cache.get(key, at);
            if self.cache.blocks.hot[to as usize].start_func == hot.func {
                to
            } else {
                self.cache.get(Key { crossed: true, ..key }, at)
            }
        };
        if epoch == self.cache.epoch {
            self.cache.blocks.hot[from as usize].next[way] = to;
        }
        to
    }

    pub fn no_code(&mut self) {
        let cold = &self.cache.blocks.cold[self.cur as usize];
        let kind = self.cache.fault(cold.key.asid, cold.end_ip, cold.key.mode, self.at());
        self.fault(kind);
    }

    /// Goes to `ip` from the indirect branch that ends the current block. The block is already walked.
    #[inline]
    pub fn branch_to(&mut self, ip: u64) {
        let from = self.cur as usize;
        let Block { end, func, ops, nops, next, flags, .. } = self.cache.blocks.hot[from];
        let asid = self.cache.space(self.cr3, ip);
        let key = Key { ip, asid, mode: self.mode, crossed: false };
        // Of this block, before the lookup: it may drop all blocks, and begin another epoch.
        let (epoch, Cold { key: left, next_ip, .. }) = (self.cache.epoch, self.cache.blocks.cold[from]);
        // An indirect branch often goes where it went last time.
        let to = if next[1] != NONE
            && self.cache.blocks.cold[next[1] as usize].key == key
            && self.cache.blocks.hot[next[1] as usize].end != End::Dead
        {
            next[1]
        } else {
            let to = self.cache.get(key, self.at());
            if epoch == self.cache.epoch {
                self.cache.blocks.hot[from].next[1] = to;
            }
            to
        };
        let target = self.cache.blocks.hot[to as usize];
        let site = ops + u32::from(nops);
        let event = match end {
            End::IndirectCall => {
                if next_ip != ip {
                    self.ret.push(Return { ip: next_ip, site, epoch });
                }
                self.inner_call(func, ip, target).then_some((EventKind::Call, next_ip))
            }
            End::Ret => Some((EventKind::Ret, ip)),
            End::IndirectJump => (func != target.start_func).then_some((EventKind::Tail, ip)),
            End::Int80 => self.far(Far::Syscall, (left.asid, next_ip), func, ip, target),
            End::Far(far) => self.far(far, (left.asid, next_ip), func, ip, target),
            End::Cond | End::Chain | End::Unknown | End::Dead => None,
        };
        self.cur = to;
        if let Some((kind, ip)) = event {
            match flags & PIVOTS {
                0 => self.arrive(kind, ip, target),
                _ => self.arrive_with(flag::STACK, kind, ip, target),
            }
        } else if target.flags & WATCHED != 0 {
            self.arrive(EventKind::Count, ip, target);
        }
    }

    /// Returns true if a call from `func` to `ip` is a call in the source.
    fn inner_call(&mut self, func: u32, ip: u64, target: Block) -> bool {
        func != target.start_func || target.flags & flag::ENTRY != 0 || {
            let asid = self.cache.space(self.cr3, ip);
            let (to, _) = self.cache.func_at(asid, ip, self.at());
            !is_inner_call(func, to, ip)
        }
    }

    fn far(
        &mut self,
        far: Far,
        (asid, next_ip): (u64, u64),
        func: u32,
        ip: u64,
        target: Block,
    ) -> Option<(EventKind, u64)> {
        match (is_kernel(next_ip), is_kernel(ip)) {
            (false, true) => self.entered = Some(GoesOn { ip: next_ip, asid }),
            (true, false) => self.return_to_program(ip),
            _ => {}
        }
        match far {
            Far::Syscall | Far::Sysenter => Some((EventKind::Syscall, next_ip)),
            Far::Int => Some((EventKind::Async, next_ip)),
            // Linux serialises with an `iret` to the next instruction (`sync_core`). That leaves no kernel entry.
            Far::Iret if ip == next_ip => None,
            Far::Sysret | Far::Sysexit | Far::Iret => Some((EventKind::Exit, ip)),
            Far::Segment | Far::Vm | Far::Rsm => (func != target.start_func).then_some((EventKind::Tail, ip)),
        }
    }

    /// Reports the event by which the flow arrived at `target`.
    #[inline(always)]
    pub fn arrive(&mut self, kind: EventKind, ip: u64, target: Block) {
        self.arrive_with(0, kind, ip, target);
    }

    /// The same, with a further bit of [`flag`].
    #[inline(always)]
    fn arrive_with(&mut self, flag: u8, kind: EventKind, ip: u64, target: Block) {
        let insns = self.take_insns();
        let flags = target.flags & !(WATCHED | PIVOTS) | flag;
        self.sink.event(Event { insns, flags, ..Event::new(kind, target.start_func, ip) });
        if target.flags & WATCHED != 0 {
            self.sink.event(Event::new(EventKind::Switch, target.start_func, ip));
        }
    }
}
