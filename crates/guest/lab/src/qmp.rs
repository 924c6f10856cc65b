// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's control protocol (docs/interop/qmp-spec.rst): one request, one answer, told by its `id`: one that comes after nobody
//! waits for it any more is never taken for the next one's. Of events, restarts are counted, and stops noted.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// Maximum time for an answer. Beyond it, QEMU hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a QEMU.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// The begin of a line whose end did not come in time.
    begun: Vec<u8>,
    /// Number of the last request.
    id: u64,
    /// Restarts of the guest that QEMU has told of, by itself or by the user (event `RESET`).
    pub resets: u32,
    /// True from the event `STOP` to the event `RESUME`.
    stopped: bool,
}

impl Qmp {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).ok();
        stream.set_write_timeout(Some(PATIENCE)).ok();
        Self { stream: BufReader::new(stream), begun: Vec::new(), id: 0, resets: 0, stopped: false }
    }

    /// Waits for QEMU's greeting and enters command mode.
    pub fn handshake(&mut self) -> Result<()> {
        self.read()?;
        self.call("qmp_capabilities", json!({})).map(|_| ())
    }

    /// Executes `command` and returns the answer.
    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let id = self.begin(command, arguments)?;
        self.answer(command, id)
    }

    /// Sends `command`, and returns the number by which its answer is known.
    pub fn begin(&mut self, command: &str, arguments: Value) -> Result<u64> {
        self.id += 1;
        let request = json!({ "execute": command, "arguments": arguments, "id": self.id });
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(|error| lost(&error))?;
        Ok(self.id)
    }

    /// Waits for the answer to the command that was sent last.
    pub fn answer(&mut self, command: &str, id: u64) -> Result<Value> {
        loop {
            let mut answer = self.read()?;
            self.note(&answer);
            // An error without a number is of a request that could not be read, so of this one.
            let is_ours = match answer.get("id") {
                Some(number) => number.as_u64() == Some(id),
                None => answer.get("error").is_some(),
            };
            if !is_ours {
                continue;
            }
            if let Some(error) = answer.get("error") {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(Error::Qemu { reason: format!("{command}: {text}") });
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Waits until QEMU has stopped the guest. Nothing is asked meanwhile: when the guest stops itself while QEMU is busy with
    /// a question, QEMU takes the vCPU for idle, and guest time (`-icount sleep=off`) jumps to the next timer. Then two
    /// boots of one guest would differ.
    pub fn wait_stopped(&mut self) -> Result<()> {
        while !self.stopped {
            let event = self.read()?;
            self.note(&event);
        }
        Ok(())
    }

    fn note(&mut self, message: &Value) {
        match message.get("event").and_then(Value::as_str) {
            Some("RESET") => self.resets += 1,
            Some("STOP") => self.stopped = true,
            Some("RESUME") => self.stopped = false,
            _ => {}
        }
    }

    /// Asks QEMU to end, without waiting for an answer.
    pub fn send_quit(&mut self) {
        self.stream.get_mut().write_all(b"{\"execute\":\"quit\"}\n").ok();
    }

    fn read(&mut self) -> Result<Value> {
        match self.stream.read_until(b'\n', &mut self.begun) {
            Ok(0) => Err(Error::Qemu { reason: "it closed its control connection".into() }),
            Ok(_) => {
                let line = std::mem::take(&mut self.begun);
                serde_json::from_slice(&line).map_err(|error| Error::Qemu {
                    reason: format!(
                        "its control connection sent `{}`: {error}",
                        String::from_utf8_lossy(&line)
                    ),
                })
            }
            Err(error) => Err(lost(&error)),
        }
    }
}

fn lost(error: &std::io::Error) -> Error {
    Error::Qemu { reason: format!("its control connection failed: {error}") }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A peer that answers the first request in two pieces, the second piece when nobody waits for it any more.
    #[test]
    fn a_late_answer_is_not_the_next_ones() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (given_up, late) = channel();
        let peer = std::thread::spawn(move || {
            let mut theirs = BufReader::new(theirs);
            let mut request = || {
                let mut line = String::new();
                theirs.read_line(&mut line).unwrap();
                let id = serde_json::from_str::<Value>(&line).unwrap()["id"].clone();
                (id, theirs.get_ref().try_clone().unwrap())
            };
            let (first, mut to) = request();
            write!(to, "{{\"event\": \"RESET\"}}\n{{\"return\": \"fir").unwrap();
            late.recv().unwrap();
            writeln!(to, "st\", \"id\": {first}}}").unwrap();
            let (second, mut to) = request();
            writeln!(to, "{{\"return\": \"second\", \"id\": {second}}}").unwrap();
            let (_, mut to) = request();
            writeln!(to, "{{\"error\": {{\"desc\": \"unreadable\"}}}}").unwrap();
        });
        let mut qmp = Qmp::new(ours);
        qmp.stream.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        qmp.call("one", json!({})).unwrap_err();
        qmp.stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        given_up.send(()).unwrap();
        assert_eq!(qmp.call("two", json!({})).unwrap(), "second");
        assert!(qmp.call("three", json!({})).unwrap_err().to_string().contains("unreadable"));
        assert_eq!(qmp.resets, 1);
        peer.join().unwrap();
    }
}
