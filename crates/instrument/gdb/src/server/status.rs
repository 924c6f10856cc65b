// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace status for GDB's `tstatus`: whether tracing runs, why it ended, and what was lost.

use kprism_rsp::define::Key;
use kprism_rsp::hex;

use super::{Answer, Server, text};

/// Reason why tracing does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It was never started.
    NotRun,
    /// The user's `tstop`.
    Asked,
    /// The trace buffer is full.
    Full,
    /// GDB disconnected.
    Disconnected,
    /// A tracepoint with this number reached its pass count.
    Pass(u32),
    /// The kernel reported this error.
    Failed(String),
}

/// The user's notes on the trace.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Name of the user.
    pub user: String,
    /// `set trace-notes`.
    pub notes: String,
    /// `set trace-stop-notes`.
    pub stop: String,
}

impl Server {
    /// `qTStatus`.
    pub(super) fn status(&mut self) -> Answer {
        if self.running {
            self.drain();
        }
        let lost = self.shortcomings();
        let stop = match (&self.stop, self.running) {
            (_, true) => String::new(),
            (Stop::NotRun, _) => "tnotrun:0;".to_owned(),
            (Stop::Asked, _) => {
                let both = [self.notes.stop.as_str(), lost.as_str()];
                let both: Vec<&str> = both.into_iter().filter(|t| !t.is_empty()).collect();
                // Also if the text is empty: without its colon, GDB 13's `tsave` reads an invalid address and crashes.
                format!("tstop:{}:0;", hex::bytes(both.join("; ").as_bytes()))
            }
            (Stop::Full, _) => "tfull:0;".to_owned(),
            (Stop::Disconnected, _) => "tdisconnected:0;".to_owned(),
            (Stop::Pass(number), _) => format!("tpasscount:{number:x};"),
            (Stop::Failed(why), _) => format!("terror:{}:0;", hex::bytes(why.as_bytes())),
        };
        // Losses are reported as a note where the reply has no other place for them.
        let told = matches!(self.stop, Stop::Asked) && !self.running;
        let both = [self.notes.notes.as_str(), if told { "" } else { lost.as_str() }];
        let both: Vec<&str> = both.into_iter().filter(|t| !t.is_empty()).collect();
        text(format!(
            "T{};{stop}tframes:{:x};tcreated:{:x};tfree:{:x};tsize:{:x};circular:{};disconn:{};\
             starttime:{:x};stoptime:{:x};username:{};notes:{}",
            u8::from(self.running),
            self.buffer.len(),
            self.buffer.created(),
            self.buffer.free(),
            self.buffer.size(),
            u8::from(self.circular),
            u8::from(self.keep),
            self.started,
            self.stopped,
            hex::bytes(self.notes.user.as_bytes()),
            hex::bytes(both.join("; ").as_bytes()),
        ))
    }

    /// Text about lost and failed data; empty if there is none.
    fn shortcomings(&self) -> String {
        let mut all = Vec::new();
        for key in self.definitions.points.keys() {
            all.extend(self.shortcoming(*key).map(|what| format!("tracepoint {}: {what}", key.number)));
        }
        all.join("; ")
    }

    fn shortcoming(&self, key: Key) -> Option<String> {
        let counts = self.engine.as_ref()?.counts(key)?;
        let mut all: Vec<String> = counts.faults.iter().map(|(why, n)| format!("{n} × {why}")).collect();
        if counts.lost > 0 {
            all.push(format!("{} records lost (the ring was full)", counts.lost));
        }
        if counts.missed > 0 {
            all.push(format!("{} hits not seen (in a probe already)", counts.missed));
        }
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// A line with the counters of each tracepoint.
    pub(super) fn counted(&self) -> String {
        let mut out = String::new();
        for key in self.definitions.points.keys() {
            let line = match self.engine.as_ref().and_then(|e| e.counts(*key)) {
                None => "not installed".to_owned(),
                Some(counts) => {
                    let (frames, bytes) = self.buffer.of(*key);
                    let more = self.shortcoming(*key).map_or(String::new(), |what| format!("; {what}"));
                    format!("{} hits, {frames} frames of {bytes} bytes{more}", counts.hits)
                }
            };
            out += &format!("tracepoint {} at {:#x}: {line}\n", key.number, key.address);
        }
        if out.is_empty() { "no tracepoint was downloaded\n".to_owned() } else { out }
    }
}
