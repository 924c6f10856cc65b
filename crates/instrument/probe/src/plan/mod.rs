// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles a probe's text, with the names in scope at its place, to segments, and lays out their values in a record.

mod actions;
pub mod compiled;
mod gdb;
mod layout;

use std::collections::BTreeSet;
use std::path::PathBuf;

use kprism_expr::emit::{self, Cpu, Reloc};
use kprism_expr::ir::{Func, Kept, Space};
use kprism_expr::lower::{self, Collected, Env, What};
use kprism_expr::opt;
use kprism_expr::scope::{Role, Scope, Sym};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::stream::{LONGEST, MOST_ITEMS, Probe};
use layout::{Fix, LARGEST, Limits, Wanted, laid, lowered};

pub use actions::{Actions, CompiledActions};
pub use layout::{Fill, Segment, Slot};

/// Number of return addresses kept.
const STACK_FRAMES: u32 = 64;
/// Maximum of names that are listed, including those without a value.
pub(crate) const MOST_LISTED: usize = 4 * MOST_ITEMS;

/// The requested probe.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// `FUNC`, `FUNC%return`, `FUNC+OFFSET`, `FILE:LINE`, `0xADDRESS`.
    pub place: &'a str,
    /// The condition's text.
    pub condition: Option<&'a str>,
    /// The expressions to collect: C expressions, `$args`, `$locals`, `$regs`.
    pub collect: &'a [String],
    /// Names of trace state variables.
    pub vars: &'a [String],
    /// Longest string, bytes.
    pub text: u32,
    /// Further effects of a hit.
    pub actions: Actions<'a>,
    /// True if the data that GDB needs to show a hit is kept.
    pub gdb: bool,
    /// True if the place has several code addresses. A value that is missing at one of them is left out there.
    pub several: bool,
}

/// Splits `LOCATION if EXPR`.
pub fn split(spec: &str) -> (&str, Option<&str>) {
    match spec.split_once(" if ") {
        Some((place, condition)) => (place.trim(), Some(condition.trim())),
        None => (spec.trim(), None),
    }
}

/// Splits a list of expressions at commas that are outside brackets and strings.
pub fn expressions(list: &str) -> Vec<String> {
    let (mut depth, mut quote, mut escaped) = (0_u32, None, false);
    let mut all = vec![String::new()];
    for c in list.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    let trimmed = all.iter().map(|text| text.trim().to_owned());
    trimmed.filter(|text| !text.is_empty()).collect()
}

/// Place at which the program is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Site {
    /// An offset in a file, and the offset of the function's entry.
    User {
        /// The file.
        file: PathBuf,
        /// Offset of the place.
        offset: u64,
        /// Offset of the function's first instruction.
        entry: u64,
        /// True to attach at the function's return.
        at_return: bool,
        /// Offset of the counter of a static tracepoint's listeners; 0 if there is none.
        listeners: u64,
    },
    /// Addresses in the kernel as it is linked.
    Kernel {
        /// Address of the place.
        address: u64,
        /// Address of the function's first instruction.
        entry: u64,
        /// True to attach at the function's return.
        at_return: bool,
    },
    /// A function by its name in BTF.
    Traced {
        /// The function.
        function: String,
        /// Its module; `None` for the kernel itself.
        module: Option<String>,
        /// True to attach at the function's return.
        at_return: bool,
    },
    /// A function by its name, for a kernel without fentry.
    Named {
        /// The function.
        function: String,
        /// Its module; `None` for the kernel itself.
        module: Option<String>,
        /// True to attach at the function's return.
        at_return: bool,
    },
    /// A static tracepoint's record.
    Event {
        /// Its system.
        system: String,
        /// Its name.
        name: String,
    },
    /// A static tracepoint's arguments.
    Raw {
        /// Its name.
        name: String,
    },
}

