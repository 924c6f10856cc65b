// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hot loop: branch outcomes against blocks.

use kprism_image::resolve::Resolve;
use kprism_pt::Packet;

use crate::decode::block::{End, Key, NONE};
use crate::decode::build::Cache;
use crate::decode::error::FaultKind;
use crate::decode::event::{EventKind, Sink};
use crate::decode::flow::Flow;
use crate::decode::follow::LoopDetector;
use crate::decode::memo::OUTCOMES;
use crate::decode::retstack::Return;

impl<R: Resolve, S: Sink> Flow<'_, '_, R, S> {
    /// Appends the short TNT packets at `at` to the current outcomes, so that the loop below runs longer. Returns all
    /// outcomes and the offset after the packets.
    #[inline(always)]
    pub fn gather(&mut self, mut bits: u64, mut len: u8, mut at: usize) -> (u64, u8, usize) {
        // Code may change between packets, and a clock update belongs to one packet.
        if self.due || self.code_change_at != u64::MAX {
            return (bits, len, at);
        }
        while len <= 64 - 6 && at < self.end {
            let byte = self.bytes[at];
            if byte & 1 == 0 && byte > 2 {
                let n = 6 - byte.leading_zeros();
                bits = bits << n | (u64::from(byte >> 1) & !(1 << n));
                len += n as u8;
            } else if byte != 0 {
                break;
            }
            at += 1;
        }
        (bits, len, at)
    }

    /// Follows `len` branch outcomes, oldest first in the low bits of `bits`.
    #[inline]
    pub fn tnt(&mut self, bits: u64, len: u8) {
        let mut left = u32::from(len);
        // Oldest outcome in the top bit.
        let mut bits = bits << (64 - left.max(1));
        let mut cur = self.cur;
        let mut acc = self.acc;
        let mut idle = LoopDetector::default();
        // Plain blocks walked in a row. In a long loop more will follow.
        let mut plain = 0;
        while left > 0 {
            if plain >= OUTCOMES && left >= OUTCOMES && !S::BLOCKS && !S::IPS {
                let Cache { memo, blocks, .. } = &mut *self.cache;
                if let Some((next, insns)) = memo.leap(blocks, cur, (bits >> 56) as u8) {
                    acc += u64::from(insns);
                    bits <<= OUTCOMES;
                    left -= OUTCOMES;
                    cur = next;
                    continue;
                }
                plain = 0;
            }
            if S::BLOCKS {
                self.tell_block(cur);
            }
            let block = &self.cache.blocks.hot[cur as usize];
            if S::IPS {
                let (start, n) = self.cache.blocks.cold[cur as usize].ips;
                self.sink.ips(&self.cache.blocks.ips[start as usize..(start + n) as usize]);
            }
            if block.is_plain() {
                acc += u64::from(block.insns);
                plain += 1;
                let taken = (bits >> 63) as usize;
                bits <<= 1;
                left -= 1;
                let next = block.next[taken];
                cur = if next == NONE { self.link(cur, taken) } else { next };
                continue;
            }
            plain = 0;
            let block = *block;
            (self.acc, self.cur) = (acc, cur);
            self.run_ops(&block);
            match block.end {
                End::Cond => {
                    let taken = (bits >> 63) as usize;
                    bits <<= 1;
                    left -= 1;
                    cur = self.follow(cur, taken);
                }
                End::Ret => {
                    if bits >> 63 == 0 {
                        return self.fault(FaultKind::Mismatch("a branch not taken where a return is due"));
                    }
                    bits <<= 1;
                    left -= 1;
                    match self.ret.pop() {
                        Some(entry) => cur = self.return_to(entry),
                        None => return self.fault(FaultKind::NoCall),
                    }
                }
                End::Chain | End::Dead => {
                    if idle.is_endless(cur, left) {
                        return self.fault(FaultKind::Endless);
                    }
                    cur = self.follow(cur, 1);
                }
                End::Unknown => return self.no_code(),
                End::IndirectJump | End::IndirectCall | End::Far(_) | End::Int80 => {
                    // "Deferred TIPs": the address follows the outcomes of later branches.
                    if !self.deferred_tip() {
                        return;
                    }
                    cur = self.cur;
                    idle = LoopDetector::default();
                }
            }
            acc = self.acc;
        }
        self.stats.branches += u64::from(len);
        (self.acc, self.cur) = (acc, cur);
    }

    /// Follows a compressed return.
    #[inline]
    fn return_to(&mut self, entry: Return) -> u32 {
        let known = entry.epoch == self.cache.epoch;
        let mut to = if known { self.cache.blocks.ops[entry.site as usize].link } else { NONE };
        // The same call site has other blocks in another address space.
        let blocks = &self.cache.blocks.hot;
        let stale = to == NONE || blocks[to as usize].context != blocks[self.cur as usize].context;
        if stale {
            let asid = self.cache.space(self.cr3, entry.ip);
            let key = Key { ip: entry.ip, asid, mode: self.mode, crossed: false };
            let epoch = self.cache.epoch;
            to = self.cache.get(key, self.at());
            if known && epoch == self.cache.epoch {
                self.cache.blocks.ops[entry.site as usize].link = to;
            }
        }
        let target = self.cache.blocks.hot[to as usize];
        self.cur = to;
        self.arrive(EventKind::Ret, entry.ip, target);
        to
    }

    /// Takes the TIP that follows the current TNT, and branches to its address.
    #[cold]
    fn deferred_tip(&mut self) -> bool {
        while let Some(Ok((offset, packet))) = self.reader.next() {
            self.pos = offset as u64;
            match packet {
                Packet::Pad => {}
                Packet::Cyc { cycles } => {
                    self.clock.on_cyc(cycles);
                    self.due = true;
                }
                Packet::Mtc { ctc } => {
                    self.clock.on_mtc(ctc);
                    self.due = true;
                }
                Packet::Cbr { ratio } => self.clock.on_cbr(ratio),
                Packet::Tip(payload) => {
                    let Some(ip) = self.last_ip.apply(payload) else { break };
                    self.stats.branches += 1;
                    self.branch_to(ip);
                    return true;
                }
                // SKD007 cuts a CYC off; the loop over packets reads the overflow again.
                Packet::Ovf => {
                    self.reader.seek(offset);
                    break;
                }
                // Where a TIP is due, any of these shows that code and packets disagree.
                Packet::Psb
                | Packet::PsbEnd
                | Packet::Tnt { .. }
                | Packet::TipPge(_)
                | Packet::TipPgd(_)
                | Packet::Fup(_)
                | Packet::ModeExec { .. }
                | Packet::ModeTsx { .. }
                | Packet::Pip { .. }
                | Packet::Vmcs { .. }
                | Packet::Tsc { .. }
                | Packet::Tma { .. }
                | Packet::TraceStop
                | Packet::Mnt { .. }
                | Packet::Ptw { .. }
                | Packet::Exstop { .. }
                | Packet::Mwait { .. }
                | Packet::Pwre { .. }
                | Packet::Pwrx { .. }
                | Packet::Bbp { .. }
                | Packet::Bip { .. }
                | Packet::Bep { .. }
                | Packet::Cfe { .. }
                | Packet::Evd { .. }
                | Packet::Trig { .. } => break,
            }
        }
        self.fault(FaultKind::Mismatch("branch outcomes where an address is due"));
        false
    }
}
