// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CPU's packets as those of its threads, as `perf record --per-thread -e intel_pt//u` gets them: each thread's buffer has
//! what the processor sent of programs while the thread ran.

use std::collections::BTreeMap;

use kprism_flow::clock::{Clock, ClockConfig};
use kprism_pt::{IpPayload, LastIp, Packet, PacketReader};

#[derive(Default)]
struct Thread {
    out: Vec<u8>,
    sent: Option<LastIp>,
}

impl Thread {
    fn put(&mut self, packet: Packet) {
        packet.encode(&mut self.out);
    }

    /// The program goes on: with the time, as no MTC and no CYC tell it.
    fn begin(&mut self, ip: u64, ns: u64) {
        let ip = self.address(ip);
        self.put(Packet::Tsc { tsc: ns });
        self.put(Packet::TipPge(ip));
    }

    fn address(&mut self, ip: u64) -> IpPayload {
        self.sent.get_or_insert(LastIp(0)).compress(ip)
    }
}

/// `switches` are times and the thread that runs from then on.
pub fn split(
    pt: &[u8],
    clock: ClockConfig,
    first: u32,
    switches: &[(u64, u32)],
    threads: &mut BTreeMap<u32, Vec<u8>>,
) {
    let mut clock = Clock::new(clock);
    let mut all: BTreeMap<u32, Thread> = BTreeMap::new();
    let (mut read, mut user, mut in_psb, mut running) = (LastIp(0), false, false, NOBODY);
    for (_, packet) in PacketReader::new(pt).map_while(Result::ok) {
        clock.on_packet(&packet);
        let turn = switches.partition_point(|(ns, _)| *ns <= clock.ns()).checked_sub(1);
        let now = turn.map_or(first, |turn| switches[turn].1);
        let thread = all.entry(now).or_default();
        // A new turn is seen where the first packet behind it is, in the kernel.
        if now != running && clock.ns() > 0 && !in_psb {
            if threads.get(&now).is_none_or(Vec::is_empty) && thread.out.is_empty() {
                thread.put(Packet::Psb);
                thread.sent = Some(LastIp(0));
                thread.put(Packet::Tsc { tsc: clock.ns() });
                thread.put(Packet::PsbEnd);
            } else {
                thread.put(Packet::Tsc { tsc: clock.ns() });
            }
            assert!(!user, "a switch inside a program");
            running = now;
        }
        let mut payload = |payload| read.apply(payload).expect("an address");
        match packet {
            Packet::Psb => {
                read = LastIp(0);
                thread.sent = Some(LastIp(0));
                (user, in_psb) = (false, true);
                thread.put(packet);
            }
            Packet::PsbEnd => {
                in_psb = false;
                thread.put(packet);
            }
            Packet::Fup(ip) => {
                let ip = payload(ip);
                user |= in_psb && ip >> 63 == 0;
                if user {
                    let ip = thread.address(ip);
                    thread.put(Packet::Fup(ip));
                }
            }
            Packet::Tip(ip) => {
                let ip = payload(ip);
                let to_user = ip >> 63 == 0;
                match (user, to_user) {
                    (true, true) => {
                        let ip = thread.address(ip);
                        thread.put(Packet::Tip(ip));
                    }
                    (true, false) => thread.put(Packet::TipPgd(IpPayload::Suppressed)),
                    (false, true) => thread.begin(ip, clock.ns()),
                    (false, false) => {}
                }
                user = to_user;
            }
            Packet::TipPge(ip) => {
                let ip = payload(ip);
                user = ip >> 63 == 0;
                if user {
                    thread.begin(ip, clock.ns());
                }
            }
            Packet::TipPgd(ip) => {
                read.apply(ip);
                if std::mem::take(&mut user) {
                    thread.put(Packet::TipPgd(IpPayload::Suppressed));
                }
            }
            Packet::Tnt { .. } if user => thread.put(packet),
            Packet::Tsc { .. } => thread.put(packet),
            Packet::ModeExec { .. } | Packet::ModeTsx { .. } => thread.put(packet),
            _ => {}
        }
    }
    for (tid, thread) in all {
        threads.entry(tid).or_default().extend(thread.out);
    }
}

const NOBODY: u32 = u32::MAX;
