// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of each packet on the flow. Section names are those of the SDM's Intel PT chapter.

use kprism_image::is_kernel;
use kprism_image::resolve::Resolve;
use kprism_pt::IpPayload;

use crate::decode::block::{End, Key, PIVOTS, WATCHED, target_bit};
use crate::decode::error::FaultKind;
use crate::decode::event::{Event, EventKind, Sink, Walked};
use crate::decode::flow::{Flow, Phase, PsbPlus, Still};
use crate::decode::follow::LoopDetector;
use crate::decode::retstack::{GoesOn, Return};
use crate::decode::walk::{Until, walk};

impl<R: Resolve, S: Sink> Flow<'_, '_, R, S> {
    /// TIP: the target of an indirect branch, or the handler of an asynchronous event.
    pub fn tip(&mut self, payload: IpPayload) {
        let Some(ip) = self.last_ip.apply(payload) else {
            return self.fault(FaultKind::Unexpected("TIP without an address"));
        };
        self.fresh = false;
        self.overflow = false;
        if !self.hot {
            match (self.phase, self.pending) {
                (Phase::Lost(_), _) => return self.resume(ip, EventKind::Resume),
                (Phase::Off, _) => {
                    self.fault(FaultKind::Unexpected("TIP while tracing is off"));
                    return self.resume(ip, EventKind::Resume);
                }
                (Phase::On, Some(from)) => {
                    if self.due {
                        self.tick();
                    }
                    return self.async_to(from, ip);
                }
                (Phase::On, None) if !self.waiting.packets.is_empty() => return self.tip_with_events(ip),
                (Phase::On, None) => self.settle(),
            }
        }
        if self.walk_to_indirect() {
            if self.due {
                // The packet's time is that of the arrival at the handler.
                self.tick();
            }
            self.stats.branches += 1;
            self.branch_to(ip);
        } else {
            // The branch's source is unknown, but its target is known.
            self.resume(ip, EventKind::Resume);
        }
    }

    /// Drops the state that waits for a partner packet that did not come.
    pub fn settle(&mut self) {
        self.go_on();
        self.tell_waiting(None);
        self.pending = None;
        self.abort = false;
        self.bound = false;
        self.overflow = false;
        self.psb = None;
        self.fresh = false;
        self.hot = true;
    }

    /// Walks to the next "far" or near indirect branch, whose target the TIP states.
    pub fn walk_to_indirect(&mut self) -> bool {
        let mut idle = LoopDetector::default();
        loop {
            self.run_block(self.cur);
            let block = self.cache.blocks.hot[self.cur as usize];
            match block.end {
                End::Chain | End::Dead => {
                    if idle.is_endless(self.cur, 0) {
                        self.fault(FaultKind::Endless);
                        return false;
                    }
                    self.cur = self.follow(self.cur, 1);
                }
                End::Cond => {
                    self.fault(FaultKind::Mismatch("an address where a branch outcome is due"));
                    return false;
                }
                End::Unknown => {
                    self.no_code();
                    return false;
                }
                _ => return true,
            }
        }
    }

    /// Asynchronous event: the flow goes from `from`, the current address, to the handler at `ip`.
    fn async_to(&mut self, from: u64, ip: u64) {
        let asid = self.cache.space(self.cr3, ip);
        let key = Key { ip, asid, mode: self.mode, crossed: false };
        let before = self.cache.blocks.hot[self.cur as usize].start_func;
        if !is_kernel(from) {
            self.entered = Some(GoesOn { ip: from, asid: self.cache.space(self.cr3, from) });
        }
        self.cur = self.cache.get(key, self.at());
        let target = self.cache.blocks.hot[self.cur as usize];
        let aborts = std::mem::take(&mut self.abort);
        self.settle();
        self.stats.branches += 1;
        if !aborts && is_kernel(ip) {
            self.arrive(EventKind::Async, from, target);
        } else if before != target.start_func || target.flags & WATCHED != 0 {
            self.arrive(EventKind::Tail, ip, target);
        }
    }

    /// The flow starts, or starts again, at `ip`.
    pub fn resume(&mut self, ip: u64, kind: EventKind) {
        self.start(Event::new(kind, 0, ip));
    }

    fn start(&mut self, event: Event) {
        let ip = event.ip;
        self.found(self.pos);
        // The start happened at the time stated before this packet. Nothing that ran until then was traced.
        if self.due {
            self.tick();
        }
        let asid = self.cache.space(self.cr3, ip);
        let key = Key { ip, asid, mode: self.mode, crossed: false };
        self.cur = self.cache.get(key, self.at());
        self.phase = Phase::On;
        self.settle();
        if !is_kernel(ip) {
            self.return_to_program(ip);
        }
        let target = self.cache.blocks.hot[self.cur as usize];
        let insns = self.take_insns();
        self.sink.event(Event {
            insns,
            flags: target.flags & !(WATCHED | PIVOTS),
            func: target.start_func,
            ..event
        });
    }

