// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the place of a probe: in a program, in the kernel by its debug information, or in the kernel by its BTF.

use std::path::Path;
use std::sync::Arc;

use kprism_btf::Btf;
use kprism_debuginfo::separate;
use kprism_expr::btf;
use kprism_expr::dwarf::{self, Debug, Image};
use kprism_expr::ir::{Func, Input, Op, Space};
use kprism_expr::lower;
use kprism_expr::regs::Reg;
use kprism_expr::scope::{Bare, ProbePoint, Scope};
use kprism_expr::usdt::{self, Usdt};

use crate::Error;
use crate::events::{self, Name};
use crate::machine;
use crate::plan::{Origin, Plan, Request, Site, made};

/// The program or kernel that is probed.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A program or library, and the file with its debug information if known.
    Program(&'a Path, Option<&'a Path>),
    /// The running kernel or its modules, with their types as BTF.
    Btf(&'a Path),
}

/// Compiles a probe without the kernel's debug information. A place with several code addresses gives several plans.
pub fn plans(target: Target<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let one = |plan: Result<Plan, Error>| plan.map(|plan| vec![plan]);
    match (target, Name::of(request.place)) {
        (Target::Btf(path), Some(name)) => one(running_event(path, name, request)),
        (Target::Btf(path), None) => one(by_btf(path, request)),
        (Target::Program(path, debug), Some(name)) => usdt(path, debug, name, request),
        (Target::Program(path, debug), None) => program(path, debug, request),
    }
}

