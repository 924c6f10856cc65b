// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place with several code addresses: a function inlined in several others, a line of several instructions.

use kprism_expr::dwarf::Places;
use kprism_expr::scope::{ProbePoint, Scope};

use crate::Error;
use crate::plan::{Plan, Request};

/// A code address of a program or the kernel.
pub(crate) struct At<'s> {
    /// Its link address.
    pub pc: u64,
    /// Link address of the function's first instruction.
    pub entry: u64,
    /// Entry, return, or between.
    pub moment: ProbePoint,
    /// The names in scope.
    pub scope: &'s dyn Scope,
}

/// All addresses: those that debug information describes, then those of bare symbols.
pub(crate) fn addresses<'p>(found: &'p Places<'_, '_>) -> Vec<At<'p>> {
    let described = found.places.iter().map(|p| At { pc: p.pc, entry: p.entry, moment: p.moment, scope: p });
    let bare = found.symbols.iter().map(|p| At { pc: p.pc, entry: p.entry, moment: p.moment, scope: p });
    described.chain(bare).collect()
}

/// Notes the parts that are left out at some of several addresses. It is an error if no address is left.
pub(crate) fn join(
    request: &Request<'_>,
    mut plans: Vec<Plan>,
    refused: Vec<(u64, Error)>,
    mut notes: Vec<String>,
) -> Result<Vec<Plan>, Error> {
    let all = plans.len() + refused.len();
    if plans.is_empty() {
        let first = refused.into_iter().next().map(|(_, error)| error);
        return Err(first.unwrap_or_else(|| Error::Cannot(format!("{}: no place", request.place))));
    }
    for (number, plan) in plans.iter_mut().enumerate() {
        plan.after_first = number as u32;
    }
    if all > 1 {
        notes.insert(0, format!("{} is {all} places in the code, {} are probed", request.place, plans.len()));
    }
    for (pc, error) in refused {
        let why = error.to_string();
        let why = why.lines().next().unwrap_or_default().to_owned();
        notes.push(format!("{} at {pc:#x} is not probed, its hits are not counted: {why}", request.place));
    }
    plans[0].notes.extend(notes);
    Ok(plans)
}
