// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoint packets, from `tstart` to `tfind`.

use std::path::Path;

use kprism_bpf::host;
use kprism_rsp::buffer::Buffer;
use kprism_rsp::command::{Command, Find};
use kprism_rsp::define::{Definitions, Key, Kind};
use kprism_rsp::{hex, wire};

use super::status::Stop;
use super::{Answer, Server, error, frames, ok, text};
use crate::engine::Engine;
use crate::program::TIMESTAMP;
use crate::registers::{ALL, SEEN};
use crate::{Error, tfile};

impl Server {
    pub(super) fn trace(&mut self, command: Command, packet: &[u8]) -> Answer {
        match command {
            Command::TraceInit => {
                self.finish(Stop::NotRun);
                self.definitions = Definitions::default();
                self.engine = None;
                self.stop = Stop::NotRun;
                self.frame = None;
                self.buffer = Buffer::new(self.size, self.circular);
                ok()
            }
            Command::Define(at) => match self.definitions.define(packet, at) {
                Ok(key) if self.running && !packet.ends_with(b"-") => self.install_now(key),
                Ok(_) => ok(),
                Err(why) => self.refuse(&why.to_string()),
            },
            Command::Source(at) => match self.definitions.source(packet, at) {
                Ok(()) => ok(),
                Err(_) => error(),
            },
            Command::Variable(at) => match self.definitions.variable(packet, at) {
                Ok(()) => ok(),
                Err(why) => self.refuse(&why.to_string()),
            },
            Command::ReadOnly => ok(),
            Command::TraceStart => self.start(),
            Command::TraceStop => {
                self.finish(Stop::Asked);
                ok()
            }
            Command::TraceStatus => self.status(),
            Command::Frame(find) => self.find(find),
            Command::Enable(key, enabled) => {
                let installed = self.engine.as_ref().is_some_and(|e| e.enable(key, enabled));
                match self.definitions.points.get_mut(&key) {
                    Some(point) if installed => {
                        point.enabled = enabled;
                        ok()
                    }
                    _ => error(),
                }
            }
            Command::KeepRunning(keep) => {
                self.keep = keep;
                ok()
            }
            Command::Circular(circular) => {
                self.circular = circular;
                self.buffer.set_circular(circular);
                ok()
            }
            Command::BufferSize(size) => {
                if self.running {
                    return self.refuse("the trace buffer's size cannot be changed while tracing runs");
                }
                const MOST: u64 = 1 << 32;
                self.size = size.map_or(super::super::listen::BUFFER, |n| n.min(MOST) as usize);
                self.frame = None;
                self.buffer = Buffer::new(self.size, self.circular);
                ok()
            }
            Command::Notes { user, notes, stop } => {
                let all = &mut self.notes;
                for (place, text) in [(&mut all.user, user), (&mut all.notes, notes), (&mut all.stop, stop)] {
                    if let Some(text) = text {
                        *place = text;
                    }
                }
                ok()
            }
            Command::PointStatus(key) => {
                let hits = self.engine.as_ref().and_then(|e| e.counts(key)).map_or(0, |c| c.hits);
                text(format!("V{hits:x}:{:x}", self.buffer.of(key).1))
            }
            Command::Points { first } => {
                if first {
                    // GDB 13 ends the connection, or crashes, when it is told of a static one, or of one that was
                    // defined by an option, such as `-m` or `-probe-stap`.
                    let option = |(kind, start, _, text): &(String, u32, u32, String)| {
                        kind == "at" && *start == 0 && text.starts_with("2d")
                    };
                    let all = self.definitions.points.values();
                    let known = all.filter(|p| p.kind != Kind::Static && !p.sources.iter().any(option));
                    self.listing = known.flat_map(|p| p.pieces()).collect();
                }
                self.next()
            }
            Command::Variables { first } => {
                if first {
                    let builtin = format!("{TIMESTAMP:x}:0:1:{}", hex::bytes(b"trace_timestamp"));
                    let own = self.definitions.variables.iter();
                    let own = own
                        .map(|(n, v)| format!("{n:x}:{:x}:0:{}", v.initial, hex::bytes(v.name.as_bytes())));
                    self.listing = std::iter::once(builtin).chain(own).collect();
                }
                self.next()
            }
            Command::VariableValue(number) => {
                let value = match self.frame.and_then(|n| self.buffer.get(n)) {
                    Some(frame) => frames::variable(frame, number),
                    None => match &self.engine {
                        Some(engine) => engine.variable(number),
                        None => self.definitions.variables.get(&number).map(|v| v.initial),
                    },
                };
                value.map_or_else(|| text("U"), |value| text(format!("V{value:x}")))
            }
            Command::RawBuffer { offset, length } => {
                let most = length.min(wire::LONGEST as u64 / 2 - 16) as usize;
                let bytes = self.buffer.raw(offset, most, ALL - SEEN);
                if bytes.is_empty() { text("l") } else { text(hex::bytes(&bytes)) }
            }
            Command::Save(name) => {
                let status = self.status_line();
                let description = tfile::Description { definitions: &self.definitions, buffer: &self.buffer };
                match tfile::save(Path::new(&name), &description.bytes(&status)) {
                    Ok(()) => ok(),
                    Err(why) => self.refuse(&format!("{name}: {why}")),
                }
            }
            Command::Markers { first } => {
                if first {
                    // GDB takes no error text here. Without kallsyms, or when the process is gone, there is no marker.
                    let all = self.target.markers().unwrap_or_default();
                    self.listing = all.iter().map(|marker| format!("m{marker}")).collect();
                }
                self.next()
            }
            Command::MarkersAt(address) => {
                self.target.marker_at(address).map_or_else(|| text("l"), |marker| text(format!("m{marker}")))
            }
            // A probe may be placed at any instruction.
            Command::FastLength => text("1"),
            _ => text(""),
        }
    }

