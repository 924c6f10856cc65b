// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism explain`: what a condition reads, and what it becomes.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use kprism_btf::Btf;
use kprism_expr::btf;
use kprism_expr::dwarf::{Debug, Image, Places};
use kprism_expr::emit::{self, Cpu, Output};
use kprism_expr::ir::{Func, Op, Space};
use kprism_expr::lower::{self, Env, Lowered};
use kprism_expr::scope::{Bare, ProbePoint, Scope};
use kprism_expr::{agent, opt};
use kprism_probe::events::{self, Name};
use kprism_probe::{locate, separate};
use serde_json::json;

use crate::exit::Outcome;
use kprism_session::Progress;

/// The types that a running kernel tells of itself.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Shown after the options.
pub const HELP: &str = "\
Places: FUNC (its entry), FUNC%return, FUNC+OFFSET, FILE:LINE, 0xADDRESS; with -k
SYSTEM:EVENT (its record, its arguments or what is around it), SYSTEM:EVENT@FUNC (around it).
Examples:
  kprism explain 'vfs_read if count > 4096'
  kprism explain 'vfs_read if file->f_inode->i_sb->s_magic == 0xEF53' -k vmlinux
  kprism explain 'n * 2 > $tid' --at main.c:12 --exec ./program";

/// Instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CpuName {
    /// Linux 5.12 and later
    V3,
    /// Linux 6.6 and later
    V4,
}

/// Options of `kprism explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Condition: `FUNC if EXPR`, or an expression with --at
    #[arg(value_name = "EXPR", required_unless_present = "agent")]
    pub expr: Option<String>,
    /// Where it is evaluated
    #[arg(long, value_name = "PLACE")]
    pub at: Option<String>,
    /// The kernel with debug information (without it: the running kernel's BTF, at entry and return)
    #[arg(short = 'k', long, value_name = "VMLINUX", conflicts_with = "exec")]
    pub vmlinux: Option<PathBuf>,
    /// A program or library with debug information
    #[arg(long, value_name = "FILE")]
    pub exec: Option<PathBuf>,
    /// The file that has the program's debug information, if it is not found by itself (GDB's places, debuginfod)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vmlinux", "btf"])]
    pub debug_file: Option<PathBuf>,
    /// Types of a kernel as BTF: a raw file or an ELF file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vmlinux", "exec"])]
    pub btf: Option<PathBuf>,
    /// A trace state variable that the expression may name (can be repeated)
    #[arg(long = "var", value_name = "NAME")]
    pub vars: Vec<String>,
    /// The expression's value, not whether it is true
    #[arg(long)]
    pub value: bool,
    /// GDB's agent bytecode in hexadecimal, instead of an expression
    #[arg(long, value_name = "HEX", conflicts_with = "expr")]
    pub agent: Option<String>,
    /// The eBPF's version
    #[arg(long, value_enum, default_value_t = CpuName::V3)]
    pub cpu: CpuName,
    /// Show the IR before it is optimised, too
    #[arg(long)]
    pub plain: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints it.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(hex) = &args.agent {
        let bytes = unhex(hex)?;
        let space = if args.exec.is_some() { Space::User } else { Space::Kernel };
        let func = agent::translate(&bytes, space, args.vars.len().max(1) as u16)?;
        let lowered = Lowered { func, ty: "long".to_owned(), signed: true, uses: Vec::new() };
        return show(args, &Bare(space).describe(), lowered, None, out);
    }
    let text = args.expr.as_deref().unwrap_or_default();
    let (place, expr) = match (&args.at, text.split_once(" if ")) {
        (Some(place), _) => (place.as_str(), text),
        (None, Some((place, expr))) => (place.trim(), expr),
        (None, None) => bail!("`{text}`: where? write `FUNC if EXPR`, or name the place with --at"),
    };
    let started = Instant::now();
    let file = args.vmlinux.as_ref().map(|f| (f, Space::Kernel));
    let Some((file, space)) = file.or(args.exec.as_ref().map(|f| (f, Space::User))) else {
        let path = args.btf.clone().unwrap_or_else(|| PathBuf::from(KERNEL_BTF));
        // Modules' types are beside the running kernel's; beside a file that is named lie other files.
        let btf = if args.btf.is_none() {
            ensure!(
                path.exists(),
                "{KERNEL_BTF}: there is none; name the kernel's debug information with -k, or its BTF with --btf"
            );
            let (btf, module) = locate::btf_of(&path, place)?;
            if let Some(module) = module {
                progress.say(&format!("kprism: note: a function of the module {module}"));
            }
            btf
        } else {
            let data = std::fs::read(&path).with_context(|| path.display().to_string())?;
            Arc::new(Btf::parse(&path.display().to_string(), data, None)?)
        };
        let place = btf::Place::find(&btf, place)?;
        let lowered = lower(args, expr, &place)?;
        progress.detail(&format!("types read in {:.0?}", started.elapsed()));
        return show(args, &place.describe(), lowered, None, out);
    };
    let (image, notes) = match space {
        Space::Kernel => (Image::open(file)?, Vec::new()),
        Space::User => separate::open(file, args.debug_file.as_deref())?,
    };
    notes.iter().for_each(|note| progress.say(&format!("kprism: note: {note}")));
    let debug = Debug::new(&image)?;
    if let Some(name) = Name::of(place).filter(|_| space == Space::Kernel) {
        let take = |scope: &dyn Scope, pc| match lower(args, expr, scope) {
            Ok(lowered) => Ok((scope.describe(), lowered, pc)),
            Err(error) => Err(kprism_probe::Error::Expression(error.to_string())),
        };
        let (place, lowered, pc) = events::scoped(&image, &debug, name, take)?;
        progress.detail(&format!("debug information read in {:.0?}", started.elapsed()));
        return show(args, &place, lowered, pc, out);
    }
    let found = Places::of(&debug, place, space)?;
    let described = found.places.iter().map(|p| (p.pc, p.moment, p as &dyn Scope));
    let all: Vec<_> =
        described.chain(found.symbols.iter().map(|p| (p.pc, p.moment, p as &dyn Scope))).collect();
    let Some((pc, moment, place)) = all.first().copied() else { bail!("`{place}`: no place") };
    let mut lowered = lower(args, expr, place)?;
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
        progress.say(&format!("kprism: note: {pc:#x} too: {}", other.describe()));
    }
    for note in &found.notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    show(args, &place.describe(), lowered, Some(pc), out)
}

