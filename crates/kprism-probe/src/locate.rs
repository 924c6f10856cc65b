// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a probe is: in a program, in the kernel with its debug information, or in the kernel by its BTF.

use std::path::Path;
use std::sync::Arc;

use kprism_btf::Btf;
use kprism_expr::btf;
use kprism_expr::dwarf::{self, Debug, Image};
use kprism_expr::ir::{Func, Input, Op, Space};
use kprism_expr::lower;
use kprism_expr::regs::Reg;
use kprism_expr::scope::{Bare, Moment, Scope};
use kprism_expr::usdt::{self, Usdt};

use crate::Error;
use crate::events::{self, Name};
use crate::plan::{Origin, Plan, Request, Site, made};

/// Whose place it is.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A program's or library's, with debug information.
    Program(&'a Path),
    /// The running kernel's, or its modules', with their types as BTF.
    Btf(&'a Path),
}

/// Compiles a probe without the kernel's debug information. A place that is several in the code gives several.
pub fn plans(target: Target<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let one = |plan: Result<Plan, Error>| plan.map(|plan| vec![plan]);
    match (target, Name::of(request.place)) {
        (Target::Btf(path), Some(name)) => one(running_event(path, name, request)),
        (Target::Btf(path), None) => one(by_btf(path, request)),
        (Target::Program(path), Some(name)) => usdt(path, name, request),
        (Target::Program(path), None) => one(program(path, request)),
    }
}

/// Compiles probes of the kernel with its debug information, which is read once.
pub fn kernel_plans(path: &Path, requests: &[Request<'_>]) -> Result<Vec<Result<Vec<Plan>, Error>>, Error> {
    let image = Image::open(path)?;
    let debug = Debug::new(&image)?;
    Ok(requests.iter().map(|request| in_kernel(&image, &debug, request)).collect())
}

fn in_kernel(image: &Image, debug: &Debug<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    match Name::of(request.place) {
        Some(name) => events::by_debug(image, debug, name, request),
        None => kernel(image, debug, request).map(|plan| vec![plan]),
    }
}

/// An event of the running kernel, as its tracefs and BTF describe it.
fn running_event(path: &Path, name: Name<'_>, request: &Request<'_>) -> Result<Plan, Error> {
    if let Some(around) = name.around {
        let what =
            format!("what `{around}` has around a tracepoint, only debug information tells (-k VMLINUX)");
        return Err(Error::Cannot(what));
    }
    let tracefs = kprism_bpf::host::tracefs().ok_or_else(|| {
        Error::Cannot("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing".to_owned())
    })?;
    let format = tracefs.join("events").join(name.system).join(name.event).join("format");
    let text = std::fs::read(&format).map_err(|e| {
        let what = format!("no event `{}:{}`", name.system, name.event);
        Error::Cannot(format!("{what} ({}: {e}); kprism list events shows all", format.display()))
    })?;
    let event = events::described(name.system, &text)?;
    let file = path.display().to_string();
    let data = std::fs::read(path).map_err(|e| Error::Cannot(format!("{file}: {e}")))?;
    events::by_btf(&Btf::parse(&file, data, None)?, &event, request)
}

fn by_btf(path: &Path, request: &Request<'_>) -> Result<Plan, Error> {
    let name = path.display().to_string();
    let data = std::fs::read(path).map_err(|e| Error::Cannot(format!("{name}: {e}")))?;
    let function = request.place.trim_end_matches("%return").to_owned();
    let btf = Arc::new(Btf::parse(&name, data, None)?);
    let error = match btf::Place::find(&btf, request.place) {
        Ok(place) => return traced(place, request, &function, None),
        Err(error) => error,
    };
    for module in modules(path) {
        let Ok(own) = std::fs::read(&module) else { continue };
        if memchr::memmem::find(&own, function.as_bytes()).is_none() {
            continue;
        }
        let name = module.display().to_string();
        let btf = Btf::parse(&name, own, Some(btf.clone()))?;
        let Ok(place) = btf::Place::find(&btf, request.place) else { continue };
        let module = module.file_name().map(|n| n.to_string_lossy().into_owned());
        return traced(place, request, &function, module);
    }
    Err(error.into())
}

/// By fentry or fexit; by a kprobe where the kernel has none of these, or says so when it is to be attached.
fn traced(
    place: btf::Place<'_>,
    request: &Request<'_>,
    function: &str,
    module: Option<String>,
) -> Result<Plan, Error> {
    let at_return = request.place.ends_with("%return");
    let function = function.to_owned();
    let variadic = place.variadic;
    let site = Site::Traced { function: function.clone(), module: module.clone(), at_return };
    let plan = made(&place, request, site, None, &mut |_| Ok(()));
    let site = Site::Named { function, module, at_return };
    let named = made(&place.by_registers(), request, site, None, &mut |_| Ok(()));
    if variadic {
        let mut named = named?;
        let why = "it takes any number of arguments, and such functions have no fentry".to_owned();
        named.notes.push(why);
        return Ok(named);
    }
    let mut plan = plan?;
    plan.instead = named.ok().map(Box::new);
    Ok(plan)
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

/// Static tracepoints of a program: all that have the name.
fn usdt(path: &Path, name: Name<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let image = Image::map(path)?;
    let all = usdt::probes(&image);
    let wanted = |p: &&Usdt| p.provider == name.system && p.name == name.event;
    // Without debug information there are only the arguments.
    let described = Image::open(path).ok();
    let debug = described.as_ref().and_then(|image| Debug::new(image).ok());
    let mut plans = Vec::new();
    for probe in all.iter().filter(wanted) {
        let place = debug.as_ref();
        let place = place.and_then(|d| dwarf::Place::at(d, probe.pc, Moment::Inside, Space::User).ok());
        let bare = Bare(Space::User);
        let inner = place.as_ref().map_or(&bare as &dyn Scope, |place| place);
        let scope = usdt::Place { probe, image: &image, inner };
        let offset = |address: u64| {
            let what = || format!("{}: {address:#x} is not in the file", path.display());
            image.file_offset(address).ok_or_else(|| Error::Cannot(what()))
        };
        let listeners = if probe.semaphore == 0 { 0 } else { offset(probe.semaphore)? };
        let (file, offset) = (path.to_owned(), offset(probe.pc)?);
        let site = Site::User { file, offset, entry: offset, at_return: false, listeners };
        let mut plan = made(&scope, request, site, Some(probe.pc), &mut |func| {
            if image.moves() {
                lower::by_instruction(func, probe.pc);
            }
            Ok(())
        })?;
        plan.probe.file = Some(path.display().to_string());
        plan.origin = Origin { build_id: image.build_id(), text: None };
        plans.push(plan);
    }
    if plans.is_empty() {
        let text = format!("{}:{}", name.system, name.event);
        let known: Vec<String> = all.iter().map(|p| format!("{}:{}", p.provider, p.name)).collect();
        let near = kprism_expr::error::suggestion(&text, known.iter().map(String::as_str));
        let near = near.map_or_else(String::new, |near| format!("; {near}"));
        let what = format!("{}: no static tracepoint `{text}`{near}", path.display());
        return Err(dwarf::Error::Nothing(what).into());
    }
    Ok(plans)
}

fn kernel(image: &Image, debug: &Debug<'_>, request: &Request<'_>) -> Result<Plan, Error> {
    let place = dwarf::Place::find(debug, request.place, Space::Kernel)?;
    let at_return = place.moment == Moment::Return;
    let site = Site::Kernel { address: place.pc, entry: place.entry, at_return };
    let mut plan = made(&place, request, site, Some(place.pc), &mut |func| {
        at_breakpoint(func, &place);
        Ok(())
    })?;
    plan.origin = origin(image)?;
    plan.notes.extend(place.others.iter().map(|other| also(request.place, *other)));
    Ok(plan)
}

/// A kprobe's program sees the instruction pointer behind the breakpoint; what is meant is the place itself.
pub(crate) fn at_breakpoint(func: &mut Func, place: &dwarf::Place<'_, '_>) {
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
