// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's control protocol (docs/interop/qmp-spec.rst): one request, one answer. Of events, restarts are counted, and stops noted.

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
    /// Restarts of the guest that QEMU has told of, by itself or by the user (event `RESET`).
    pub resets: u32,
    /// True from the event `STOP` to the event `RESUME`.
    stopped: bool,
}

impl Qmp {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).ok();
        stream.set_write_timeout(Some(PATIENCE)).ok();
        Self { stream: BufReader::new(stream), resets: 0, stopped: false }
    }

    /// Waits for QEMU's greeting and enters command mode.
    pub fn handshake(&mut self) -> Result<()> {
        self.read()?;
        self.call("qmp_capabilities", json!({})).map(|_| ())
    }

    /// Executes `command` and returns the answer.
    pub fn call(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(|error| lost(&error))?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(Error::Qemu { reason: format!("{command}: {text}") });
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            self.note(&answer);
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
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err(Error::Qemu { reason: "it closed its control connection".into() }),
            Ok(_) => serde_json::from_str(&line).map_err(|error| Error::Qemu {
                reason: format!("its control connection sent `{line}`: {error}"),
            }),
            Err(error) => Err(lost(&error)),
        }
    }
}

fn lost(error: &std::io::Error) -> Error {
    Error::Qemu { reason: format!("its control connection failed: {error}") }
}