impl Site {
    fn hook(&self) -> &'static str {
        match self {
            Site::User { at_return: true, .. } => "uretprobe",
            Site::User { .. } => "uprobe",
            Site::Kernel { at_return: true, .. } | Site::Named { at_return: true, .. } => "kretprobe",
            Site::Kernel { .. } | Site::Named { .. } => "kprobe",
            Site::Traced { at_return: true, .. } => "fexit",
            Site::Traced { .. } => "fentry",
            Site::Event { .. } => "tracepoint",
            Site::Raw { .. } => "raw tracepoint",
        }
    }

    /// Returns true if the place is a function's return.
    pub fn is_return(&self) -> bool {
        match self {
            Site::User { at_return, .. }
            | Site::Kernel { at_return, .. }
            | Site::Traced { at_return, .. }
            | Site::Named { at_return, .. } => *at_return,
            Site::Event { .. } | Site::Raw { .. } => false,
        }
    }

    /// Returns true if its program gets `struct pt_regs`.
    pub fn has_registers(&self) -> bool {
        matches!(self, Site::User { .. } | Site::Kernel { .. } | Site::Named { .. })
    }
}

/// Identifies the file for which a plan was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The build id of the kernel or the program, if it has one.
    pub build_id: Option<String>,
    /// Address at which the kernel's `_text` is linked.
    pub text: Option<u64>,
}

/// A probe, ready to be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Description of the probe and its record.
    pub probe: Probe,
    /// Place of the probe.
    pub site: Site,
    /// The file for which it was made.
    pub origin: Origin,
    /// The memory that it reads.
    pub space: Space,
    /// Must be true before anything is read. If it is false, that is a fault, not an unmet condition.
    pub guard: Option<Segment>,
    /// The condition.
    pub condition: Option<Segment>,
    /// The collected values.
    pub slots: Vec<Slot>,
    /// Further effects of a hit.
    #[serde(default)]
    pub actions: CompiledActions,
    /// Values kept for GDB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<Slot>,
    /// Values that the program at the function's entry must keep.
    pub kept: Vec<Kept>,
    /// For a place with several code addresses: the distance back to the plan of the first. Skipped hits and the pass
    /// limit are counted there.
    #[serde(default, skip_serializing_if = "is_first")]
    pub after_first: u32,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The plan to attach if the kernel refuses this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Box<Plan>>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_first(n: &u32) -> bool {
    *n == 0
}

