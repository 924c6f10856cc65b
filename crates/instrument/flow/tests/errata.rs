// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream for each erratum that only the processor tells: right on that processor, and otherwise read on another one. Intel's
//! libipt, told the processor, reads the same. And the events that packets state beside the flow, against libipt's.

mod hand;

use std::path::Path;
use std::process::{Command, Output};

use hand::{CLOCK, Code, Ips, Pt};
use kprism_flow::errata::{Errata, Erratum, Filter, of_processor};
use kprism_flow::event::{Event, Sink};
use kprism_flow::packet_event::PacketEvent;
use kprism_flow::{Decoder, Setup};
use kprism_pt::{IpPayload, Packet};
use kprism_test::{ptoracle, test};

const U: u64 = 0x40_0000;

/// A processor that has the erratum, for libipt.
struct On {
    family: u16,
    model: u8,
}

/// Skylake of clients: SKD007, SKD022, SKD010, SKL014, SKL168.
const CLIENT: On = On { family: 6, model: 0x5e };
/// Skylake of servers: SKZ84.
const SERVER: On = On { family: 6, model: 0x55 };

impl On {
    fn errata(&self, filter: Filter) -> Errata {
        Errata::of(of_processor(self.family, self.model).expect("a known model"), filter)
    }
}

fn ptoracle_of(name: &str, code: &[u8], pt: &[u8], options: &[&str]) -> Output {
    let oracle = ptoracle();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("errata").join(name);
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let (pt_file, code_file) = (dir.join("stream.pt"), dir.join("code.bin"));
    std::fs::write(&pt_file, pt).expect("the stream");
    std::fs::write(&code_file, code).expect("the code");
    let mut command = Command::new(oracle);
    command.args(options).arg("--raw").arg(pt_file);
    command.arg("--code").arg(format!("{}@{U:x}", code_file.display()));
    command.output().expect("ptoracle")
}

/// The instructions, their hash and the errors that libipt finds in the first segment.
fn theirs(name: &str, code: &[u8], pt: &[u8], on: Option<&On>) -> (u64, String, bool) {
    let cpu = on.map(|on| format!("{}/{}/0", on.family, on.model));
    let options: Vec<&str> = cpu.iter().flat_map(|cpu| ["--cpu", cpu]).collect();
    let output = ptoracle_of(name, code, pt, &options);
    let text = String::from_utf8(output.stdout).expect("text");
    let words: Vec<&str> = text.lines().next().expect("a segment").split(' ').collect();
    (words[1].parse().expect("a number"), words[2].to_owned(), words[3] == "1")
}

fn hash(ips: &[u64]) -> String {
    let bytes = ips.iter().flat_map(|ip| ip.to_le_bytes());
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, fnv))
}

/// Decodes on the processor and on one that is not known. Checks that libipt reads the same on the processor, and that without it
/// neither does.
fn check(name: &str, code: &[u8], pt: &Pt, on: &On, want: &[u64]) {
    let mut program = Code::default();
    program.func("f", U, code);
    let (ips, stats) = program.decode_on(on.errata(Filter::default()), &pt.bytes);
    assert_eq!(ips, want, "{name}: {:?}", stats.faults);
    assert_eq!(stats.errors, 0, "{name}: {:?}", stats.faults);
    let (plain, other) = program.decode(&pt.bytes);
    assert!(plain != want || other.errors > 0, "{name}: the same on any processor");
    let (insns, found, failed) = theirs(name, code, &pt.bytes, Some(on));
    assert_eq!((insns, found, failed), (want.len() as u64, hash(want), false), "{name}: libipt");
    let (_, found, failed) = theirs(name, code, &pt.bytes, None);
    assert!(failed || found != hash(want), "{name}: the same for libipt on any processor");
}

/// nop; jne back to it; hlt
const LOOP: &[u8] = &[0x90, 0x75, 0xfd, 0xf4];

#[test]
fn skd007_an_overflow_in_a_cyc() {
    let mut pt = Pt::new();
    pt.psb(U).tnt("t");
    // The first byte of a CYC of two bytes, then OVF. On another processor: two CYCs, and the FUP is an event.
    pt.bytes.extend([0x07]);
    pt.put(Packet::Ovf).put(Packet::Fup(IpPayload::Sext48(U + 1))).tnt("t").fup(U).pgd(None);
    check("skd007", LOOP, &pt, &CLIENT, &[U, U + 1, U + 1]);
}

