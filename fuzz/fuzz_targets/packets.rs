// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a PT stream: reading ends, offsets only grow, and each packet read, once written canonically,
//! reads back as itself.
#![no_main]

use kprism_pt::{PSB, Packet, PacketReader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = PacketReader::new(bytes);
    let mut block = None;
    let mut canonical = Vec::new();
    loop {
        let before = reader.offset();
        match reader.next() {
            Some(Ok((offset, packet))) => {
                assert_eq!(offset, before);
                assert!(reader.offset() > before && reader.offset() <= bytes.len());
                // A BIP is only a BIP behind the BBP that gives its width.
                canonical.clear();
                match packet {
                    Packet::Bbp { .. } => block = Some(packet),
                    Packet::Bip { .. } => block.expect("BIP outside a block").encode(&mut canonical),
                    _ => {}
                }
                packet.encode(&mut canonical);
                assert!(!packet.name().is_empty() && packet.payload().len() < 128);
                assert!(canonical.len() <= 16 + 3);
                assert_eq!(PacketReader::new(&canonical).last().map(|p| p.map(|(_, p)| p)), Some(Ok(packet)));
            }
            Some(Err(error)) => {
                assert_eq!(error.offset, before);
                assert!(reader.next().is_none());
                match reader.resync() {
                    Some(psb) => assert!(psb + PSB.len() > before),
                    None => return,
                }
            }
            None => return assert_eq!(before, bytes.len()),
        }
    }
});
