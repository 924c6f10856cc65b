// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism script packets` against Intel's `ptdump`, packet by packet: offset, name, payload, and the address that a packet
//! carries when its upper bytes are those of the one before. Whole streams of the lab, and a made-up stream with the
//! packets that the lab does not write: PTWRITE, power, event trace.

mod guest;

use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, kprism, ok, text};
use kprism_pt::{IpPayload, Packet};
use kprism_test::{LIBIPT, libipt, needs, program, test};
use serde_json::Value;

/// Builds `ptdump` from libipt's source.
fn ptdump() -> PathBuf {
    needs(&[LIBIPT]);
    program(&["cmake"], "cmake");
    let libipt = libipt();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libipt-ptdump");
    // The cache may belong to another checkout.
    let _ = std::fs::remove_file(out.join("CMakeCache.txt"));
    let make = |command: &mut Command| {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    make(Command::new("cmake").arg("-S").arg(&libipt).arg("-B").arg(&out).arg("-DPTDUMP=ON"));
    make(Command::new("cmake").arg("--build").arg(&out).args(["--target", "ptdump"]));
    out.join("bin/ptdump")
}

/// ptdump's lines: offset, name, payload, and for an address the whole one.
fn theirs(ptdump: &Path, stream: &Path) -> Vec<String> {
    let output =
        Command::new(ptdump).args(["--lastip", "--no-pad"]).arg(stream).output().expect("ptdump runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let offset = u64::from_str_radix(words[0], 16).unwrap();
        let addressed = matches!(words[1], "tip" | "tip.pge" | "tip.pgd" | "fup");
        // The compression, the bytes sent, the address.
        // Of CR3 and the VMCS it repeats the payload behind their names.
        let tracked = |word: &&str| matches!(*word, "cr3" | "vmcs");
        let end = words.iter().skip(2).position(tracked).map_or(words.len(), |at| at + 2);
        let payload = if addressed { words[words.len() - 1].to_owned() } else { words[2..end].join(" ") };
        format!("{offset:x} {} {payload}", words[1]).trim_end().to_owned()
    };
    String::from_utf8(output.stdout).unwrap().lines().map(line).collect()
}

/// The number after `name` in a payload.
fn number(payload: &str, name: &str) -> u64 {
    let mut words = payload.split_whitespace();
    if !name.is_empty() {
        words.find(|word| *word == name).unwrap_or_else(|| panic!("no {name} in {payload}"));
    }
    let word = words.next().unwrap_or_else(|| panic!("no number in {payload}"));
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => word.parse().unwrap(),
    }
}

/// The same line from kprism's own.
fn ours(value: &Value) -> String {
    let (name, payload) = (value["packet"].as_str().unwrap(), value["payload"].as_str().unwrap());
    let bytes = value["bytes"].as_str().unwrap().len() / 2;
    let ip = if payload.ends_with("FUP follows") { ", ip" } else { "" };
    let of = |name: &str| number(payload, name);
    let (name, text) = match name {
        "TNT" => {
            let branches = payload.split_once(' ').unwrap().0.replace('T', "!").replace('N', ".");
            (if bytes == 1 { "tnt.8" } else { "tnt.64" }, branches)
        }
        "TIP" | "TIP.PGE" | "TIP.PGD" | "FUP" => {
            let address =
                if payload == "no address" { "<suppressed>".to_owned() } else { format!("{:016x}", of("")) };
            let name = match name {
                "TIP" => "tip",
                "TIP.PGE" => "tip.pge",
                "TIP.PGD" => "tip.pgd",
                _ => "fup",
            };
            (name, address)
        }
        "MODE.Exec" => {
            let bits = match payload.split(' ').next().unwrap() {
                "64-bit" => "cs.l",
                "32-bit" => "cs.d",
                _ => "",
            };
            ("mode.exec", bits.to_owned() + if payload.ends_with(" IF") { ", if" } else { "" })
        }
        "PIP" => {
            ("pip", format!("{:x}{}", of("CR3"), if payload.ends_with("non-root") { ", nr" } else { "" }))
        }
        "TMA" => ("tma", format!("{:x}, {:x}", of("CTC"), of("FC"))),
        "TSC" => ("tsc", format!("{:x}", of(""))),
        "MTC" => ("mtc", format!("{:x}", of(""))),
        "CBR" => ("cbr", format!("{:x}", of(""))),
        "CYC" => ("cyc", format!("{:x}", of(""))),
        "VMCS" => ("vmcs", format!("{:x}", of(""))),
        "PTW" => {
            let wide = u8::from(payload.contains("(8 bytes)"));
            ("ptw", format!("{wide:x}: {:x}{ip}", of("")))
        }
        "EXSTOP" => ("exstop", ip.trim_start_matches(", ").to_owned()),
        "MWAIT" => ("mwait", format!("{:08x}, {:08x}", of("hints"), of("extensions"))),
        "PWRE" => {
            let hardware = if payload.ends_with("by hardware") { ", hw" } else { "" };
            ("pwre", format!("c{}.{}{hardware}", (of("C-state") + 1) & 15, (of("sub-state") + 1) & 15))
        }
        "PWRX" => {
            let reason = match of("reason") {
                1 => "int",
                4 => "st",
                8 => "hw",
                _ => "bad",
            };
            ("pwrx", format!("{reason}: c{}, c{}", (of("C-state") + 1) & 15, (of("deepest") + 1) & 15))
        }
        "CFE" => {
            let events = ["INTR", "IRET", "SMI", "RSM", "SIPI", "INIT", "VMENTRY", "VMEXIT"];
            let event = payload.split(' ').next().unwrap();
            let typ = events.iter().position(|name| *name == event).unwrap() + 1;
            let vector = if typ == 1 { format!(": {}", of("vector")) } else { String::new() };
            ("cfe", format!("{typ}{vector}{ip}"))
        }
        "EVD" => {
            let typ = ["page fault at", "VMX exit qualification", "VMX exit reason"]
                .iter()
                .position(|words| payload.starts_with(words))
                .unwrap();
            ("evd", format!("{typ}: {:x}", number(payload.rsplit(' ').next().unwrap(), "")))
        }
        "PSB" => ("psb", String::new()),
        "PSBEND" => ("psbend", String::new()),
        "OVF" => ("ovf", String::new()),
        other => panic!("{other} is not expected here"),
    };
    format!("{:x} {name} {text}", value["offset"].as_u64().unwrap()).trim_end().to_owned()
}

