// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats the intermediate representation as text.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::ir::{
    Block, CalledBy, Cond, Func, Input, Kept, Op, Record, Space, Target, Term, Text, Val, Width,
};

impl Display for Val {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for Block {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl Display for Width {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "i{}", self.bits())
    }
}

impl Display for Space {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Kernel => "kernel",
            Space::User => "user",
        })
    }
}

impl Display for Input {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Input::Reg(reg) => f.write_str(reg.name()),
            Input::Arg(n) => write!(f, "arg{n}"),
            Input::Context => f.write_str("context"),
            Input::PidTgid => f.write_str("pid_tgid"),
            Input::Cpu => f.write_str("cpu"),
            Input::Time => f.write_str("time"),
            Input::Cgroup => f.write_str("cgroup"),
            Input::Measured => f.write_str("duration"),
        }
    }
}

impl Display for Kept {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Time => f.write_str("time"),
            Kept::Reg(reg) => f.write_str(reg.name()),
        }
    }
}

/// Formats a small number in decimal, any other in hexadecimal.
fn number(n: u64, width: Width) -> String {
    let signed = width.signed(n);
    if signed.unsigned_abs() < 100_000 { signed.to_string() } else { format!("{n:#x}") }
}

fn target(target: &Target) -> String {
    if target.args.is_empty() {
        return target.block.to_string();
    }
    let args: Vec<String> = target.args.iter().map(Val::to_string).collect();
    format!("{}({})", target.block, args.join(", "))
}

fn op(func: &Func, v: Val) -> String {
    let width = func.width(v);
    match func.op(v) {
        Op::Const(n) => number(*n, width),
        Op::Param => "param".to_owned(),
        Op::Input(input) => format!("input {input}"),
        Op::Entry(kept, frame) => format!("entry {kept}, frame {frame}"),
        Op::Address(link) => format!("address {link:#x}"),
        Op::Bin(op, a, b) => format!("{} {a}, {b}", format!("{op:?}").to_lowercase()),
        Op::Ext { bits, signed, of } => format!("{}ext{bits} {of}", if *signed { 's' } else { 'u' }),
        Op::Cmp(cond, a, b) => {
            let cond = match cond {
                Cond::Eq => "==",
                Cond::Ne => "!=",
                Cond::Ult => "u<",
                Cond::Ule => "u<=",
                Cond::Slt => "s<",
                Cond::Sle => "s<=",
            };
            format!("{a} {cond} {b}")
        }
        Op::Load { space, size, signed, addr } => {
            format!("load {}{} {space} [{addr}]", if *signed { 's' } else { 'u' }, size * 8)
        }
        Op::TextEq(from, text) => {
            let from = match from {
                Text::Comm => "comm".to_owned(),
                Text::Memory { space, addr, limit: Some(n) } => format!("{space} [{addr}; {n}]"),
                Text::Memory { space, addr, limit: None } => format!("{space} [{addr}]"),
            };
            format!("text {from} == \"{}\"", text.escape_ascii())
        }
        Op::CalledBy(asked) => {
            let CalledBy { function, code, space, direct, most, all, .. } = &**asked;
            let direct = direct.map_or_else(String::new, |v| format!("{v} and "));
            let whole = if *all { "" } else { "nearest " };
            let code: Vec<String> =
                code.iter().flatten().map(|(start, length)| format!(" [{start}; {length}]")).collect();
            format!("called by {function}{}, {direct}{whole}{most} of the {space} stack", code.concat())
        }
        Op::InContainer(id) => format!("in container {id}"),
        Op::GetVar(n) => format!("var {n}"),
        Op::SetVar(n, v) => format!("var {n} = {v}"),
        Op::AddVar(n, v) => format!("var {n} += {v}"),
        Op::Record(Record::Memory { space, addr, len, text }) => {
            format!("record {} {space} [{addr}; {len}]", if *text { "text" } else { "memory" })
        }
        Op::Record(Record::Var(n)) => format!("record var {n}"),
        Op::Record(Record::Format(n, args)) => {
            let args: String = args.iter().fold(String::new(), |mut out, a| {
                let _ = write!(out, ", {a}");
                out
            });
            format!("record format {n}{args}")
        }
    }
}

impl Display for Func {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for &block in &self.layout {
            let body = self.body(block);
            let params: Vec<String> =
                body.params.iter().map(|p| format!("{p}: {}", self.width(*p))).collect();
            if params.is_empty() {
                writeln!(f, "{block}:")?;
            } else {
                writeln!(f, "{block}({}):", params.join(", "))?;
            }
            for &v in &body.insts {
                writeln!(f, "  {v}: {} = {}", self.width(v), op(self, v))?;
            }
            match &body.term {
                Some(Term::Jump(t)) => writeln!(f, "  jump {}", target(t))?,
                Some(Term::Branch(v, t, e)) => writeln!(f, "  if {v} {} else {}", target(t), target(e))?,
                Some(Term::Return(v)) => writeln!(f, "  return {v}")?,
                Some(Term::Fault(fault)) => writeln!(f, "  fault: {}", fault.name())?,
                None => writeln!(f, "  (open)")?,
            }
        }
        Ok(())
    }
}
