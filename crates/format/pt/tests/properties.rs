// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties of the encoder, the decoder, and the search for PSB over generated packets and raw bytes.

use kprism_pt::mix::Mix;
use kprism_pt::{IpPayload, PSB, Packet, PacketReader, find_psb};
use proptest::prelude::*;

fn ip() -> impl Strategy<Value = IpPayload> {
    let low48 = 0..1u64 << 48;
    prop_oneof![
        Just(IpPayload::Suppressed),
        any::<u16>().prop_map(IpPayload::Update16),
        any::<u32>().prop_map(IpPayload::Update32),
        low48.clone().prop_map(IpPayload::Sext48),
        low48.prop_map(IpPayload::Update48),
        any::<u64>().prop_map(IpPayload::Full),
    ]
}

fn flow_packet() -> impl Strategy<Value = Packet> {
    prop_oneof![
        Just(Packet::Pad),
        Just(Packet::Psb),
        Just(Packet::PsbEnd),
        Just(Packet::Ovf),
        Just(Packet::TraceStop),
        (1u8..=47, any::<u64>()).prop_map(|(len, bits)| Packet::Tnt { bits: bits & ((1 << len) - 1), len }),
        ip().prop_map(Packet::Tip),
        ip().prop_map(Packet::TipPge),
        ip().prop_map(Packet::TipPgd),
        ip().prop_map(Packet::Fup),
        any::<(bool, bool, bool)>().prop_map(|(cs_l, cs_d, if_flag)| Packet::ModeExec {
            cs_l,
            cs_d,
            if_flag
        }),
        any::<(bool, bool)>().prop_map(|(in_tx, abort)| Packet::ModeTsx { in_tx, abort }),
        (0..1u64 << 47, any::<bool>()).prop_map(|(cr3, non_root)| Packet::Pip { cr3: cr3 << 5, non_root }),
        (0..1u64 << 40).prop_map(|base| Packet::Vmcs { base: base << 12 }),
    ]
}

fn time_packet() -> impl Strategy<Value = Packet> {
    prop_oneof![
        any::<u8>().prop_map(|ratio| Packet::Cbr { ratio }),
        (0..1u64 << 56).prop_map(|tsc| Packet::Tsc { tsc }),
        (any::<u16>(), 0u16..0x200).prop_map(|(ctc, fast)| Packet::Tma { ctc, fast }),
        any::<u8>().prop_map(|ctc| Packet::Mtc { ctc }),
        (any::<u64>(), 0u32..64).prop_map(|(cycles, shift)| Packet::Cyc { cycles: cycles >> shift }),
    ]
}

fn rare_packet() -> impl Strategy<Value = Packet> {
    prop_oneof![
        any::<u64>().prop_map(|payload| Packet::Mnt { payload }),
        any::<(u32, bool)>().prop_map(|(p, ip)| Packet::Ptw { payload: p.into(), size: 4, ip }),
        any::<(u64, bool)>().prop_map(|(payload, ip)| Packet::Ptw { payload, size: 8, ip }),
        any::<bool>().prop_map(|ip| Packet::Exstop { ip }),
        any::<(u32, u32)>().prop_map(|(hints, ext)| Packet::Mwait { hints, ext }),
        (0u8..16, 0u8..16, any::<bool>()).prop_map(|(state, sub_state, hw)| Packet::Pwre {
            state,
            sub_state,
            hw
        }),
        (0u8..16, 0u8..16, 0u8..16).prop_map(|(last, deepest, reason)| Packet::Pwrx {
            last,
            deepest,
            reason
        }),
        any::<bool>().prop_map(|ip| Packet::Bep { ip }),
        (0u8..32, any::<u8>(), any::<bool>()).prop_map(|(typ, vector, ip)| Packet::Cfe { typ, vector, ip }),
        (0u8..64, any::<u64>()).prop_map(|(typ, payload)| Packet::Evd { typ, payload }),
        any::<(u8, Option<u16>, bool, bool)>().prop_map(|(triggers, instructions, multiple, ip)| {
            Packet::Trig { triggers, instructions, multiple, ip }
        }),
    ]
}

/// Generates a whole block, because the width of its items depends on its BBP.
fn block() -> impl Strategy<Value = Vec<Packet>> {
    let items = prop::collection::vec((0u8..32, any::<u64>(), prop::option::of(time_packet())), 0..8);
    (0u8..32, any::<bool>(), items, any::<bool>()).prop_map(|(typ, size4, items, ip)| {
        let mut packets = vec![Packet::Bbp { typ, size4 }];
        for (id, payload, time) in items {
            packets.push(if size4 {
                Packet::Bip { id, payload: payload & 0xffff_ffff, size: 4 }
            } else {
                Packet::Bip { id, payload, size: 8 }
            });
            packets.extend(time);
        }
        packets.push(Packet::Bep { ip });
        packets
    })
}

