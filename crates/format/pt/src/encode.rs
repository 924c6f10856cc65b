// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes packets; the inverse of `decode`. Reserved bits are written as zero.

use crate::opcode::*;
use crate::sync::PSB;
use crate::{IpPayload, Packet};

impl Packet {
    /// Appends the packet's bytes to `out`.
    ///
    /// TNT has the short form for up to six branches and the long one above. Field values wider than the field lose
    /// their high bits. A TNT without branches writes nothing. A TNT with more than 47 is written as two packets, so no
    /// branch is lost.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Packet::Pad => out.push(PAD),
            Packet::Psb => out.extend_from_slice(&PSB),
            Packet::PsbEnd => out.extend_from_slice(&[EXT, EXT_PSBEND]),
            Packet::Tnt { bits, len } => tnt(out, bits, len),
            Packet::Tip(payload) => ip(out, TIP, payload),
            Packet::TipPge(payload) => ip(out, TIP_PGE, payload),
            Packet::TipPgd(payload) => ip(out, TIP_PGD, payload),
            Packet::Fup(payload) => ip(out, FUP, payload),
            Packet::ModeExec { cs_l, cs_d, if_flag } => {
                let bits = u8::from(cs_l) | u8::from(cs_d) << 1 | u8::from(if_flag) << 2;
                out.extend_from_slice(&[MODE, MODE_EXEC | bits]);
            }
            Packet::ModeTsx { in_tx, abort } => {
                out.extend_from_slice(&[MODE, MODE_TSX | u8::from(in_tx) | u8::from(abort) << 1]);
            }
            Packet::Pip { cr3, non_root } => {
                ext(out, EXT_PIP, cr3 >> 5 << 1 | u64::from(non_root), 6);
            }
            Packet::Vmcs { base } => ext(out, EXT_VMCS, base >> 12, 5),
            Packet::Cbr { ratio } => out.extend_from_slice(&[EXT, EXT_CBR, ratio, 0]),
            Packet::Tsc { tsc } => out.extend_from_slice(&(tsc << 8 | u64::from(TSC)).to_le_bytes()),
            Packet::Tma { ctc, fast } => {
                ext(out, EXT_TMA, u64::from(ctc) | u64::from(fast & 0x1ff) << 24, 5);
            }
            Packet::Mtc { ctc } => out.extend_from_slice(&[MTC, ctc]),
            Packet::Cyc { cycles } => cyc(out, cycles),
            Packet::Ovf
            | Packet::TraceStop
            | Packet::Mnt { .. }
            | Packet::Ptw { .. }
            | Packet::Exstop { .. }
            | Packet::Mwait { .. }
            | Packet::Pwre { .. }
            | Packet::Pwrx { .. }
            | Packet::Bbp { .. }
            | Packet::Bip { .. }
            | Packet::Bep { .. }
            | Packet::Cfe { .. }
            | Packet::Evd { .. }
            | Packet::Trig { .. } => self.encode_rare(out),
        }
    }

    /// Encodes the packets that are rare in any stream.
    fn encode_rare(&self, out: &mut Vec<u8>) {
        match *self {
            Packet::Ovf => out.extend_from_slice(&[EXT, EXT_OVF]),
            Packet::TraceStop => out.extend_from_slice(&[EXT, EXT_STOP]),
            Packet::Mnt { payload } => {
                out.extend_from_slice(&[EXT, EXT_EXT2, EXT2_MNT]);
                out.extend_from_slice(&payload.to_le_bytes());
            }
            Packet::Ptw { payload, size, ip } => {
                let (code, size) = if size <= 4 { (0, 4) } else { (0x20, 8) };
                ext(out, EXT_PTW | code | ip_bit(ip), payload, size);
            }
            Packet::Exstop { ip } => out.extend_from_slice(&[EXT, EXT_EXSTOP | ip_bit(ip)]),
            Packet::Mwait { hints, ext: extensions } => {
                ext(out, EXT_MWAIT, u64::from(hints) | u64::from(extensions) << 32, 8);
            }
            Packet::Pwre { state, sub_state, hw } => {
                out.extend_from_slice(&[EXT, EXT_PWRE, u8::from(hw) << 7, state << 4 | sub_state & 15]);
            }
            Packet::Pwrx { last, deepest, reason } => {
                out.extend_from_slice(&[EXT, EXT_PWRX, last << 4 | deepest & 15, reason & 15, 0, 0, 0]);
            }
            Packet::Bbp { typ, size4 } => {
                out.extend_from_slice(&[EXT, EXT_BBP, typ & 0x1f | u8::from(size4) << 7]);
            }
            Packet::Bip { id, payload, size } => {
                out.push(id << 3 | BIP);
                out.extend_from_slice(&payload.to_le_bytes()[..if size <= 4 { 4 } else { 8 }]);
            }
            Packet::Bep { ip } => out.extend_from_slice(&[EXT, EXT_BEP | ip_bit(ip)]),
            Packet::Cfe { typ, vector, ip } => {
                out.extend_from_slice(&[EXT, EXT_CFE, typ & 0x1f | ip_bit(ip), vector]);
            }
            Packet::Evd { typ, payload } => {
                out.extend_from_slice(&[EXT, EXT_EVD, typ & 0x3f]);
                out.extend_from_slice(&payload.to_le_bytes());
            }
            Packet::Trig { triggers, instructions, multiple, ip } => {
                let flags = ip_bit(ip) | u8::from(instructions.is_some()) << 6 | u8::from(multiple) << 5;
                out.extend_from_slice(&[TRIG, flags, triggers]);
                if let Some(count) = instructions {
                    out.extend_from_slice(&count.to_le_bytes());
                }
            }
            // `encode` writes these.
            Packet::Pad
            | Packet::Psb
            | Packet::PsbEnd
            | Packet::Tnt { .. }
            | Packet::Tip(_)
            | Packet::TipPge(_)
            | Packet::TipPgd(_)
            | Packet::Fup(_)
            | Packet::ModeExec { .. }
            | Packet::ModeTsx { .. }
            | Packet::Pip { .. }
            | Packet::Vmcs { .. }
            | Packet::Cbr { .. }
            | Packet::Tsc { .. }
            | Packet::Tma { .. }
            | Packet::Mtc { .. }
            | Packet::Cyc { .. } => {}
        }
    }
}

