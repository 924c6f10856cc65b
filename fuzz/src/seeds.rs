// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the seed corpora: `cargo run --bin seeds` from `fuzz/`. Each seed is one file of `corpus/TARGET`, named
//! after what it holds, so that the corpus stays reviewable and can be made again.

use std::fs;
use std::path::Path;

use kprism_pt::{IpPayload, LastIp, Packet};

mod buses;
#[path = "../../crates/session/import/tests/common/export.rs"]
mod export;
#[path = "../../crates/format/ftrace/tests/common/mod.rs"]
mod ftrace;
#[allow(dead_code)]
mod input;
#[allow(dead_code)]
mod pieces;
mod programs;
mod recorded;
#[allow(dead_code)]
#[path = "../../crates/format/btf/tests/synthetic/mod.rs"]
mod types;

/// Seeds of ftrace's readers: small files of their tests, and what those make.
fn ftrace_seeds(corpus: &Path) -> std::io::Result<()> {
    use ftrace::Order::{Big, Little};
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/format/ftrace/tests/data");
    for entry in fs::read_dir(data.join("text"))? {
        let path = entry?.path();
        fs::copy(&path, corpus.join("ftrace_text").join(path.file_stem().unwrap_or_default()))?;
    }
    // The first byte chooses layout, order of bytes and number of CPUs.
    let raw = corpus.join("ftrace_raw");
    let chosen = |choice: u8, pages: Vec<u8>| [vec![choice], pages].concat();
    for name in ["cpu0", "threshold"] {
        fs::write(raw.join(name), chosen(0, fs::read(data.join(format!("raw/{name}.raw")))?))?;
    }
    let two = [fs::read(data.join("raw/cpu0.raw"))?, fs::read(data.join("raw/cpu1.raw"))?].concat();
    fs::write(raw.join("two"), chosen(4, two))?;
    fs::write(raw.join("kinds-little"), chosen(2, ftrace::page(Little, 512)))?;
    fs::write(raw.join("kinds-big"), chosen(3, ftrace::page(Big, 512)))?;
    let dat = corpus.join("trace_dat");
    fs::write(dat.join("v6"), ftrace::v6(Little))?;
    fs::write(dat.join("v6-big"), ftrace::v6(Big))?;
    for method in ["none", "zlib", "zstd"] {
        fs::write(dat.join(format!("v7-{method}")), ftrace::v7(Little, method))?;
    }
    fs::write(dat.join("v7-big"), ftrace::v7(Big, "none"))
}

/// What GDB 13 sends.
fn sessions() -> [(&'static str, Vec<&'static str>); 4] {
    [
        (
            "connect",
            vec![
                "qSupported:multiprocess+;swbreak+;hwbreak+;qRelocInsn+;fork-events+;vContSupported+;xmlRegisters=i386",
                "vMustReplyEmpty",
                "QStartNoAckMode",
                "Hgp0.0",
                "qXfer:features:read:target.xml:0,ffb",
                "qTStatus",
                "?",
                "qXfer:auxv:read::0,1000",
                "qAttached:c61",
                "Hc-1",
                "qOffsets",
                "g",
                "qfThreadInfo",
                "qsThreadInfo",
                "m7ffff7fe4b40,40",
                "vFile:setfs:0",
                "vFile:open:6a7573742070726f62696e67,0,1c0",
                "vFile:pread:3,fff,0",
                "vFile:fstat:3",
                "vFile:close:3",
                "qTfV",
                "qTsV",
                "qTfP",
                "qTsP",
                "qThreadExtraInfo,pc61.c61",
                "vCont?",
                "vCont;c:pc61.-1",
                "D;c61",
            ],
        ),
        (
            "trace",
            vec![
                "QTinit",
                "QTDV:2:5:0:68697473",
                "QTDP:2:40115f:E:0:5:X4,22012227-",
                "QTDPsrc:2:40115f:cond:0:5:6e203e2030",
                "QTDP:-2:40115f:R0fff-",
                "QTDP:-2:40115f:M-1,40405c,4X00000005,2c00022e27M6,8,4",
                "QTDP:3:401170:D:3:0-",
                "QTDP:-3:401170:SR010040-",
                "QTDP:-3:401170:X3,220127",
                "QTDP:4:401180:E:0:0:F5:X2,2227",
                "QTro:400000,401000:402000,403000",
                "QTBuffer:circular:1",
                "QTBuffer:size:-1",
                "QTNotes:user:6d65;notes:;tstop:;",
                "QTDisconnected:1",
                "QTStart",
                "QTDisable:2:40115f",
                "QTEnable:2:40115f",
                "qTP:2:40115f",
                "qTV:2",
                "QTStop",
            ],
        ),
        (
            "find",
            vec![
                "QTFrame:0",
                "QTFrame:tdp:3",
                "QTFrame:pc:40115f",
                "QTFrame:range:401000:402000",
                "QTFrame:outside:401000:402000",
                "qXfer:traceframe-info:read::0,ffb",
                "g",
                "m40405c,4",
                "qXfer:statictrace:read::0,1000",
                "QTFrame:ffffffff",
                "qTBuffer:0,1ff0",
                "QTSave:6f75742e7466",
            ],
        ),
        (
            "static",
            vec![
                "qTfSTM",
                "qTsSTM",
                "qTSTMat:ffffffffc0201010",
                "QTDP:1:ffffffffc0201010:E:0:0:S-",
                "QTDP:-1:ffffffffc0201010:R18L",
            ],
        ),
    ]
}

