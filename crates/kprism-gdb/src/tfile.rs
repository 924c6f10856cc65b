// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace file as `tsave -r` asks the server to write it (GDB manual, "Trace File Format").

use kprism_rsp::buffer::Buffer;
use kprism_rsp::define::Definitions;
use kprism_rsp::hex;

pub use crate::program::TIMESTAMP;
use crate::registers::{ALL, SEEN, target_xml};

/// What is written.
#[derive(Debug)]
pub struct Description<'a> {
    /// Tracepoints and variables.
    pub definitions: &'a Definitions,
    /// Frames.
    pub buffer: &'a Buffer,
}

impl Description<'_> {
    /// All of it; `status` is what `qTStatus` is answered.
    pub fn bytes(&self, status: &str) -> Vec<u8> {
        let mut out = b"\x7fTRACE0\n".to_vec();
        let mut line = |text: String| out.extend((text + "\n").into_bytes());
        line(format!("R {ALL:x}"));
        let status = status.split_once(';').map_or("", |(_, rest)| rest);
        line(format!("status 0;{status}"));
        line(format!("tsv {TIMESTAMP:x}:0:1:{}", hex::bytes(b"trace_timestamp")));
        for (number, variable) in &self.definitions.variables {
            line(format!("tsv {number:x}:{:x}:0:{}", variable.initial, hex::bytes(variable.name.as_bytes())));
        }
        for point in self.definitions.points.values() {
            for piece in point.pieces() {
                line(format!("tp {piece}"));
            }
        }
        for text in target_xml().lines() {
            line(format!("tdesc {text}"));
        }
        line(String::new());
        out.extend(self.buffer.raw(0, usize::MAX, ALL - SEEN));
        // The end: a frame of tracepoint 0.
        out.extend([0, 0]);
        out
    }
}
