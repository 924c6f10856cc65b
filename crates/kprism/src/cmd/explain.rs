// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism explain`: what a condition reads, and what it becomes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_expr::emit::Cpu;
use kprism_report::explain as view;
use kprism_session::Progress;
use kprism_session::explain::{self, Request};

use super::output::print_json;
use crate::exit::Outcome;

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

impl Args {
    fn request(&self) -> Request {
        Request {
            expr: self.expr.clone().unwrap_or_default(),
            at: self.at.clone(),
            vmlinux: self.vmlinux.clone(),
            exec: self.exec.clone(),
            debug_file: self.debug_file.clone(),
            btf: self.btf.clone(),
            vars: self.vars.clone(),
            value: self.value,
            agent: self.agent.clone(),
            cpu: if self.cpu == CpuName::V3 { Cpu::V3 } else { Cpu::V4 },
        }
    }
}

/// Prints it.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let explained = explain::explain(&args.request(), progress)?;
    match args.json {
        true => print_json(&view::to_json(&explained), out)?,
        false => write!(out, "{}", view::to_text(&explained, args.plain))?,
    }
    Ok(Outcome::Done)
}