    /// "Packet Generation Enable (TIP.PGE)".
    pub fn pge(&mut self, payload: IpPayload) {
        let Some(ip) = self.last_ip.apply(payload) else {
            return self.fault(FaultKind::Unexpected("TIP.PGE without an address"));
        };
        match self.phase {
            Phase::Lost(_) => self.resume(ip, EventKind::Resume),
            Phase::Off => self.resume(ip, EventKind::Start),
            // Errata BDM70, APL12: a PSB+ or an overflow claims that tracing is on, right before TIP.PGE switches it
            // on.
            Phase::On if self.fresh => self.resume(ip, EventKind::Start),
            Phase::On => {
                self.fault(FaultKind::Unexpected("TIP.PGE while tracing is on"));
                self.resume(ip, EventKind::Resume);
            }
        }
    }

    /// "Packet Generation Disable (TIP.PGD)".
    pub fn pgd(&mut self, payload: IpPayload) {
        let ip = self.last_ip.apply(payload);
        if self.errata.skd022 && self.is_vm_entry() {
            // Erratum SKD022: the FUP names the VM entry itself, which ran.
            self.pending = None;
        }
        if matches!(self.phase, Phase::On) && self.pending.is_none() {
            match self.walk_off(ip) {
                Ok(()) => self.name_branch(),
                Err(kind) => self.fault(kind),
            }
        }
        self.go_off();
        self.bound = false;
        self.overflow = false;
        self.fresh = false;
    }

    /// Returns true if the event that waits for its target came at a VM entry (VMLAUNCH, VMRESUME).
    fn is_vm_entry(&mut self) -> bool {
        let (Phase::On, Some(ip)) = (self.phase, self.pending) else { return false };
        let key = self.cache.blocks.cold[self.cur as usize].key;
        key.ip == ip && self.cache.is_vm_entry(key.asid, ip, self.at())
    }

    /// "Flow Update (FUP)": on its own it is the source of an event, else it belongs to the packet before it.
    pub fn fup(&mut self, payload: IpPayload) {
        let ip = self.last_ip.apply(payload);
        if let Some(psb) = &mut self.psb {
            psb.ip = ip;
            return;
        }
        self.fresh = false;
        if std::mem::take(&mut self.bound) {
            let stops = self.still == Still::AtFup && matches!(self.phase, Phase::On) && ip.is_some();
            self.still = if stops { self.still } else { Still::No };
            if let Some(ip) = ip.filter(|_| stops || !self.waiting.packets.is_empty()) {
                self.pass_through(ip);
            }
            // It is not the source of an event, but the flow passes through its address.
            if let (Phase::Lost(_), Some(ip), false) = (self.phase, ip, self.overflow) {
                self.resume_at_event(ip);
                return;
            }
            self.tell_at(ip);
            if stops {
                self.hot = false;
                return self.stand_still();
            }
            self.hot = matches!(self.phase, Phase::On)
                && self.pending.is_none()
                && !self.abort
                && self.waiting.packets.is_empty();
            return;
        }
        self.go_on();
        let Some(ip) = ip else {
            return self.fault(FaultKind::Unexpected("FUP without an address"));
        };
        let overflow = std::mem::take(&mut self.overflow);
        match self.phase {
            Phase::Lost(_) => {
                let abort = self.abort;
                self.resume_at_event(ip);
                self.abort = abort;
            }
            Phase::Off => return self.tell_waiting(Some(ip)),
            Phase::On => match self.walk_to(ip) {
                Ok(()) => {}
                // Erratum BDM64: the last branch before an abort may have the wrong direction. The abort undid it
                // anyway.
                Err(FaultKind::NotReached(_)) if self.abort => {
                    let key = self.cache.blocks.cold[self.cur as usize].key;
                    self.cur = self.cache.get(Key { ip, crossed: false, ..key }, self.at());
                }
                Err(kind) => {
                    self.fault(kind);
                    self.resume(ip, EventKind::Resume);
                }
            },
        }
        self.tell_waiting(Some(ip));
        self.hot = false;
        if overflow {
            self.fresh = true;
        } else {
            self.pending = Some(ip);
        }
    }

    /// "Paging Information (PIP)": the new CR3 applies from the next address on.
    pub fn pip(&mut self, cr3: u64) {
        self.cr3 = cr3;
        let insns = self.take_insns();
        let space = self.cache.space(cr3, 0);
        self.sink.event(Event { insns, ..Event::new(EventKind::Space, 0, space) });
    }

    /// "Internal Buffer Overflow (OVF)".
    pub fn overflow(&mut self) {
        self.psb = None;
        self.asleep = false;
        self.tell_waiting(None);
        self.fault(FaultKind::Overflow);
        self.abort = false;
        self.bound = false;
        self.overflow = true;
    }

