// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads a probe's programs and links them to its site: at the place, and at the function's entry if values are kept there.

use std::path::Path;

use kprism_bpf::host;
use kprism_bpf::kernel::{Function, Kernel};
use kprism_bpf::link::{Link, When};
use kprism_bpf::map::{Map, MapKind};
use kprism_bpf::mapping;
use kprism_bpf::prog::{ProgKind, Program, on_task_stack};
use kprism_ebpf::asm::{Asm, Code};

use crate::Error;
use crate::plan::{Plan, Site};
use crate::program::{self, Layout};

/// Maximum of open calls whose entries are kept.
const OPEN_CALLS: u32 = 16 << 10;

/// An attached probe.
pub(super) struct Attached {
    /// The program at the place.
    pub program: Program,
    /// Of both programs.
    pub links: Vec<Link>,
    /// The map with the entries of its function.
    pub entries: Option<Map>,
    /// The map of its counts by keys.
    pub keyed: Option<Map>,
}

/// Loads a probe's programs and attaches them.
pub(super) fn attach(
    kernel: &mut Kernel,
    plan: &Plan,
    number: u32,
    layout: &Layout,
    keys: u32,
    shared: &[&Map],
) -> Result<Attached, Error> {
    let entries = match plan.kept.len() as u32 {
        0 => None,
        n => Some(Map::create("kp_entries", MapKind::LruHash, 16, 8 * n, OPEN_CALLS, 0)?),
    };
    let keyed = match (&plan.probe.tally, plan.actions.key_bytes) {
        (None, _) | (_, 0) => None,
        (Some(tally), bytes) => {
            // Counts and sums are per CPU. Per-CPU histograms would take too much memory, and the last value is one of
            // all CPUs.
            let per_cpu = tally.histograms.is_empty() && !tally.keeps_latest();
            let kind = if per_cpu { MapKind::PercpuHash } else { MapKind::Hash };
            Some(Map::create("kp_keys", kind, bytes, tally.cell_bytes(), keys, 0)?)
        }
    };
    let mut all = shared.to_vec();
    all.extend(&entries);
    all.extend(&keyed);
    let mut at = Attach { kernel, plan, slide: layout.slide };
    let whose = |code: Code| match plan.site {
        Site::User { .. } => on_task_stack(&code),
        _ => code,
    };
    let code = |sleeps| program::probe(plan, number, &Layout { sleeps, ..*layout }).map(whose);
    let (program, link) = at.attach("kp_probe", &code, &all, true)?;
    // Returns are attached before entries. So a return without an entry belongs to a call that began before.
    let mut links = vec![link];
    if !plan.kept.is_empty() || program::counts_calls(plan) {
        let code = |sleeps| program::entry(plan, number, &Layout { sleeps, ..*layout }).map(whose);
        links.push(at.attach("kp_entry", &code, &all, false)?.1);
    }
    if let Some(tracepoint) = &plan.enables {
        links.push(enable(tracepoint)?);
    }
    Ok(Attached { program, links, entries, keyed })
}

/// Keeps a tracepoint of the kernel enabled, by a program that does nothing.
pub fn enable(tracepoint: &str) -> Result<Link, kprism_bpf::Error> {
    let mut nothing = Asm::new();
    nothing.end();
    let nothing = Program::load("kp_enable", ProgKind::RawTracepoint, &nothing.finish()?, &[])?;
    Link::raw_tracepoint(&nothing, tracepoint)
}

/// Loads a probe's program once more, for the no-op of a trampoline, and attaches it there.
pub(super) fn behind_jump(
    plan: &Plan,
    number: u32,
    layout: &Layout,
    maps: &[&Map],
    trampoline: &Path,
    nop: u64,
) -> Result<(Program, Link), Error> {
    let code =
        |sleeps| program::probe(plan, number, &Layout { sleeps, ..*layout }).map(|code| on_task_stack(&code));
    in_program("kp_jumped", &code, maps, trampoline, nop, When::Entry)
}

struct Attach<'a> {
    kernel: &'a mut Kernel,
    plan: &'a Plan,
    slide: u64,
}

