// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes Intel PT bytes for branches: the packet-generating half of a processor's trace unit. It handles TNT
//! buffering, IP compression, RET compression, PSB+ and the timing packets. It does not know blocks.
//!
//! Rules on which decoders rely (SDM vol. 3, "Intel Processor Trace"; see also `encoder`): last IP and the return stack
//! are reset at PSB; a call to the next instruction is not pushed; an uncompressed return is sent at once.

use kprism_image::insn::Mode;
use kprism_image::is_kernel;
use kprism_pt::{LastIp, Packet};

use crate::options::Options;

/// TSC ticks per ART tick: TSC at 1 GHz, ART at 25 MHz (in CPUID.15H: EAX = 1, EBX = 40).
pub const ART_RATIO: u64 = 40;
/// Core to bus clock ratio, at 100 MHz bus clock: one cycle is one TSC tick, one nanosecond.
pub const RATIO: u8 = 10;
const RET_STACK: usize = 64;
/// Maximum of MTC periods without a packet. Beyond it MTC's 8-bit counter could be misread, so a PSB+ with the full
/// time is sent instead, as after a deep sleep.
const MAX_SILENT_MTC: u64 = 200;

/// One vCPU's packet writer.
#[derive(Debug)]
pub struct Writer {
    /// Bytes not taken yet.
    pub out: Vec<u8>,
    taken: u64,
    last_ip: LastIp,
    tnt: u64,
    tnt_len: u8,
    tnt_max: u8,
    /// Time of the last branch in `tnt`.
    tnt_ns: u64,
    ret: Option<Box<RetStacks>>,
    psb_bytes: u64,
    last_psb: u64,
    /// Minimum of cycles between two CYC packets; `None` for no CYC packets.
    cyc: Option<u64>,
    /// MTC period, ns.
    mtc_ns: Option<u64>,
    next_mtc_ns: u64,
    /// Time jumped further than MTC can express: a PSB+ is due.
    overslept: bool,
    /// Time of the last CYC packet. Nothing else resets a processor's cycle counter (SDM, "Cycle Counter").
    counted_ns: u64,
    repeated: Repeated,
    cr3: u64,
    mode: Mode,
    user_only: bool,
    /// True once a part of the stream was kept that a split ended.
    was_kept: bool,
    /// The flow is outside the traced range (SDM: FilterEn clear). Time, CR3 and PSBs are still sent.
    outside: bool,
}

/// Whether a repeated instruction ran since the last packet that tells a place and its time. `tnt_len` is the number of branches not
/// sent when it ended.
#[derive(Debug, Clone, Copy)]
enum Repeated {
    No,
    Ran {
        tnt_len: u8,
    },
    /// And a jump or call without a packet came after it.
    Moved {
        tnt_len: u8,
    },
}

impl Repeated {
    /// When that many branches were sent. If all of them ran before the instruction, none tells its time.
    fn behind(self, sent: u8) -> Self {
        match self {
            Repeated::Ran { tnt_len } if tnt_len == sent => Repeated::Ran { tnt_len: 0 },
            Repeated::Moved { tnt_len } if tnt_len == sent => Repeated::Moved { tnt_len: 0 },
            _ => Repeated::No,
        }
    }
}

/// Return addresses of the last calls, as decoders keep them.
///
/// Decoders agree on the effect of a compressed return on the stack, but not on that of an uncompressed one: perf
/// removes its entry too, libipt does not. So both stacks are kept, and a return is compressed if both predict it.
#[derive(Debug)]
struct RetStacks {
    every: RetStack,
    compressed: RetStack,
}

#[derive(Debug)]
struct RetStack {
    slots: [u64; RET_STACK],
    top: usize,
    len: usize,
}

impl RetStack {
    const EMPTY: Self = Self { slots: [0; RET_STACK], top: 0, len: 0 };

    #[inline]
    fn push(&mut self, ret: u64) {
        self.top = (self.top + 1) % RET_STACK;
        self.slots[self.top] = ret;
        self.len = (self.len + 1).min(RET_STACK);
    }

    #[inline]
    fn expects(&self, to: u64) -> bool {
        self.len > 0 && self.slots[self.top] == to
    }