#[test]
fn skz84_a_tma_with_a_byte_too_many() {
    let mut pt = Pt::new();
    pt.psb(U).tnt("t");
    pt.bytes.extend([0x02, 0x73, 0x34, 0x12, 0x05, 0x10, 0x00, 0x99]);
    pt.tnt("t").fup(U).pgd(None);
    check("skz84", LOOP, &pt, &SERVER, &[U, U + 1, U, U + 1]);
}

#[test]
fn skd022_a_fup_at_a_vm_entry() {
    // vmlaunch; nop; vmresume; hlt
    let code = [0x0f, 0x01, 0xc2, 0x90, 0x0f, 0x01, 0xc3, 0xf4];
    let mut pt = Pt::new();
    pt.psb(U).fup(U).pgd(None).pge(U + 3).fup(U + 4).pgd(None);
    check("skd022", &code, &pt, &CLIENT, &[U, U + 3, U + 4]);
}

/// ptoracle has no option for filters. libipt's cases `skl014-*`, which `ptt` runs, have.
#[test]
fn skl014_a_jump_out_of_the_filter() {
    // jmp +0x10; far below: jmp to itself
    let mut code = Code::default();
    code.func("f", U, &[0xeb, 0x0e, 0xf4]);
    code.func("g", U + 0x10, &[0xeb, 0xfe]);
    let mut pt = Pt::new();
    pt.psb(U).pgd(None);
    let filter = Filter { ranges: [(U, U + 7), (0, 0), (0, 0), (0, 0)] };
    let (ips, stats) = code.decode_on(CLIENT.errata(filter), &pt.bytes);
    assert_eq!((ips, stats.errors), (vec![U], 0), "{:?}", stats.faults);
    for errata in [Errata::NONE, CLIENT.errata(Filter::default())] {
        let (ips, stats) = code.decode_on(errata, &pt.bytes);
        assert!(ips != [U] || stats.errors > 0, "{errata:?}");
    }
}

/// A CYC and an MTC are missing before a PSB. The time starts anew at the TSC of each PSB+, and the measure of cycles too: what
/// was lost before it changes nothing behind it.
#[test]
fn skl168_does_not_reach_beyond_a_psb() {
    let mut code = Code::default();
    code.func("f", U, LOOP);
    let stream = |whole: bool| {
        let mut pt = Pt::new();
        pt.psb_at(U, 1000).put(Packet::Mtc { ctc: 1 }).tnt("t").cyc(100).put(Packet::Mtc { ctc: 2 }).tnt("t");
        if whole {
            pt.cyc(320).put(Packet::Mtc { ctc: 3 });
        }
        pt.psb_at(U, 2000)
            .put(Packet::Mtc { ctc: 4 })
            .tnt("t")
            .cyc(100)
            .put(Packet::Mtc { ctc: 5 })
            .tnt("t")
            .cyc(7)
            .tnt("t");
        pt.bytes
    };
    let last = |bytes: &[u8]| code.decode(bytes).1.last_ns;
    assert!(last(&stream(true)) > 2000);
    assert_eq!(last(&stream(true)), last(&stream(false)));
}

#[test]
fn models_are_those_of_libipt() {
    let oracle = ptoracle();
    for model in 0..=u8::MAX {
        let cpu = format!("6/{model}/0");
        let output = Command::new(&oracle).args(["--cpu", &cpu]).output().expect("ptoracle");
        let unknown = String::from_utf8_lossy(&output.stderr).contains("does not know it");
        // Newer libipt know more models than Debian's.
        assert!(unknown || of_processor(6, model).is_some(), "{cpu} is known to libipt");
    }
    assert_eq!(of_processor(6, 0x3d), Some(&[Erratum::Bdm70, Erratum::Bdm64][..]));
}

/// Events as ptoracle prints them.
#[derive(Default)]
struct Events {
    ips: Ips,
    lines: Vec<String>,
}

impl Sink for Events {
    const IPS: bool = true;
    const PACKET_EVENTS: bool = true;

