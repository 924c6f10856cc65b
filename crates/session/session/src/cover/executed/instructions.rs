// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of executed instructions, at the addresses of the files that they are from.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Result, bail};
use kprism_cover::executed::{Jumped, Ran};
use kprism_cover::path::Prefixes;
use kprism_debuginfo::lines::Lines;
use kprism_flow::replay::Task;
use kprism_flow::replay::count::{Counter, Counts};
use kprism_flow::window::Window;
use kprism_image::insn::{Kind, Mode, classify};
use kprism_image::symbols::{FunctionId, Symbols};
use kprism_profile::units::grouped;
use kprism_store::{Account, Run};

use super::debug_files::find;
use super::places::{Place, places};
use crate::cover::options::{DebugFiles, Part};
use crate::flow;
use crate::flow::follow;
use crate::open_profile;
use crate::progress::Progress;

/// Instructions of the tasks, or the call, that were asked for.
#[derive(Debug, Default)]
pub struct Instructions {
    /// All of them.
    pub insns: u64,
    /// Those in files with debug information.
    pub kept: u64,
    /// Those of 32-bit code, which coverage does not read.
    pub of_32_bits: u64,
    /// The others, by program, library or module.
    without: BTreeMap<String, u64>,
    /// The account of the streams.
    pub streams: Account,
}

/// Files without debug information that are named.
const NAMED: usize = 5;

impl Instructions {
    /// Number of instructions in files without debug information.
    pub fn without(&self) -> u64 {
        self.insns.saturating_sub(self.kept).saturating_sub(self.of_32_bits)
    }

    fn lost(&mut self, module: &str, count: u64) {
        let module = if module.is_empty() { "[unknown]" } else { module };
        if count > 0 {
            *self.without.entry(module.to_owned()).or_default() += count;
        }
    }

    /// Files without debug information, those with the most instructions first.
    pub fn largest(&self) -> Vec<String> {
        let mut all: Vec<(&String, u64)> =
            self.without.iter().map(|(module, &count)| (module, count)).collect();
        all.sort_by_key(|&(module, count)| (std::cmp::Reverse(count), module));
        all.truncate(NAMED);
        all.into_iter().map(|(module, count)| format!("{module}: {}", grouped(count))).collect()
    }
}

/// Instructions of a file that ran, by the file's own addresses.
pub struct Seen<'s> {
    pub file: &'s Path,
    pub lines: &'s Lines,
    pub ran: Vec<Ran>,
    /// Targets of indirect calls.
    pub targets: BTreeMap<u64, Vec<(String, u64)>>,
    /// Targets of their indirect jumps within their own functions.
    pub jumps: Jumped,
}

