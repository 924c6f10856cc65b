// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans in a file, to compile where debug information is and run where it is not.
//!
//! The file is JSON; programs are hexadecimal digits. Errors in it are found when it is read, or by the kernel's
//! verifier, which checks it like any other program.

use serde::{Deserialize, Serialize};

use super::{Fill, MOST_LISTED, Plan, Segment, Slot, key_stack};
use crate::Error;
use crate::program::VARS_END;
use crate::stream::tally::{LONGEST_KEY, MOST_AGGREGATES, MOST_HISTOGRAMS};
use crate::stream::{HEADER, LONGEST, MOST_ITEMS};
use kprism_bpf::segment::STACK;

/// The version of the format.
pub const VERSION: u32 = 7;

/// Maximum of variables that each thread has for itself.
pub const MOST_THREAD_VARS: usize = 64;

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiled {
    /// Version of the format, [`VERSION`].
    pub version: u32,
    /// Trace state variables and their initial values.
    pub vars: Vec<(String, i64)>,
    /// Trace state variables that each thread has for itself, 0 at first. Their numbers follow those of the others.
    pub thread_vars: Vec<String>,
    /// The probes.
    pub plans: Vec<Plan>,
}

impl Compiled {
    /// Encodes the file.
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        let mut text = serde_json::to_vec(self).map_err(|e| Error::Cannot(e.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses any bytes. `name` is the file's name, for errors.
    pub fn parse(bytes: &[u8], name: &str) -> Result<Self, Error> {
        let bad = |what: String| Error::Cannot(format!("{name}: {what}"));
        let found: Self = serde_json::from_slice(bytes).map_err(|e| {
            bad(format!("line {}, column {}: expected compiled probes: {e}", e.line(), e.column()))
        })?;
        if found.version != VERSION {
            return Err(bad(format!("version {}, this kprism reads {VERSION}", found.version)));
        }
        let vars = found.vars.len() + found.thread_vars.len();
        if found.vars.len() > VARS_END as usize / 8 || found.thread_vars.len() > MOST_THREAD_VARS {
            return Err(bad(format!("{vars} trace state variables")));
        }
        for (number, plan) in found.plans.iter().enumerate() {
            if plan.after_first as usize > number {
                return Err(bad(format!("`{}`: no plan {} before it", plan.probe.place, plan.after_first)));
            }
            check(plan, vars).map_err(|what| bad(format!("`{}`: {what}", plan.probe.place)))?;
        }
        Ok(found)
    }
}

fn check(plan: &Plan, vars: usize) -> Result<(), String> {
    match &plan.instead {
        Some(instead) if instead.instead.is_some() => return Err("more than one to fall back on".to_owned()),
        Some(instead) => check(instead, vars)?,
        None => {}
    }
    let bytes = plan.probe.record_bytes as usize;
    let no_record = bytes == 0 && plan.slots.is_empty() && plan.probe.tally.is_some();
    if !no_record && (!(HEADER..=LONGEST).contains(&bytes) || !bytes.is_multiple_of(8)) {
        return Err(format!("a record of {bytes} bytes, expected {HEADER} to {LONGEST} in eights"));
    }
    if plan.probe.items.len() > MOST_LISTED || plan.slots.len() > MOST_ITEMS || plan.kept.len() > MOST_ITEMS {
        return Err(format!("more than {MOST_ITEMS} values"));
    }
    if plan.hidden.len() > 4 * MOST_LISTED {
        return Err(format!("{} parts of memory for GDB", plan.hidden.len()));
    }
    for slot in plan.slots.iter().chain(&plan.hidden) {
        check_slot(slot, bytes as u64, vars)?;
    }
    check_actions(plan, vars)?;
    plan.condition.iter().chain(&plan.guard).try_for_each(|segment| check_segment(segment, vars))
}

/// Checks that a value fits its place.
fn check_slot(slot: &Slot, end: u64, vars: usize) -> Result<(), String> {
    let (segment, size) = match &slot.fill {
        Fill::Value(segment) => (Some(segment), 8),
        Fill::Text(segment, room, most) if *most <= *room => (Some(segment), 8 + u64::from(*room)),
        Fill::Text(_, room, most) => return Err(format!("a string of {most} bytes in {room}")),
        Fill::Memory(segment, size) => (Some(segment), u64::from(*size)),
        Fill::Elements { address, count, stride, most } => {
            check_segment(count, vars)?;
            (Some(address), 8 + (u64::from(*stride) * u64::from(*most)).next_multiple_of(8))
        }
        Fill::Comm => (None, 24),
        Fill::Registers => (None, 168),
        Fill::Stack { room, .. } => (None, 8 + u64::from(*room)),
    };
    let fits = slot.at as usize >= HEADER && u64::from(slot.at) + size <= end;
    if !fits || slot.number as usize >= MOST_ITEMS || size == 0 {
        return Err(format!("a value of {size} bytes at {} of {end}", slot.at));
    }
    segment.map_or(Ok(()), |segment| check_segment(segment, vars))
}

fn check_actions(plan: &Plan, vars: usize) -> Result<(), String> {
    let actions = &plan.actions;
    actions.segments().try_for_each(|segment| check_segment(segment, vars))?;
    if actions.key_bytes > LONGEST_KEY || !actions.key_bytes.is_multiple_of(8) {
        return Err(format!("keys of {} bytes, expected up to {LONGEST_KEY} in eights", actions.key_bytes));
    }
    for slot in &actions.keys {
        check_slot(slot, HEADER as u64 + u64::from(actions.key_bytes), vars)?;
        let out = |segment: &&Segment| segment.program.stack > key_stack(actions.key_bytes);
        if let Some(segment) = slot.fill.segments().find(out) {
            return Err(format!("`{}`: reaches out of its memory", segment.text));
        }
    }
    let (keys, values) = (actions.keys.len(), actions.values.len());
    let aggregates = actions.aggregates.len();
    let Some(tally) = &plan.probe.tally else {
        return if keys + values + aggregates == 0 {
            Ok(())
        } else {
            Err("values of counts, and no counts".to_owned())
        };
    };
    if tally.keys.len() != keys || tally.histograms.len() != values || values > MOST_HISTOGRAMS {
        return Err(format!("{keys} keys and {values} histograms, expected as many as are described"));
    }
    if tally.aggregates.len() != aggregates || aggregates > MOST_AGGREGATES {
        return Err(format!("{aggregates} aggregates, expected as many as are described"));
    }
    tally.histograms.iter().try_for_each(|histogram| histogram.scale.checked())
}

fn check_segment(segment: &Segment, vars: usize) -> Result<(), String> {
    use kprism_expr::emit::{Reloc, state_size};
    let program = &segment.program;
    let outside = |at: i32| usize::try_from(at).map_or(true, |at| at >= state_size(vars));
    let unknown =
        |reloc: &Reloc| matches!(reloc, Reloc::Bound(name, ..) if usize::from(*name) >= program.names.len());
    if program.relocs.iter().any(|r| unknown(&r.1)) {
        return Err(format!("`{}`: names what it does not have", segment.text));
    }
    let bad = program.relocs.iter().any(|r| matches!(r.1, Reloc::MapValue(_, at) if outside(at)));
    if bad || program.stack > STACK {
        return Err(format!("`{}`: reaches out of its memory", segment.text));
    }
    Ok(())
}
