// SPDX-License-Identifier: MIT OR Apache-2.0
//! IP compression (SDM vol. 3, "Target IP (TIP) Packet", table "IP Payload Compression").
//!
//! TIP, TIP.PGE, TIP.PGD and FUP carry only the low bytes of an address when the high ones equal those of
//! the last IP sent. The last IP is zero after every PSB.

/// The IP field of a packet. The variant is the packet's IPBytes field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpPayload {
    /// IPBytes 0: the IP is out of context and not sent. The last IP stays.
    Suppressed,
    /// IPBytes 1: bits 15:0; the rest from the last IP.
    Update16(u16),
    /// IPBytes 2: bits 31:0; the rest from the last IP.
    Update32(u32),
    /// IPBytes 3: bits 47:0, sign-extended from bit 47. Only the low 48 bits of the value count.
    Sext48(u64),
    /// IPBytes 4: bits 47:0; the rest from the last IP. Only the low 48 bits of the value count.
    Update48(u64),
    /// IPBytes 6: all 64 bits.
    Full(u64),
}

const LOW_48: u64 = (1 << 48) - 1;

impl IpPayload {
    /// Number of payload bytes that follow the opcode.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            IpPayload::Suppressed => 0,
            IpPayload::Update16(_) => 2,
            IpPayload::Update32(_) => 4,
            IpPayload::Sext48(_) | IpPayload::Update48(_) => 6,
            IpPayload::Full(_) => 8,
        }
    }
}

/// The last IP sent, which is the base of the next one's compression. It starts at zero, as after a PSB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastIp(pub u64);

impl LastIp {
    /// Decompresses a payload. `None` if the IP was suppressed; the last IP then stays.
    #[inline]
    pub fn apply(&mut self, payload: IpPayload) -> Option<u64> {
        let ip = match payload {
            IpPayload::Suppressed => return None,
            IpPayload::Update16(low) => self.0 & !0xffff | u64::from(low),
            IpPayload::Update32(low) => self.0 & !0xffff_ffff | u64::from(low),
            IpPayload::Sext48(low) => sign_extend_48(low),
            IpPayload::Update48(low) => self.0 & !LOW_48 | low & LOW_48,
            IpPayload::Full(ip) => ip,
        };
        self.0 = ip;
        Some(ip)
    }

    /// Returns the shortest payload from which [`LastIp::apply`] restores `ip`. Never [`IpPayload::Suppressed`]: an
    /// unchanged IP takes the two-byte form, because decoders reject a branch target without an IP.
    #[inline]
    pub fn compress(&mut self, ip: u64) -> IpPayload {
        let changed = self.0 ^ ip;
        self.0 = ip;
        if changed >> 16 == 0 {
            IpPayload::Update16(ip as u16)
        } else if changed >> 32 == 0 {
            IpPayload::Update32(ip as u32)
        } else if sign_extend_48(ip) == ip {
            IpPayload::Sext48(ip & LOW_48)
        } else if changed >> 48 == 0 {
            IpPayload::Update48(ip & LOW_48)
        } else {
            IpPayload::Full(ip)
        }
    }

    /// Resets the last IP to zero, as a PSB does.
    #[inline]
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

#[inline]
const fn sign_extend_48(low: u64) -> u64 {
    ((low << 16) as i64 >> 16) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_form_by_hand() {
        let mut last = LastIp(0xffff_ffff_8123_4567);
        assert_eq!(last.apply(IpPayload::Suppressed), None);
        assert_eq!(last.apply(IpPayload::Update16(0xabcd)), Some(0xffff_ffff_8123_abcd));
        assert_eq!(last.apply(IpPayload::Update32(0x1_0000)), Some(0xffff_ffff_0001_0000));
        assert_eq!(last.apply(IpPayload::Sext48(0x7fff_0000_0001)), Some(0x7fff_0000_0001));
        assert_eq!(last.apply(IpPayload::Sext48(0x8000_0000_0001)), Some(0xffff_8000_0000_0001));
        assert_eq!(last.apply(IpPayload::Update48(0x1234)), Some(0xffff_0000_0000_1234));
        assert_eq!(last.apply(IpPayload::Full(0x0123_4567_89ab_cdef)), Some(0x0123_4567_89ab_cdef));
        assert_eq!(last.0, 0x0123_4567_89ab_cdef);
        last.reset();
        assert_eq!(last.0, 0);
    }

    #[test]
    fn shortest_form_is_chosen() {
        let mut last = LastIp(0x1000);
        assert_eq!(last.compress(0x1000), IpPayload::Update16(0x1000));
        assert_eq!(last.compress(0x40_1000), IpPayload::Update32(0x40_1000));
        assert_eq!(last.compress(0xffff_8000_0000_0000), IpPayload::Sext48(0x8000_0000_0000));
        assert_eq!(last.compress(0xffff_0000_0000_0000), IpPayload::Update48(0));
        assert_eq!(last.compress(0x1234_0000_0000_0000), IpPayload::Full(0x1234_0000_0000_0000));
    }

    proptest! {
        #[test]
        fn compress_then_apply_is_identity(ips: Vec<(u64, u8)>) {
            let (mut tx, mut rx) = (LastIp::default(), LastIp::default());
            for (raw, shift) in ips {
                // Small and large differences, so that every form occurs.
                let ip = tx.0 ^ (raw >> (shift % 64));
                let payload = tx.compress(ip);
                prop_assert!(payload != IpPayload::Suppressed);
                prop_assert_eq!(rx.apply(payload), Some(ip));
            }
        }
    }
}
