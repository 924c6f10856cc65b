// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the events that packets state beside the flow, each at its place.
//!
//! None of this is on the way of a branch: `rare` of `flow` notes a packet, and while one waits, the next packet of the flow
//! takes the way of packets that wait for a partner.

use kprism_image::resolve::Resolve;
use kprism_pt::Packet;

use crate::decode::block::{End, Key};
use crate::decode::event::{EventKind, Sink};
use crate::decode::flow::{Flow, Phase, Still};
use crate::decode::packet_event::{PacketEvent, PacketEventKind};
use crate::decode::walk::Until;

/// Packets that may wait: more than the largest PEBS record has.
const MAX_WAITING: usize = 1 << 10;

impl<R: Resolve, S: Sink> Flow<'_, '_, R, S> {
    /// Counts an event's packet, and tells it or lets it wait.
    pub fn note_event(&mut self, kind: PacketEventKind, packet: Packet) {
        if let (Packet::Cbr { ratio }, true) = (packet, self.psb.is_some()) {
            self.waiting.stated = Some(ratio);
            return;
        }
        self.stats.packet_events.count(kind);
        if !S::PACKET_EVENTS {
            return;
        }
        // A core that stood still states its clock again, which is no change of it.
        if matches!(packet, Packet::Cbr { ratio } if self.still == Still::Yes && self.waiting.ratio == Some(ratio))
        {
            return;
        }
        let on = matches!(self.phase, Phase::On);
        if let Packet::Cfe { ip, .. } = packet {
            // A CFE before this one, whose partner did not come.
            if self.waiting.packets.iter().any(|of| matches!(of, Packet::Cfe { .. })) {
                self.tell_waiting(None);
            }
            if !ip && !on {
                // While tracing is off only a CFE that says so has a FUP.
                self.waiting.packets.push(packet);
                return self.tell_waiting(None);
            }
        }
        let waits = match packet {
            // A FUP follows all of these; that of an MWAIT or an EVD follows the EXSTOP or CFE behind it.
            Packet::Ptw { ip, .. } | Packet::Exstop { ip } | Packet::Trig { ip, .. } | Packet::Bep { ip } => {
                ip
            }
            Packet::Cfe { .. } | Packet::Evd { .. } | Packet::Mwait { .. } => true,
            Packet::Bbp { .. } | Packet::Bip { .. } => true,
            // An event behind one that waits waits too, so that all stay in order.
            _ => !self.waiting.packets.is_empty() && !matches!(packet, Packet::Cbr { .. }),
        };
        if let Packet::Cbr { ratio } = packet {
            self.waiting.ratio = Some(ratio);
        }
        if let Packet::Ptw { ip: false, .. } = packet {
            // The instruction is the next PTWRITE.
            self.tell_waiting(None);
            let ip = self.pass_next_ptwrite();
            self.tell(packet, ip);
        } else if waits {
            if self.waiting.packets.len() >= MAX_WAITING {
                self.tell_waiting(None);
            }
            self.waiting.packets.push(packet);
            self.hot = false;
        } else if matches!(packet, Packet::Exstop { .. } | Packet::Bep { .. }) {
            // The end of its group, without a FUP.
            self.waiting.packets.push(packet);
            self.tell_waiting(None);
        } else {
            self.tell(packet, None);
        }
    }

    /// Tells all events that wait. They belong to the instruction at `ip`, if that is known.
    #[inline]
    pub fn tell_waiting(&mut self, ip: Option<u64>) {
        if S::PACKET_EVENTS && !self.waiting.packets.is_empty() {
            self.tell_all(ip);
        }
    }

    #[cold]
    fn tell_all(&mut self, ip: Option<u64>) {
        let mut packets = std::mem::take(&mut self.waiting.packets);
        let ip = ip.or(self.waiting.branch.take());
        for packet in packets.drain(..) {
            // These two say nothing of the instruction at which they came.
            let ip = ip.filter(|_| !matches!(packet, Packet::Pwre { .. } | Packet::Pwrx { .. }));
            self.tell(packet, ip);
        }
        self.waiting.packets = packets;
    }

    fn tell(&mut self, packet: Packet, ip: Option<u64>) {
        self.tell_event(PacketEvent { packet, ip, restated: false });
    }

    fn tell_event(&mut self, event: PacketEvent) {
        if self.due && self.psb.is_none() {
            self.tick();
        }
        let insns = self.take_insns();
        self.sink.packet_event(insns, event);
    }