    #[inline]
    fn pop(&mut self) {
        if self.len > 0 {
            self.top = (self.top + RET_STACK - 1) % RET_STACK;
            self.len -= 1;
        }
    }
}

impl Writer {
    /// A writer with nothing sent yet.
    pub fn new(o: &Options) -> Self {
        Writer {
            out: Vec::with_capacity(1 << 20),
            taken: 0,
            last_ip: LastIp(0),
            tnt: 0,
            tnt_len: 0,
            tnt_max: o.tnt_max,
            tnt_ns: 0,
            ret: o
                .ret_compression
                .then(|| Box::new(RetStacks { every: RetStack::EMPTY, compressed: RetStack::EMPTY })),
            psb_bytes: o.psb_bytes,
            last_psb: 0,
            cyc: o.cyc,
            mtc_ns: o.mtc_freq.map(|n| ART_RATIO << n),
            next_mtc_ns: u64::MAX,
            overslept: false,
            counted_ns: 0,
            repeated: Repeated::No,
            cr3: 0,
            mode: Mode::Bits64,
            user_only: o.user_only,
            was_kept: false,
            outside: false,
        }
    }

    /// Returns true if the flow at `ip` is traced.
    #[inline]
    pub fn is_traced(&self, ip: u64) -> bool {
        !self.user_only || !is_kernel(ip)
    }

