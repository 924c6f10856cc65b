// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small programs and streams written by hand.
#![allow(dead_code)]

use kprism_flow::clock::ClockConfig;
use kprism_flow::errata::Errata;
use kprism_flow::event::{Event, Sink};
use kprism_flow::{Decoder, Setup, Stats};
use kprism_image::Image;
use kprism_image::resolve::{FuncInfo, FuncRef, Resolve};
use kprism_pt::{IpPayload, LastIp, Packet};

pub const CLOCK: ClockConfig = ClockConfig {
    tsc_hz: 1_000_000_000,
    perf: None,
    art_num: 40,
    art_den: 1,
    mtc_freq: 3,
    nom_ratio: 10,
    cyc_threshold: 0,
};

/// Code and its functions.
#[derive(Default)]
pub struct Code {
    pub image: Image,
    funcs: Vec<(&'static str, u64, u64)>,
}

impl Code {
    /// Adds a function to the kernel's or (in address space 0x1000) a user's half; returns its end.
    pub fn func(&mut self, name: &'static str, start: u64, bytes: &[u8]) -> u64 {
        self.func_in(if start >> 63 == 1 { 0 } else { 0x1000 }, name, start, bytes)
    }

    pub fn func_in(&mut self, asid: u64, name: &'static str, start: u64, bytes: &[u8]) -> u64 {
        self.image.add(asid, start, bytes);
        let end = start + bytes.len() as u64;
        self.funcs.push((name, start, end));
        end
    }

    /// Decodes the whole stream.
    pub fn decode(&self, pt: &[u8]) -> (Vec<u64>, Stats) {
        self.decode_on(Errata::NONE, pt)
    }

    /// Decodes the whole stream of a processor with errata.
    pub fn decode_on(&self, errata: Errata, pt: &[u8]) -> (Vec<u64>, Stats) {
        let setup = Setup { image: &self.image, resolver: self, clock: CLOCK, watch: None, errata };
        let mut ips = Ips::default();
        let stats = Decoder::new(pt, setup, true).run(0, pt.len(), &mut ips);
        (ips.0, stats)
    }
}

impl Resolve for Code {
    fn function_at(&self, _asid: u64, va: u64, _at_ns: u64) -> FuncRef {
        match self.funcs.iter().position(|f| (f.1..f.2).contains(&va)) {
            Some(id) => {
                let (_, start, end) = self.funcs[id];
                FuncRef { id: id as u32, entry: start, known: true, start, end }
            }
            None => FuncRef { id: 999, entry: va, known: false, start: va, end: va.saturating_add(1) },
        }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        let (name, start, _) = self.funcs.get(id as usize).copied().unwrap_or(("?", 0, 0));
        FuncInfo { name: name.to_owned(), module: String::new(), start, kernel: start >> 63 == 1 }
    }
}

/// Collects addresses.
#[derive(Default)]
pub struct Ips(pub Vec<u64>);

impl Sink for Ips {
    const IPS: bool = true;
    fn event(&mut self, _: Event) {}
    fn time(&mut self, _: u32, _: u64) {}
    fn ips(&mut self, ips: &[u64]) {
        self.0.extend(ips);
    }
}

/// A stream under construction.
#[derive(Default)]
pub struct Pt {
    pub bytes: Vec<u8>,
    last: LastIp,
}

impl Pt {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn put(&mut self, packet: Packet) -> &mut Self {
        packet.encode(&mut self.bytes);
        self
    }

    /// PSB+ with tracing on at `ip`, CR3 0x1000, 64-bit mode.
    pub fn psb(&mut self, ip: u64) -> &mut Self {
        self.psb_at(ip, 0)
    }

    /// The same with a time.
    pub fn psb_at(&mut self, ip: u64, tsc: u64) -> &mut Self {
        self.last.reset();
        self.put(Packet::Psb);
        if tsc != 0 {
            self.put(Packet::Tsc { tsc }).put(Packet::Cbr { ratio: 10 });
        }
        self.put(Packet::ModeExec { cs_l: true, cs_d: false, if_flag: true });
        self.put(Packet::Pip { cr3: 0x1000, non_root: false });
        self.fup(ip).put(Packet::PsbEnd)
    }

    /// PSB+ with tracing off.
    pub fn psb_off(&mut self) -> &mut Self {
        self.last.reset();
        self.put(Packet::Psb).put(Packet::ModeExec { cs_l: true, cs_d: false, if_flag: true });
        self.put(Packet::Pip { cr3: 0x1000, non_root: false }).put(Packet::PsbEnd)
    }

    pub fn tnt(&mut self, outcomes: &str) -> &mut Self {
        let bits = outcomes.chars().fold(0, |bits, c| bits << 1 | u64::from(c == 't'));
        self.put(Packet::Tnt { bits, len: outcomes.len() as u8 })
    }

    pub fn tip(&mut self, ip: u64) -> &mut Self {
        let payload = self.last.compress(ip);
        self.put(Packet::Tip(payload))
    }

    pub fn fup(&mut self, ip: u64) -> &mut Self {
        let payload = self.last.compress(ip);
        self.put(Packet::Fup(payload))
    }

    pub fn pge(&mut self, ip: u64) -> &mut Self {
        let payload = self.last.compress(ip);
        self.put(Packet::TipPge(payload))
    }

    pub fn pgd(&mut self, ip: Option<u64>) -> &mut Self {
        let payload = ip.map_or(IpPayload::Suppressed, |ip| self.last.compress(ip));
        self.put(Packet::TipPgd(payload))
    }

    pub fn cyc(&mut self, cycles: u64) -> &mut Self {
        self.put(Packet::Cyc { cycles })
    }

    /// The processor stands still before the instruction at `ip` for so many cycles, though it has work.
    pub fn still(&mut self, ip: u64, cycles: u64) -> &mut Self {
        self.put(Packet::Exstop { ip: true }).fup(ip).cyc(cycles).put(Packet::Cbr { ratio: 10 })
    }

    pub fn pip(&mut self, cr3: u64) -> &mut Self {
        self.put(Packet::Pip { cr3, non_root: false })
    }
}
