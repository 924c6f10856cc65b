// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function, a line or an address of the kernel, by its debug information.

use kprism_expr::dwarf::{self, Debug, Image};
use kprism_expr::ir::{Func, Input, Op, Space};
use kprism_expr::regs::Reg;
use kprism_expr::scope::ProbePoint;

use super::several::{addresses, join};
use crate::Error;
use crate::plan::{Origin, Plan, Request, Site, compile};

/// Compiles a probe at every code address of the name or line.
pub(crate) fn plans(image: &Image, debug: &Debug<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let found = dwarf::Places::of(debug, request.place, Space::Kernel)?;
    let (mut plans, mut refused) = (Vec::new(), Vec::new());
    let all = addresses(&found);
    let several_places = Request { several: all.len() > 1, ..*request };
    let request = &several_places;
    for place in &all {
        let at_return = place.moment == ProbePoint::Return;
        let site = Site::Kernel { address: place.pc, entry: place.entry, at_return };
        let plan = compile(place.scope, request, site, Some(place.pc), &mut |func| {
            at_breakpoint(func, place.moment, place.pc);
            Ok(())
        });
        match plan {
            Ok(mut plan) => {
                plan.origin = origin(image)?;
                plans.push(plan);
            }
            Err(error) if all.len() == 1 => return Err(error),
            Err(error) => refused.push((place.pc, error)),
        }
    }
    join(request, plans, refused, found.notes)
}

/// In a kprobe's program the instruction pointer is after the breakpoint. Replaces it by the address of the place.
pub(crate) fn at_breakpoint(func: &mut Func, moment: ProbePoint, pc: u64) {
    if moment == ProbePoint::Return {
        return;
    }
    for value in &mut func.vals {
        if value.op == Op::Input(Input::Reg(Reg::Rip)) {
            value.op = Op::Address(pc);
        }
    }
}

/// Identifies the kernel for which a plan with debug information is made.
pub(crate) fn origin(image: &Image) -> Result<Origin, Error> {
    let missing = || Error::Cannot(format!("{}: no symbol _text: is it a vmlinux?", image.name()));
    let text = image.symbol("_text").ok_or_else(missing)?;
    Ok(Origin { build_id: image.build_id().map(|id| id.to_string()), text: Some(text) })
}
