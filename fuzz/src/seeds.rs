// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the seed corpora: `cargo run --bin seeds` from `fuzz/`. Each seed is one file of `corpus/packets`,
//! `corpus/flow`, `corpus/perfdata` or `corpus/bustrace`, named after what it holds, so that the corpus stays reviewable and can be made again.

use std::fs;
use std::path::Path;

use kprism_pt::{IpPayload, LastIp, Packet};

mod buses;
#[path = "../../crates/kprism-import/tests/common/export.rs"]
mod export;
#[allow(dead_code)]
mod input;
mod programs;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for folder in ["packets", "flow", "perfdata", "bustrace"] {
        fs::create_dir_all(corpus.join(folder))?;
    }
    for (name, packets) in streams() {
        fs::write(corpus.join("packets").join(name), encode(&packets))?;
    }
    for (name, fragments, packets) in programs::all() {
        fs::write(corpus.join("flow").join(name), input::write(&fragments, &encode(&packets)))?;
    }
    for (name, bytes) in buses::all() {
        fs::write(corpus.join("bustrace").join(name), bytes)?;
    }
    let scratch = corpus.join("scratch");
    let data = fs::read(export::small(&scratch).join("data"))?;
    fs::remove_dir_all(&scratch)?;
    let folder = corpus.join("perfdata");
    fs::write(folder.join("exported"), &data)?;
    fs::write(folder.join("piped"), export::piped(&data, false))?;
    fs::write(folder.join("compressed"), export::piped(&data, true))
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    let mut bytes = Vec::new();
    packets.iter().for_each(|p| p.encode(&mut bytes));
    bytes
}

fn streams() -> Vec<(&'static str, Vec<Packet>)> {
    use Packet::*;
    let mut ip = LastIp::default();
    let forms = [
        IpPayload::Suppressed,
        IpPayload::Update16(0x1234),
        IpPayload::Update32(0x8123_4567),
        IpPayload::Sext48(0xffff_8100_0000),
        IpPayload::Update48(0x7fff_0000_1000),
        IpPayload::Full(0xffff_ffff_8100_0000),
    ];
    let psb_plus = vec![
        Psb,
        Tsc { tsc: 0x12_3456_789a },
        Tma { ctc: 0x1234, fast: 0x123 },
        Cbr { ratio: 10 },
        ModeTsx { in_tx: false, abort: false },
        ModeExec { cs_l: true, cs_d: false, if_flag: true },
        Pip { cr3: 0x1234_5000, non_root: false },
        Vmcs { base: 0x7_6543_2000 },
        Fup(ip.compress(0xffff_ffff_8100_0000)),
        PsbEnd,
    ];
    let flow = vec![
        Tnt { bits: 0b1, len: 1 },
        Tnt { bits: 0b10_1101, len: 6 },
        Tnt { bits: 0x2aaa_5555_aaaa, len: 47 },
        Tip(ip.compress(0xffff_ffff_8100_0040)),
        Fup(ip.compress(0xffff_ffff_8100_0080)),
        Tip(ip.compress(0x40_1000)),
        TipPgd(IpPayload::Suppressed),
        TipPge(ip.compress(0x40_1000)),
        Pad,
        Ovf,
        Fup(ip.compress(0x40_2000)),
        TraceStop,
    ];
    let block = |size4| {
        let size = if size4 { 4 } else { 8 };
        let item = |id| Bip { id, payload: 0x1122_3344, size };
        vec![Bbp { typ: 1, size4 }, item(0), Mtc { ctc: 1 }, item(31), Bep { ip: true }]
    };
    vec![
        ("psb-plus", psb_plus.clone()),
        ("flow", flow.clone()),
        ("stream", [psb_plus, flow].concat()),
        ("tip-forms", forms.map(Tip).to_vec()),
        ("pge-forms", forms.map(TipPge).to_vec()),
        ("pgd-forms", forms.map(TipPgd).to_vec()),
        ("fup-forms", forms.map(Fup).to_vec()),
        ("cyc-lengths", (0..64).map(|n| Cyc { cycles: 1 << n }).collect()),
        ("time", vec![Mtc { ctc: 7 }, Cyc { cycles: 100 }, Cbr { ratio: 34 }, Tsc { tsc: 1 << 55 }]),
        ("block-4", block(true)),
        ("block-8", block(false)),
        (
            "ptwrite",
            vec![
                Ptw { payload: 0x1234_5678, size: 4, ip: false },
                Ptw { payload: u64::MAX, size: 8, ip: true },
                Mnt { payload: 0xdead_beef },
            ],
        ),
        (
            "power",
            vec![
                Mwait { hints: 0x60, ext: 1 },
                Exstop { ip: true },
                Exstop { ip: false },
                Pwre { state: 6, sub_state: 1, hw: true },
                Pwrx { last: 6, deepest: 7, reason: 1 },
            ],
        ),
        (
            "events",
            vec![
                Cfe { typ: 1, vector: 14, ip: true },
                Evd { typ: 0, payload: 0x7fff_0000_0000 },
                Trig { triggers: 1, instructions: Some(500), multiple: true, ip: false },
                Trig { triggers: 3, instructions: None, multiple: false, ip: true },
            ],
        ),
        ("transaction", vec![ModeTsx { in_tx: true, abort: false }, ModeTsx { in_tx: false, abort: true }]),
    ]
}