#[inline]
fn ip_bit(ip: bool) -> u8 {
    if ip { EXT_IP } else { 0 }
}

/// Writes a two-byte opcode and the `size` low bytes of `payload`.
#[inline]
fn ext(out: &mut Vec<u8>, opcode: u8, payload: u64, size: usize) {
    out.extend_from_slice(&[EXT, opcode]);
    out.extend_from_slice(&payload.to_le_bytes()[..size]);
}

#[inline]
fn tnt(out: &mut Vec<u8>, bits: u64, len: u8) {
    let len = len.min(64);
    if len == 0 {
        return;
    }
    if len > 47 {
        tnt(out, bits >> 47, len - 47);
        return tnt(out, bits, 47);
    }
    let stop = 1u64 << len;
    let payload = stop | bits & (stop - 1);
    if len <= 6 {
        out.push((payload << 1) as u8);
    } else {
        ext(out, EXT_TNT64, payload, 6);
    }
}

#[inline]
fn ip(out: &mut Vec<u8>, opcode: u8, payload: IpPayload) {
    let (ip_bytes, value) = match payload {
        IpPayload::Suppressed => (0, 0),
        IpPayload::Update16(low) => (1, u64::from(low)),
        IpPayload::Update32(low) => (2, u64::from(low)),
        IpPayload::Sext48(low) => (3, low),
        IpPayload::Update48(low) => (4, low),
        IpPayload::Full(ip) => (6, ip),
    };
    out.push(ip_bytes << 5 | opcode);
    out.extend_from_slice(&value.to_le_bytes()[..payload.size()]);
}

#[inline]
fn cyc(out: &mut Vec<u8>, cycles: u64) {
    let mut rest = cycles >> 5;
    out.push((cycles as u8) << 3 | u8::from(rest != 0) << 2 | CYC);
    while rest != 0 {
        let low = (rest as u8) << 1;
        rest >>= 7;
        out.push(low | u8::from(rest != 0));
    }
}
