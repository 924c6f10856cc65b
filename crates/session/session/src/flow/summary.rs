// SPDX-License-Identifier: MIT OR Apache-2.0
//! A decoded run in a few lines of text.

use kprism_profile::units::grouped;
use kprism_store::{Manifest, Run};

/// A few lines on what was decoded.
pub fn summary(run: &Run, m: &Manifest) -> String {
    let count = |n: u64, one: &str| format!("{} {one}{}", grouped(n), if n == 1 { "" } else { "s" });
    let mut text = format!(
        "{} on {}, {}, {} lost",
        count(m.instructions.unwrap_or(0), "instruction"),
        count(m.vcpus.into(), "CPU"),
        count(m.decode_errors.unwrap_or(0), "decode error"),
        count(m.lost_bytes, "byte"),
    );
    if let (Some(recorded), Some(decoded)) = (m.instructions_recorded, m.instructions)
        && recorded != decoded
    {
        text += &format!("\nthe recorder counted {} instructions", grouped(recorded));
    }
    let number = |name| m.options.get(name).and_then(serde_json::Value::as_u64);
    let faults = condition_faults(number("condition_faults"), number("condition_forgotten"));
    for (name, what) in [("snapshots", "snapshot"), ("windows", "window")] {
        match number(name) {
            Some(0) => return format!("the condition was never met, so nothing was kept{faults}"),
            Some(n) => text += &format!("\n{n} {what}{}{faults}", if n == 1 { "" } else { "s" }),
            None => {}
        }
    }
    let place = run.dir().display();
    let input = crate::input_option(run);
    text += &format!("\nrecorded in {place}; see: kprism report{input}");
    text
}

/// Remarks on conditions that could not be computed, and on calls and intervals that were not followed to their end; empty if
/// there were none.
pub fn condition_faults(faults: Option<u64>, forgotten: Option<u64>) -> String {
    let mut text = String::new();
    for (count, why) in [
        (faults, "times it could not be told: a bad read or a division by zero"),
        (forgotten, "calls or intervals were not followed to their end: too many were open"),
    ] {
        if let Some(n @ 1..) = count {
            text += &format!("; {} {why}", grouped(n));
        }
    }
    text
}
