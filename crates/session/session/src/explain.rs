// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles an expression at a place, to show what it reads and what it becomes.
//!
//! In: `FUNC if EXPR` or GDB's agent bytecode, and debug information or BTF. Out: [`Explained`]: the names that it uses,
//! its IR, its eBPF.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use kprism_btf::Btf;
use kprism_debuginfo::separate;
use kprism_expr::agent;
use kprism_expr::btf;
use kprism_expr::dwarf::{Debug, Image, Places};
use kprism_expr::emit::{Cpu, Output};
use kprism_expr::explained::Explained;
use kprism_expr::ir::{Op, Space};
use kprism_expr::lower::{self, Env, Lowered};
use kprism_expr::scope::{Bare, ProbePoint, Scope};
use kprism_probe::place::{
    self, body_of,
    tracepoint::{self, Name},
};

use crate::progress::Progress;

/// The types that a running kernel tells of itself.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The condition to compile, and the place.
#[derive(Debug, Clone)]
pub struct Request {
    /// `FUNC if EXPR`, or an expression if `at` is given.
    pub expr: String,
    /// The place.
    pub at: Option<String>,
    /// A kernel with debug information.
    pub vmlinux: Option<PathBuf>,
    /// A program or library with debug information.
    pub exec: Option<PathBuf>,
    /// The file with the program's debug information, if it is not found by itself.
    pub debug_file: Option<PathBuf>,
    /// Types of a kernel as BTF. Without any file, those of the running kernel are used.
    pub btf: Option<PathBuf>,
    /// Trace state variables that the expression may name.
    pub vars: Vec<String>,
    /// Compile the expression's value, not whether it is true.
    pub value: bool,
    /// GDB's agent bytecode in hexadecimal, instead of an expression.
    pub agent: Option<String>,
    /// The eBPF's version.
    pub cpu: Cpu,
}

/// Compiles it. `progress` is told notes on the place.
///
/// # Errors
/// A file cannot be read, there is no such place, or the expression cannot be compiled there.
pub fn explain(request: &Request, progress: &Progress) -> Result<Explained> {
    if let Some(hex) = &request.agent {
        let bytes = unhex(hex)?;
        let space = if request.exec.is_some() { Space::User } else { Space::Kernel };
        let func = agent::translate(&bytes, space, request.vars.len().max(1) as u16)?;
        let lowered = Lowered { func, ty: "long".to_owned(), signed: true, uses: Vec::new() };
        let bytecode = agent::listing::list(&bytes);
        return Ok(Explained { bytecode, ..explained(request, Bare(space).describe(), lowered, None)? });
    }
    let text = request.expr.as_str();
    let (place, expr) = match (&request.at, text.split_once(" if ")) {
        (Some(place), _) => (place.as_str(), text),
        (None, Some((place, expr))) => (place.trim(), expr),
        (None, None) => bail!("`{text}`: where? write `FUNC if EXPR`, or name the place with --at"),
    };
    let started = Instant::now();
    let file = request.vmlinux.as_ref().map(|f| (f, Space::Kernel));
    let Some((file, space)) = file.or(request.exec.as_ref().map(|f| (f, Space::User))) else {
        let path = request.btf.clone().unwrap_or_else(|| PathBuf::from(KERNEL_BTF));
        // Modules' types are beside the running kernel's; beside a file that is named lie other files.
        let btf = if request.btf.is_none() {
            ensure!(
                path.exists(),
                "{KERNEL_BTF}: there is none; name the kernel's debug information with -k, or its BTF with --btf"
            );
            let (btf, module) = place::btf_of(&path, place)?;
            if let Some(module) = module {
                progress.note(&format!("a function of the module {module}"));
            }
            btf
        } else {
            let data = std::fs::read(&path).with_context(|| path.display().to_string())?;
            Arc::new(Btf::parse(&path.display().to_string(), data, None)?)
        };
        let place = btf::Place::find(&btf, place)?;
        let lowered = lower(request, expr, &place)?;
        progress.detail(&format!("types read in {:.0?}", started.elapsed()));
        return explained(request, place.describe(), lowered, None);
    };
    let (image, notes) = match space {
        Space::Kernel => (Image::open(file)?, Vec::new()),
        Space::User => separate::open(file, request.debug_file.as_deref())?,
    };
    notes.iter().for_each(|note| progress.note(note));
    let debug = Debug::new(&image)?;
    if let Some(name) = Name::of(place).filter(|_| space == Space::Kernel) {
        let take = |scope: &dyn Scope, pc| match lower(request, expr, scope) {
            Ok(lowered) => Ok((scope.describe(), lowered, pc)),
            Err(error) => Err(kprism_probe::Error::Cannot(error.to_string())),
        };
        let (place, lowered, pc) = tracepoint::scoped(&image, &debug, name, take)?;
        progress.detail(&format!("debug information read in {:.0?}", started.elapsed()));
        return explained(request, place, lowered, pc);
    }
    let found = Places::of(&debug, place, space)?;
    let described = found.places.iter().map(|p| (p.pc, p.moment, p as &dyn Scope));
    let all: Vec<_> =
        described.chain(found.symbols.iter().map(|p| (p.pc, p.moment, p as &dyn Scope))).collect();
    let Some((entry, moment, scope)) = all.first().copied() else { bail!("`{place}`: no place") };
    let at_entry = lower(request, expr, scope);
    let body = match space {
        Space::User => body_of(&image, scope, entry, std::iter::once(expr))?,
        Space::Kernel => None,
    };
    let (pc, place, mut lowered) = match &body {
        Some((pc, body)) => (*pc, &**body, lower(request, expr, &**body)?),
        None => (entry, scope, at_entry?),
    };
    if image.moves() {
        let globals = lowered.func.ops().any(|op| matches!(op, Op::Address(_)));
        if globals && moment == ProbePoint::Return {
            bail!(
                "globals of a program that can be loaded anywhere cannot be found where a function returns; use its entry or a line"
            );
        }
        lower::by_instruction(&mut lowered.func, pc);
    }
    progress.detail(&format!("debug information read in {:.0?}", started.elapsed()));
    for (pc, _, other) in &all[1..] {
        progress.note(&format!("{pc:#x} too: {}", other.describe()));
    }
    for note in &found.notes {
        progress.note(note);
    }
    explained(request, place.describe(), lowered, Some(pc))
}

fn lower(request: &Request, expr: &str, scope: &dyn Scope) -> Result<Lowered> {
    let env = Env { scope, vars: &request.vars };
    let compile = if request.value { lower::value } else { lower::condition };
    compile(expr, env).map_err(|e| anyhow!("{}", e.render(expr)))
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let pair = |p: &[u8]| Some(std::str::from_utf8(p).ok().filter(|_| p.len() == 2)?.to_owned());
    let byte = |p: &[u8]| u8::from_str_radix(&pair(p)?, 16).ok();
    digits.chunks(2).map(byte).collect::<Option<_>>().ok_or_else(|| {
        anyhow!("--agent takes pairs of hexadecimal digits, as `maint agent -o` and packets have them")
    })
}

fn explained(request: &Request, place: String, lowered: Lowered, address: Option<u64>) -> Result<Explained> {
    let output = if request.value { Output::State } else { Output::Verdict };
    Ok(Explained::new(place, address, lowered, request.cpu, output)?)
}
