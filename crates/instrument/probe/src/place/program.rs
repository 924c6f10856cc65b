// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function, a line or an address of a program or library.

use std::path::Path;

use kprism_expr::dwarf::{self, Debug, Image};
use kprism_expr::ir::{Func, Op, Space};
use kprism_expr::lower;
use kprism_expr::regs::{self, Reg};
use kprism_expr::scope::{ProbePoint, Scope};

use super::machine;
use super::several::{At, addresses, join};
use crate::Error;
use crate::plan::{Origin, Plan, Request, Site, compile};
use kprism_debuginfo::separate;

/// Compiles a probe at every code address of the name or line.
pub(crate) fn plans(
    path: &Path,
    debug_file: Option<&Path>,
    request: &Request<'_>,
) -> Result<Vec<Plan>, Error> {
    let (image, mut notes) = separate::open(path, debug_file)?;
    let debug = Debug::new(&image)?;
    let found = dwarf::Places::of(&debug, request.place, Space::User).map_err(|error| match error {
        // A place may be missing only because there is no debug information.
        dwarf::Error::Nothing(what) if !image.is_described() => {
            dwarf::Error::Nothing([&[what][..], &notes[..]].concat().join("\nnote: "))
        }
        error => error,
    })?;
    if image.is_described() {
        notes.extend(
            found
                .symbols
                .iter()
                .map(|place| format!("nothing describes {:#x}: {}", place.pc, place.describe())),
        );
    }
    let all = addresses(&found);
    let several_places = Request { several: all.len() > 1, ..*request };
    let (mut plans, mut refused) = (Vec::new(), Vec::new());
    for place in &all {
        match in_program_or_body(path, &image, place, &several_places) {
            Ok(plan) => plans.push(plan),
            Err(error) if all.len() == 1 => return Err(error),
            Err(error) => refused.push((place.pc, error)),
        }
    }
    notes.extend_from_slice(&found.notes);
    if let Some(nowhere) = nowhere(request, &plans) {
        // With a single place the expression's error gives the reason.
        let one = Request { collect: &request.collect[nowhere..=nowhere], ..*request };
        return Err(all
            .iter()
            .find_map(|place| in_program_or_body(path, &image, place, &one).err())
            .unwrap_or_else(|| {
                Error::Cannot(format!("{}: `{}` has no value", request.place, request.collect[nowhere]))
            }));
    }
    join(request, plans, refused, notes)
}

/// Index of an expression that has a value at none of the places.
fn nowhere(request: &Request<'_>, plans: &[Plan]) -> Option<usize> {
    let has = |text: &str, plan: &Plan| {
        let mut items = plan.probe.items.iter();
        items.all(|item| item.name != text.trim() || item.missing.is_none())
    };
    let lacking = |text: &String| plans.len() > 1 && !plans.iter().any(|plan| has(text, plan));
    request.collect.iter().position(lacking)
}

/// Compiles a probe, at a function's entry or behind its prologue ([`body_of`]).
fn in_program_or_body(
    path: &Path,
    image: &Image,
    place: &At<'_>,
    request: &Request<'_>,
) -> Result<Plan, Error> {
    let first = in_program(path, image, place, request);
    match body_of(image, place.scope, place.entry, request.texts())? {
        Some((pc, scope)) => {
            let body =
                At { pc, entry: landed(image, place.entry), moment: ProbePoint::Inside, scope: &*scope };
            in_program(path, image, &body, request)
        }
        None => first,
    }
}

/// Returns the address behind a function's prologue and the names there, if expressions that were compiled at its entry need
/// them: the debug information has parameters in the frame, where only the prologue stores them. Debuggers stop there too,
/// and no calling convention need be known. The entry stays the place if an expression names registers, which a
/// prologue changes, and if the body begins with a loop, of which each turn would count.
#[allow(clippy::type_complexity)]
pub fn body_of<'s, 't>(
    image: &Image,
    scope: &'s dyn Scope,
    entry: u64,
    mut texts: impl Iterator<Item = &'t str>,
) -> Result<Option<(u64, Box<dyn Scope + 's>)>, Error> {
    if texts.any(names_register) {
        return Ok(None);
    }
    let body = scope.in_body().map_err(Error::Cannot)?;
    Ok(body.filter(|(pc, _)| !machine::jumps_to(image, entry, *pc)))
}

