// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes one packet from a fixed window of bytes.
//!
//! Every packet except an over-long CYC fits 16 bytes, so the decoder works on a `[u8; 16]`: all indices are constants,
//! and no field needs a bounds check. Near the end of the stream the reader passes a copy padded with zeros, and
//! compares the packet's length with the number of bytes that are left.

mod ext;

use crate::opcode::*;
use crate::{IpPayload, Packet, PacketErrorKind};

/// Length of the window: the longest packet, PSB.
pub(crate) const WINDOW: usize = 16;

pub(crate) type Window = [u8; WINDOW];

/// A packet and its length in bytes.
pub(crate) type Decoded = Result<(Packet, usize), PacketErrorKind>;

/// Decodes the packet at the window's start, outside of a BIP block. Never returns BIP.
#[inline(always)]
pub(crate) fn decode(w: &Window) -> Decoded {
    let opcode = w[0];
    if opcode & 1 == 0 {
        return match opcode {
            PAD => Ok((Packet::Pad, 1)),
            EXT if w[1] == EXT_TNT64 => tnt64(w),
            EXT => ext::decode(w),
            _ => Ok((tnt8(opcode), 1)),
        };
    }
    if opcode & 3 == CYC {
        return cyc(w);
    }
    match opcode & IP_MASK {
        TIP => ip(w).map(|(ip, len)| (Packet::Tip(ip), len)),
        FUP => ip(w).map(|(ip, len)| (Packet::Fup(ip), len)),
        TIP_PGE => ip(w).map(|(ip, len)| (Packet::TipPge(ip), len)),
        TIP_PGD => ip(w).map(|(ip, len)| (Packet::TipPgd(ip), len)),
        _ => match opcode {
            TSC => Ok((Packet::Tsc { tsc: bytes8(w, 0) >> 8 }, 8)),
            MTC => Ok((Packet::Mtc { ctc: w[1] }, 2)),
            MODE => mode(w[1]),
            TRIG => Ok(trig(w)),
            _ => Err(PacketErrorKind::BadOpcode(u16::from(opcode))),
        },
    }
}

/// Decodes the BIP packet at the window's start. The caller knows that a block is open.
pub(crate) fn bip(w: &Window, size4: bool) -> (Packet, usize) {
    let (payload, size) = if size4 { (u64::from(bytes4(w, 1)), 4) } else { (bytes8(w, 1), 8) };
    (Packet::Bip { id: w[0] >> 3, payload, size }, 1 + usize::from(size))
}

/// "Short TNT": stop bit, then up to six branches, then a zero bit.
#[inline(always)]
fn tnt8(opcode: u8) -> Packet {
    // The opcode is neither 0 nor 2, so there is a stop bit and at least one branch below it.
    let len = 6 - opcode.leading_zeros();
    let bits = u64::from(opcode >> 1) & !(1 << len);
    Packet::Tnt { bits, len: len as u8 }
}

/// "Long TNT": the same over a 48-bit payload.
#[inline(always)]
fn tnt64(w: &Window) -> Decoded {
    let payload = bytes8(w, 0) >> 16;
    if payload <= 1 {
        return Err(PacketErrorKind::BadPayload(u16::from_be_bytes([EXT, EXT_TNT64])));
    }
    let len = 63 - payload.leading_zeros();
    Ok((Packet::Tnt { bits: payload & !(1 << len), len: len as u8 }, 8))
}

/// Decodes the IP payload according to IPBytes. Returns it with the packet's length.
#[inline(always)]
fn ip(w: &Window) -> Result<(IpPayload, usize), PacketErrorKind> {
    let payload = match w[0] >> 5 {
        0 => IpPayload::Suppressed,
        1 => IpPayload::Update16(u16::from_le_bytes([w[1], w[2]])),
        2 => IpPayload::Update32(bytes4(w, 1)),
        3 => IpPayload::Sext48(bytes8(w, 1) << 16 >> 16),
        4 => IpPayload::Update48(bytes8(w, 1) << 16 >> 16),
        6 => IpPayload::Full(bytes8(w, 1)),
        _ => return Err(PacketErrorKind::BadOpcode(u16::from(w[0]))),
    };
    Ok((payload, 1 + payload.size()))
}

/// CYC: five bits in the first byte, seven in each further byte while bit 0 of the previous one is set. Up to 4096
/// cycles take two bytes, the common case in dense streams.
#[inline(always)]
fn cyc(w: &Window) -> Decoded {
    let cycles = u64::from(w[0] >> 3);
    if w[0] & 4 == 0 {
        return Ok((Packet::Cyc { cycles }, 1));
    }
    let cycles = cycles | u64::from(w[1] >> 1) << 5;
    if w[1] & 1 == 0 {
        return Ok((Packet::Cyc { cycles }, 2));
    }
    long_cyc(w, cycles)
}

/// A CYC of three bytes or more; `cycles` holds the bits of the first two.
#[inline(never)]
fn long_cyc(w: &Window, mut cycles: u64) -> Decoded {
    let mut shift = 12;
    for (i, byte) in w.iter().enumerate().skip(2) {
        let part = u64::from(byte >> 1);
        // Zeros above bit 63 are redundant but valid. Ones would overflow.
        if shift < 64 {
            cycles |= part << shift;
        }
        if part != 0 && (shift >= 64 || part << shift >> shift != part) {
            break;
        }
        if byte & 1 == 0 {
            return Ok((Packet::Cyc { cycles }, i + 1));
        }
        shift += 7;
    }
    Err(PacketErrorKind::BadPayload(u16::from(w[0])))
}

fn mode(payload: u8) -> Decoded {
    let bit = |n: u8| payload >> n & 1 != 0;
    let packet = match payload & MODE_LEAF {
        MODE_EXEC => Packet::ModeExec { cs_l: bit(0), cs_d: bit(1), if_flag: bit(2) },
        MODE_TSX => Packet::ModeTsx { in_tx: bit(0), abort: bit(1) },
        _ => return Err(PacketErrorKind::BadPayload(u16::from(MODE))),
    };
    Ok((packet, 2))
}

fn trig(w: &Window) -> (Packet, usize) {
    let counted = w[1] & 0x40 != 0;
    let instructions = counted.then(|| u16::from_le_bytes([w[3], w[4]]));
    let packet =
        Packet::Trig { triggers: w[2], instructions, multiple: w[1] & 0x20 != 0, ip: w[1] & 0x80 != 0 };
    (packet, if counted { 5 } else { 3 })
}

#[inline(always)]
fn bytes4(w: &Window, at: usize) -> u32 {
    u32::from_le_bytes([w[at], w[at + 1], w[at + 2], w[at + 3]])
}

#[inline(always)]
fn bytes8(w: &Window, at: usize) -> u64 {
    u64::from(bytes4(w, at)) | u64::from(bytes4(w, at + 4)) << 32
}
