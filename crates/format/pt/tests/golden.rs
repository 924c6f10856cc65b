// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the decoder and the encoder with bytes written by hand from the SDM's packet tables.

use kprism_pt::{IpPayload, PSB, Packet, PacketError, PacketErrorKind, PacketReader};

/// Canonical encodings: both directions must agree with the table. `prefix` is a packet needed before.
fn both_ways(prefix: &[u8], bytes: &[u8], packet: Packet) {
    let stream = [prefix, bytes].concat();
    let decoded = PacketReader::new(&stream).last();
    assert_eq!(decoded, Some(Ok((prefix.len(), packet))), "decoding {bytes:02x?}");
    // The same far from the stream's end, where the decoder takes its other path.
    let padded = [&stream[..], &[0; 32]].concat();
    let decoded = PacketReader::new(&padded).find(|p| matches!(p, Ok((at, _)) if *at == prefix.len()));
    assert_eq!(decoded, Some(Ok((prefix.len(), packet))), "decoding padded {bytes:02x?}");
    let mut out = Vec::new();
    packet.encode(&mut out);
    assert_eq!(out, bytes, "encoding {packet:?}");
}

#[test]
fn stream_structure() {
    both_ways(&[], &[0x00], Packet::Pad);
    both_ways(&[], &[0x02, 0x82].repeat(8), Packet::Psb);
    both_ways(&[], &[0x02, 0x23], Packet::PsbEnd);
    both_ways(&[], &[0x02, 0xf3], Packet::Ovf);
    both_ways(&[], &[0x02, 0x83], Packet::TraceStop);
}

#[test]
fn branches() {
    both_ways(&[], &[0x04], Packet::Tnt { bits: 0b0, len: 1 });
    both_ways(&[], &[0x06], Packet::Tnt { bits: 0b1, len: 1 });
    both_ways(&[], &[0b0001_1010], Packet::Tnt { bits: 0b101, len: 3 });
    both_ways(&[], &[0xfe], Packet::Tnt { bits: 0b11_1111, len: 6 });
    both_ways(&[], &[0x80], Packet::Tnt { bits: 0, len: 6 });
    both_ways(&[], &[0x02, 0xa3, 0x81, 0, 0, 0, 0, 0], Packet::Tnt { bits: 1, len: 7 });
    both_ways(
        &[],
        &[0x02, 0xa3, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab],
        Packet::Tnt { bits: 0x2b89_6745_2301, len: 47 },
    );
}

#[test]
fn targets() {
    both_ways(&[], &[0x0d], Packet::Tip(IpPayload::Suppressed));
    both_ways(&[], &[0x2d, 0x34, 0x12], Packet::Tip(IpPayload::Update16(0x1234)));
    both_ways(&[], &[0x4d, 0x78, 0x56, 0x34, 0x12], Packet::Tip(IpPayload::Update32(0x1234_5678)));
    let six = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba];
    both_ways(&[], &[&[0x6d][..], &six].concat(), Packet::Tip(IpPayload::Sext48(0xba98_7654_3210)));
    both_ways(&[], &[&[0x8d][..], &six].concat(), Packet::Tip(IpPayload::Update48(0xba98_7654_3210)));
    both_ways(
        &[],
        &[&[0xcd][..], &six, &[0xdc, 0xfe]].concat(),
        Packet::Tip(IpPayload::Full(0xfedc_ba98_7654_3210)),
    );
    both_ways(&[], &[0x31, 0x34, 0x12], Packet::TipPge(IpPayload::Update16(0x1234)));
    both_ways(&[], &[0x01], Packet::TipPgd(IpPayload::Suppressed));
    both_ways(&[], &[0x41, 1, 2, 3, 4], Packet::TipPgd(IpPayload::Update32(0x0403_0201)));
    both_ways(&[], &[0x7d, 1, 0, 0, 0, 0, 0x80], Packet::Fup(IpPayload::Sext48(0x8000_0000_0001)));
}

