// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets as text: the SDM's name, and the payload in words.

use crate::{IpPayload, Packet};

impl Packet {
    /// The name in the SDM.
    pub fn name(&self) -> &'static str {
        match self {
            Packet::Pad => "PAD",
            Packet::Psb => "PSB",
            Packet::PsbEnd => "PSBEND",
            Packet::Tnt { .. } => "TNT",
            Packet::Tip(_) => "TIP",
            Packet::TipPge(_) => "TIP.PGE",
            Packet::TipPgd(_) => "TIP.PGD",
            Packet::Fup(_) => "FUP",
            Packet::ModeExec { .. } => "MODE.Exec",
            Packet::ModeTsx { .. } => "MODE.TSX",
            Packet::Pip { .. } => "PIP",
            Packet::Vmcs { .. } => "VMCS",
            Packet::Cbr { .. } => "CBR",
            Packet::Tsc { .. } => "TSC",
            Packet::Tma { .. } => "TMA",
            Packet::Mtc { .. } => "MTC",
            Packet::Cyc { .. } => "CYC",
            Packet::Ovf => "OVF",
            Packet::TraceStop => "TraceStop",
            Packet::Mnt { .. } => "MNT",
            Packet::Ptw { .. } => "PTW",
            Packet::Exstop { .. } => "EXSTOP",
            Packet::Mwait { .. } => "MWAIT",
            Packet::Pwre { .. } => "PWRE",
            Packet::Pwrx { .. } => "PWRX",
            Packet::Bbp { .. } => "BBP",
            Packet::Bip { .. } => "BIP",
            Packet::Bep { .. } => "BEP",
            Packet::Cfe { .. } => "CFE",
            Packet::Evd { .. } => "EVD",
            Packet::Trig { .. } => "TRIG",
        }
    }

    /// The instruction pointer that it carries, still compressed.
    pub fn ip(&self) -> Option<IpPayload> {
        match *self {
            Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip) => Some(ip),
            _ => None,
        }
    }

    /// The payload but for an instruction pointer: empty if there is none. Branches of a TNT are `T` and `N`, the oldest
    /// first, with their number.
    pub fn payload(&self) -> String {
        let ip = |ip: bool| if ip { " FUP follows" } else { "" };
        match *self {
            Packet::Pad
            | Packet::Psb
            | Packet::PsbEnd
            | Packet::Tip(_)
            | Packet::TipPge(_)
            | Packet::TipPgd(_)
            | Packet::Fup(_)
            | Packet::Ovf
            | Packet::TraceStop => String::new(),
            Packet::Tnt { bits, len } => {
                let branch = |at: u8| if bits >> at & 1 == 1 { 'T' } else { 'N' };
                let branches: String = (0..len.min(64)).rev().map(branch).collect();
                format!("{branches} ({len})")
            }
            Packet::ModeExec { cs_l, cs_d, if_flag } => {
                let size = match (cs_l, cs_d) {
                    (true, _) => "64-bit",
                    (false, true) => "32-bit",
                    (false, false) => "16-bit",
                };
                format!("{size}{}", if if_flag { " IF" } else { "" })
            }
            Packet::ModeTsx { in_tx, abort } => match (in_tx, abort) {
                (_, true) => "abort".to_owned(),
                (true, false) => "begin".to_owned(),
                (false, false) => "end".to_owned(),
            },
            Packet::Pip { cr3, non_root } => {
                format!("CR3 {cr3:#x}{}", if non_root { " VMX non-root" } else { "" })
            }
            Packet::Vmcs { base } => format!("{base:#x}"),
            Packet::Cbr { ratio } => ratio.to_string(),
            Packet::Tsc { tsc } => format!("{tsc:#x}"),
            Packet::Tma { ctc, fast } => format!("CTC {ctc:#x} FC {fast:#x}"),
            Packet::Mtc { ctc } => format!("{ctc:#x}"),
            Packet::Cyc { cycles } => cycles.to_string(),
            Packet::Mnt { payload } => format!("{payload:#x}"),
            Packet::Ptw { payload, size, ip: follows } => {
                format!("{payload:#x} ({size} bytes){}", ip(follows))
            }
            Packet::Exstop { ip: follows } | Packet::Bep { ip: follows } => {
                ip(follows).trim_start().to_owned()
            }
            Packet::Mwait { hints, ext } => format!("hints {hints:#x} extensions {ext:#x}"),
            Packet::Pwre { state, sub_state, hw } => {
                format!("C-state {state} sub-state {sub_state}{}", if hw { " by hardware" } else { "" })
            }
            Packet::Pwrx { last, deepest, reason } => {
                format!("last C-state {last} deepest {deepest} reason {reason:#x}")
            }
            Packet::Bbp { typ, size4 } => {
                format!("type {typ:#x} items of {} bytes", if size4 { 4 } else { 8 })
            }
            Packet::Bip { id, payload, size } => format!("{id:#x}: {payload:#x} ({size} bytes)"),
            Packet::Cfe { typ, vector, ip: follows } => {
                format!("{} vector {vector}{}", event(typ), ip(follows))
            }
            Packet::Evd { typ, payload } => {
                let what = match typ {
                    0 => "page fault at".to_owned(),
                    1 => "VMX exit qualification".to_owned(),
                    2 => "VMX exit reason".to_owned(),
                    other => format!("type {other:#x}:"),
                };
                format!("{what} {payload:#x}")
            }
            Packet::Trig { triggers, instructions, multiple, ip: follows } => {
                let count = instructions.map_or(String::new(), |n| format!(" after {n} instructions"));
                let several = if multiple { " several" } else { "" };
                format!("{triggers:#x}{count}{several}{}", ip(follows))
            }
        }
    }
}

