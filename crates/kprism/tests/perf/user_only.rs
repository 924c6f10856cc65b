// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same recording as if only programs had been traced (`intel_pt//u`), in the form that goes through a pipe: what
//! the processor would not have sent is taken out of the packets, no PIP names an address space, and kprism must
//! find by the switch records alone whose code ran.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kprism_pt::{IpPayload, LastIp, Packet, PacketReader};

use super::guest::{json, ok, text};

/// What a processor sends of this with IA32_RTIT_CTL.OS clear.
fn without_kernel(pt: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut read, mut sent) = (LastIp(0), LastIp(0));
    let (mut user, mut in_psb) = (false, false);
    for (_, packet) in PacketReader::new(pt).map_while(Result::ok) {
        let mut put = |packet: Packet| packet.encode(&mut out);
        match packet {
            Packet::Psb => {
                (read, sent) = (LastIp(0), LastIp(0));
                // Without an address in its PSB+, tracing is off.
                (user, in_psb) = (false, true);
                put(packet);
            }
            Packet::PsbEnd => {
                in_psb = false;
                put(packet);
            }
            Packet::Pip { .. } => {}
            Packet::Fup(payload) => {
                let ip = read.apply(payload).expect("a FUP has an address");
                user |= in_psb && ip >> 63 == 0;
                if user {
                    put(Packet::Fup(sent.compress(ip)));
                }
            }
            Packet::Tip(payload) => {
                let ip = read.apply(payload).expect("a TIP has an address");
                match (user, ip >> 63 == 0) {
                    (true, true) => put(Packet::Tip(sent.compress(ip))),
                    (true, false) => put(Packet::TipPgd(IpPayload::Suppressed)),
                    (false, true) => put(Packet::TipPge(sent.compress(ip))),
                    (false, false) => {}
                }
                user = ip >> 63 == 0;
            }
            Packet::Tnt { .. } if !user => {}
            Packet::TipPge(payload) => {
                let ip = read.apply(payload).expect("a TIP.PGE has an address");
                user = ip >> 63 == 0;
                if user {
                    put(Packet::TipPge(sent.compress(ip)));
                }
            }
            Packet::TipPgd(payload) => {
                read.apply(payload);
                if std::mem::take(&mut user) {
                    put(Packet::TipPgd(IpPayload::Suppressed));
                }
            }
            other => put(other),
        }
    }
    out
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// perf.data as `perf record -o -` writes it, with packets changed.
fn piped(data: &[u8], change: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut out = b"PERFILE2".to_vec();
    out.extend(16u64.to_le_bytes());
    let (size, attrs, attrs_len) = (word(data, 16), word(data, 24), word(data, 32));
    for attr in data[attrs..attrs + attrs_len].chunks(size) {
        let (ids, ids_len) = (word(attr, size - 16), word(attr, size - 8));
        let body = [&attr[..size - 16], &data[ids..ids + ids_len]].concat();
        out.extend(64u32.to_le_bytes());
        out.extend([0, 0]);
        out.extend((body.len() as u16 + 8).to_le_bytes());
        out.extend(body);
    }
    let mut at = word(data, 40);
    let end = at + word(data, 48);
    while at < end {
        let len = usize::from(u16::from_le_bytes([data[at + 6], data[at + 7]]));
        let mut record = data[at..at + len].to_vec();
        at += len;
        if record[0] == 71 {
            let trace = change(&data[at..][..word(&record, 8)]);
            at += word(&record, 8);
            record[8..16].copy_from_slice(&(trace.len() as u64).to_le_bytes());
            record.extend(trace);
        }
        out.extend(record);
    }
    out
}

/// Instructions of each program's own functions, by (name of the task, module, function).
fn programs(run: &Path) -> BTreeMap<(String, String, String), u64> {
    let mut all = BTreeMap::new();
    for comm in ["sh", "ls", "sed", "wc", "date"] {
        let args = ["report", "functions", "--json", "--limit", "0", "--comm", comm, "-i", text(run)];
        for row in json(&args)["rows"].as_array().expect("rows") {
            let column = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let count = row["self_instructions"].as_u64().expect("a number");
            if column("module").starts_with("/usr/") && count > 0 {
                all.insert((comm.to_owned(), column("module"), column("function")), count);
            }
        }
    }
    all
}

pub fn check(run: &Path, data: &Path, dir: &Path) {
    let full = fs::read(data.join("data")).unwrap();
    let file = dir.join("user.perf.data");
    fs::write(&file, piped(&full, without_kernel)).unwrap();
    let import = dir.join("user");
    ok(&["import", "-q", text(&file), "--symfs", text(&data.join("symfs")), "-o", text(&import)]);
    let info = json(&["info", "--json", "-i", text(&import)]);
    assert_eq!((info["decode_errors"].as_u64(), info["lost_bytes"].as_u64()), (Some(0), Some(0)));
    let (before, after) = (programs(run), programs(&import));
    assert!(before.len() > 100 && before.keys().any(|k| k.0 == "wc"), "{} functions", before.len());
    let sums = |rows: &BTreeMap<(String, String, String), u64>| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        rows.iter().for_each(|((comm, _, _), n)| *sums.entry(comm.clone()).or_default() += n);
        sums
    };
    assert_eq!(sums(&before), sums(&after), "instructions of each program");
    // An instruction counts for the frame that it runs in, and a frame that is left while tracing is off may be
    // taken to last a little longer.
    let differ = |(key, n): &(&(String, String, String), &u64)| after.get(*key) != Some(n);
    let differing: Vec<_> = before.iter().filter(differ).map(|(key, n)| (key, n, after.get(key))).collect();
    let some = &differing[..differing.len().min(5)];
    assert!(differing.len() * 100 < before.len(), "{} of {}: {some:?}", differing.len(), before.len());
}
