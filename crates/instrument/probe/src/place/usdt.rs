// SPDX-License-Identifier: MIT OR Apache-2.0
//! A static tracepoint of a program (USDT), by the notes in its file.

use std::path::Path;

use kprism_expr::dwarf::{self, Debug};
use kprism_expr::ir::Space;
use kprism_expr::lower;
use kprism_expr::scope::{Bare, ProbePoint, Scope};
use kprism_expr::usdt::{self, Usdt};

use super::program::landed;
use super::tracepoint::Name;
use crate::Error;
use crate::plan::{Origin, Plan, Request, Site, compile};
use kprism_debuginfo::separate;

/// Static tracepoints of a program: all with this name.
pub(crate) fn plans(
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
        // Entry values are kept where the function around the marker begins. Without debug information nothing asks for them.
        let entry = place.as_ref().map_or(probe.pc, |place| landed(&image, place.entry));
        let (file, entry, offset) = (path.to_owned(), offset(entry)?, offset(probe.pc)?);
        let site = Site::User { file, offset, entry, at_return: false, listeners };
        let mut plan = compile(&scope, request, site, Some(probe.pc), &mut |func| {
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