/// The event of a CFE packet (SDM, "Control Flow Event packet").
fn event(typ: u8) -> String {
    const NAMES: [&str; 13] = [
        "INTR",
        "IRET",
        "SMI",
        "RSM",
        "SIPI",
        "INIT",
        "VMENTRY",
        "VMEXIT",
        "VMEXIT_INTR",
        "SHUTDOWN",
        "type 0xb",
        "UINTR",
        "UIRET",
    ];
    match usize::from(typ).checked_sub(1).and_then(|at| NAMES.get(at)) {
        Some(name) => (*name).to_owned(),
        None => format!("type {typ:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the listing of the paper on hardware-assisted profiling.
    #[test]
    fn packets_read_as_the_manual_names_them() {
        let text = |packet: Packet| format!("{} {}", packet.name(), packet.payload()).trim_end().to_owned();
        assert_eq!(text(Packet::Tnt { bits: 0b11_1100, len: 6 }), "TNT TTTTNN (6)");
        assert_eq!(text(Packet::Tnt { bits: 1, len: 1 }), "TNT T (1)");
        assert_eq!(text(Packet::Tsc { tsc: 0x45e8_97b4_d39b }), "TSC 0x45e897b4d39b");
        assert_eq!(text(Packet::Tma { ctc: 0x6457, fast: 0x1c }), "TMA CTC 0x6457 FC 0x1c");
        assert_eq!(text(Packet::Mtc { ctc: 0x8b }), "MTC 0x8b");
        assert_eq!(text(Packet::Psb), "PSB");
        assert_eq!(text(Packet::Tip(IpPayload::Suppressed)), "TIP");
        assert_eq!(text(Packet::Cfe { typ: 1, vector: 0x20, ip: true }), "CFE INTR vector 32 FUP follows");
        assert_eq!(text(Packet::Cfe { typ: 0x1f, vector: 0, ip: false }), "CFE type 0x1f vector 0");
        assert_eq!(
            text(Packet::Pwre { state: 5, sub_state: 0, hw: true }),
            "PWRE C-state 5 sub-state 0 by hardware"
        );
        assert_eq!(text(Packet::Tnt { bits: u64::MAX, len: 255 }).len(), "TNT  (255)".len() + 64);
    }
}
