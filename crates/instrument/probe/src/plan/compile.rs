// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts a plan together: a request in IR → segments of eBPF, values and keys with their places.

use std::rc::Rc;

use kprism_expr::emit::{self, Cpu, Reloc};
use kprism_expr::ir::{Func, Kept};
use kprism_expr::lower::{self, Env};
use kprism_expr::opt;
use kprism_expr::scope::{Scope, Sym};

use super::layout::{Compile, Limits, lay_out};
use super::lower::{Fix, Lowered, request_to_ir};
use super::{Actions, CompiledActions, Fill, Origin, Plan, Request, Segment, Site, gdb, key_stack};
use crate::Error;
use crate::stream::tally::{LONGEST_KEY, Tally};
use crate::stream::{HEADER, LONGEST, Probe};

/// Compiles a request at a place: its scope, its site, and the code address if debug information gives one.
pub(crate) fn compile(
    scope: &dyn Scope,
    request: &Request<'_>,
    site: Site,
    address: Option<u64>,
    fix: &mut Fix<'_>,
) -> Result<Plan, Error> {
    let lowered = request_to_ir(request, Env { scope, vars: request.vars }, address, fix)?;
    let kept: Vec<Kept> = lowered.kept().into_iter().collect();
    let compile = |text: &str, func: &Func| {
        let program = emit::segment(func, Cpu::V3, &kept).map_err(|e| Error::Emit(format!("`{text}`"), e))?;
        debug_assert!(program.relocs.iter().all(|r| !matches!(r.1, Reloc::Address(_))) || address.is_some());
        Ok::<_, Error>(Segment { text: text.to_owned(), program })
    };
    let condition = request.condition.zip(lowered.condition.as_ref());
    let condition = condition.map(|(text, func)| compile(text, func)).transpose()?;
    let (items, slots, mut end) =
        lay_out(&lowered.values, scope, Limits::of_records(request.text), &compile)?;
    let (mut frame, mut hidden) = (None, Vec::new());
    if request.gdb {
        if !(site.has_registers() && scope.has_registers()) || site.is_return() {
            let what = "GDB shows hits where registers are known and no function returned: programs, or the kernel with its debug information (-k VMLINUX)";
            return Err(Error::Cannot(format!("{}: {what}", request.place)));
        }
        let (kept, slots, after) = gdb::lay_out(&lowered.values, &items, &slots, end, &compile)?;
        (frame, hidden, end) = (Some(kept), slots, after);
    }
    if end as usize > LONGEST {
        return Err(Error::Cannot(format!(
            "a record would have {end} bytes, more than {LONGEST}: collect less"
        )));
    }
    let (actions, tally) = actions(lowered, request, scope, &compile)?;
    // If hits are only counted in the kernel, they leave no records.
    let record_bytes = if tally.is_some() && items.is_empty() && frame.is_none() { 0 } else { end };
    let probe = Probe {
        place: request.place.to_owned(),
        found: scope.describe(),
        condition: request.condition.map(str::to_owned),
        file: None,
        address,
        hook: site.hook().to_owned(),
        record_bytes,
        items,
        tally,
        gdb: frame,
        effect: request.actions.effect,
    };
    Ok(Plan {
        probe,
        site,
        origin: Origin::default(),
        space: scope.space(),
        guard: None,
        condition,
        slots,
        actions,
        hidden,
        kept,
        after_first: 0,
        notes: Vec::new(),
        instead: None,
    })
}

/// Compiles the actions to segments: everything in `lowered` but its values.
fn actions(
    lowered: Lowered,
    request: &Request<'_>,
    scope: &dyn Scope,
    compile: &Compile<'_>,
) -> Result<(CompiledActions, Option<Tally>), Error> {
    let set = lowered.set.iter().map(|(text, func)| compile(text, func)).collect::<Result<_, _>>()?;
    let (items, keys, end) = lay_out(&lowered.keys, scope, Limits::of_keys(request.text), compile)?;
    let key_bytes = end - HEADER as u32;
    if key_bytes > LONGEST_KEY {
        let what = format!("the keys have {key_bytes} bytes, {LONGEST_KEY} can be counted by: name fewer");
        return Err(Error::Cannot(what));
    }
    for slot in &keys {
        let segments = match &slot.fill {
            Fill::Value(s) | Fill::Text(s, ..) | Fill::Memory(s, _) => [Some(s), None],
            Fill::Elements { address, count, .. } => [Some(address), Some(count)],
            _ => continue,
        };
        for segment in segments.into_iter().flatten() {
            if segment.program.stack > key_stack(key_bytes) {
                return Err(Error::Cannot(format!("`{}`: too large to count by", segment.text)));
            }
        }
    }
    let mut values = Vec::new();
    for (histogram, func) in &lowered.histograms {
        values.push(compile(&histogram.name, func)?);
    }
    let histograms = lowered.histograms.into_iter().map(|(histogram, _)| histogram).collect();
    let tally = request.actions.counts().then_some(Tally { keys: items, histograms });
    let Actions { skip, pass, .. } = request.actions;
    Ok((CompiledActions { skip, pass, set, keys, key_bytes, values }, tally))
}

/// Compiles a guard to a segment.
pub(crate) fn guard(holds: &Rc<Sym>, scope: &dyn Scope) -> Result<Segment, Error> {
    let text = "the stack's return addresses";
    let mut func = lower::described(holds, scope).map_err(|e| Error::Expression(e.render(text)))?;
    opt::optimise(&mut func);
    let program = emit::segment(&func, Cpu::V3, &[]).map_err(|e| Error::Emit(format!("`{text}`"), e))?;
    Ok(Segment { text: text.to_owned(), program })
}
