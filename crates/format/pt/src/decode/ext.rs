// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes the `02` opcode page. The caller decodes long TNT, the only frequent packet of this page.

use super::{Decoded, Window, bytes4, bytes8};
use crate::opcode::*;
use crate::sync::PSB;
use crate::{Packet, PacketErrorKind};

/// Decodes a packet whose first byte is `02`.
#[inline(never)]
pub(super) fn decode(w: &Window) -> Decoded {
    let opcode = w[1];
    let ip = opcode & EXT_IP != 0;
    let decoded = match opcode {
        EXT_PSB => return psb(w),
        EXT_PSBEND => (Packet::PsbEnd, 2),
        EXT_PIP => {
            let payload = bytes8(w, 0) >> 16;
            (Packet::Pip { cr3: payload >> 1 << 5, non_root: payload & 1 != 0 }, 8)
        }
        EXT_VMCS => (Packet::Vmcs { base: bytes8(w, 2) << 24 >> 12 }, 7),
        EXT_CBR => (Packet::Cbr { ratio: w[2] }, 4),
        EXT_TMA => return tma(w),
        EXT_OVF => (Packet::Ovf, 2),
        EXT_STOP => (Packet::TraceStop, 2),
        EXT_EXT2 if w[2] == EXT2_MNT => (Packet::Mnt { payload: bytes8(w, 3) }, 11),
        EXT_EXT2 => return Err(PacketErrorKind::BadOpcode(u16::from_be_bytes([EXT_EXT2, w[2]]))),
        // PTW: bits 6:5 are the payload's size, of which only 0 and 1 are defined.
        0x12 | 0x92 => (Packet::Ptw { payload: u64::from(bytes4(w, 2)), size: 4, ip }, 6),
        0x32 | 0xb2 => (Packet::Ptw { payload: bytes8(w, 2), size: 8, ip }, 10),
        EXT_EXSTOP | 0xe2 => (Packet::Exstop { ip }, 2),
        EXT_MWAIT => (Packet::Mwait { hints: bytes4(w, 2), ext: bytes4(w, 6) }, 10),
        // HW is bit 7 in the SDM and in perf, bit 3 in libipt. Either is reserved in the other.
        EXT_PWRE => (Packet::Pwre { state: w[3] >> 4, sub_state: w[3] & 15, hw: w[2] & 0x88 != 0 }, 4),
        EXT_PWRX => (Packet::Pwrx { last: w[2] >> 4, deepest: w[2] & 15, reason: w[3] & 15 }, 7),
        EXT_BBP => (Packet::Bbp { typ: w[2] & 0x1f, size4: w[2] & 0x80 != 0 }, 3),
        EXT_BEP | 0xb3 => (Packet::Bep { ip }, 2),
        EXT_CFE => (Packet::Cfe { typ: w[2] & 0x1f, vector: w[3], ip: w[2] & 0x80 != 0 }, 4),
        EXT_EVD => (Packet::Evd { typ: w[2] & 0x3f, payload: bytes8(w, 3) }, 11),
        _ => return Err(PacketErrorKind::BadOpcode(u16::from_be_bytes([EXT, opcode]))),
    };
    Ok(decoded)
}

fn psb(w: &Window) -> Decoded {
    if *w == PSB {
        Ok((Packet::Psb, PSB.len()))
    } else {
        Err(PacketErrorKind::BadPayload(u16::from_be_bytes([EXT, EXT_PSB])))
    }
}

/// TMA: CTC, a reserved byte, a 9-bit fast counter. Reserved bits that are set mean that the reader is not at a packet
/// boundary.
fn tma(w: &Window) -> Decoded {
    let fast = u16::from_le_bytes([w[5], w[6]]);
    if w[4] != 0 || fast > 0x1ff {
        return Err(PacketErrorKind::BadPayload(u16::from_be_bytes([EXT, EXT_TMA])));
    }
    Ok((Packet::Tma { ctc: u16::from_le_bytes([w[2], w[3]]), fast }, 7))
}