/// Tracepoints, hits of them (GDB's interrupt), and frames that are asked for.
fn session(circular: bool, hits: usize) -> Vec<u8> {
    let before = [
        "QTinit",
        "QTBuffer:size:400",
        if circular { "QTBuffer:circular:1" } else { "QTBuffer:circular:0" },
        "QTDV:2:5:0:68697473",
        "QTDP:2:40115f:E:0:0:X4,22012227-",
        "QTDP:-2:40115f:R0fff-",
        "QTDP:-2:40115f:M-1,40405c,4X00000005,2c00022e27",
        "QTDP:3:401170:E:0:0-",
        "QTDP:-3:401170:M-1,401170,40",
        "QTDP:4:401180:D:0:0:S-",
        "QTDP:-4:401180:L",
        "QTDPsrc:2:40115f:cond:0:5:6e203e2030",
        "QTStart",
    ];
    let after = [
        "QTEnable:4:401180",
        "QTFrame:0",
        "QTFrame:tdp:3",
        "QTFrame:pc:40115f",
        "QTFrame:range:401000:402000",
        "QTFrame:outside:401170:402000",
        "qTP:2:40115f",
        "qTBuffer:0,1ff0",
        "QTStop",
        "qTfP",
        "qTsP",
        "QTFrame:ffffffff",
    ];
    let packets =
        |all: &[&str]| all.iter().flat_map(|p| kprism_rsp::wire::packet(p.as_bytes())).collect::<Vec<_>>();
    [packets(&before), vec![3; hits], packets(&after), vec![3; hits], packets(&after)].concat()
}