impl Attach<'_> {
    /// Loads the program and attaches it: at the probe's place, or at the function's entry.
    fn attach(
        &mut self,
        name: &str,
        code: &dyn Fn(bool) -> Result<Code, Error>,
        maps: &[&Map],
        own: bool,
    ) -> Result<(Program, Link), Error> {
        if let Site::User { file, offset, listeners: 0, entry, at_return } = &self.plan.site {
            let (offset, when) = match (own, at_return) {
                (true, true) => (*offset, When::Return),
                (true, false) => (*offset, When::Entry),
                (false, _) => (*entry, When::Entry),
            };
            return in_program(name, code, maps, file, offset, when);
        }
        if let Site::User { file, offset, listeners, .. } = &self.plan.site {
            let program = Program::load_sleepable(name, ProgKind::Kprobe, &code(true)?, maps);
            let program = program
                .or_else(|_| Ok::<_, Error>(Program::load(name, ProgKind::Kprobe, &code(false)?, maps)?))?;
            let link = Link::usdt(&program, file, *offset, *listeners, -1)?;
            return Ok((program, link));
        }
        let code = &code(false)?;
        let when = |at_return: bool| if own && at_return { When::Return } else { When::Entry };
        match &self.plan.site {
            // Handled above.
            Site::User { .. } => Err(Error::Cannot(format!("{name}: no place in a program"))),
            Site::Kernel { address, entry, at_return } => {
                let program = Program::load(name, ProgKind::Kprobe, code, maps)?;
                let address = if own { *address } else { *entry }.wrapping_add(self.slide);
                let link = Link::kprobe_at(&program, address, when(*at_return), 0)?;
                Ok((program, link))
            }
            Site::Named { function, module, at_return } => {
                let program = Program::load(name, ProgKind::Kprobe, code, maps)?;
                let symbol = match module {
                    Some(module) => format!("{module}:{function}"),
                    None => function.clone(),
                };
                let link = Link::kprobe(&program, &symbol, 0, when(*at_return), 0)?;
                Ok((program, link))
            }
            Site::Event { system, name: event } => {
                let program = Program::load(name, ProgKind::Tracepoint, code, maps)?;
                let link = Link::tracepoint(&program, system, event, 0)?;
                Ok((program, link))
            }
            Site::Raw { name: event } => {
                let program = Program::load(name, ProgKind::RawTracepoint, code, maps)?;
                let link = Link::raw_tracepoint(&program, event)?;
                Ok((program, link))
            }
            Site::Traced { function, module, at_return } => {
                let function = Function {
                    name: function.clone(),
                    module: module.clone(),
                    aliases: Vec::new(),
                    address: 0,
                    ambiguous: false,
                };
                self.kernel.knows(&function);
                let unknown = || {
                    let what = "BTF does not describe it as a function that can be traced";
                    Error::Cannot(format!("{}: {what}", function.name))
                };
                let target = self.kernel.target(&function).ok_or_else(unknown)?;
                let kind = match when(*at_return) {
                    When::Return => ProgKind::Fexit(target),
                    When::Entry => ProgKind::Fentry(target),
                };
                let program = Program::load(name, kind, code, maps)?;
                let link = Link::tracing(&program, 0).map_err(|why| {
                    // The kernel reports "busy" for this too.
                    if excluded(&function.name) {
                        let what =
                            "the kernel excludes it from tracing: it is not in available_filter_functions";
                        return Error::Cannot(what.to_owned());
                    }
                    why.into()
                })?;
                Ok((program, link))
            }
        }
    }
}

/// Attaches in a program or library.
///
/// uprobe.multi links (Linux 6.6) can be detached together; those of perf events go one after another, 100 ms each.
/// Programs that may sleep (6.0) can read memory that a process has not touched yet; a forked child, for example, has
/// not touched the contents of files.
fn in_program(
    name: &str,
    code: &dyn Fn(bool) -> Result<Code, Error>,
    maps: &[&Map],
    file: &Path,
    offset: u64,
    when: When,
) -> Result<(Program, Link), Error> {
    let sleeping = code(true)?;
    // An instruction on which no breakpoint can be set is refused now, instead of silently wherever it is mapped later.
    let _mapped = mapping::code_page(file, offset);
    let multi = || {
        let program = Program::load_sleepable(name, ProgKind::UprobeMulti, &sleeping, maps)?;
        let link = Link::uprobe_multi(&program, file, &[offset], &[], when, 0)?;
        Ok::<_, kprism_bpf::Error>((program, link))
    };
    let single = || {
        let program = Program::load_sleepable(name, ProgKind::Kprobe, &sleeping, maps)?;
        let link = Link::uprobe(&program, file, offset, when, -1, 0)?;
        Ok::<_, kprism_bpf::Error>((program, link))
    };
    if let Ok(attached) = multi().or_else(|_| single()) {
        return Ok(attached);
    }
    let program = Program::load(name, ProgKind::Kprobe, &code(false)?, maps)?;
    let link = Link::uprobe(&program, file, offset, when, -1, 0)?;
    Ok((program, link))
}

/// Returns true if the kernel has a list of traceable functions and this one is not in it.
fn excluded(function: &str) -> bool {
    let list = host::tracefs()
        .and_then(|folder| std::fs::read_to_string(folder.join("available_filter_functions")).ok());
    list.is_some_and(|list| !list.lines().any(|line| line.split(' ').next() == Some(function)))
}
