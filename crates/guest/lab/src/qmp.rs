// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU's control protocol (docs/interop/qmp-spec.rst): one request, one answer. Of events, only restarts are counted.

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
}

impl Qmp {
    pub fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).ok();
        stream.set_write_timeout(Some(PATIENCE)).ok();
        Self { stream: BufReader::new(stream), resets: 0 }
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
            self.resets += u32::from(answer.get("event").is_some_and(|name| name == "RESET"));
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