#[test]
fn context() {
    both_ways(&[], &[0x99, 0x01], Packet::ModeExec { cs_l: true, cs_d: false, if_flag: false });
    both_ways(&[], &[0x99, 0x02], Packet::ModeExec { cs_l: false, cs_d: true, if_flag: false });
    both_ways(&[], &[0x99, 0x05], Packet::ModeExec { cs_l: true, cs_d: false, if_flag: true });
    both_ways(&[], &[0x99, 0x21], Packet::ModeTsx { in_tx: true, abort: false });
    both_ways(&[], &[0x99, 0x22], Packet::ModeTsx { in_tx: false, abort: true });
    // CR3 0x1234_5678_9000: bits 51:5 are in bits 47:1 of the payload, NR in bit 0.
    both_ways(
        &[],
        &[0x02, 0x43, 0x00, 0x89, 0x67, 0x45, 0x23, 0x01],
        Packet::Pip { cr3: 0x1234_5678_9000, non_root: false },
    );
    both_ways(
        &[],
        &[0x02, 0x43, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        Packet::Pip { cr3: 0xf_ffff_ffff_ffe0, non_root: true },
    );
    both_ways(&[], &[0x02, 0xc8, 1, 2, 3, 4, 5], Packet::Vmcs { base: 0x0000_5040_3020_1000 });
}

#[test]
fn time() {
    both_ways(&[], &[0x19, 1, 2, 3, 4, 5, 6, 7], Packet::Tsc { tsc: 0x07_0605_0403_0201 });
    both_ways(&[], &[0x02, 0x73, 0x34, 0x12, 0x00, 0xff, 0x01], Packet::Tma { ctc: 0x1234, fast: 0x1ff });
    both_ways(&[], &[0x59, 0xab], Packet::Mtc { ctc: 0xab });
    both_ways(&[], &[0x02, 0x03, 0x22, 0x00], Packet::Cbr { ratio: 0x22 });
    both_ways(&[], &[0x03], Packet::Cyc { cycles: 0 });
    both_ways(&[], &[0xfb], Packet::Cyc { cycles: 31 });
    both_ways(&[], &[0x07, 0x02], Packet::Cyc { cycles: 32 });
    both_ways(&[], &[0xff, 0xfe], Packet::Cyc { cycles: 0xfff });
    both_ways(&[], &[0x07, 0x01, 0x02], Packet::Cyc { cycles: 1 << 12 });
    let longest = [&[0xff][..], &[0xff; 8], &[0x0e]].concat();
    both_ways(&[], &longest, Packet::Cyc { cycles: u64::MAX });
}

#[test]
fn values_and_power() {
    both_ways(&[], &[0x02, 0x12, 1, 2, 3, 4], Packet::Ptw { payload: 0x0403_0201, size: 4, ip: false });
    both_ways(
        &[],
        &[0x02, 0xb2, 1, 2, 3, 4, 5, 6, 7, 8],
        Packet::Ptw { payload: 0x0807_0605_0403_0201, size: 8, ip: true },
    );
    both_ways(&[], &[0x02, 0x62], Packet::Exstop { ip: false });
    both_ways(&[], &[0x02, 0xe2], Packet::Exstop { ip: true });
    both_ways(&[], &[0x02, 0xc2, 0x60, 0, 0, 0, 1, 0, 0, 0], Packet::Mwait { hints: 0x60, ext: 1 });
    both_ways(&[], &[0x02, 0x22, 0x80, 0x61], Packet::Pwre { state: 6, sub_state: 1, hw: true });
    both_ways(&[], &[0x02, 0x22, 0x00, 0x61], Packet::Pwre { state: 6, sub_state: 1, hw: false });
    both_ways(&[], &[0x02, 0xa2, 0x67, 0x01, 0, 0, 0], Packet::Pwrx { last: 6, deepest: 7, reason: 1 });
    both_ways(
        &[],
        &[0x02, 0xc3, 0x88, 1, 2, 3, 4, 5, 6, 7, 8],
        Packet::Mnt { payload: 0x0807_0605_0403_0201 },
    );
}

#[test]
fn blocks() {
    both_ways(&[], &[0x02, 0x63, 0x01], Packet::Bbp { typ: 1, size4: false });
    both_ways(&[], &[0x02, 0x63, 0x84], Packet::Bbp { typ: 4, size4: true });
    both_ways(&[], &[0x02, 0x33], Packet::Bep { ip: false });
    both_ways(&[], &[0x02, 0xb3], Packet::Bep { ip: true });
    let item8 = Packet::Bip { id: 3, payload: 0x0807_0605_0403_0201, size: 8 };
    let item4 = Packet::Bip { id: 31, payload: 0x0403_0201, size: 4 };
    both_ways(&[0x02, 0x63, 0x01], &[0x1c, 1, 2, 3, 4, 5, 6, 7, 8], item8);
    both_ways(&[0x02, 0x63, 0x81], &[0xfc, 1, 2, 3, 4], item4);
    // Timing packets may be inside a block. A BEP, or a packet that is not allowed inside, closes it.
    both_ways(&[0x02, 0x63, 0x81, 0x59, 0x07, 0x0b], &[0xfc, 1, 2, 3, 4], item4);
    let tnt = Packet::Tnt { bits: 0b11_1110, len: 6 };
    both_ways(&[0x02, 0x63, 0x81, 0x02, 0x33], &[0xfc], tnt);
    both_ways(&[0x02, 0x63, 0x81, 0x06], &[0xfc], tnt);
}

#[test]
fn events() {
    both_ways(&[], &[0x02, 0x13, 0x81, 0x0e], Packet::Cfe { typ: 1, vector: 14, ip: true });
    both_ways(&[], &[0x02, 0x13, 0x02, 0x00], Packet::Cfe { typ: 2, vector: 0, ip: false });
    both_ways(
        &[],
        &[0x02, 0x53, 0x00, 1, 2, 3, 4, 5, 6, 7, 8],
        Packet::Evd { typ: 0, payload: 0x0807_0605_0403_0201 },
    );
    both_ways(
        &[],
        &[0xd9, 0xc0, 0x05, 0x10, 0x27],
        Packet::Trig { triggers: 5, instructions: Some(10_000), multiple: false, ip: true },
    );
    both_ways(
        &[],
        &[0xd9, 0x20, 0x01],
        Packet::Trig { triggers: 1, instructions: None, multiple: true, ip: false },
    );
}

#[test]
fn errors_name_the_offset_and_stop_the_iterator() {
    let cases: [(&[u8], PacketErrorKind); 12] = [
        (&[0x02], PacketErrorKind::Truncated),
        (&[0x02, 0xc3], PacketErrorKind::Truncated),
        (&[0x02, 0xa3, 0, 0], PacketErrorKind::Truncated),
        (&[0x02, 0x82, 0x02], PacketErrorKind::Truncated),
        (&[0x07], PacketErrorKind::Truncated),
        (&[0xcd, 1, 2, 3, 4, 5, 6, 7], PacketErrorKind::Truncated),
        (&[0xc9], PacketErrorKind::BadOpcode(0xc9)),
        (&[0x05], PacketErrorKind::BadOpcode(0x05)),
        (&[0xad, 0, 0], PacketErrorKind::BadOpcode(0xad)), // IPBytes 5
        (&[0x02, 0x04], PacketErrorKind::BadOpcode(0x0204)),
        (&[0x99, 0x40], PacketErrorKind::BadPayload(0x99)), // MODE leaf 2
        (&[0x02, 0xa3, 1, 0, 0, 0, 0, 0], PacketErrorKind::BadPayload(0x02a3)), // a stop bit alone
    ];
    for (bytes, kind) in cases {
        let stream = [&[0x00, 0x06], bytes].concat();
        let mut reader = PacketReader::new(&stream);
        assert!(reader.by_ref().take(2).all(|p| p.is_ok()));
        assert_eq!(reader.next(), Some(Err(PacketError { offset: 2, kind })), "{bytes:02x?}");
        assert_eq!(reader.offset(), 2);
        assert_eq!(reader.next(), None);
        assert_eq!(reader.resync(), None);
        assert_eq!(reader.next(), None);
    }
    let error = PacketError { offset: 0x20, kind: PacketErrorKind::BadOpcode(0x0204) };
    assert_eq!(error.to_string(), "PT packet at offset 0x20: unknown opcode 0x0204");
}

#[test]
fn a_psb_that_cut_a_packet_short_is_found() {
    // Each packet lacks its last bytes; the decoder reads the following PSB in their place.
    let cut: [&[u8]; 4] = [
        &[0x02, 0xc3, 0x88],       // MNT, 8 bytes missing
        &[0x6d, 0x00, 0x10],       // TIP, 4 bytes missing
        &[0x02, 0xa3, 0x01, 0x02], // long TNT, 4 bytes missing
        &[0x19, 1, 2, 3, 4, 5, 6], // TSC, 1 byte missing
    ];
    for packet in cut {
        let stream = [&[0x00, 0x06], packet, &PSB, &[0x02, 0x23]].concat();
        let psb = 2 + packet.len();
        let mut reader = PacketReader::new(&stream);
        let error = reader.by_ref().find_map(Result::err).expect("an error inside the PSB");
        assert!(error.offset > psb && error.offset < psb + PSB.len(), "{packet:02x?}: {error}");
        assert_eq!(reader.resync(), Some(psb), "{packet:02x?}");
        assert_eq!(reader.map(|p| p.unwrap().1).collect::<Vec<_>>(), [Packet::Psb, Packet::PsbEnd]);
    }
}

#[test]
fn branches_beyond_one_packet_are_split_not_lost() {
    let mut out = Vec::new();
    Packet::Tnt { bits: u64::MAX, len: 64 }.encode(&mut out);
    let lens: Vec<u8> = PacketReader::new(&out)
        .map(|p| match p.unwrap().1 {
            Packet::Tnt { bits, len } if bits == (1 << len) - 1 => len,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lens, [17, 47]);
    out.clear();
    Packet::Tnt { bits: 0, len: 0 }.encode(&mut out);
    assert_eq!(out, []);
}