fn lower(args: &Args, expr: &str, scope: &dyn Scope) -> Result<Lowered> {
    let env = Env { scope, vars: &args.vars };
    let compile = if args.value { lower::value } else { lower::condition };
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

fn show(args: &Args, place: &str, lowered: Lowered, pc: Option<u64>, out: &mut dyn Write) -> Result<Outcome> {
    let plain = lowered.func.to_string();
    let mut func: Func = lowered.func;
    opt::optimise(&mut func);
    let cpu = if args.cpu == CpuName::V3 { Cpu::V3 } else { Cpu::V4 };
    let output = if args.value { Output::State } else { Output::Verdict };
    let program = emit::program(&func, cpu, output)?;
    let kept: Vec<String> = func.kept().iter().map(ToString::to_string).collect();
    if args.json {
        let names: Vec<_> = lowered
            .uses
            .iter()
            .map(|u| json!({"name": u.name, "kind": u.role, "type": u.ty, "place": u.place}))
            .collect();
        let code: String = program.bytes().iter().map(|b| format!("{b:02x}")).collect();
        let value = json!({
            "place": place, "address": pc.map(|pc| format!("{pc:#x}")), "type": lowered.ty, "names": names,
            "entry_probe_keeps": kept, "ir": func.to_string().lines().collect::<Vec<_>>(),
            "ebpf": program.listing().lines().collect::<Vec<_>>(), "code": code,
            "instructions": program.insns.len(), "longest_path": program.longest(), "stack": program.stack,
        });
        serde_json::to_writer_pretty(&mut *out, &value)?;
        writeln!(out)?;
        return Ok(Outcome::Done);
    }
    match pc {
        Some(pc) => writeln!(out, "at {place}, {pc:#x}")?,
        None => writeln!(out, "at {place}")?,
    }
    if !lowered.uses.is_empty() {
        writeln!(out, "\nnames")?;
        let width = |f: fn(&lower::Use) -> &str| lowered.uses.iter().map(|u| f(u).len()).max().unwrap_or(0);
        let (a, b, c) = (width(|u| &u.name), width(|u| u.role), width(|u| &u.ty));
        for u in &lowered.uses {
            writeln!(out, "  {:a$}  {:b$}  {:c$}  {}", u.name, u.role, u.ty, u.place)?;
        }
    }
    if !kept.is_empty() {
        writeln!(out, "\nneeds a probe at the function's entry that keeps: {}", kept.join(", "))?;
    }
    if args.plain {
        writeln!(out, "\nIR as written\n{}", indent(&plain))?;
    }
    writeln!(out, "\nIR, value of type {}\n{}", lowered.ty, indent(&func.to_string()))?;
    let version = if args.cpu == CpuName::V3 { "v3" } else { "v4" };
    writeln!(out, "eBPF {version}\n{}", indent(&program.listing()))?;
    writeln!(
        out,
        "{} instructions, at most {} run; {} bytes of stack",
        program.insns.len(),
        program.longest(),
        program.stack
    )?;
    Ok(Outcome::Done)
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("  {l}\n")).collect()
}