    pub fn psb_begin(&mut self) {
        self.go_on();
        self.tell_waiting(None);
        self.psb = Some(PsbPlus { offset: self.pos, ip: None });
        self.last_ip.reset();
        self.hot = false;
    }

    pub fn psb_end(&mut self) {
        let Some(psb) = self.psb.take() else { return };
        self.bound = false;
        self.abort = false;
        let was_lost = matches!(self.phase, Phase::Lost(_));
        self.found(psb.offset);
        let end = std::mem::replace(&mut self.pos, psb.offset.saturating_sub(1));
        if let (Phase::On, Some(ip)) = (self.phase, psb.ip) {
            self.walk_to_psb(ip);
        }
        let lost = was_lost || matches!(self.phase, Phase::Lost(_));
        self.seek(end as usize);
        match (self.phase, psb.ip) {
            (Phase::On, Some(ip)) => {
                let key = self.cache.blocks.cold[self.cur as usize].key;
                self.cur = self.cache.get(Key { ip, crossed: false, ..key }, self.at());
                self.settle();
            }
            (_, None) => self.go_off(),
            (_, Some(ip)) => {
                let kind = if lost { EventKind::Resume } else { EventKind::Start };
                self.start(Event { link: Event::AT_PSB, ..Event::new(kind, 0, ip) });
            }
        }
        self.ret.clear();
        self.parked.clear();
        self.fresh = true;
        self.tell_stated_ratio();
    }

    /// Follows the code up to the address stated in a PSB+.
    pub fn walk_to_psb(&mut self, ip: u64) {
        if let Err(kind) = self.walk_to(ip) {
            self.fault(kind);
        }
    }

    /// Follows the code to just before `ip`, where the flow then is.
    fn walk_to(&mut self, ip: u64) -> Result<(), FaultKind> {
        let key = self.cache.blocks.cold[self.cur as usize].key;
        if key.ip == ip && !key.crossed {
            return Ok(());
        }
        self.walk_until(Until::At(ip))?;
        self.cur = self.cache.get(Key { ip, crossed: false, ..key }, self.at());
        Ok(())
    }

    /// Follows the code to the branch that left the traced range, towards `ip` if that is known.
    fn walk_off(&mut self, ip: Option<u64>) -> Result<(), FaultKind> {
        let at = self.cur as usize;
        let decides = !matches!(self.cache.blocks.hot[at].end, End::Chain | End::Unknown | End::Dead);
        match ip {
            // The usual case: no direct jump on the way goes to `ip`, so the branch at the block's end does.
            Some(ip) if decides && self.cache.blocks.cold[at].targets & target_bit(ip) == 0 => {
                self.run_block(self.cur);
                Ok(())
            }
            _ => self.walk_until(Until::Off(ip, self.errata)),
        }
    }

    /// Walks, and reports events up to the error if there is one, as a walk by TNT does. Before an abort the path is
    /// uncertain, so events are reported only if the walk succeeds.
    pub fn walk_until(&mut self, until: Until) -> Result<(), FaultKind> {
        let key = self.cache.blocks.cold[self.cur as usize].key;
        let mut steps = std::mem::take(&mut self.steps);
        let result = walk(self.cache, key, until, self.at(), &mut steps);
        let unsure = match result {
            Err(FaultKind::NotReached(_)) => self.abort || until.is_try(),
            // It is not known that this code ran.
            Err(_) if until.is_try() => true,
            _ => result == Err(FaultKind::Endless),
        };
        if !unsure {
            if S::IPS {
                self.sink.ips(&steps.ips);
            }
            if S::BLOCKS {
                self.sink.walked(Walked {
                    ips: &steps.ips,
                    number: Walked::NO_NUMBER,
                    epoch: self.cache.epoch,
                    version: self.cache.version(),
                    asid: key.asid,
                    mode: key.mode,
                    offset: self.pos,
                });
            }
            for op in &steps.ops {
                self.acc += u64::from(op.insns);
                if matches!(op.kind, EventKind::Call | EventKind::Push) {
                    self.ret.push(Return { ip: op.ip, site: 0, epoch: u32::MAX });
                }
                if op.kind != EventKind::Push {
                    let insns = self.take_insns();
                    self.sink.event(Event { insns, ..*op });
                }
            }
            self.acc += u64::from(steps.insns);
        }
        self.steps = steps;
        result
    }

    /// A TNT packet in a state in which none can come.
    #[cold]
    pub fn tnt_while_not_on(&mut self) {
        if matches!(self.phase, Phase::Off) {
            self.fault(FaultKind::Unexpected("TNT while tracing is off"));
        } else if self.psb.take().is_some() {
            // A PSB+ without a PSBEND. The branches belong to the code before it.
            self.fault(FaultKind::Unexpected("TNT inside PSB+"));
        }
    }
}
