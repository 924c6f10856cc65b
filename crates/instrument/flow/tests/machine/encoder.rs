// SPDX-License-Identifier: MIT OR Apache-2.0
//! PT packets as a processor sends them.

use kprism_pt::{LastIp, Packet};

use super::Settings;

pub struct Encoder {
    pub out: Vec<u8>,
    settings: Settings,
    last_ip: LastIp,
    bits: u64,
    len: u8,
    deferred: Vec<u64>,
    rets: Vec<u64>,
    /// Time of the last CYC, and of the branch that the pending TNT ends with.
    cyc: u64,
    now: u64,
    /// A repeated instruction ran since the last CYC.
    has_repeated: bool,
}

impl Encoder {
    pub fn new(settings: Settings) -> Self {
        Self {
            out: Vec::new(),
            settings,
            last_ip: LastIp::default(),
            bits: 0,
            len: 0,
            deferred: Vec::new(),
            rets: Vec::new(),
            cyc: 0,
            now: 0,
            has_repeated: false,
        }
    }

    fn time(&mut self, now: u64) {
        if self.settings.timing && now > self.cyc {
            Packet::Cyc { cycles: now - self.cyc }.encode(&mut self.out);
            self.cyc = now;
            self.has_repeated = false;
        }
    }

    /// A repeated instruction runs. As kprism's recorder does, the times of two are told apart.
    pub fn repeated(&mut self) {
        if self.has_repeated {
            self.flush();
        }
        self.has_repeated = true;
    }

    pub fn flush(&mut self) {
        if self.len > 0 {
            self.time(self.now);
            Packet::Tnt { bits: self.bits, len: self.len }.encode(&mut self.out);
            (self.bits, self.len) = (0, 0);
        }
        for ip in std::mem::take(&mut self.deferred) {
            Packet::Tip(self.last_ip.compress(ip)).encode(&mut self.out);
        }
    }

    pub fn tnt(&mut self, taken: bool, now: u64) {
        self.bits = self.bits << 1 | u64::from(taken);
        self.len += 1;
        self.now = now;
        if self.len == if self.settings.long_tnt { 47 } else { 6 } {
            self.flush();
        }
    }

    pub fn tip(&mut self, ip: u64, now: u64) {
        if self.settings.defer_tips && self.len > 0 && self.deferred.len() < 4 {
            self.deferred.push(ip);
            self.now = now;
            return;
        }
        self.flush();
        self.time(now);
        Packet::Tip(self.last_ip.compress(ip)).encode(&mut self.out);
    }

    pub fn fup(&mut self, ip: u64, now: u64) {
        self.flush();
        self.time(now);
        Packet::Fup(self.last_ip.compress(ip)).encode(&mut self.out);
    }

    pub fn call(&mut self, next: u64) {
        if self.rets.len() == 64 {
            self.rets.remove(0);
        }
        self.rets.push(next);
    }

    pub fn ret(&mut self, to: u64, now: u64) {
        if self.settings.ret_compression && self.rets.last() == Some(&to) {
            self.rets.pop();
            return self.tnt(true, now);
        }
        self.flush();
        self.time(now);
        Packet::Tip(self.last_ip.compress(to)).encode(&mut self.out);
    }

    pub fn psb(&mut self, ip: u64, now: u64) {
        self.flush();
        self.last_ip.reset();
        self.rets.clear();
        Packet::Psb.encode(&mut self.out);
        if self.settings.timing {
            Packet::Tsc { tsc: now }.encode(&mut self.out);
            Packet::Cbr { ratio: 10 }.encode(&mut self.out);
            self.cyc = now;
        }
        Packet::ModeExec { cs_l: true, cs_d: false, if_flag: true }.encode(&mut self.out);
        Packet::Fup(self.last_ip.compress(ip)).encode(&mut self.out);
        Packet::PsbEnd.encode(&mut self.out);
    }
}