    fn event(&mut self, _: Event) {}

    fn time(&mut self, _: u32, _: u64) {}

    fn ips(&mut self, ips: &[u64]) {
        self.ips.ips(ips);
    }

    fn packet_event(&mut self, _: u32, event: PacketEvent) {
        let words = match event.packet {
            Packet::Ptw { payload, size, .. } => format!("ptwrite {size} {payload:x}"),
            Packet::Mwait { hints, ext } => format!("mwait {hints:x} {ext:x}"),
            Packet::Exstop { .. } => "exstop".to_owned(),
            Packet::Pwre { state, sub_state, hw } => {
                format!("pwre {state} {sub_state} {}", u8::from(hw))
            }
            Packet::Pwrx { last, deepest, reason } => {
                format!("pwrx {last} {deepest} {reason}")
            }
            Packet::Cbr { ratio } if !event.restated => format!("cbr {ratio}"),
            Packet::Mnt { payload } => format!("mnt {payload:x}"),
            _ => return,
        };
        let ip = event.ip.map_or("-".to_owned(), |ip| format!("{ip:x}"));
        self.lines.push(format!("{words} at {ip} after {}", self.ips.0.len()));
    }
}

#[test]
fn events_are_libipts() {
    // nop; ptwrite eax; nop; ptwrite rax; jne back; nop; mwait; nop; hlt
    let code = [
        &[0x90][..],
        &[0xf3, 0x0f, 0xae, 0xe0],
        &[0x90],
        &[0xf3, 0x48, 0x0f, 0xae, 0xe0],
        &[0x75, 0xf3],
        &[0x90, 0x0f, 0x01, 0xc9, 0x90, 0xf4],
    ]
    .concat();
    let (first, second, wait) = (U + 1, U + 6, U + 14);
    let mut pt = Pt::new();
    pt.psb(U).put(Packet::Cbr { ratio: 24 });
    // With and without a FUP; in a loop, so that the same code runs again.
    for ip in [false, true] {
        pt.put(Packet::Ptw { payload: 0xabcd, size: 4, ip });
        if ip {
            pt.fup(first);
        }
        pt.put(Packet::Ptw { payload: 0xef09_1234_5678, size: 8, ip });
        if ip {
            pt.fup(second);
        }
        pt.tnt(if ip { "n" } else { "t" });
    }
    pt.put(Packet::Mnt { payload: 7 });
    pt.put(Packet::Mwait { hints: 0x60, ext: 1 }).put(Packet::Exstop { ip: true }).fup(wait);
    pt.put(Packet::Pwre { state: 5, sub_state: 15, hw: false });
    pt.put(Packet::Pwrx { last: 5, deepest: 5, reason: 1 }).put(Packet::Cbr { ratio: 12 });
    pt.fup(U + 17).pgd(None);
    // Not HW: libipt looks for it in bit 3 of the packet's third byte, the SDM (vol. 3, 33.4.2.23) and perf have it in bit 7.
    pt.put(Packet::Pwre { state: 0, sub_state: 0, hw: false }).put(Packet::Exstop { ip: false });
    pt.put(Packet::Pwrx { last: 0, deepest: 0, reason: 8 });
    let mut program = Code::default();
    program.func("f", U, &code);
    let setup =
        Setup { image: &program.image, resolver: &program, clock: CLOCK, watch: None, errata: Errata::NONE };
    let mut ours = Events::default();
    let stats = Decoder::new(&pt.bytes, setup, true).run(0, pt.bytes.len(), &mut ours);
    assert_eq!(stats.faults, []);
    let counted: Vec<(&str, u64)> = stats.packet_events.iter().map(|(kind, n)| (kind.name(), n)).collect();
    assert_eq!(
        counted,
        [("ptwrite", 4), ("mwait", 1), ("pwre", 2), ("pwrx", 2), ("exstop", 2), ("cbr", 2), ("mnt", 1)]
    );
    let output = ptoracle_of("events", &code, &pt.bytes, &["--events"]);
    let theirs = String::from_utf8(output.stdout).expect("text");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(ours.lines, theirs.lines().collect::<Vec<_>>());
    assert_eq!(ours.lines.len(), 14);
}

kprism_test::main!();