/// Manifests: the least, and one with accounts and with fields of another version.
fn manifests() -> [(&'static str, &'static str); 2] {
    [
        ("least", r#"{"version": 1, "kind": "lab", "vcpus": 1}"#),
        (
            "accounts",
            r#"{"version": 1, "tool": "kprism 0.1.0", "kind": "host", "command": ["ls", "-l"],
"kernel": {"release": "6.12.1", "build_id": "00ff"}, "created": "2026-01-02T03:04:05Z", "vcpus": 2, "exit_code": 0,
"clock": {"name": "monotonic", "tsc_hz": 1000000000, "art_num": 40, "art_den": 1, "mtc_freq": 3, "nom_ratio": 10},
"options": {"record": "probe", "last": null, "probes": ["work if n > 3"]}, "later": {"a": [1, 2.5, "x"]},
"accounts": {"probe": [{"fate": "seen", "unit": "hits", "count": 3}, {"fate": "kept", "unit": "records", "count": 2},
{"fate": "lost", "unit": "places not attached", "count": 1, "places": ["main.c:7: no code\u001b[2J"]},
{"fate": "not_understood", "unit": "damaged records", "count": null}, {"fate": "guessed", "unit": "lines", "count": 0}]}}"#,
        ),
    ]
}

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let targets = [
        "packets",
        "flow",
        "perfdata",
        "simplept",
        "ftrace_text",
        "ftrace_raw",
        "trace_dat",
        "btf",
        "buscapture",
        "bustrace",
        "busqemu",
        "rsp",
        "run",
        "sideband",
        "rsp_session",
        "manifest",
    ];
    for folder in targets {
        fs::create_dir_all(corpus.join(folder))?;
    }
    for (name, packets) in streams() {
        fs::write(corpus.join("packets").join(name), encode(&packets))?;
    }
    for (name, fragments, packets) in programs::all() {
        fs::write(corpus.join("flow").join(name), input::write(&fragments, &encode(&packets)))?;
    }
    for (name, text, packets) in folders() {
        let bytes = [text.as_bytes(), &[0], &encode(&packets)].concat();
        fs::write(corpus.join("simplept").join(name), bytes)?;
    }
    ftrace_seeds(&corpus)?;
    for (name, bytes) in buses::lines() {
        fs::write(corpus.join("busqemu").join(name), bytes)?;
    }
    for (name, bytes) in buses::captures() {
        fs::write(corpus.join("buscapture").join(name), bytes)?;
    }
    for (name, bytes) in buses::all() {
        fs::write(corpus.join("bustrace").join(name), bytes)?;
    }
    for (name, packets) in sessions() {
        let bytes: Vec<u8> = packets.iter().flat_map(|p| kprism_rsp::wire::packet(p.as_bytes())).collect();
        fs::write(corpus.join("rsp").join(name), bytes)?;
    }
    for (name, bytes) in recorded::sidebands() {
        fs::write(corpus.join("sideband").join(name), bytes)?;
    }
    for (name, hits) in [("plain", 3), ("circular", 40)] {
        fs::write(corpus.join("rsp_session").join(name), session(name == "circular", hits))?;
    }
    for (name, text) in manifests() {
        fs::write(corpus.join("manifest").join(name), text)?;
    }
    let scratch = corpus.join("scratch");
    for (name, bytes) in recorded::runs(&scratch)? {
        fs::write(corpus.join("run").join(name), bytes)?;
    }
    let data = fs::read(export::small(&scratch).join("data"))?;
    fs::remove_dir_all(&scratch)?;
    let folder = corpus.join("perfdata");
    fs::write(folder.join("exported"), &data)?;
    fs::write(folder.join("piped"), export::piped(&data, false))?;
    fs::write(folder.join("compressed"), export::piped(&data, true))?;
    let folder = corpus.join("btf");
    fs::write(folder.join("kernel"), types::kernel())?;
    fs::write(folder.join("module"), types::module(0, types::kernel_strings()))
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    let mut bytes = Vec::new();
    packets.iter().for_each(|p| p.encode(&mut bytes));
    bytes
}

/// Sidebands of simple-pt in each way that it writes them, and streams with the address spaces that they name.
fn folders() -> Vec<(&'static str, String, Vec<Packet>)> {
    const META: &str = "meta family 6\nmeta model 94\nmeta stepping 3\nmeta tsc_ratio 2 216\nmeta nom_freq 26\nmeta mtc_freq 4\n";
    const TRACED: &str =
        "7.250000 9 4000 401000 0 20\t/ptout.0\n7.5 7 2000 401002 0 8\t/ptout.0:/ptout.sideband\n";
    const BEFORE: &str =
        "0.0 7 2000 401000 00000000 16 \t/bin/ptout.0\n0.0 8 3000 ffffffff81000000 0 99\t/gone\n";
    const OLD: &str = "0.0 1 2000 400000 0 /ptout.0\nwhat is this\n";
    let pip = |cr3| Packet::Pip { cr3, non_root: false };
    let stream = vec![Packet::Psb, pip(0x2000), Packet::PsbEnd, pip(0x5000), pip(0x3000)];
    vec![
        ("traced", [META, TRACED].concat(), stream.clone()),
        ("before", [META, BEFORE].concat(), stream.clone()),
        ("both", [TRACED, BEFORE].concat(), vec![Packet::Psb, Packet::PsbEnd]),
        ("old", OLD.to_owned(), stream),
    ]
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
