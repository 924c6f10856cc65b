// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares packets and times with the output of `ptdump`: offset, name, payload, and the time after each timing
//! packet.

use kprism_flow::clock::{Clock, ClockConfig};
use kprism_pt::{IpPayload, LastIp, Packet, PacketReader};

use crate::Verdict;
use crate::suite::Case;

/// Checks that each packet, printed as `ptdump` does, gives the same line, and that errors are at the same offsets.
pub fn packets(case: &Case) -> Verdict {
    let expected = case.dump.as_ref()?;
    let expected: Vec<String> = expected.lines().filter_map(expected_packet).collect();
    let found = dump(case);
    for (line, (expected, found)) in expected.iter().zip(&found).enumerate() {
        // libipt before 2.2 does not know TRIG, and does not print the meaning of an event.
        if expected.ends_with(" error") && found.split(' ').nth(1) == Some("trig") {
            return None;
        }
        if expected != found
            && !found.strip_prefix(expected.as_str()).is_some_and(|more| more.starts_with(" type "))
        {
            return Some(Err(format!("line {}: {found:?}, not {expected:?}", line + 1)));
        }
    }
    Some(match expected.len() == found.len() {
        true => Ok(()),
        false => Err(format!("{} packets, not {}", found.len(), expected.len())),
    })
}

/// A line of the expected output, without times. Of errors, only those of packets are compared.
fn expected_packet(line: &str) -> Option<String> {
    if let Some(error) = line.strip_prefix('[') {
        let (offset, what) = error.split_once(": ")?;
        return what.starts_with("error decoding packet").then(|| format!("{offset:0>16} error"));
    }
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        // A time follows the payload, or stands in its place.
        if words.len() > 1 && matches!(word, "tsc" | "fcr") {
            break;
        }
        words.push(word);
    }
    (!words.is_empty()).then(|| words.join(" "))
}

fn dump(case: &Case) -> Vec<String> {
    let option = |name: &str| case.dump_options.iter().any(|option| option == name);
    let mut lines = Vec::new();
    let mut reader = PacketReader::new(&case.pt).with_errata(case.errata().bytes);
    if !option("--no-sync") && reader.resync().is_none() {
        return lines;
    }
    let mut last_ip = LastIp::default();
    loop {
        match reader.next() {
            None => return lines,
            Some(Ok((_, Packet::Cyc { .. }))) if option("--no-cyc") => {}
            Some(Ok((offset, packet))) => {
                if matches!(packet, Packet::Psb) {
                    last_ip.reset();
                }
                let bytes = &case.pt[offset..reader.offset()];
                let (name, payload) = describe(packet, bytes);
                let mut line = Vec::new();
                if !option("--no-offset") {
                    line.push(format!("{offset:016x}"));
                }
                if option("--raw") {
                    line.push(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
                }
                line.extend([name.to_owned(), payload]);
                line.extend(tracked(packet, &mut last_ip, option("--lastip"), option("--exec-mode")));
                line.retain(|word| !word.is_empty());
                lines.push(line.join(" "));
            }
            Some(Err(error)) if reader.skip_broken_tma().is_some() => {
                lines.push(format!("{:016x} <invalid>", error.offset));
            }
            Some(Err(error)) => {
                lines.push(format!("{:016x} error", error.offset));
                if reader.resync().is_none() {
                    return lines;
                }
            }
        }
    }
}

/// The columns after the payload: a packet's meaning together with the packets before it.
fn tracked(packet: Packet, last_ip: &mut LastIp, ips: bool, modes: bool) -> Option<String> {
    match packet {
        Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) if ips => {
            let ip = last_ip.apply(ip);
            Some(ip.map_or("ip <suppressed>".to_owned(), |ip| format!("ip {ip:016x}")))
        }
        Packet::ModeExec { cs_l, cs_d, .. } if modes => Some(match (cs_l, cs_d) {
            (true, _) => "em 64-bit".to_owned(),
            (_, true) => "em 32-bit".to_owned(),
            _ => "em 16-bit".to_owned(),
        }),
        Packet::Pip { cr3, .. } => Some(format!("cr3 {cr3:016x}")),
        Packet::Vmcs { base } => Some(format!("vmcs {base:016x}")),
        Packet::Cfe { typ, .. } => {
            const NAMES: [&str; 16] = [
                "unknown",
                "intr",
                "iret",
                "smi",
                "rsm",
                "sipi",
                "init",
                "vmentry",
                "vmexit",
                "vmexit_intr",
                "shutdown",
                "unknown",
                "uintr",
                "uiret",
                "swintr",
                "syscall",
            ];
            Some(format!("type {}", NAMES.get(usize::from(typ)).unwrap_or(&"unknown")))
        }
        Packet::Evd { typ, .. } => {
            Some(format!("type {}", ["cr2", "vmxq", "vmxr"].get(usize::from(typ)).unwrap_or(&"unknown")))
        }
        _ => None,
    }
}

