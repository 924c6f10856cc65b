// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics of a stream: packets and bytes of each kind.

use crate::{Packet, PacketReader};

/// Groups of packets in the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// "TNT", short and long.
    Tnt,
    /// "TIP".
    Tip,
    /// "TIP.PGE" and "TIP.PGD".
    OnOff,
    /// "FUP".
    Fup,
    /// "MODE" in all its forms.
    Mode,
    /// "PIP" and "VMCS".
    Space,
    /// "CYC".
    Cyc,
    /// "MTC".
    Mtc,
    /// "TSC" and "TMA".
    Tsc,
    /// "CBR".
    Cbr,
    /// A whole PSB+ sequence, from "PSB" to "PSBEND": it counts once, with all its bytes.
    PsbPlus,
    /// "PAD".
    Pad,
    /// "OVF".
    Ovf,
    /// The others: power, PTWRITE, blocks, events, triggers.
    Other,
}

impl Kind {
    /// All kinds: first control flow, then time, then the rest.
    pub const ALL: [Kind; 14] = [
        Kind::Tnt,
        Kind::Tip,
        Kind::OnOff,
        Kind::Fup,
        Kind::Mode,
        Kind::Space,
        Kind::Cyc,
        Kind::Mtc,
        Kind::Tsc,
        Kind::Cbr,
        Kind::PsbPlus,
        Kind::Pad,
        Kind::Ovf,
        Kind::Other,
    ];

    /// The name in the SDM.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tnt => "TNT",
            Kind::Tip => "TIP",
            Kind::OnOff => "TIP.PGE/PGD",
            Kind::Fup => "FUP",
            Kind::Mode => "MODE",
            Kind::Space => "PIP",
            Kind::Cyc => "CYC",
            Kind::Mtc => "MTC",
            Kind::Tsc => "TSC/TMA",
            Kind::Cbr => "CBR",
            Kind::PsbPlus => "PSB+",
            Kind::Pad => "PAD",
            Kind::Ovf => "OVF",
            Kind::Other => "other",
        }
    }

    fn of(packet: &Packet) -> Kind {
        match packet {
            Packet::Tnt { .. } => Kind::Tnt,
            Packet::Tip(_) => Kind::Tip,
            Packet::TipPge(_) | Packet::TipPgd(_) => Kind::OnOff,
            Packet::Fup(_) => Kind::Fup,
            Packet::ModeExec { .. } | Packet::ModeTsx { .. } => Kind::Mode,
            Packet::Pip { .. } | Packet::Vmcs { .. } => Kind::Space,
            Packet::Cyc { .. } => Kind::Cyc,
            Packet::Mtc { .. } => Kind::Mtc,
            Packet::Tsc { .. } | Packet::Tma { .. } => Kind::Tsc,
            Packet::Cbr { .. } => Kind::Cbr,
            Packet::Psb | Packet::PsbEnd => Kind::PsbPlus,
            Packet::Pad => Kind::Pad,
            Packet::Ovf => Kind::Ovf,
            Packet::TraceStop
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
            | Packet::Trig { .. } => Kind::Other,
        }
    }
}

/// Amount of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of packets; for PSB+, of sequences.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Statistics of one or more streams, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mix {
    shares: [Share; Kind::ALL.len()],
    /// Number of conditional branches and compressed returns in TNT packets.
    pub tnt_bits: u64,
    /// Number of bytes that were skipped after an error, up to the next PSB.
    pub unread: u64,
}

impl Mix {
    /// Counts a whole stream.
    pub fn of(bytes: &[u8]) -> Self {
        let mut mix = Self::default();
        let mut reader = PacketReader::new(bytes);
        let mut in_psb = false;
        // After an error the reader may go back to bytes that were already counted.
        let mut counted = 0;
        loop {
            let next = reader.next();
            if let Some(Err(_)) = next {
                reader.resync();
            }
            let new = reader.offset().saturating_sub(counted) as u64;
            counted = counted.max(reader.offset());
            match next {
                Some(Ok((_, packet))) => {
                    in_psb |= packet == Packet::Psb;
                    // An overflow ends a PSB+ early (SDM, "PSB").
                    in_psb &= packet != Packet::Ovf;
                    let kind = if in_psb { Kind::PsbPlus } else { Kind::of(&packet) };
                    let share = &mut mix.shares[kind as usize];
                    share.packets += u64::from(!in_psb || packet == Packet::Psb);
                    share.bytes += new;
                    in_psb &= packet != Packet::PsbEnd;
                    if let Packet::Tnt { len, .. } = packet {
                        mix.tnt_bits += u64::from(len);
                    }
                }
                Some(Err(_)) => {
                    in_psb = false;
                    mix.unread += new;
                }
                None => return mix,
            }
        }
    }

    /// Adds the statistics of another stream.
    pub fn add(&mut self, other: &Mix) {
        for (a, b) in self.shares.iter_mut().zip(&other.shares) {
            a.packets += b.packets;
            a.bytes += b.bytes;
        }
        self.tnt_bits += other.tnt_bits;
        self.unread += other.unread;
    }

    /// Returns the amount of `kind`.
    pub fn get(&self, kind: Kind) -> Share {
        self.shares[kind as usize]
    }

    /// Returns the number of bytes of several kinds.
    pub fn bytes(&self, kinds: &[Kind]) -> u64 {
        kinds.iter().map(|&k| self.get(k).bytes).sum()
    }

    /// Returns the number of bytes of all streams.
    pub fn total_bytes(&self) -> u64 {
        self.bytes(&Kind::ALL) + self.unread
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IpPayload;

    fn stream(packets: &[Packet]) -> Vec<u8> {
        let mut bytes = Vec::new();
        packets.iter().for_each(|p| p.encode(&mut bytes));
        bytes
    }

    #[test]
    fn every_byte_is_counted_once() {
        let mut bytes = stream(&[
            Packet::Psb,
            Packet::Tsc { tsc: 1 },
            Packet::Fup(IpPayload::Update16(7)),
            Packet::PsbEnd,
            Packet::Tnt { bits: 0b101, len: 3 },
            Packet::Cyc { cycles: 5 },
            Packet::Tip(IpPayload::Update16(7)),
            Packet::Fup(IpPayload::Update16(7)),
            Packet::Pad,
        ]);
        bytes.extend([0x02, 0x00, 0x00]);
        let mix = Mix::of(&bytes);
        let of = |kind| (mix.get(kind).packets, mix.get(kind).bytes);
        assert_eq!(of(Kind::PsbPlus), (1, 16 + 8 + 3 + 2));
        assert_eq!((of(Kind::Tnt), of(Kind::Cyc), of(Kind::Tip)), ((1, 1), (1, 1), (1, 3)));
        assert_eq!((of(Kind::Fup), of(Kind::Pad), of(Kind::Tsc)), ((1, 3), (1, 1), (0, 0)));
        assert_eq!((mix.tnt_bits, mix.unread), (3, 3));
        assert_eq!(mix.total_bytes(), bytes.len() as u64);
    }

    #[test]
    fn kinds_are_where_their_number_says() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
        }
    }
}
