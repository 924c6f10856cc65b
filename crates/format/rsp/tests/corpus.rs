// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz target's seeds, which are whole sessions of GDB. All their packets must be understood. With any bytes
//! changed they must still give values or errors, within the limits.

use std::fs;
use std::path::Path;

use kprism_rsp::command::{self, Command};
use kprism_rsp::define::{Definitions, MOST_POINTS};
use kprism_rsp::wire::{Decoder, Event};
use proptest::prelude::*;

/// Processes a session. Returns the number of packets, and how many were not understood.
fn take(bytes: &[u8]) -> (usize, usize) {
    let mut decoder = Decoder::default();
    let mut all = Definitions::default();
    let (mut packets, mut refused) = (0, 0);
    for event in bytes.iter().filter_map(|b| decoder.push(*b)) {
        let Event::Packet(text) = event else { continue };
        packets += 1;
        let result = match command::parse(&text) {
            Ok(Command::Define(at)) => all.define(&text, at).map(|_| ()),
            Ok(Command::Source(at)) => all.source(&text, at),
            Ok(Command::Variable(at)) => all.variable(&text, at),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            assert!(error.at <= text.len(), "{error} in {}", String::from_utf8_lossy(&text));
            refused += 1;
        }
        assert!(all.points.len() <= MOST_POINTS && all.variables.len() <= MOST_POINTS);
    }
    for point in all.points.values() {
        let pieces = point.pieces();
        assert!(pieces[0].starts_with('T'), "{pieces:?}");
        let mut again = Definitions::default();
        let key = again.define(&pieces[0].as_bytes()[1..], 0).expect("what was given back");
        assert_eq!(again.points[&key].condition, point.condition);
    }
    (packets, refused)
}

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/rsp");
    // Fuzzing stores more files there.
    ["connect", "find", "static", "trace"].map(|name| fs::read(folder.join(name)).expect("a seed")).into()
}

#[test]
fn every_packet_of_gdb_is_understood() {
    let packets: Vec<usize> = seeds()
        .iter()
        .map(|seed| {
            let (packets, refused) = take(seed);
            assert_eq!(refused, 0, "{}", String::from_utf8_lossy(seed));
            packets
        })
        .collect();
    assert_eq!(packets, [28, 12, 5, 21]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_bytes_changed(which in 0usize..4, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = seeds().swap_remove(which);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Checksums are corrected, so that the code behind the framing is reached.
        let fixed: Vec<u8> = bytes
            .split(|b| *b == b'$')
            .filter_map(|part| part.split(|b| *b == b'#').next())
            .flat_map(kprism_rsp::wire::packet)
            .collect();
        take(&bytes);
        take(&fixed);
    }
}