    /// Tells the ratio that a PSB+ states, if it is another than the one told last.
    pub fn tell_stated_ratio(&mut self) {
        let Some(ratio) = self.waiting.stated.take() else { return };
        if S::PACKET_EVENTS && self.waiting.ratio.replace(ratio) != Some(ratio) {
            self.tell_event(PacketEvent { packet: Packet::Cbr { ratio }, ip: None, restated: true });
        }
    }

    /// Tells the events that wait, at the instruction that a FUP names. Those of a branch wait on for it: it has run when they
    /// happen.
    pub fn tell_at(&mut self, ip: Option<u64>) {
        let of_branch = |packet: &Packet| matches!(packet, Packet::Cfe { typ: 2 | 4 | 7 | 0xd, .. });
        if self.can_pass() && self.waiting.packets.last().is_some_and(of_branch) {
            self.waiting.branch = ip;
        } else {
            self.tell_waiting(ip);
        }
    }

    /// The far branch that ends the current block, for the events that wait for it.
    pub fn name_branch(&mut self) {
        if !self.waiting.packets.is_empty() && self.waiting.branch.is_none() {
            let end = self.cache.blocks.hot[self.cur as usize].end;
            let far = matches!(end, End::Far(_) | End::Int80);
            self.waiting.branch = far.then_some(self.cache.blocks.cold[self.cur as usize].end_ip);
        }
    }

    /// Follows the code up to the instruction at which the events that wait came, if it leads there.
    pub fn pass_through(&mut self, ip: u64) {
        if !self.can_pass() {
            return;
        }
        if self.key().ip != ip {
            if self.walk_until(Until::TryAt(ip)).is_err() {
                return;
            }
            self.go_to_next();
        }
        // PTWRITE has run when its packet comes.
        if matches!(self.waiting.packets.last(), Some(Packet::Ptw { .. })) && self.is_at_ptwrite() {
            self.pass_next_ptwrite();
        }
    }

    /// Follows the code behind the next PTWRITE, and returns its address.
    fn pass_next_ptwrite(&mut self) -> Option<u64> {
        let passed = self.can_pass() && self.walk_until(Until::Ptwrite).is_ok();
        let ip = self.steps.ips.last().copied().filter(|_| passed);
        if passed {
            self.go_to_next();
        }
        ip
    }

    /// Returns true if the flow is at a PTWRITE.
    fn is_at_ptwrite(&mut self) -> bool {
        let (Key { ip, asid, mode, .. }, at) = (self.key(), self.at());
        self.cache.insn(asid, ip, mode, at).is_ok_and(|insn| self.cache.is_ptwrite(asid, ip, insn.len, at))
    }

    /// Returns true if the flow is known, and no event waits for its target.
    fn can_pass(&self) -> bool {
        matches!(self.phase, Phase::On) && self.pending.is_none() && !self.abort && self.psb.is_none()
    }

    fn key(&self) -> Key {
        self.cache.blocks.cold[self.cur as usize].key
    }

    /// Goes to where the last walk ended.
    fn go_to_next(&mut self) {
        let key = Key { ip: self.steps.next, crossed: false, ..self.key() };
        self.cur = self.cache.get(key, self.at());
    }

    /// TIP while events wait without a FUP: they belong to the branch whose target it states (IRET, VM entry and the like).
    pub fn tip_with_events(&mut self, ip: u64) {
        let (packets, branch) = (std::mem::take(&mut self.waiting.packets), self.waiting.branch.take());
        self.settle();
        let known = self.walk_to_indirect();
        (self.waiting.packets, self.waiting.branch) = (packets, branch);
        if !known {
            return self.start_at(ip);
        }
        self.name_branch();
        self.tell_waiting(None);
        if self.due {
            self.tick();
        }
        self.stats.branches += 1;
        self.branch_to(ip);
    }

    /// The flow was lost, and goes on at an event's instruction.
    pub fn resume_at_event(&mut self, ip: u64) {
        let mut packets = std::mem::take(&mut self.waiting.packets);
        self.start_at(ip);
        std::mem::swap(&mut self.waiting.packets, &mut packets);
        self.tell_waiting(Some(ip));
    }

    fn start_at(&mut self, ip: u64) {
        self.resume(ip, EventKind::Resume);
    }
}