/// A packet's name and payload in `ptdump`'s words.
fn describe(packet: Packet, bytes: &[u8]) -> (&'static str, String) {
    let list = |words: &[(&str, bool)]| {
        let words: Vec<&str> = words.iter().filter(|word| word.1).map(|word| word.0).collect();
        words.join(", ")
    };
    let with = |text: String, words: &[(&str, bool)]| {
        words.iter().filter(|word| word.1).fold(text, |text, word| text + ", " + word.0)
    };
    match packet {
        Packet::Pad => ("pad", String::new()),
        Packet::Psb => ("psb", String::new()),
        Packet::PsbEnd => ("psbend", String::new()),
        Packet::Ovf => ("ovf", String::new()),
        Packet::TraceStop => ("stop", String::new()),
        Packet::Tnt { bits, len } => {
            let outcomes = (0..len).rev().map(|bit| if bits >> bit & 1 == 1 { '!' } else { '.' });
            (if bytes.len() == 1 { "tnt.8" } else { "tnt.64" }, outcomes.collect())
        }
        Packet::Tip(payload) => ("tip", ip(payload)),
        Packet::TipPge(payload) => ("tip.pge", ip(payload)),
        Packet::TipPgd(payload) => ("tip.pgd", ip(payload)),
        Packet::Fup(payload) => ("fup", ip(payload)),
        Packet::ModeExec { cs_l, cs_d, if_flag } => {
            ("mode.exec", list(&[("cs.d", cs_d), ("cs.l", cs_l), ("if", if_flag)]))
        }
        Packet::ModeTsx { in_tx, abort } => ("mode.tsx", list(&[("intx", in_tx), ("abrt", abort)])),
        Packet::Pip { cr3, non_root } => ("pip", with(format!("{cr3:x}"), &[("nr", non_root)])),
        Packet::Vmcs { base } => ("vmcs", format!("{base:x}")),
        Packet::Cbr { ratio } => ("cbr", format!("{ratio:x}")),
        Packet::Tsc { tsc } => ("tsc", format!("{tsc:x}")),
        Packet::Tma { ctc, fast } => ("tma", format!("{ctc:x}, {fast:x}")),
        Packet::Mtc { ctc } => ("mtc", format!("{ctc:x}")),
        Packet::Cyc { cycles } => ("cyc", format!("{cycles:x}")),
        Packet::Mnt { payload } => ("mnt", format!("{payload:x}")),
        Packet::Ptw { payload, size, ip } => {
            ("ptw", with(format!("{:x}: {payload:x}", u8::from(size == 8)), &[("ip", ip)]))
        }
        Packet::Exstop { ip } => ("exstop", list(&[("ip", ip)])),
        Packet::Mwait { hints, ext } => ("mwait", format!("{hints:08x}, {ext:08x}")),
        Packet::Pwre { state, sub_state, hw } => {
            let state = format!("c{}.{}", (state + 1) & 15, (sub_state + 1) & 15);
            ("pwre", with(state, &[("hw", hw)]))
        }
        Packet::Pwrx { last, deepest, reason } => {
            let reason = match reason {
                1 => "int",
                4 => "st",
                8 => "hw",
                _ => "bad",
            };
            ("pwrx", format!("{reason}: c{}, c{}", (last + 1) & 15, (deepest + 1) & 15))
        }
        Packet::Cfe { typ, vector, ip } => {
            let text = match typ {
                1 | 9 | 12 | 14 => format!("{typ}: {vector}"),
                5 => format!("{typ}: {vector:x}"),
                _ => typ.to_string(),
            };
            ("cfe", with(text, &[("ip", ip)]))
        }
        Packet::Evd { typ, payload } => ("evd", format!("{typ}: {payload:x}")),
        Packet::Trig { triggers, instructions, multiple, ip } => {
            let text = with(format!("{triggers:02x}"), &[("ip", ip), ("mult", multiple)]);
            ("trig", instructions.map_or(text.clone(), |count| format!("{text}, icnt: {count}")))
        }
        // libipt knows no BIP packets.
        Packet::Bbp { .. } | Packet::Bip { .. } | Packet::Bep { .. } => ("<unknown>", String::new()),
    }
}

