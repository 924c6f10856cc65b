// SPDX-License-Identifier: MIT OR Apache-2.0
//! A decoded run in a few lines of text.

use kprism_profile::units::grouped;
use kprism_store::{Instrument, Manifest, Run};

/// A few lines on what was decoded.
pub fn summary(run: &Run, m: &Manifest) -> String {
    let count = |n: u64, one: &str| format!("{} {one}{}", grouped(n), if n == 1 { "" } else { "s" });
    let instructions = m.instructions.map_or("instructions not counted".into(), |n| count(n, "instruction"));
    let whole =
        m.account(Instrument::Flow).map_or("not known whether whole".into(), |account| account.line());
    let mut text = format!("{instructions} on {}; {whole}", count(m.vcpus.into(), "CPU"));
    if let (Some(recorded), Some(decoded)) = (m.instructions_recorded, m.instructions)
        && recorded != decoded
    {
        text += &format!("\nthe recorder counted {} instructions", grouped(recorded));
    }
    let facts = m.option_facts();
    let faults = condition_faults(facts.condition_faults, facts.condition_forgotten);
    for (number, what) in [(facts.snapshots, "snapshot"), (facts.windows, "window")] {
        match number {
            Some(0) => return format!("the condition was never met, so nothing was kept{faults}"),
            Some(n) => text += &format!("\n{n} {what}{}{faults}", if n == 1 { "" } else { "s" }),
            None => {}
        }
    }
    if let Some(short @ 1..) = facts.short_snapshots {
        text += &format!(
            "\n{} without the beginning of what triggered it: it takes a larger --snapshot-size",
            count(short, "snapshot")
        );
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
