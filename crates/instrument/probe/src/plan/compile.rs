// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts a plan together: a request in IR → segments of eBPF, values and keys with their places.

use std::rc::Rc;

use kprism_expr::ctype::{self, Def, Ty};
use kprism_expr::emit::{self, Cpu, Reloc};
use kprism_expr::error::Span;
use kprism_expr::ir::{Func, Kept};
use kprism_expr::lower::{self, Collected, Env, What};
use kprism_expr::opt;
use kprism_expr::scope::{Scope, Sym};

use super::layout::{Compile, Limits, lay_out};
use super::lower::{Fix, Lowered, Wanted, request_to_ir};
use super::{Actions, CompiledActions, Origin, Plan, Request, Segment, Site, gdb, key_stack};
use crate::Error;
use crate::stream::printf::{self, Kind, Printf};
use crate::stream::tally::{LONGEST_KEY, Tally};
use crate::stream::{HEADER, Item, LONGEST, Probe};

/// Compiles a request at a place: its scope, its site, and the code address if debug information gives one.
pub(crate) fn compile(
    scope: &dyn Scope,
    request: &Request<'_>,
    site: Site,
    address: Option<u64>,
    fix: &mut Fix<'_>,
) -> Result<Plan, Error> {
    let printf =
        request.printf.map(|text| printf::split(text).map_err(|e| in_format(text, &e))).transpose()?;
    let lowered = request_to_ir(request, Env { scope, vars: request.vars }, address, fix)?;
    let kept: Vec<Kept> = lowered.kept().into_iter().collect();
    let compile = |text: &str, func: &Func| {
        let program = emit::segment(func, Cpu::V3, &kept).map_err(|e| Error::Emit(format!("`{text}`"), e))?;
        debug_assert!(program.relocs.iter().all(|r| !matches!(r.1, Reloc::Address(_))) || address.is_some());
        Ok::<_, Error>(Segment { text: text.to_owned(), program })
    };
    let condition = request.condition.zip(lowered.condition.as_ref());
    let condition = condition.map(|(text, func)| compile(text, func)).transpose()?;
    let condition_ir = lowered.condition.clone();
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
    let printf =
        printf.map(|(format, shown)| line(request, format, &shown, &lowered, &items, scope)).transpose()?;
    let (actions, tally) = actions(lowered, request, scope, &compile)?;
    // If hits are only counted in the kernel, they leave no records.
    let only_counts = tally.is_some() && items.is_empty() && frame.is_none() && printf.is_none();
    let record_bytes = if only_counts { 0 } else { end };
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
        printf,
        gdb: frame,
        effect: request.actions.effect,
    };
    Ok(Plan {
        probe,
        site,
        origin: Origin::default(),
        space: scope.space(),
        guard: None,
        enables: None,
        condition,
        condition_ir,
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
        if let Some(segment) = slot.fill.segments().find(|s| s.program.stack > key_stack(key_bytes)) {
            return Err(Error::Cannot(format!("`{}`: too large to count by", segment.text)));
        }
    }
    let mut values = Vec::new();
    for (histogram, func) in &lowered.histograms {
        values.push(compile(&histogram.name, func)?);
    }
    let mut aggregates = Vec::new();
    for (aggregate, func) in &lowered.aggregates {
        aggregates.push(compile(&aggregate.name, func)?);
    }
    let histograms = lowered.histograms.into_iter().map(|(histogram, _)| histogram).collect();
    let described = lowered.aggregates.into_iter().map(|(aggregate, _)| aggregate).collect();
    let tally = request.actions.counts().then_some(Tally { keys: items, histograms, aggregates: described });
    let Actions { skip, pass, .. } = request.actions;
    Ok((CompiledActions { skip, pass, set, keys, key_bytes, values, aggregates }, tally))
}

/// An error in `"FORMAT", EXPR, …`.
fn in_format(text: &str, error: &printf::FormatError) -> Error {
    let span = Span { start: error.at, end: error.at + 1 };
    Error::expression(text, &kprism_expr::error::Error::new(span, error.what.clone()))
}

/// The line of a record, checked against the types of its values.
fn line(
    request: &Request<'_>,
    format: String,
    shown: &[String],
    lowered: &Lowered,
    items: &[Item],
    scope: &dyn Scope,
) -> Result<Printf, Error> {
    let (mut numbers, mut values) = (Vec::new(), Vec::new());
    for text in shown {
        let name = text.trim();
        // A list of variables or all registers are no value.
        let Some(number) = items.iter().position(|item| item.name == name) else {
            return Err(Error::Cannot(format!("`{name}` is no single value that a format could show")));
        };
        let kind = match &lowered.values[number] {
            Wanted::Expression(_, collected) => kind(scope, collected),
            // At this address of several it has no value, and a question mark is shown.
            Wanted::Missing { .. } => None,
            Wanted::Registers | Wanted::Stack { .. } | Wanted::Callers { .. } => Some(Kind::Other),
        };
        numbers.push(number as u32);
        values.push((name, items[number].ty.as_str(), kind));
    }
    let checked = match values
        .iter()
        .map(|(name, ty, kind)| Some((*name, *ty, (*kind)?)))
        .collect::<Option<Vec<_>>>()
    {
        Some(values) => Printf::check(&format, &values),
        None => printf::pieces(&format).map(drop),
    };
    checked.map_err(|what| {
        in_format(request.printf.unwrap_or_default(), &printf::FormatError { at: 0, what })
    })?;
    Ok(Printf { format, items: numbers })
}

/// The kind of a value, as formats tell them apart; `None` where there is nothing to tell.
fn kind(scope: &dyn Scope, collected: &Collected) -> Option<Kind> {
    if collected.shown == "container" {
        return Some(Kind::Text);
    }
    Some(match (&collected.what, ctype::resolve(scope, &collected.ty)) {
        (What::Comm | What::Text(_), _) => Kind::Text,
        (What::Elements(elements), _) if elements.text => Kind::Text,
        (What::Memory(4 | 8), Ok(Def::Float(..))) => Kind::Float,
        (What::Value, Ok(Def::Enum(of))) => Kind::Enum { size: of.int.size },
        (What::Value, Ok(Def::Plain(Ty::Int(int)))) => Kind::Int { size: int.size, signed: int.signed },
        (What::Value, Ok(Def::Plain(Ty::Ptr(_) | Ty::Array(..)))) => Kind::Pointer,
        _ => Kind::Other,
    })
}

/// Compiles a guard to a segment.
pub(crate) fn guard(holds: &Rc<Sym>, scope: &dyn Scope) -> Result<Segment, Error> {
    let text = "the stack's return addresses";
    let mut func = lower::described(holds, scope).map_err(|e| Error::expression(text, &e))?;
    opt::optimise(&mut func);
    let program = emit::segment(&func, Cpu::V3, &[]).map_err(|e| Error::Emit(format!("`{text}`"), e))?;
    Ok(Segment { text: text.to_owned(), program })
}
