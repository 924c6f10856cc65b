// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static tracepoints of the kernel, and probes on them.
//!
//! A probe on `SYSTEM:EVENT` is attached according to the names in its expressions. If they are fields of the record,
//! the program is called with the record. Else, if they are the tracepoint's arguments, it is called with those. Else
//! they are locals of the function around it, and there is one probe for each code address of the tracepoint.
//! `SYSTEM:EVENT@FUNC` means the address in that function, with its locals.

use std::path::Path;

use kprism_btf::Btf;
use kprism_expr::btf;
use kprism_expr::dwarf::{self, Debug, Image};
use kprism_expr::event::{CallerScope, Context, EventScope, Field};
use kprism_expr::ir::Space;
use kprism_expr::scope::{ProbePoint, Scope};
use kprism_ftrace::format::Format;

use super::flow::Ways;
use super::kernel::{at_breakpoint, origin};
use crate::plan::{Origin, Plan, Request, Site, compile, guard};
use crate::{Error, Pointed};

/// A tracepoint's name: `SYSTEM:EVENT` or `SYSTEM:EVENT@FUNC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The system, or a program's provider.
    pub system: &'a str,
    /// The event.
    pub event: &'a str,
    /// The function that contains the tracepoint.
    pub around: Option<&'a str>,
}

impl<'a> Name<'a> {
    /// Parses a place that is an event. `FILE:LINE` and `FILE:FUNC` are not.
    pub fn of(place: &'a str) -> Option<Self> {
        let (system, rest) = place.split_once(':')?;
        let (event, around) = match rest.split_once('@') {
            Some((event, around)) => (event, Some(around)),
            None => (rest, None),
        };
        let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_');
        let is_source = rest.parse::<u64>().is_ok() || system.contains('.');
        (!is_source && word(event) && !system.is_empty()).then_some(Self { system, event, around })
    }
}

/// Description of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its system.
    pub system: String,
    /// Its name.
    pub name: String,
    /// Its fields, without the common ones.
    pub fields: Vec<Field>,
}

/// Parses an event's description from tracefs.
pub fn described(system: &str, format: &[u8]) -> Result<Event, Error> {
    let format = Format::parse(system, format).map_err(|e| Error::Cannot(e.to_string()))?;
    let own = format.fields.into_iter().filter(|f| !f.name.starts_with("common_"));
    let field = |f: kprism_ftrace::format::Field| Field {
        name: f.name,
        kind: f.kind,
        offset: f.offset as u32,
        size: f.size as u32,
        signed: f.signed,
        is_array: f.is_array,
    };
    Ok(Event { system: system.to_owned(), name: format.name, fields: own.map(field).collect() })
}

/// Functions that supply names and types if the event has none.
const ANY: [&str; 2] = ["__traceiter_sys_enter", "__traceiter_sched_switch"];

/// The function with the event's arguments. If it has none, a function that gives access to types and globals.
fn iterator<'c, 'd>(
    image: &Image,
    debug: &'c Debug<'d>,
    name: Name<'_>,
) -> Result<dwarf::Place<'c, 'd>, Error> {
    let own = format!("__traceiter_{}", name.event);
    let found = std::iter::once(own.as_str()).chain(ANY).find_map(|n| image.symbol(n));
    let nowhere = || Error::Cannot(format!("{}: no tracepoints: is it a vmlinux?", image.name()));
    Ok(dwarf::Place::at(debug, found.ok_or_else(nowhere)?, ProbePoint::Entry, Space::Kernel)?)
}

/// Probes on an event of the kernel with this debug information.
pub fn by_debug(
    image: &Image,
    debug: &Debug<'_>,
    ways: &Ways<'_>,
    name: Name<'_>,
    request: &Request<'_>,
) -> Result<Vec<Plan>, Error> {
    let place = iterator(image, debug, name)?;
    let event = debug.event(name.system, name.event)?;
    let event = event.map(|e| Event { system: e.system, name: e.name, fields: e.fields });
    let has_arguments = image.symbol(&format!("__traceiter_{}", name.event)).is_some();
    let mut plans = match (&event, name.around) {
        (_, Some(around)) => here(image, debug, ways, name, around, request)?,
        (None, _) => return Err(unknown(name, &image_events(debug)?)),
        (Some(event), None) => {
            match called(event, has_arguments.then_some(&place as &dyn Scope), &place, request) {
                Ok(plan) => vec![plan],
                Err(error) if !has_arguments => return Err(error),
                Err(error) => {
                    here(image, debug, ways, name, "", request).map_err(|other| both(error, other, name))?
                }
            }
        }
    };
    let origin = origin(image)?;
    plans.iter_mut().for_each(|plan| plan.origin = origin.clone());
    Ok(plans)
}