    /// The status as in a trace file: the packet without its first letter.
    fn status_line(&mut self) -> String {
        match self.status() {
            Answer::Text(text) => String::from_utf8_lossy(&text).into_owned(),
            _ => String::new(),
        }
    }

    /// Prints the reason on GDB's console, and returns an error.
    fn refuse(&mut self, why: &str) -> Answer {
        self.console.push(format!("kprism: {why}\n"));
        error()
    }

    fn next(&mut self) -> Answer {
        text(self.listing.pop_front().unwrap_or_else(|| "l".to_owned()))
    }

    fn start(&mut self) -> Answer {
        self.finish(Stop::NotRun);
        self.frame = None;
        self.buffer = Buffer::new(self.size, self.circular);
        let engine = match Engine::new(&self.definitions, self.ring_bytes) {
            Ok(engine) => engine,
            Err(why) => return self.refuse(&why.to_string()),
        };
        self.engine = Some(engine);
        let keys: Vec<Key> = self.definitions.points.keys().copied().collect();
        let mut installed = 0;
        for key in &keys {
            match self.install(*key) {
                Ok(()) => installed += 1,
                Err(why) => self.not_installed(*key, &why),
            }
        }
        if installed == 0 && !keys.is_empty() {
            self.finish(Stop::NotRun);
            return self.refuse("no tracepoint could be installed");
        }
        if let Some(engine) = &self.engine {
            engine.run();
        }
        self.running = true;
        self.stop = Stop::NotRun;
        self.started = host::real_ns() / 1000;
        self.stopped = 0;
        ok()
    }

    /// Installs a tracepoint that is defined while tracing runs.
    fn install_now(&mut self, key: Key) -> Answer {
        match self.install(key) {
            Ok(()) => ok(),
            Err(why) => {
                self.not_installed(key, &why);
                self.definitions.points.remove(&key);
                error()
            }
        }
    }

    fn not_installed(&mut self, key: Key, why: &Error) {
        self.console.push(format!("kprism: tracepoint {} is not installed: {why}\n", key.number));
    }

    fn install(&mut self, key: Key) -> Result<(), Error> {
        let (Some(engine), Some(point)) = (&mut self.engine, self.definitions.points.get(&key)) else {
            return Ok(());
        };
        engine.install(point, &self.definitions, &mut self.target)?;
        if point.step > 0 || !point.step_actions.is_empty() {
            self.console.push(format!(
                "kprism: tracepoint {}: while-stepping is left out: nothing can be stepped by a BPF program; what is \
                 collected at the tracepoint itself is\n",
                key.number
            ));
        }
        Ok(())
    }

    /// Ends tracing, if it runs. Records still in the ring are read.
    pub(super) fn finish(&mut self, why: Stop) {
        if !std::mem::take(&mut self.running) {
            return;
        }
        if let Some(engine) = &mut self.engine {
            engine.stop();
            self.target.detached();
            // Records that do not fit any more do not prevent the end.
            let _ = engine.drain(&mut self.buffer);
            engine.flush(&mut self.buffer);
        }
        self.stop = why;
        self.stopped = host::real_ns() / 1000;
    }

    /// Reads available records. This may end tracing.
    pub(super) fn drain(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        let drained = engine.drain(&mut self.buffer);
        let pass = engine.ended_by();
        match (drained, pass) {
            (Err(why), _) => self.finish(Stop::Failed(why.to_string())),
            (Ok(false), _) => self.finish(Stop::Full),
            (Ok(true), Some(key)) => self.finish(Stop::Pass(key.number)),
            (Ok(true), None) => {}
        }
    }

    fn find(&mut self, find: Find) -> Answer {
        if self.running {
            self.drain();
        }
        if find == Find::Number(None) {
            self.frame = None;
            return ok();
        }
        match self.buffer.find(find, self.frame) {
            Some(number) => {
                self.frame = Some(number);
                let point = self.buffer.get(number).map_or(0, |f| f.key.number);
                text(format!("F{number:x}T{point:x}"))
            }
            // The selected frame stays selected.
            None => text("F-1"),
        }
    }
}
