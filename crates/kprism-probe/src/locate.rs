// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a probe is: in a program, in the kernel with its debug information, or in the kernel by its BTF.

use std::path::Path;

use kprism_expr::btf::{self, Btf};
use kprism_expr::dwarf::{self, Debug, Image};
use kprism_expr::ir::{Func, Input, Op, Space};
use kprism_expr::lower;
use kprism_expr::regs::Reg;
use kprism_expr::scope::Moment;

use crate::Error;
use crate::plan::{Origin, Plan, Request, Site, made};

/// Whose place it is.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A program's or library's, with debug information.
    Program(&'a Path),
    /// The kernel's, with the file of its debug information.
    Kernel(&'a Path),
    /// The running kernel's, or its modules', with their types as BTF.
    Btf(&'a Path),
}

/// Compiles a probe.
pub fn plan(target: Target<'_>, request: &Request<'_>) -> Result<Plan, Error> {
    match target {
        Target::Btf(path) => by_btf(path, request),
        Target::Program(path) => program(path, request),
        Target::Kernel(path) => kernel(path, request),
    }
}

fn by_btf(path: &Path, request: &Request<'_>) -> Result<Plan, Error> {
    let name = path.display().to_string();
    let data = std::fs::read(path).map_err(|e| Error::Cannot(format!("{name}: {e}")))?;
    let at_return = request.place.ends_with("%return");
    let function = request.place.trim_end_matches("%return").to_owned();
    let btf = Btf::parse(&data, &name)?;
    let error = match btf::Place::find(&btf, request.place) {
        Ok(place) => {
            let site = Site::Traced { function, module: None, at_return };
            return made(&place, request, site, None, &mut |_| Ok(()));
        }
        Err(error) => error,
    };
    // A module's types go on where the kernel's end.
    for module in modules(path) {
        let Ok(own) = std::fs::read(&module) else { continue };
        if memchr::memmem::find(&own, function.as_bytes()).is_none() {
            continue;
        }
        let name = module.display().to_string();
        let joined = btf::joined(&data, &own, &name)?;
        let btf = Btf::parse(&joined, &name)?;
        let Ok(place) = btf::Place::find(&btf, request.place) else { continue };
        let module = module.file_name().map(|n| n.to_string_lossy().into_owned());
        let site = Site::Traced { function, module, at_return };
        return made(&place, request, site, None, &mut |_| Ok(()));
    }
    Err(error.into())
}

/// The modules' BTF beside the kernel's, in order of their names.
fn modules(vmlinux: &Path) -> Vec<std::path::PathBuf> {
    let Some(entries) = vmlinux.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let mut all: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p != vmlinux).collect();
    all.sort();
    all
}

fn program(path: &Path, request: &Request<'_>) -> Result<Plan, Error> {
    let image = Image::open(path)?;
    let debug = Debug::new(&image)?;
    let place = dwarf::Place::find(&debug, request.place, Space::User)?;
    let offset = |address: u64| {
        let what = || format!("{}: {address:#x} is not in the file", path.display());
        image.file_offset(address).ok_or_else(|| Error::Cannot(what()))
    };
    let at_return = place.moment == Moment::Return;
    let (offset, entry) = (offset(place.pc)?, offset(place.entry)?);
    let site = Site::User { file: path.to_owned(), offset, entry, at_return, listeners: 0 };
    let mut fix = |func: &mut Func| {
        if image.moves() {
            if at_return && func.ops().any(|op| matches!(op, Op::Address(_))) {
                let what = "globals of a program that can be loaded anywhere cannot be found where a function returns; use its entry or a line";
                return Err(Error::Cannot(what.to_owned()));
            }
            lower::by_instruction(func, place.pc);
        }
        Ok(())
    };
    let mut plan = made(&place, request, site, Some(place.pc), &mut fix)?;
    plan.probe.file = Some(path.display().to_string());
    plan.origin = Origin { build_id: image.build_id(), text: None };
    plan.notes.extend(place.others.iter().map(|other| also(request.place, *other)));
    Ok(plan)
}

fn kernel(path: &Path, request: &Request<'_>) -> Result<Plan, Error> {
    let image = Image::open(path)?;
    let debug = Debug::new(&image)?;
    let place = dwarf::Place::find(&debug, request.place, Space::Kernel)?;
    let at_return = place.moment == Moment::Return;
    let site = Site::Kernel { address: place.pc, entry: place.entry, at_return };
    let mut plan = made(&place, request, site, Some(place.pc), &mut |func| Ok(at_breakpoint(func, &place)))?;
    plan.origin = origin(&image)?;
    plan.notes.extend(place.others.iter().map(|other| also(request.place, *other)));
    Ok(plan)
}

/// A kprobe's program sees the instruction pointer behind the breakpoint; what is meant is the place itself.
fn at_breakpoint(func: &mut Func, place: &dwarf::Place<'_, '_>) {
    if place.moment == Moment::Return {
        return;
    }
    for value in &mut func.vals {
        if value.op == Op::Input(Input::Reg(Reg::Rip)) {
            value.op = Op::Address(place.pc);
        }
    }
}

/// What a plan with the kernel's debug information is for.
pub(crate) fn origin(image: &Image) -> Result<Origin, Error> {
    let missing = || Error::Cannot(format!("{}: no symbol _text: is it a vmlinux?", image.name()));
    let text = image.symbol("_text").ok_or_else(missing)?;
    Ok(Origin { build_id: image.build_id(), text: Some(text) })
}

fn also(place: &str, other: u64) -> String {
    format!("{place} begins at {other:#x} too; a probe there is another place")
}