/// Calls `take` for each file with debug information. Returns the files that could not be used, and how many instructions were
/// counted, kept and lost.
pub fn each(
    input: &Path,
    (debug, prefixes): (&DebugFiles, &Prefixes),
    part: &Part,
    progress: &Progress,
    take: &mut dyn FnMut(Seen<'_>),
) -> Result<(Vec<String>, Instructions)> {
    // First: where there are no tables yet, this writes the manifest that is read below.
    let profile = part.call.as_ref().map(|_| open_profile(input, progress)).transpose()?;
    let run = Run::open(input)?;
    let loaded = flow::load(&run, progress)?;
    let window = match (&part.call, &profile) {
        (Some(call), Some((_, profile, _))) => call.window((profile, &loaded), &part.filter, progress)?,
        _ => None,
    };
    progress.step("reading debug information");
    let mut problems = Vec::new();
    let mut files = find(&run, &loaded, debug, &mut problems);
    for (_, lines) in files.values_mut() {
        for path in lines.files.iter_mut().chain(&mut lines.folder) {
            *path = prefixes.map(path).into_owned();
        }
    }
    if files.is_empty() {
        let why = problems.first().map(|problem| format!(" ({problem})")).unwrap_or_default();
        bail!(
            "{}: nothing that ran has debug information{why}: build programs and modules with -g, name the kernel's \
             with --vmlinux, modules' with --module-file",
            input.display()
        );
    }
    let symbols = &loaded.symbols;
    let all = (0..symbols.len() as u32).map(|id| symbols.function(FunctionId(id)));
    let chosen: Vec<bool> = all.map(|f| files.contains_key(f.module.as_str())).collect();
    progress.step("counting");
    let (counts, streams) = count(&loaded, &chosen, part, window, progress);
    let mut by_module: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, site) in counts.sites.iter().enumerate() {
        by_module.entry(&symbols.function(FunctionId(site.func)).module).or_default().push(index);
    }
    let mut seen = Instructions { insns: counts.insns, streams, ..Instructions::default() };
    for (func, &count) in counts.elsewhere.iter().enumerate().filter(|(_, count)| **count > 0) {
        seen.lost(&symbols.function(FunctionId(func as u32)).module, count);
    }
    for (module, (file, lines)) in &files {
        let sites =
            || by_module.get(module.as_str()).into_iter().flatten().map(|&index| &counts.sites[index]);
        let places = match places(module, lines, symbols) {
            Ok(places) => places,
            Err(reason) => {
                problems.push(format!("{module}: {reason}"));
                seen.lost(module, sites().map(|site| site.count).sum());
                continue;
            }
        };
        // No selected task ran this program.
        if module.starts_with('/') && !by_module.contains_key(module.as_str()) {
            continue;
        }
        let (mut all, mut targets, mut jumps) = (Vec::new(), BTreeMap::new(), Jumped::new());
        for &index in by_module.get(module.as_str()).into_iter().flatten() {
            let site = &counts.sites[index];
            if site.mode != Mode::Bits64 {
                seen.of_32_bits += site.count;
                continue;
            }
            let Some(ran) = ran(&counts, index, symbols, &places) else {
                seen.lost(module, site.count);
                continue;
            };
            seen.kept += site.count;
            if site.kind == Kind::IndirectJump {
                let entry = ran.address.wrapping_sub(site.offset);
                let own = site.targets.iter().filter(|target| target.func == site.func);
                let own = own.map(|target| (entry.wrapping_add(target.offset), target.count));
                jumps.entry(ran.address).or_default().extend(own);
            } else if site.kind == Kind::IndirectCall || matches!(site.kind, Kind::Call { .. }) {
                let to = site.targets.iter().filter(|target| target.known && target.offset == 0);
                let to =
                    to.map(|target| (symbols.function(FunctionId(target.func)).name.clone(), target.count));
                targets.entry(ran.address).or_insert_with(Vec::new).extend(to);
            }
            all.push(ran);
        }
        take(Seen { file, lines, ran: all, targets, jumps });
    }
    Ok((problems, seen))
}

fn count(
    loaded: &flow::Loaded,
    chosen: &[bool],
    part: &Part,
    window: Option<Window>,
    progress: &Progress,
) -> (Counts, Account) {
    let takes = |_: u16, task: &Task| part.filter.takes(task.pid, task.tgid, &task.comm);
    let never = || false;
    let lanes = loaded.streams().len();
    let mut counter = Counter::new(lanes, &loaded.symbols, chosen, &takes, &never).within(window);
    let streams = follow(loaded, &mut counter, progress);
    (counter.finish(), streams)
}

/// An instruction at its place in the file.
fn ran(counts: &Counts, index: usize, symbols: &Symbols, places: &[Place]) -> Option<Ran> {
    let site = &counts.sites[index];
    let at = symbols.function(FunctionId(site.func)).start.wrapping_add(site.offset);
    let address = places.iter().find_map(|place| {
        let address = at.wrapping_sub(place.bias);
        (place.section.start..place.section.end).contains(&address).then_some(address)
    })?;
    // Classified again, because the targets of branches depend on the address.
    let kind = classify(&site.bytes, address, site.mode).map_or(Kind::Other, |insn| insn.kind);
    let length = u8::try_from(site.bytes.len()).unwrap_or(15);
    Some(Ran { address, length, kind, count: site.count, taken: site.taken })
}