/// Tries the ways in which names can be resolved at an event, in order, and returns the first that `take` accepts.
/// `take` also gets the instruction's address, if there is one.
pub fn scoped<T>(
    image: &Image,
    debug: &Debug<'_>,
    name: Name<'_>,
    mut take: impl FnMut(&dyn Scope, Option<u64>) -> Result<T, Error>,
) -> Result<T, Error> {
    let shown = format!("{}:{}", name.system, name.event);
    let event = debug.event(name.system, name.event)?;
    let mut refused = None;
    if name.around.is_none() {
        let Some(event) = event else { return Err(unknown(name, &image_events(debug)?)) };
        let inner = iterator(image, debug, name)?;
        let has_arguments = image.symbol(&format!("__traceiter_{}", name.event)).is_some();
        let arguments = has_arguments.then_some(Context::Arguments);
        for context in [Context::Record(&event.fields)].into_iter().chain(arguments) {
            match take(&EventScope { inner: &inner, event: &shown, context }, None) {
                Ok(taken) => return Ok(taken),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    let wanted = name.around.unwrap_or_default();
    let ways = Ways::new(image);
    for site in debug.sites(name.event)? {
        let place = dwarf::Place::at(debug, site.next, ProbePoint::Inside, Space::Kernel)?;
        if !wanted.is_empty() && !place.functions().iter().any(|f| f == wanted) {
            continue;
        }
        let taken = match Way::of(debug, &ways, &site) {
            Way::Beside => take(&place, Some(place.pc)),
            Way::OutOfLine => {
                let place = dwarf::Place::at(debug, site.target, ProbePoint::Inside, Space::Kernel)?;
                take(&place, Some(place.pc))
            }
            Way::Saved(_) => {
                let saved = debug.saved(name.event, &site)?;
                let place = dwarf::Place::at(debug, saved.pc, ProbePoint::Inside, Space::Kernel)?;
                take(&CallerScope { inner: &place, registers: &saved.registers }, Some(saved.pc))
            }
        };
        match taken {
            Ok(taken) => return Ok(taken),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| Error::Cannot(format!("{shown} is not in `{wanted}`"))))
}

/// An event of the running kernel, as its tracefs and BTF describe it.
pub(crate) fn running(path: &Path, name: Name<'_>, request: &Request<'_>) -> Result<Plan, Error> {
    let tracefs = kprism_bpf::host::tracefs().ok_or_else(|| Error::Cannot(kprism_bpf::host::no_tracefs()))?;
    by_format(path, &tracefs.join("events"), name, request)
}

/// An event of a kernel with this BTF, which the formats below `events` describe.
pub(crate) fn by_format(
    path: &Path,
    events: &Path,
    name: Name<'_>,
    request: &Request<'_>,
) -> Result<Plan, Error> {
    if let Some(around) = name.around {
        let what =
            format!("what `{around}` has around a tracepoint, only debug information tells (-k VMLINUX)");
        return Err(Error::Cannot(what));
    }
    let format = events.join(name.system).join(name.event).join("format");
    let text = std::fs::read(&format).map_err(|e| {
        let what = format!("no event `{}:{}`", name.system, name.event);
        Error::Cannot(format!("{what} in this kernel ({e}); kprism list events shows all of the running one"))
    })?;
    let event = described(name.system, &text)?;
    let file = path.display().to_string();
    let data = std::fs::read(path).map_err(|e| Error::Cannot(format!("{file}: {e}")))?;
    by_btf(&Btf::parse(&file, data, None)?, &event, request)
}

/// A probe on an event of a kernel with this BTF.
fn by_btf(btf: &Btf, event: &Event, request: &Request<'_>) -> Result<Plan, Error> {
    let place = |function: &str| btf::Place::find(btf, function);
    let own = place(&format!("__traceiter_{}", event.name)).ok();
    let any = ANY.iter().find_map(|name| place(name).ok());
    let none = || Error::Cannot("the kernel's BTF does not describe its tracepoints".to_owned());
    let types = own.as_ref().or(any.as_ref()).ok_or_else(none)?;
    let mut plan = called(event, own.as_ref().map(|p| p as &dyn Scope), types, request)?;
    plan.origin = Origin::default();
    Ok(plan)
}

/// A probe whose program gets the record, or else the arguments.
fn called(
    event: &Event,
    arguments: Option<&dyn Scope>,
    types: &dyn Scope,
    request: &Request<'_>,
) -> Result<Plan, Error> {
    let shown = format!("{}:{}", event.system, event.name);
    let has = |word: &str| request.collect.iter().any(|c| c == word);
    let record = EventScope { inner: types, event: &shown, context: Context::Record(&event.fields) };
    let collect =
        if has("$sdata") { expanded(request.collect, &record.names()) } else { request.collect.to_vec() };
    let own = Request { collect: &collect, ..*request };
    let site = Site::Event { system: event.system.clone(), name: event.name.clone() };
    if ["$args", "$locals", "$regs"].iter().any(|word| has(word)) && has("$sdata") {
        let what = "the record ($sdata) is collected by one probe, arguments and locals by another";
        return Err(Error::Cannot(what.to_owned()));
    }
    let first = match ["$args", "$locals", "$regs"].iter().find(|word| has(word)) {
        Some(word) => Error::Cannot(format!("`{word}` is not in a record")),
        None => match compile(&record, &own, site, None, &mut |_| Ok(())) {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        },
    };
    let Some(inner) = arguments.filter(|_| !has("$sdata") && !has("$locals") && !has("$regs")) else {
        return Err(first);
    };
    let arguments = EventScope { inner, event: &shown, context: Context::Arguments };
    let site = Site::Raw { name: event.name.clone() };
    compile(&arguments, request, site, None, &mut |_| Ok(())).map_err(|error| match (&first, &error) {
        (Error::Expression(first), Error::Expression(_)) => {
            let names = Scope::names(&arguments).join(", ");
            let shown = format!("{first}\nand its arguments are {names}");
            Error::Expression(Pointed { text: first.text.clone(), at: first.at, shown })
        }
        _ => first,
    })
}

fn expanded(collect: &[String], fields: &[String]) -> Vec<String> {
    let each = |text: &String| match text.as_str() {
        "$sdata" => fields.to_vec(),
        _ => vec![text.clone()],
    };
    collect.iter().flat_map(each).collect()
}

fn both(called: Error, around: Error, name: Name<'_>) -> Error {
    match around {
        Error::Expression(around) => {
            let shown = format!("{called}\nand around it: {around}");
            Error::Expression(Pointed { shown, ..around })
        }
        other => Error::Cannot(format!("{called}\nand around {}: {other}", name.event)),
    }
}

fn unknown(name: Name<'_>, known: &[String]) -> Error {
    let text = format!("{}:{}", name.system, name.event);
    let near = kprism_expr::error::suggestion(&text, known.iter().map(String::as_str));
    let near = near.map_or_else(String::new, |near| format!("; {near}"));
    Error::Cannot(format!("no event `{text}`{near} (kprism list events shows all)"))
}

fn image_events(debug: &Debug<'_>) -> Result<Vec<String>, Error> {
    Ok(debug.events()?.iter().map(|e| format!("{}:{}", e.system, e.name)).collect())
}

/// Probes at the tracepoint's code addresses, or only at that in the function `wanted`.
fn here(
    image: &Image,
    debug: &Debug<'_>,
    ways: &Ways<'_>,
    name: Name<'_>,
    wanted: &str,
    request: &Request<'_>,
) -> Result<Vec<Plan>, Error> {
    let shown = format!("{}:{}", name.system, name.event);
    let sites = debug.sites(name.event)?;
    if sites.is_empty() {
        return Err(Error::Cannot(format!("{shown} is nowhere in the kernel's own code (in a module?)")));
    }
    let (mut plans, mut functions, mut refused) = (Vec::new(), Vec::new(), None);
    for site in &sites {
        let place = dwarf::Place::at(debug, site.next, ProbePoint::Inside, Space::Kernel)?;
        let function = place.functions();
        functions.extend(function.first().cloned());
        if !wanted.is_empty() && !function.iter().any(|f| f == wanted) {
            continue;
        }
        let planned = match Way::of(debug, ways, site) {
            Way::Beside => kprobe(&place, request),
            Way::OutOfLine => {
                let place = dwarf::Place::at(debug, site.target, ProbePoint::Inside, Space::Kernel)?;
                kprobe(&place, request).map(|plan| Plan { enables: Some(name.event.to_owned()), ..plan })
            }
            Way::Saved(why) => saved(debug, name, site, request).map(|mut plan| {
                plan.notes.push(format!("no kprobe can be there: {why}"));
                plan
            }),
        };
        match planned {
            Ok(mut plan) => {
                plan.probe.found = format!("{shown} in {}", plan.probe.found);
                plan.probe.address = Some(site.nop);
                plans.push(plan);
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    // The names exist at some addresses and not at others. So at least something can be recorded.
    match (plans.is_empty(), refused) {
        (false, None) => Ok(plans),
        (false, Some(error)) => {
            let left = format!("left out where this cannot be had: {error}");
            plans[0].notes.push(left);
            Ok(plans)
        }
        (true, Some(error)) => Err(error),
        (true, None) => {
            functions.dedup();
            let what = format!("{shown} is not in `{wanted}`; it is in {}", functions.join(", "));
            Err(Error::Cannot(what))
        }
    }
    .map_err(|error| match (error, image.name()) {
        (Error::Dwarf(dwarf::Error::Nothing(what)), _) => Error::Cannot(what),
        (error, _) => error,
    })
}

/// The way in which a tracepoint's place in the code is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A kprobe at the next instruction, which is hit whether the tracepoint is enabled or not.
    Beside,
    /// A kprobe at the code to which an enabled tracepoint jumps; the tracepoint is enabled.
    OutOfLine,
    /// A program that the tracepoint calls, as there can be no kprobe for this reason.
    Saved(String),
}

impl Way {
    /// Chooses the first that the kernel takes and of which each hit is one of the tracepoint.
    pub fn of(debug: &Debug<'_>, ways: &Ways<'_>, site: &dwarf::Site) -> Self {
        let refusal = |at| {
            let past = || "code that is reached past the tracepoint, too".to_owned();
            debug.kprobe_refusal(at).or_else(|| (!ways.lead_only_from(site, at)).then(past))
        };
        match refusal(site.next) {
            None => Way::Beside,
            Some(_) if refusal(site.target).is_none() => Way::OutOfLine,
            Some(why) => Way::Saved(why),
        }
    }
}

/// A kprobe at an instruction that only a tracepoint leads to, whose locals are those at the tracepoint.
fn kprobe(place: &dwarf::Place<'_, '_>, request: &Request<'_>) -> Result<Plan, Error> {
    let site = Site::Kernel { address: place.pc, entry: place.entry, at_return: false };
    compile(place, request, site, Some(place.pc), &mut |func| {
        at_breakpoint(func, place.moment, place.pc);
        Ok(())
    })
}

/// A program that the tracepoint calls, with the registers that were saved on the call path.
fn saved(
    debug: &Debug<'_>,
    name: Name<'_>,
    site: &dwarf::Site,
    request: &Request<'_>,
) -> Result<Plan, Error> {
    let saved = debug.saved(name.event, site)?;
    let place = dwarf::Place::at(debug, saved.pc, ProbePoint::Inside, Space::Kernel)?;
    let scope = CallerScope { inner: &place, registers: &saved.registers };
    let site = Site::Raw { name: name.event.to_owned() };
    let mut plan = compile(&scope, request, site, Some(saved.pc), &mut |_| Ok(()))?;
    plan.guard = Some(guard(&saved.guard, &scope)?);
    Ok(plan)
}
