// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiny programs and the streams that running them would leave.

use kprism_pt::{IpPayload, LastIp, Packet};

use crate::input::Fragment;

const USER: u64 = 0x40_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// `call f; jne -; jmp *rax; syscall; jmp -; f: nop; ret`
const USER_CODE: [u8; 16] =
    [0xe8, 9, 0, 0, 0, 0x75, 0xf9, 0xff, 0xe0, 0x0f, 0x05, 0xeb, 0xf3, 0x90, 0x90, 0xc3];

/// `nop; je -; sysretq; iretq; hlt; jmp -`
const KERNEL_CODE: [u8; 11] = [0x90, 0x74, 0xfd, 0x48, 0x0f, 0x07, 0x48, 0xcf, 0xf4, 0xeb, 0xfd];

type Program = (&'static str, Vec<Fragment>, Vec<Packet>);

pub fn all() -> Vec<Program> {
    vec![
        ("calls", code(), calls()),
        ("syscall", code(), syscall()),
        ("interrupt", code(), interrupt()),
        ("overflow", code(), overflow()),
        ("two-segments", code(), [syscall(), interrupt()].concat()),
        ("patched", patched(), syscall()),
        ("loops", vec![fragment(0, 0, false, &[0xeb, 0xfe])], calls()),
        ("no-code", Vec::new(), syscall()),
    ]
}

fn fragment(place: u8, offset: u16, replaces: bool, code: &[u8]) -> Fragment {
    Fragment { place, offset, replaces, code: code.to_vec() }
}

fn code() -> Vec<Fragment> {
    vec![fragment(0, 0, false, &USER_CODE), fragment(1, 0, false, &KERNEL_CODE)]
}

/// The kernel's loop is replaced in the middle of the stream: `nop; jne -`.
fn patched() -> Vec<Fragment> {
    let mut code = code();
    code.push(fragment(1, 80, true, &[0x90, 0x75, 0xfd]));
    code
}

/// PSB+ with the flow at `ip`.
fn psb_plus(last: &mut LastIp, ip: u64) -> Vec<Packet> {
    last.reset();
    vec![
        Packet::Psb,
        Packet::Tsc { tsc: 0x1000 },
        Packet::Tma { ctc: 0x100, fast: 3 },
        Packet::Cbr { ratio: 10 },
        Packet::ModeExec { cs_l: true, cs_d: false, if_flag: false },
        Packet::Pip { cr3: 0x1000, non_root: false },
        Packet::Fup(last.compress(ip)),
        Packet::PsbEnd,
    ]
}

fn tnt(bits: &str) -> Packet {
    Packet::Tnt { bits: u64::from_str_radix(bits, 2).unwrap_or(0), len: bits.len() as u8 }
}

/// Compressed returns, branches, an indirect jump with its target deferred, tracing off.
fn calls() -> Vec<Packet> {
    let mut last = LastIp::default();
    let mut out = psb_plus(&mut last, USER);
    out.extend([tnt("111110"), Packet::Tip(last.compress(USER)), Packet::Cyc { cycles: 40 }]);
    out.extend([tnt("1010"), Packet::Tip(last.compress(USER + 11)), Packet::Mtc { ctc: 0x21 }]);
    out.extend([Packet::Tip(last.compress(USER)), tnt("1"), Packet::TipPgd(IpPayload::Suppressed)]);
    out
}

fn syscall() -> Vec<Packet> {
    let mut last = LastIp::default();
    let mut out = psb_plus(&mut last, USER + 9);
    out.extend([Packet::Tip(last.compress(KERNEL)), tnt("1110"), Packet::Cyc { cycles: 7 }]);
    out.extend([Packet::Tip(last.compress(USER + 11)), tnt("10"), Packet::Tip(last.compress(USER + 9))]);
    out.extend([Packet::Tip(last.compress(KERNEL)), tnt("10"), Packet::Tip(last.compress(USER))]);
    out
}

fn interrupt() -> Vec<Packet> {
    let mut last = LastIp::default();
    let mut out = psb_plus(&mut last, USER);
    out.extend([tnt("11"), Packet::Fup(last.compress(USER + 14)), Packet::Tip(last.compress(KERNEL + 6))]);
    out.extend([Packet::Pip { cr3: 0x1000, non_root: false }, Packet::Tip(last.compress(USER + 14))]);
    out.extend([tnt("10"), Packet::TipPgd(last.compress(USER))]);
    out.extend([Packet::TipPge(last.compress(KERNEL + 8)), Packet::Fup(last.compress(KERNEL + 9))]);
    out.extend([Packet::Tip(last.compress(KERNEL)), tnt("0")]);
    out
}

fn overflow() -> Vec<Packet> {
    let mut last = LastIp::default();
    let mut out = psb_plus(&mut last, USER);
    out.extend([
        tnt("11"),
        Packet::Ovf,
        Packet::Fup(last.compress(USER + 14)),
        Packet::Tip(last.compress(USER)),
    ]);
    out.extend([Packet::ModeTsx { in_tx: true, abort: false }, Packet::Fup(last.compress(USER)), tnt("10")]);
    out.extend([Packet::ModeTsx { in_tx: false, abort: true }, Packet::Fup(last.compress(USER + 7))]);
    out.extend([Packet::Tip(last.compress(USER)), Packet::TraceStop]);
    out
}