/// The lines of a CPU's stream.
fn listed(run: &Path, cpu: &str, more: &[&str]) -> Vec<Value> {
    let lines = ok(&[&["script", "packets", "--json", "-i", text(run), "--cpu", cpu], more].concat());
    String::from_utf8(lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn compare(ptdump: &Path, run: &Path, cpu: &str) -> usize {
    let all = listed(run, cpu, &[]);
    let theirs = theirs(ptdump, &run.join(format!("streams/cpu{cpu}.pt")));
    for (ours, theirs) in all.iter().map(ours).zip(&theirs) {
        assert_eq!(&ours, theirs, "CPU {cpu}");
    }
    assert_eq!(all.len(), theirs.len(), "CPU {cpu}: number of packets");
    all.len()
}

#[test]
fn every_packet_is_ptdumps() {
    let ptdump = ptdump();
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&["lab", "run", "-q", "--smp", "2", "-o", text(&run), "--", "sh", "-c", "ls /bin | sed s/a/z/g"]);
    for cpu in ["0", "1"] {
        let packets = compare(&ptdump, &run, cpu);
        assert!(packets > 10_000, "CPU {cpu}: {packets} packets");
    }
    // A part of the stream, by its offsets and by time: no packet more, none less.
    let all = listed(&run, "0", &[]);
    let part = listed(&run, "0", &["--offset", "0x1000..8192"]);
    let within = |value: &&Value| (4096..8192).contains(&value["offset"].as_u64().unwrap());
    assert!(part.len() > 100 && part.iter().eq(all.iter().filter(within)));
    let [from, to] = [all.len() / 3, all.len() / 2].map(|at| all[at]["time_ns"].as_u64().unwrap());
    let part = listed(&run, "0", &["--from", &format!("{from}ns"), "--to", &format!("{to}ns")]);
    let within = |value: &&Value| (from..to).contains(&value["time_ns"].as_u64().unwrap());
    assert!(part.len() > 100 && part.iter().eq(all.iter().filter(within)));

    // In place of a stream of the lab: packets that only processors write.
    let fup = Packet::Fup(IpPayload::Sext48(0xffff_8138_a052));
    let more = [
        Packet::Psb,
        Packet::Tsc { tsc: 0x1234_5678 },
        Packet::Vmcs { base: 0x1234_5000 },
        Packet::PsbEnd,
        Packet::Ptw { payload: 0xdead_beef_0123_4567, size: 8, ip: true },
        fup,
        Packet::Ptw { payload: 0x1234_5678, size: 4, ip: false },
        Packet::Mwait { hints: 0x60, ext: 1 },
        // libipt reads HW at another bit than the SDM and perf.
        Packet::Pwre { state: 5, sub_state: 1, hw: false },
        Packet::Exstop { ip: true },
        fup,
        Packet::Pwrx { last: 5, deepest: 6, reason: 4 },
        Packet::Exstop { ip: false },
        Packet::Evd { typ: 0, payload: 0x7fff_1234_5678 },
        Packet::Cfe { typ: 1, vector: 14, ip: true },
        fup,
        Packet::Cfe { typ: 2, vector: 0, ip: true },
        fup,
        Packet::Evd { typ: 2, payload: 0x30 },
        Packet::Cfe { typ: 8, vector: 0, ip: false },
        Packet::Ovf,
    ];
    let mut bytes = Vec::new();
    more.iter().for_each(|packet| packet.encode(&mut bytes));
    std::fs::write(run.join("streams/cpu0.pt"), &bytes).unwrap();
    assert_eq!(compare(&ptdump, &run, "0"), more.len());
    // libipt knows no blocks of PEBS records: here the text is compared.
    let blocks = [
        Packet::Psb,
        Packet::PsbEnd,
        Packet::Bbp { typ: 4, size4: false },
        Packet::Bip { id: 2, payload: 0x1122_3344_5566_7788, size: 8 },
        Packet::Bep { ip: true },
        fup,
    ];
    let mut bytes = Vec::new();
    blocks.iter().for_each(|packet| packet.encode(&mut bytes));
    std::fs::write(run.join("streams/cpu0.pt"), &bytes).unwrap();
    let payloads: Vec<Value> =
        listed(&run, "0", &[]).into_iter().map(|value| value["payload"].clone()).collect();
    assert_eq!(
        payloads[2..],
        [
            "type 0x4 items of 8 bytes",
            "0x2: 0x1122334455667788 (8 bytes)",
            "FUP follows",
            "0xffffffff8138a052"
        ]
    );
    let output = kprism(&["script", "calls", "-i", text(&run), "--offset", "0..9"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--offset"));
}

kprism_test::main!();