fn ip(payload: IpPayload) -> String {
    match payload {
        IpPayload::Suppressed => "0: ????????????????".to_owned(),
        IpPayload::Update16(low) => format!("1: ????????????{low:04x}"),
        IpPayload::Update32(low) => format!("2: ????????{low:08x}"),
        IpPayload::Sext48(low) => format!("3: {:016x}", (low << 16) as i64 >> 16),
        IpPayload::Update48(low) => format!("4: ????{:012x}", low & 0xffff_ffff_ffff),
        IpPayload::Full(ip) => format!("6: {ip:016x}"),
    }
}

/// Compares the time after each timing packet, in TSC ticks. The times of `kprism-flow` never decrease, so the latest
/// time so far is compared on both sides.
pub fn times(case: &Case) -> Verdict {
    let expected = expected_times(case.dump.as_ref()?, case.dump_options.iter().any(|o| o == "--time-delta"));
    if expected.is_empty() {
        return None;
    }
    let mut clock = Clock::new(config(&case.dump_options));
    let mut latest = (0, 0);
    let mut expected = expected.into_iter().peekable();
    for (offset, packet) in PacketReader::new(&case.pt).map_while(Result::ok) {
        match packet {
            Packet::Tsc { tsc } => clock.on_tsc(tsc),
            Packet::Tma { ctc, fast } => clock.on_tma(ctc, fast),
            Packet::Mtc { ctc } => clock.on_mtc(ctc),
            Packet::Cyc { .. } if case.dump_options.iter().any(|option| option == "--no-cyc") => {}
            Packet::Cyc { cycles } => clock.on_cyc(cycles),
            Packet::Cbr { ratio } => clock.on_cbr(ratio),
            _ => {}
        }
        if let Some((_, time)) = expected.next_if(|time| time.0 == offset) {
            latest = (latest.0.max(time), latest.1.max(clock.ns()));
            if latest.0 != latest.1 {
                return Some(Err(format!("at {offset:#x} it is {:#x}, not {:#x}", latest.1, latest.0)));
            }
        }
    }
    Some(Ok(()))
}

/// The clock parameters in the options.
pub fn config(options: &[String]) -> ClockConfig {
    ClockConfig {
        tsc_hz: 0,
        perf: None,
        art_num: Case::number(options, "--cpuid-0x15.ebx") as u32,
        art_den: Case::number(options, "--cpuid-0x15.eax") as u32,
        mtc_freq: Case::number(options, "--mtc-freq") as u8,
        nom_ratio: Case::number(options, "--nom-freq") as u8,
        cyc_threshold: 0,
    }
}

/// Offsets and times from lines such as `0000000000000016 cyc 3 tsc +6`.
fn expected_times(dump: &str, delta: bool) -> Vec<(usize, u64)> {
    let mut times = Vec::new();
    let mut now = 0u64;
    for line in dump.lines().filter(|line| !line.starts_with('[')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [offset, _, _, .., "tsc", time] = words[..] else { continue };
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        now = match (delta, time.split_at(1)) {
            (true, ("+", time)) => now.wrapping_add(hex(time)),
            (true, ("-", time)) => now.wrapping_sub(hex(time)),
            _ => hex(time),
        };
        times.push((hex(offset) as usize, now));
    }
    times
}