    /// Stream offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.taken + self.out.len() as u64
    }

    /// Stream offset of the first byte in `out`.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Drops the bytes in `out`, which have been written.
    pub fn take(&mut self) {
        self.taken += self.out.len() as u64;
        self.out.clear();
    }

    fn put(&mut self, packet: Packet) {
        packet.encode(&mut self.out);
    }

    /// Tracing begins at `ip` (PSB+ without an IP, then TIP.PGE).
    pub fn enable(&mut self, ip: u64, mode: Mode, cr3: u64, ns: u64) {
        self.cr3 = cr3;
        self.mode = mode;
        // The counter was stopped while tracing was off.
        self.counted_ns = ns;
        self.outside = true;
        self.psb(None, ns);
        if self.is_traced(ip) {
            self.enter(ip);
        }
    }

    /// Ends the stream before the instruction at `ip`, and begins another there. If the one before is not kept, but an earlier one was,
    /// the new one begins in the middle: a PSB+ states that tracing is on, by which readers know that packets are missing. Returns the
    /// offset of the split.
    pub fn split(&mut self, ip: u64, mode: Mode, ns: u64, is_kept: bool) -> u64 {
        self.disable(ip, ns);
        let offset = self.offset();
        let is_in_the_middle = self.was_kept && !is_kept;
        self.was_kept |= is_kept;
        if !is_in_the_middle {
            self.enable(ip, mode, self.cr3, ns);
        } else {
            (self.mode, self.counted_ns) = (mode, ns);
            self.outside = !self.is_traced(ip);
            self.psb(Some(ip), ns);
        }
        offset
    }

    fn enter(&mut self, ip: u64) {
        self.outside = false;
        let ip = self.last_ip.compress(ip);
        self.put(Packet::TipPge(ip));
    }

    /// Tracing ends before the instruction at `ip` runs (FUP, TIP.PGD).
    pub fn disable(&mut self, ip: u64, ns: u64) {
        self.flush(ns);
        if !self.outside {
            let ip = self.last_ip.compress(ip);
            self.put(Packet::Fup(ip));
            self.put(Packet::TipPgd(kprism_pt::IpPayload::Suppressed));
        }
        self.clear_ret();
    }

    /// A conditional branch, or a compressed return (always taken).
    #[inline]
    pub fn branch(&mut self, taken: bool, ns: u64) {
        if self.outside {
            return;
        }
        self.tnt = self.tnt << 1 | u64::from(taken);
        self.tnt_len += 1;
        self.tnt_ns = ns;
        if self.tnt_len == self.tnt_max {
            self.flush_tnt();
        }
    }

    /// A near call that returns to `ret`.
    #[inline]
    pub fn call(&mut self, ret: u64) {
        self.jump();
        if let Some(s) = &mut self.ret
            && !self.outside
        {
            s.every.push(ret);
            s.compressed.push(ret);
        }
    }

    /// A near return to `to`.
    #[inline]
    pub fn ret(&mut self, to: u64, mode: Mode, ns: u64) {
        if let Some(s) = &mut self.ret {
            let expected = s.every.expects(to) && s.compressed.expects(to);
            s.every.pop();
            if expected {
                s.compressed.pop();
                return self.branch(true, ns);
            }
        }
        self.tip(to, mode, ns);
    }

    /// An indirect or far transfer to `ip`, which may enter or leave the traced range.
    pub fn tip(&mut self, ip: u64, mode: Mode, ns: u64) {
        let traced = self.is_traced(ip);
        if self.outside && !traced {
            return;
        }
        self.flush(ns);
        self.repeated = Repeated::No;
        if traced && mode != self.mode {
            self.mode = mode;
            self.put_mode();
        }
        if self.outside {
            return self.enter(ip);
        }
        let ip = self.last_ip.compress(ip);
        if traced {
            self.put(Packet::Tip(ip));
        } else {
            self.put(Packet::TipPgd(ip));
            self.outside = true;
            self.clear_ret();
        }
    }

    /// An interrupt or exception: `from` would have run next, `to` runs instead.
    pub fn interrupt(&mut self, from: u64, to: u64, mode: Mode, ns: u64) {
        if !self.outside {
            self.flush(ns);
            let ip = self.last_ip.compress(from);
            self.put(Packet::Fup(ip));
        }
        self.tip(to, mode, ns);
    }

    /// Data was lost. The flow continues at `ip`.
    pub fn overflow(&mut self, ip: u64, mode: Mode, ns: u64) {
        self.flush(ns);
        self.put(Packet::Ovf);
        self.clear_ret();
        self.last_ip.reset();
        self.mode = mode;
        // A PSB+ right after it restores all state that the decoder may have lost.
        self.psb(Some(ip), ns);
    }

    /// CR3 was loaded.
    pub fn pip(&mut self, cr3: u64, ns: u64) {
        self.flush(ns);
        self.cr3 = cr3;
        self.put(Packet::Pip { cr3: cr3 & !0x1f, non_root: false });
    }

    /// Sends pending branches, with time up to the last of them.
    fn flush_tnt(&mut self) {
        if self.tnt_len > 0 {
            self.say_cycles(self.tnt_ns);
            let packet = Packet::Tnt { bits: self.tnt, len: self.tnt_len };
            self.put(packet);
            self.repeated = self.repeated.behind(self.tnt_len);
            self.tnt = 0;
            self.tnt_len = 0;
        }
    }

    fn flush(&mut self, ns: u64) {
        self.flush_tnt();
        self.say_cycles(ns);
    }

    fn say_cycles(&mut self, ns: u64) {
        let Some(threshold) = self.cyc else { return };
        let cycles = ns.saturating_sub(self.counted_ns);
        if cycles > 0 && cycles >= threshold {
            self.put(Packet::Cyc { cycles });
            self.counted_ns = ns;
        }
    }

    /// Like [`Writer::say_cycles`], whatever the threshold.
    fn say_all_cycles(&mut self, ns: u64) {
        let cycles = ns.saturating_sub(self.counted_ns);
        if cycles > 0 {
            self.put(Packet::Cyc { cycles });
            self.counted_ns = ns;
        }
    }

    /// A repeated instruction (`rep stosb`) ran to its end.
    #[cold]
    pub fn repeated(&mut self) {
        if matches!(self.repeated, Repeated::No) {
            self.repeated = Repeated::Ran { tnt_len: self.tnt_len };
        }
    }

    /// A direct jump, for which there is no packet.
    #[inline]
    pub fn jump(&mut self) {
        if let Repeated::Ran { tnt_len } = self.repeated {
            self.repeated = Repeated::Moved { tnt_len };
        }
    }

    /// Before the instruction at `ip` the vCPU stood still from one time to another, though it had work (SDM, "Execution Stopped
    /// (EXSTOP) Packet"). The CBR packet is that of a core whose clock runs again. The time is told whatever the threshold of CYC
    /// packets; without such packets none is told.
    #[cold]
    pub fn wait(&mut self, ip: u64, from_ns: u64, to_ns: u64) {
        if self.cyc.is_none() || self.outside {
            return;
        }
        self.flush_tnt();
        self.say_all_cycles(from_ns);
        self.repeated = Repeated::No;
        self.put(Packet::Exstop { ip: true });
        let ip = self.last_ip.compress(ip);
        self.put(Packet::Fup(ip));
        self.advance(to_ns);
        self.say_all_cycles(to_ns);
        self.put(Packet::Cbr { ratio: RATIO });
    }

    /// Called before a block at `ip` with a repeated instruction, or one that waits. Such an instruction takes time that no number of
    /// instructions tells, and readers give an interval's time to the one in it. So the time of two that run in different functions is
    /// told between them: with the branches, or, if there is none, by a PSB+.
    #[cold]
    pub fn before_repeat(&mut self, ip: u64, ns: u64) {
        match self.repeated {
            _ if self.cyc.is_none() || self.outside => {}
            Repeated::No => {}
            Repeated::Ran { tnt_len } | Repeated::Moved { tnt_len } if self.tnt_len > tnt_len => {
                self.flush_tnt()
            }
            Repeated::Moved { .. } => self.psb(Some(ip), ns),
            // In one run of code, as `rep movsq` and `rep movsb` of what is left.
            Repeated::Ran { .. } => {}
        }
    }

    /// Guest time is now `ns`: sends the MTC packets that are due before any event now.
    #[inline]
    pub fn advance(&mut self, ns: u64) {
        if ns >= self.next_mtc_ns {
            self.mtc(ns);
        }
    }

    /// Called before a block at `ip` at time `ns`: sends a PSB+ when due.
    #[inline]
    pub fn tick(&mut self, ip: u64, ns: u64) {
        self.advance(ns);
        if self.offset() - self.last_psb >= self.psb_bytes || self.overslept {
            self.psb(Some(ip), ns);
        }
    }

    fn mtc(&mut self, ns: u64) {
        let Some(period) = self.mtc_ns else { return };
        if (ns - self.next_mtc_ns) / period > MAX_SILENT_MTC {
            self.overslept = true;
            return;
        }
        while self.next_mtc_ns <= ns {
            let boundary = self.next_mtc_ns;
            // Branches taken before the boundary would get a later time, so they are sent first.
            self.flush(boundary);
            self.put(Packet::Mtc { ctc: (boundary / period) as u8 });
            self.next_mtc_ns += period;
        }
    }

    fn put_mode(&mut self) {
        let (cs_l, cs_d) = match self.mode {
            Mode::Bits64 => (true, false),
            Mode::Bits32 => (false, true),
            Mode::Bits16 => (false, false),
        };
        self.put(Packet::ModeExec { cs_l, cs_d, if_flag: false });
    }

    /// Sends a PSB+ now, before the block at `ip`, and returns its offset.
    pub fn sync(&mut self, ip: u64, ns: u64) -> u64 {
        self.psb(Some(ip), ns);
        self.last_psb
    }

    /// PSB+ (SDM: PSB, TSC, TMA, CBR, MODE.Exec, PIP, FUP if tracing, PSBEND).
    fn psb(&mut self, ip: Option<u64>, ns: u64) {
        self.flush(ns);
        self.repeated = Repeated::No;
        self.last_psb = self.offset();
        self.put(Packet::Psb);
        self.last_ip.reset();
        self.clear_ret();
        self.put(Packet::Tsc { tsc: ns });
        if self.mtc_ns.is_some() {
            let art = ns / ART_RATIO;
            self.put(Packet::Tma { ctc: art as u16, fast: (ns % ART_RATIO) as u16 });
        }
        self.put(Packet::Cbr { ratio: RATIO });
        self.put_mode();
        let cr3 = self.cr3 & !0x1f;
        self.put(Packet::Pip { cr3, non_root: false });
        if let Some(ip) = ip.filter(|_| !self.outside) {
            let ip = self.last_ip.compress(ip);
            self.put(Packet::Fup(ip));
        }
        self.put(Packet::PsbEnd);
        if let Some(period) = self.mtc_ns {
            self.next_mtc_ns = (ns / period + 1) * period;
        }
        self.overslept = false;
    }

    fn clear_ret(&mut self) {
        if let Some(s) = &mut self.ret {
            s.every.len = 0;
            s.compressed.len = 0;
        }
    }
}

#[cfg(test)]
mod tests;