/// Compiles probes of the kernel with its debug information, which is read once for all.
pub fn kernel_plans(path: &Path, requests: &[Request<'_>]) -> Result<Vec<Result<Vec<Plan>, Error>>, Error> {
    let image = Image::open(path)?;
    let debug = Debug::new(&image)?;
    Ok(requests.iter().map(|request| in_kernel(&image, &debug, request)).collect())
}

fn in_kernel(image: &Image, debug: &Debug<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    match Name::of(request.place) {
        Some(name) => events::by_debug(image, debug, name, request),
        None => kernel(image, debug, request),
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
    let function = request.place.trim_end_matches("%return");
    let (btf, module) = btf_of(path, request.place)?;
    traced(btf::Place::find(&btf, request.place)?, request, function, module)
}

/// The BTF with a function's entry or return: the kernel's, or a module's with the module's name.
pub fn btf_of(path: &Path, place: &str) -> Result<(Arc<Btf>, Option<String>), Error> {
    let name = path.display().to_string();
    let data = std::fs::read(path).map_err(|e| Error::Cannot(format!("{name}: {e}")))?;
    let function = place.trim_end_matches("%return");
    let kernel = Arc::new(Btf::parse(&name, data, None)?);
    let error = match btf::Place::find(&kernel, place) {
        Ok(_) => return Ok((kernel, None)),
        Err(error) => error,
    };
    for module in modules(path) {
        let Ok(own) = std::fs::read(&module) else { continue };
        if memchr::memmem::find(&own, function.as_bytes()).is_none() {
            continue;
        }
        let btf = Arc::new(Btf::parse(&module.display().to_string(), own, Some(kernel.clone()))?);
        if btf::Place::find(&btf, place).is_ok() {
            return Ok((btf, module.file_name().map(|n| n.to_string_lossy().into_owned())));
        }
    }
    Err(error.into())
}

/// Attaches by fentry or fexit; by a kprobe if the kernel has neither, or refuses to attach them.
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

/// The modules' BTF files beside the kernel's, sorted by name.
fn modules(vmlinux: &Path) -> Vec<std::path::PathBuf> {
    let Some(entries) = vmlinux.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let mut all: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p != vmlinux).collect();
    all.sort();
    all
}

/// Compiles a probe at every code address of the name or line.
fn program(path: &Path, debug_file: Option<&Path>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let (image, mut notes) = separate::open(path, debug_file)?;
    let debug = Debug::new(&image)?;
    let found = dwarf::Places::of(&debug, request.place, Space::User).map_err(|error| match error {
        // A place may be missing only because there is no debug information.
        dwarf::Error::Nothing(what) if !image.is_described() => {
            dwarf::Error::Nothing([&[what][..], &notes[..]].concat().join("\nnote: "))
        }
        error => error,
    })?;
    let described = found.places.iter().map(|p| At { pc: p.pc, entry: p.entry, moment: p.moment, scope: p });
    let bare = found.symbols.iter().map(|p| At { pc: p.pc, entry: p.entry, moment: p.moment, scope: p });
    if image.is_described() {
        notes.extend(
            found
                .symbols
                .iter()
                .map(|place| format!("nothing describes {:#x}: {}", place.pc, place.describe())),
        );
    }
    let all: Vec<At<'_>> = described.chain(bare).collect();
    let several_places = Request { several: all.len() > 1, ..*request };
    let (mut plans, mut refused) = (Vec::new(), Vec::new());
    for place in &all {
        match in_program(path, &image, place, &several_places) {
            Ok(plan) => plans.push(plan),
            Err(error) if all.len() == 1 => return Err(error),
            Err(error) => refused.push((place.pc, error)),
        }
    }
    notes.extend(found.notes);
    if let Some(nowhere) = nowhere(request, &plans) {
        // With a single place the expression's error gives the reason.
        let one = Request { collect: &request.collect[nowhere..=nowhere], ..*request };
        return Err(all.iter().find_map(|place| in_program(path, &image, place, &one).err()).unwrap_or_else(
            || Error::Cannot(format!("{}: `{}` has no value", request.place, request.collect[nowhere])),
        ));
    }
    several(request, plans, refused, notes)
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

/// A code address of a program.
struct At<'s> {
    pc: u64,
    entry: u64,
    moment: ProbePoint,
    scope: &'s dyn Scope,
}

/// Notes the parts that are left out at some of several addresses. It is an error if no address is left.
fn several(
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
    let mut plan = made(place.scope, request, site, Some(pc), &mut fix)?;
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
fn landed(image: &Image, pc: u64) -> u64 {
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

/// Static tracepoints of a program: all with this name.
fn usdt(
    path: &Path,
    debug_file: Option<&Path>,
    name: Name<'_>,
    request: &Request<'_>,
) -> Result<Vec<Plan>, Error> {
    let (image, _) = separate::open(path, debug_file)?;
    let all = usdt::probes(&image);
    let wanted = |p: &&Usdt| p.provider == name.system && p.name == name.event;
    // Without debug information only the arguments can be named.
    let debug = Debug::new(&image).ok();
    let mut plans = Vec::new();
    for probe in all.iter().filter(wanted) {
        let place = debug.as_ref();
        let place = place.and_then(|d| dwarf::Place::at(d, probe.pc, ProbePoint::Inside, Space::User).ok());
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
        plan.origin = Origin { build_id: image.build_id().map(|id| id.to_string()), text: None };
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

fn kernel(image: &Image, debug: &Debug<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let found = dwarf::Places::of(debug, request.place, Space::Kernel)?;
    let (mut plans, mut refused) = (Vec::new(), Vec::new());
    let described = found.places.iter().map(|p| At { pc: p.pc, entry: p.entry, moment: p.moment, scope: p });
    let bare = found.symbols.iter().map(|p| At { pc: p.pc, entry: p.entry, moment: p.moment, scope: p });
    let all: Vec<At<'_>> = described.chain(bare).collect();
    let several_places = Request { several: all.len() > 1, ..*request };
    let request = &several_places;
    for place in &all {
        let at_return = place.moment == ProbePoint::Return;
        let site = Site::Kernel { address: place.pc, entry: place.entry, at_return };
        let plan = made(place.scope, request, site, Some(place.pc), &mut |func| {
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
    several(request, plans, refused, found.notes)
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