pub(crate) fn made(
    scope: &dyn Scope,
    request: &Request<'_>,
    site: Site,
    address: Option<u64>,
    fix: &mut Fix<'_>,
) -> Result<Plan, Error> {
    let env = Env { scope, vars: request.vars };
    let mut condition = None;
    if let Some(text) = request.condition {
        let lowered = lower::condition(text, env).map_err(|e| Error::Expression(e.render(text)))?;
        let mut func = lowered.func;
        fix(&mut func)?;
        opt::optimise(&mut func);
        condition = Some((text, func));
    }
    let mut wanted = Vec::new();
    for text in request.collect {
        match text.trim() {
            "$args" => names(env, Role::Parameter, &mut wanted),
            "$locals" => names(env, Role::Local, &mut wanted),
            "$regs" if !scope.has_registers() => {
                let what = match address {
                    Some(_) => "`$regs` are not all known here: the tracepoint itself calls the program",
                    None => {
                        "`$regs` cannot be read by a probe that BTF alone describes: name the kernel's debug information (-k VMLINUX)"
                    }
                };
                return Err(Error::Cannot(what.to_owned()));
            }
            "$regs" => wanted.push(Wanted::Registers),
            text => wanted.push(match lowered(text, env) {
                Err(Error::Expression(why)) if request.several => {
                    let why = why.lines().next().unwrap_or_default().to_owned();
                    Wanted::Missing(text.to_owned(), String::new(), why)
                }
                wanted => wanted?,
            }),
        }
    }
    // Missing items have no place in a record, and come last.
    let is_missing = |item: &Wanted| matches!(item, Wanted::Missing(..));
    wanted.sort_by_key(is_missing);
    let values = wanted.iter().filter(|item| !is_missing(item)).count();
    if values > MOST_ITEMS {
        let what = format!("{values} values are collected, a record has room for {MOST_ITEMS}");
        return Err(Error::Cannot(what));
    }
    wanted.truncate(MOST_LISTED);
    for item in &mut wanted {
        if let Wanted::Expression(_, collected) = item {
            let parts = collected.parts.iter_mut().filter_map(|part| part.func.as_mut());
            for func in parts.chain([&mut collected.func]) {
                fix(func)?;
                opt::optimise(func);
            }
        }
    }
    let actions = actions::lower(&request.actions, env, fix)?;
    let mut kept = kept(condition.as_ref().map(|c| &c.1), &wanted);
    kept.extend(actions.kept());
    let kept: Vec<Kept> = kept.into_iter().collect();
    let compile = |text: &str, func: &Func| {
        let program = emit::segment(func, Cpu::V3, &kept).map_err(|e| Error::Emit(format!("`{text}`"), e))?;
        debug_assert!(program.relocs.iter().all(|r| !matches!(r.1, Reloc::Address(_))) || address.is_some());
        Ok::<_, Error>(Segment { text: text.to_owned(), program })
    };
    let condition = condition.map(|(text, func)| compile(text, &func)).transpose()?;
    let (mut items, mut slots) = (Vec::new(), Vec::new());
    let expressions = if request.gdb { gdb::expressions(&wanted) } else { Vec::new() };
    let mut at =
        laid(wanted, scope, Limits::record(request.text, STACK_FRAMES), &compile, &mut items, &mut slots)?;
    let (mut frame, mut hidden) = (None, Vec::new());
    if request.gdb {
        if !(site.has_registers() && scope.has_registers()) || site.is_return() {
            let what = "GDB shows hits where registers are known and no function returned: programs, or the kernel with its debug information (-k VMLINUX)";
            return Err(Error::Cannot(format!("{}: {what}", request.place)));
        }
        let (kept, slots, end) = gdb::planned(&expressions, &items, &slots, at, &compile)?;
        (frame, hidden, at) = (Some(kept), slots, end);
    }
    if at as usize > LONGEST {
        return Err(Error::Cannot(format!(
            "a record would have {at} bytes, more than {LONGEST}: collect less"
        )));
    }
    let (actions, tally) = actions.compiled(&request.actions, env, request.text, &compile)?;
    // If hits are only counted in the kernel, they leave no records.
    let record_bytes = if tally.is_some() && items.is_empty() && frame.is_none() { 0 } else { at };
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
        part: request.actions.part,
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

/// Compiles a guard to a segment.
pub(crate) fn guard(holds: &std::rc::Rc<Sym>, scope: &dyn Scope) -> Result<Segment, Error> {
    let text = "the stack's return addresses";
    let mut func = lower::described(holds, scope).map_err(|e| Error::Expression(e.render(text)))?;
    opt::optimise(&mut func);
    let program = emit::segment(&func, Cpu::V3, &[]).map_err(|e| Error::Emit(format!("`{text}`"), e))?;
    Ok(Segment { text: text.to_owned(), program })
}

fn names(env: Env<'_>, role: Role, wanted: &mut Vec<Wanted>) {
    for name in env.scope.names() {
        let Ok(Some(variable)) = env.scope.variable(&name) else { continue };
        if variable.role != role {
            continue;
        }
        let ty = kprism_expr::ctype::name(env.scope, &variable.ty);
        wanted.push(match lower::collect(&name, env) {
            Ok(Collected { what: What::Memory(size), .. }) if !(1..=LARGEST).contains(&size) => {
                Wanted::Missing(name, ty, format!("it has {size} bytes, {LARGEST} can be collected"))
            }
            Ok(collected) => Wanted::Expression(name, collected),
            Err(error) => {
                let why = match error.help {
                    Some(help) => format!("{}; {help}", error.message),
                    None => error.message,
                };
                Wanted::Missing(name, ty, why)
            }
        });
    }
}

fn kept(condition: Option<&Func>, wanted: &[Wanted]) -> BTreeSet<Kept> {
    let mut all: BTreeSet<Kept> = condition.iter().flat_map(|func| func.kept()).collect();
    for item in wanted {
        if let Wanted::Expression(_, collected) = item {
            all.extend(collected.func.kept());
            all.extend(collected.parts.iter().flat_map(|part| &part.func).flat_map(Func::kept));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_places() {
        assert_eq!(
            expressions("a, b[1,2],(c,d),\"e,\\\"f\",',',"),
            ["a", "b[1,2]", "(c,d)", "\"e,\\\"f\"", "','"]
        );
        assert_eq!(split("main.c:3 if a > 2"), ("main.c:3", Some("a > 2")));
        assert_eq!(split(" vfs_read "), ("vfs_read", None));
    }
}
