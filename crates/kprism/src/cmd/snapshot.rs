// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--snapshot-when`: keep only what led to a condition. The condition's text in, the recorder's words out.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use kprism_image::symbols::kallsyms;
use kprism_lab::Prepared;

/// A kernel function is entered, or one of its calls takes longer than some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    function: String,
    longer_ns: Option<u64>,
}

const EXPECTED: &str =
    "expected `func:NAME` or `syscall:NAME`, maybe with `$duration > TIME` behind it, TIME as 5us, 1ms or 2s";

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, condition) = match text.split_once("$duration") {
            Some((place, condition)) => (place.trim(), Some(condition.trim())),
            None => (text.trim(), None),
        };
        let function = if let Some(name) = place.strip_prefix("func:") {
            name.to_owned()
        } else if let Some(name) = place.strip_prefix("syscall:") {
            format!("__x64_sys_{name}")
        } else {
            return Err(EXPECTED.to_owned());
        };
        if function.is_empty() || function.contains(char::is_whitespace) {
            return Err(EXPECTED.to_owned());
        }
        let longer_ns = match condition {
            None => None,
            Some(condition) => {
                let time = condition.strip_prefix('>').and_then(|time| nanoseconds(time.trim()));
                Some(time.ok_or(EXPECTED)?)
            }
        };
        Ok(When { function, longer_ns })
    }
}

fn nanoseconds(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(at);
    let scale = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let ns = number.parse::<f64>().ok()? * scale;
    (ns.is_finite() && ns < 1e18).then_some(ns as u64)
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "func:{}", self.function)?;
        self.longer_ns.map_or(Ok(()), |ns| write!(f, " $duration > {ns}ns"))
    }
}

impl When {
    /// As the observer's `when=` wants it.
    ///
    /// # Errors
    /// The guest's kernel has no such function.
    pub fn argument(&self, prepared: &Prepared) -> Result<String> {
        let path = prepared.snapshot_folder().join("kallsyms");
        let names = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let Some(address) = kallsyms::value_of(&names, &self.function) else {
            bail!("--snapshot-when: the guest's kernel has no function {}", self.function);
        };
        Ok(match self.longer_ns {
            Some(ns) => format!("{address:#x}:{ns}"),
            None => format!("{address:#x}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        let when = |text: &str| text.parse::<When>().map(|w| (w.function, w.longer_ns));
        assert_eq!(when("func:vfs_read $duration > 1ms"), Ok(("vfs_read".into(), Some(1_000_000))));
        assert_eq!(when("syscall:read $duration>2.5us"), Ok(("__x64_sys_read".into(), Some(2_500))));
        assert_eq!(when("func:oom_kill_process"), Ok(("oom_kill_process".into(), None)));
        for bad in [
            "",
            "vfs_read",
            "func:",
            "func:a b",
            "func:a $duration < 1ms",
            "func:a $duration > 1",
            "func:a $duration > x",
        ] {
            assert!(when(bad).is_err(), "{bad}");
        }
    }
}
