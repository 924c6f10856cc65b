// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole session of GDB: what is defined, hits of it, and frames that are asked for, in any order and with any bytes
//! between. GDB's interrupt (0x03) stands for hits: one of each tracepoint that runs. What the buffer finds is what was asked
//! for, it never holds more than it may, and all of it can be had in pieces.
#![no_main]

use kprism_rsp::buffer::{Block, Buffer, Frame};
use kprism_rsp::command::{self, Command, Find};
use kprism_rsp::define::{Action, Definitions, Key, Tracepoint};
use kprism_rsp::wire::{Decoder, Event};
use libfuzzer_sys::fuzz_target;

/// Bytes of a block of registers.
const REGISTERS: usize = 16;
/// Frames that one session makes.
const MOST: u64 = 2000;

#[derive(Default)]
struct Session {
    definitions: Definitions,
    buffer: Buffer,
    size: usize,
    circular: bool,
    running: bool,
    frame: Option<u32>,
    /// Pieces that a GDB which comes later asks for.
    listing: Vec<String>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::default();
    let mut session = Session { size: 4096, ..Session::default() };
    for event in bytes.iter().filter_map(|b| decoder.push(*b)) {
        match event {
            Event::Packet(text) => session.take(&text),
            Event::Interrupt => session.hit(),
            _ => {}
        }
        session.check();
    }
});

impl Session {
    fn take(&mut self, packet: &[u8]) {
        let Ok(command) = command::parse(packet) else { return };
        match command {
            Command::TraceInit => {
                *self = Self { size: self.size, circular: self.circular, ..Self::default() };
                self.buffer = Buffer::new(self.size, self.circular);
            }
            Command::Define(at) => drop(self.definitions.define(packet, at)),
            Command::Source(at) => drop(self.definitions.source(packet, at)),
            Command::Variable(at) => drop(self.definitions.variable(packet, at)),
            Command::TraceStart => {
                self.buffer = Buffer::new(self.size, self.circular);
                (self.running, self.frame) = (true, None);
            }
            Command::TraceStop => self.running = false,
            Command::Enable(key, enabled) => {
                if let Some(point) = self.definitions.points.get_mut(&key) {
                    point.enabled = enabled;
                }
            }
            Command::Circular(circular) => {
                self.circular = circular;
                self.buffer.set_circular(circular);
            }
            Command::BufferSize(size) if !self.running => {
                self.size = size.unwrap_or(4096).min(1 << 16) as usize;
                self.buffer = Buffer::new(self.size, self.circular);
                self.frame = None;
            }
            Command::Frame(find) => self.find(find),
            Command::Points { first } => {
                if first {
                    self.listing = self.definitions.points.values().flat_map(Tracepoint::pieces).collect();
                }
                self.listing.pop();
            }
            Command::RawBuffer { offset, length } => {
                let piece = self.buffer.raw(offset, length.min(4096) as usize, 3);
                assert!(piece.len() as u64 <= length);
            }
            Command::PointStatus(key) => {
                let (frames, bytes) = self.buffer.of(key);
                assert!(frames <= self.buffer.len() as u64 && (frames == 0) == (bytes == 0));
            }
            _ => {}
        }
    }

    /// A hit of every tracepoint, which leaves what its actions say.
    fn hit(&mut self) {
        if !self.running || self.buffer.created() >= MOST {
            return;
        }
        for point in self.definitions.points.values().filter(|point| point.enabled) {
            let frame = frame(point);
            let blocks = frame.blocks(REGISTERS).count();
            let (had, room) = (self.buffer.created(), self.buffer.free());
            let fits = self.buffer.push(frame.clone());
            assert_eq!(self.buffer.created(), had + u64::from(fits));
            if fits {
                let last = self.buffer.get(self.buffer.len() as u32 - 1).expect("what was put in");
                assert_eq!((last, last.blocks(REGISTERS).count()), (&frame, blocks));
            } else {
                // It stops there, as the server does.
                assert_eq!(self.buffer.free(), room);
                self.running = false;
                break;
            }
        }
    }

    fn find(&mut self, find: Find) {
        let Some(number) = self.buffer.find(find, self.frame) else { return };
        let key = self.buffer.get(number).expect("a frame that was found").key;
        match find {
            Find::Number(wanted) => assert_eq!(wanted, Some(number)),
            Find::Pc(pc) => assert_eq!(key.address, pc),
            Find::Point(point) => assert_eq!(key.number, point),
            Find::Inside(low, high) => assert!((low..=high).contains(&key.address)),
            Find::Outside(low, high) => assert!(!(low..=high).contains(&key.address)),
        }
        if !matches!(find, Find::Number(_)) {
            assert!(self.frame.is_none_or(|current| number > current));
        }
        self.frame = Some(number);
    }

    fn check(&self) {
        let buffer = &self.buffer;
        assert!(buffer.free() <= buffer.size() && buffer.len() as u64 <= buffer.created());
        // Not each time: it is all of them.
        if buffer.len() <= 8 {
            let whole = buffer.raw(0, usize::MAX, 3);
            let (head, tail) = (buffer.raw(0, 7, 3), buffer.raw(7, usize::MAX, 3));
            assert_eq!([head, tail].concat(), whole);
            let keys: Vec<Key> = (0..buffer.len() as u32).filter_map(|n| Some(buffer.get(n)?.key)).collect();
            let known = |key: &Key| buffer.of(*key).0;
            assert!(keys.iter().all(|key| known(key) == keys.iter().filter(|k| *k == key).count() as u64));
        }
    }
}

/// What a tracepoint collects, without reading anything: addresses stand for what is there.
fn frame(point: &Tracepoint) -> Frame {
    let mut frame = Frame::new(point.key);
    for (number, action) in point.actions.iter().enumerate().take(8) {
        match action {
            Action::Registers(_) if number == 0 => frame.registers(&[7; REGISTERS]),
            Action::Registers(_) => {}
            Action::Memory { offset, length, .. } => {
                let length = (*length).min(300) as usize;
                frame.memory(*offset, &offset.to_le_bytes().repeat(40)[..length]);
            }
            Action::Expression(code) => frame.variable(number as u32, code.len() as u64),
            Action::Static => frame.statics = Some(vec![1; 5].into()),
        }
    }
    let memory = |block: &Block<'_>| matches!(block, Block::Memory(..));
    let wanted = point.actions.iter().take(8).filter(|a| matches!(a, Action::Memory { length: 1.., .. }));
    assert_eq!(frame.blocks(REGISTERS).filter(memory).count(), wanted.count());
    frame
}
