// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the speed of packet decoding. Prints ns per packet and MB/s: the best of many passes, because the machine
//! may be busy. Input: the captures named on the command line (`*.pt`, `*.trace`), or a generated mix if there are
//! none.
//!
//! `cargo bench -p kprism-pt -- FILE.pt...`

use std::hint::black_box;
use std::time::{Duration, Instant};

use kprism_pt::{LastIp, Packet, PacketReader};

fn main() {
    let files: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    if files.is_empty() {
        report("made-up mix, 1 MB", &made_up());
    }
    for file in files {
        match std::fs::read(&file) {
            Ok(bytes) => report(&file, &bytes),
            Err(error) => eprintln!("{file}: {error}"),
        }
    }
}

fn report(name: &str, bytes: &[u8]) {
    let mut best = Duration::MAX;
    let mut packets = 0u64;
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        let start = Instant::now();
        packets = count(black_box(bytes));
        best = best.min(start.elapsed());
    }
    let ns = best.as_nanos() as f64;
    println!(
        "{name}: {} bytes, {packets} packets, {:.3} ms, {:.2} ns/packet, {:.0} MB/s",
        bytes.len(),
        ns / 1e6,
        ns / packets as f64,
        bytes.len() as f64 / ns * 1e3
    );
}

/// Does the minimum work of a flow decoder: examines branch bits and decompresses IPs.
fn count(bytes: &[u8]) -> u64 {
    let mut reader = PacketReader::new(bytes);
    let (mut packets, mut sum, mut last) = (0u64, 0u64, LastIp::default());
    loop {
        match reader.next() {
            Some(Ok((_, packet))) => {
                packets += 1;
                match packet {
                    Packet::Tnt { bits, len } => sum = sum.wrapping_add(bits ^ u64::from(len)),
                    Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => {
                        sum = sum.wrapping_add(last.apply(ip).unwrap_or(0));
                    }
                    Packet::Psb => last.reset(),
                    _ => {}
                }
            }
            Some(Err(_)) if reader.resync().is_some() => {}
            _ => break,
        }
    }
    black_box(sum);
    packets
}

fn made_up() -> Vec<u8> {
    let mut out = Vec::new();
    let mut last = LastIp::default();
    let mut seed = 1u64;
    while out.len() < 1 << 20 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let r = seed >> 33;
        match r % 16 {
            0..=8 => Packet::Tnt { bits: r >> 8 & 63, len: 6 }.encode(&mut out),
            9..=11 => Packet::Tip(last.compress(0xffff_ffff_8100_0000 | r & 0xf_ffff)).encode(&mut out),
            12 => Packet::Pad.encode(&mut out),
            13 => Packet::Cyc { cycles: r >> 8 & 0x3ff }.encode(&mut out),
            14 => Packet::Tnt { bits: r >> 1 & ((1 << 30) - 1), len: 30 }.encode(&mut out),
            _ => Packet::Mtc { ctc: r as u8 }.encode(&mut out),
        }
    }
    out
}
