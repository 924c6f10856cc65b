// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as what GDB sends: framing never loses its place, packets are refused with an offset in them, definitions
//! stay within their limits and read back as themselves, and programs are made of them or refused.
#![no_main]

use kprism_rsp::command::{self, Command};
use kprism_rsp::define::{Definitions, MOST_POINTS};
use kprism_rsp::wire::{Decoder, Event, packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::default();
    let mut all = Definitions::default();
    for event in bytes.iter().filter_map(|b| decoder.push(*b)) {
        let Event::Packet(text) = event else { continue };
        let mut again = Decoder::default();
        let back: Vec<_> = packet(&text).into_iter().filter_map(|b| again.push(b)).collect();
        assert_eq!(back, [Event::Packet(text.clone())]);
        let result = match command::parse(&text) {
            Ok(Command::Define(at)) => all.define(&text, at).map(|_| ()),
            Ok(Command::Source(at)) => all.source(&text, at),
            Ok(Command::Variable(at)) => all.variable(&text, at),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            assert!(error.at <= text.len());
        }
        assert!(all.points.len() <= MOST_POINTS && all.variables.len() <= MOST_POINTS);
    }
    for (key, point) in &all.points {
        let mut again = Definitions::default();
        for piece in point.pieces() {
            let (kind, rest) = piece.split_at(1);
            match kind {
                "T" => drop(again.define(rest.as_bytes(), 0).unwrap()),
                "Z" => again.source(rest.as_bytes(), 0).unwrap(),
                // Of the steps: they are told apart by the packet, not by the action.
                "S" => {}
                _ => drop(again.define(format!("-{rest}").as_bytes(), 0).unwrap()),
            }
        }
        let found = &again.points[key];
        assert_eq!(
            (found.enabled, found.pass, &found.condition),
            (point.enabled, point.pass, &point.condition)
        );
        assert_eq!(found.sources, point.sources);
    }
});