fn stream() -> impl Strategy<Value = Vec<Packet>> {
    let part = prop_oneof![
        4 => flow_packet().prop_map(|p| vec![p]),
        2 => time_packet().prop_map(|p| vec![p]),
        2 => rare_packet().prop_map(|p| vec![p]),
        1 => block(),
    ];
    prop::collection::vec(part, 0..64).prop_map(|parts| parts.concat())
}

fn encode(packets: &[Packet]) -> Vec<u8> {
    let mut out = Vec::new();
    packets.iter().for_each(|p| p.encode(&mut out));
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn decode_of_encode_is_identity(packets in stream()) {
        let bytes = encode(&packets);
        let mut offset = 0;
        let mut decoded = Vec::new();
        for item in PacketReader::new(&bytes) {
            let (at, packet) = item.unwrap();
            prop_assert_eq!(at, offset);
            let mut one = Vec::new();
            packet.encode(&mut one);
            offset += one.len();
            decoded.push(packet);
        }
        prop_assert_eq!(offset, bytes.len());
        prop_assert_eq!(&decoded, &packets);
        // The bytes are canonical, so encoding the packets gives the same bytes.
        prop_assert_eq!(encode(&decoded), bytes);
    }

    #[test]
    fn any_bytes_end_and_advance(bytes in prop::collection::vec(opcode_like(), 0..512)) {
        let mut reader = PacketReader::new(&bytes);
        let mut at = 0;
        let mut steps = 0;
        loop {
            steps += 1;
            prop_assert!(steps <= 2 * bytes.len() + 2);
            match reader.next() {
                Some(Ok((offset, _))) => {
                    prop_assert_eq!(offset, at);
                    prop_assert!(reader.offset() > at && reader.offset() <= bytes.len());
                    at = reader.offset();
                }
                Some(Err(error)) => {
                    prop_assert_eq!(error.offset, at);
                    match reader.resync() {
                        Some(psb) => { prop_assert!(psb + PSB.len() > at); at = psb; }
                        None => { prop_assert_eq!(reader.offset(), bytes.len()); break; }
                    }
                }
                None => { prop_assert_eq!(at, bytes.len()); break; }
            }
        }
    }

    #[test]
    fn truncation_is_an_error_only_in_the_last_packet(packets in stream(), cut: prop::sample::Index) {
        let bytes = encode(&packets);
        let cut = &bytes[..cut.index(bytes.len() + 1)];
        let whole: Vec<_> = PacketReader::new(&bytes).map(|p| p.unwrap()).collect();
        for item in PacketReader::new(cut) {
            match item {
                Ok(packet) => prop_assert!(whole.contains(&packet)),
                Err(error) => prop_assert_eq!(error.kind, kprism_pt::PacketErrorKind::Truncated),
            }
        }
    }

    #[test]
    fn resync_finds_the_next_psb(junk in prop::collection::vec(opcode_like(), 0..64), packets in stream()) {
        // Junk that contains no PSB and does not overlap the real one.
        prop_assume!(find_psb(&junk, 0).is_none());
        let bytes = [&junk[..], &[0xff, 0x00], &PSB, &encode(&packets)].concat();
        let psb = junk.len() + 2;
        prop_assert_eq!(find_psb(&bytes, 0), Some(psb));
        let mut reader = PacketReader::new(&bytes);
        prop_assert_eq!(reader.resync(), Some(psb));
        prop_assert_eq!(reader.next(), Some(Ok((psb, Packet::Psb))));
    }

    #[test]
    fn a_mix_counts_every_byte_once(bytes in prop::collection::vec(opcode_like(), 0..400), psbs in any::<bool>()) {
        let bytes = if psbs { [&PSB[..], &bytes, &PSB, &bytes].concat() } else { bytes };
        prop_assert_eq!(Mix::of(&bytes).total_bytes(), bytes.len() as u64);
    }

    #[test]
    fn every_psb_written_is_found(packets in stream()) {
        let bytes = encode(&packets);
        let mut from = 0;
        for (offset, packet) in PacketReader::new(&bytes).map(|p| p.unwrap()) {
            if packet != Packet::Psb {
                continue;
            }
            // Consecutive PSBs after a payload that looks like one are ambiguous. They do not occur in real streams,
            // because PSB+ contains at least a PSBEND.
            if !bytes[offset + 16..].starts_with(&PSB) {
                prop_assert_eq!(find_psb(&bytes, from), Some(offset));
            }
            from = offset + 16;
        }
    }
}

/// Generates bytes with many opcodes, PSB halves and continuation bits.
fn opcode_like() -> impl Strategy<Value = u8> {
    prop_oneof![
        2 => any::<u8>(),
        1 => prop::sample::select(vec![
            0x00, 0x02, 0x82, 0x23, 0xa3, 0x43, 0xc8, 0x03, 0x73, 0xf3, 0xc3, 0x88, 0x12, 0x32, 0x63, 0x33,
            0x13, 0x53, 0x0d, 0x2d, 0x6d, 0x1d, 0x7d, 0x11, 0x01, 0x19, 0x59, 0x99, 0xd9, 0x07, 0xff,
        ]),
    ]
}