fn in_program(path: &Path, image: &Image, place: &At<'_>, request: &Request<'_>) -> Result<Plan, Error> {
    let offset = |address: u64| {
        let what = || format!("{}: {address:#x} is not in the file", path.display());
        image.file_offset(address).ok_or_else(|| Error::Cannot(what()))
    };
    let at_return = place.moment == ProbePoint::Return;
    let (pc, entry) = match place.moment {
        ProbePoint::Inside => (place.pc, place.entry),
        _ => (landed(image, place.pc), landed(image, place.entry)),
    };
    probeable(image, pc)?;
    // Addresses from a line begin an instruction; an address given as a number may not.
    if by_number(request.place)
        && let Some(begins) = machine::around(image, pc)
    {
        let what = format!("{pc:#x} is in the middle of an instruction, which begins at {begins:#x}");
        return Err(Error::Cannot(format!(
            "{}: {what}: a breakpoint would make another of it",
            request.place
        )));
    }
    let is_go = image.has_section(".go.buildinfo") || image.has_section(".gopclntab");
    if at_return && is_go {
        let what = "a probe of a return changes who called the function, and Go's runtime ends a program for that; use the function's entry or a line";
        return Err(Error::Cannot(format!("{}: {what}", request.place)));
    }
    let site = Site::User {
        file: path.to_owned(),
        offset: offset(pc)?,
        entry: offset(entry)?,
        at_return,
        listeners: 0,
    };
    let mut fix = |func: &mut Func| {
        if image.moves() {
            if at_return && func.ops().any(|op| matches!(op, Op::Address(_))) {
                let what = "globals of a program that can be loaded anywhere cannot be found where a function returns; use its entry or a line";
                return Err(Error::Cannot(what.to_owned()));
            }
            lower::by_instruction(func, pc);
        }
        Ok(())
    };
    let mut plan = compile(place.scope, request, site, Some(pc), &mut fix)?;
    plan.probe.file = Some(path.display().to_string());
    plan.origin = Origin { build_id: image.build_id().map(|id| id.to_string()), text: None };
    let may_throw =
        place.scope.is_bare() || (!image.is_described() && image.has_section(".gcc_except_table"));
    if at_return && may_throw {
        plan.notes.push(format!(
            "an exception or a panic that passes through {} ends the program: the kernel hides who called a function whose \
             return is probed",
            request.place.trim_end_matches("%return")
        ));
    }
    if place.moment == ProbePoint::Entry && pc == place.pc && begins_with_landing(image, pc) {
        plan.notes.push(format!(
            "{} jumps back to its second instruction, so the probe stays at its first, `endbr64`, which the kernel executes by single-stepping: a hit takes 30 times as long",
            request.place
        ));
    }
    Ok(plan)
}

/// Returns true if an expression names a register or a part of one, or all of them.
fn names_register(text: &str) -> bool {
    let names = text.split('$').skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    });
    names.into_iter().any(|name| name == "regs" || Reg::by_name(name).is_some() || regs::part(name).is_some())
}

/// Returns true for `FUNC+OFFSET` and `0xADDRESS`.
fn by_number(place: &str) -> bool {
    let offset =
        place.rsplit_once('+').is_some_and(|(_, offset)| offset.starts_with(|c: char| c.is_ascii_digit()));
    place.starts_with("0x") || (offset && !place.ends_with("%return"))
}

/// The instruction that marks targets of indirect calls, where processors check them.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

fn begins_with_landing(image: &Image, pc: u64) -> bool {
    image.bytes_at(pc, ENDBR64.len()) == Some(&ENDBR64)
}

/// Skips a leading `endbr64`. The kernel has to single-step that instruction, but not most of those that follow it,
/// where registers and the stack are the same. If the function jumps to the following instruction, the entry is kept:
/// else each iteration would count.
pub(super) fn landed(image: &Image, pc: u64) -> u64 {
    let behind = pc + ENDBR64.len() as u64;
    if begins_with_landing(image, pc) && !machine::jumps_to(image, pc, behind) { behind } else { pc }
}

/// Refuses instructions on which the kernel would place no breakpoint (`arch/x86/kernel/uprobes.c`).
fn probeable(image: &Image, pc: u64) -> Result<(), Error> {
    match image.bytes_at(pc, 1) {
        Some([0xf0]) => {
            let what = format!("the instruction at {pc:#x} has a lock prefix, which uprobes cannot execute");
            Err(Error::Cannot(what))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_told_from_other_names() {
        for text in ["$rdi == 1", "a == $eax", "$regs", "*(int *)($sp + 8)", "$r8d"] {
            assert!(names_register(text), "{text}");
        }
        for text in ["a == 1", "$pid == 1 && $comm == \"x\"", "$args", "rdi == 1", "$"] {
            assert!(!names_register(text), "{text}");
        }
    }
}
