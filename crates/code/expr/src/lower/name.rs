// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers names: variables, enumerators, and names that begin with `$`.

use std::rc::Rc;

use crate::ast::{Expr, Kind};
use crate::ctype::{Int, Ty};
use crate::error::{Error, Result, Span, suggestion};
use crate::ir::{BinOp, Input, Kept, Op, Width};
use crate::regs::{self, Reg};
use crate::scope::{Location, Storage};

use super::{Lower, Operand, Scalar, Use};

/// Variables that exist at every place.
const BUILTIN: &[&str] = &["pid", "tid", "comm", "cpu", "ts", "cgroup", "container", "retval", "duration"];

/// Returns true if `$name` has a predefined meaning, so that a trace state variable of that name could not be read.
pub fn is_built_in(name: &str) -> bool {
    const LISTS: [&str; 7] = ["args", "callers", "locals", "regs", "sdata", "stack", "ustack"];
    BUILTIN.contains(&name)
        || LISTS.contains(&name)
        || Reg::by_name(name).is_some()
        || regs::part(name).is_some()
}

impl Lower<'_> {
    pub(super) fn note(&mut self, name: &str, role: &'static str, ty: &Ty, place: String) {
        let ty = self.show(ty);
        let new = Use { name: name.to_owned(), role, ty, place };
        if !self.uses.contains(&new) {
            self.uses.push(new);
        }
    }

    pub(super) fn name(&mut self, name: &str, span: Span) -> Result<Operand> {
        let fail = |e: String| Error::new(span, e);
        let scope = self.env.scope;
        // In a method, a member can be named without an object.
        if let Some(this) = scope.object_of(name).map_err(fail)? {
            let of = Expr { span, kind: Kind::Name(this) };
            return self.member(&of, true, name, span);
        }
        if let Some(variable) = scope.variable(name).map_err(fail)? {
            self.note(name, variable.role.word(), &variable.ty, variable.location.to_string());
            return self.variable(variable.location, variable.ty, name, span);
        }
        if let Some((ty, value)) = scope.enumerator(name).map_err(fail)? {
            self.note(name, "enumerator", &ty, value.to_string());
            // An enumerator has type `int`, or a wider type if its value needs one (GCC).
            let int = if i32::try_from(value).is_ok() {
                Int::INT
            } else if u32::try_from(value).is_ok() {
                Int::of(4, false)
            } else {
                Int::LONG
            };
            let v = self.b.constant(value as u64, Scalar::Int(int).width());
            return Ok(Operand::Value(v, Scalar::Int(int), ty));
        }
        let names = scope.names();
        let mut known: Vec<String> = names.clone();
        known.extend(BUILTIN.iter().map(|n| (*n).to_owned()));
        let error = Error::new(span, format!("no `{name}` at {}", scope.describe()));
        let near = suggestion(name, known.iter().map(String::as_str)).map(|s| {
            // Suggest `$pid` for `pid`.
            BUILTIN
                .iter()
                .find(|b| s.contains(&format!("`{b}`")) && !names.contains(&(**b).to_owned()))
                .map_or(s.clone(), |b| format!("did you mean `${b}`?"))
        });
        let all = (!names.is_empty()).then(|| format!("there are {}", shorten(&names)));
        Err(match near.or(all) {
            Some(help) => error.help(help),
            None => error,
        })
    }

    fn variable(&mut self, location: Location, ty: Ty, name: &str, span: Span) -> Result<Operand> {
        let operand = if let Location::Whole(Storage::Memory(sym)) = &location {
            let addr = self.sym(sym, span)?;
            Operand::Memory { addr, ty, bits: None }
        } else {
            Operand::Parts { location, ty, from: 0, bits: None, name: name.to_owned() }
        };
        self.referred(operand, span)
    }

    pub(super) fn dollar(&mut self, name: &str, span: Span) -> Result<Operand> {
        let shown = format!("${name}");
        let scope = self.env.scope;
        let simple = |lower: &mut Self, input, int, place: &str| {
            lower.note(&shown, "built in", &Ty::Int(int), place.to_owned());
            let v = lower.b.push(Op::Input(input), Width::W64);
            let v = lower.fit_int(v, int);
            Ok(lower.int(v, int))
        };
        match name {
            "pid" => {
                self.note(&shown, "built in", &Ty::Int(Int::INT), "current process".to_owned());
                let v = self.b.push(Op::Input(Input::PidTgid), Width::W64);
                let shift = self.b.constant(32, Width::W64);
                let v = self.b.bin(BinOp::Shr, v, shift);
                let v = self.fit_int(v, Int::INT);
                return Ok(self.int(v, Int::INT));
            }
            "tid" => return simple(self, Input::PidTgid, Int::INT, "current thread"),
            "cpu" => return simple(self, Input::Cpu, Int::INT, "current CPU"),
            "ts" => return simple(self, Input::Time, Int::ULONG, "monotonic clock, ns"),
            "cgroup" => {
                return simple(self, Input::Cgroup, Int::ULONG, "current cgroup, inode of its folder");
            }
            "container" => {
                self.note(&shown, "built in", &Ty::Void, "cgroups above the current task".to_owned());
                return Ok(Operand::Container);
            }
            "comm" => {
                let ty = Ty::Array(Rc::new(Ty::Int(Int::CHAR)), Some(16));
                self.note(&shown, "built in", &ty, "current thread".to_owned());
                return Ok(Operand::Comm);
            }
            "retval" => {
                let (ty, location) = scope.returned().map_err(|e| Error::new(span, e))?;
                self.note(&shown, "built in", &ty, location.to_string());
                return self.variable(location, ty, &shown, span);
            }
            "duration" if scope.measures() => {
                return simple(self, Input::Measured, Int::LONG, "measured by the recording, ns");
            }
            "duration" if scope.at_entry() => {
                let why =
                    format!("{}: no time of the call has passed, `{shown}` would be 0", scope.describe());
                return Err(Error::new(span, why)
                    .help("it is known where the function returns, FUNC%return, and inside of it, FUNC+N or FUNC:LINE"));
            }
            "duration" => {
                let place = "clock now - clock at entry, ns".to_owned();
                self.note(&shown, "built in", &Ty::Int(Int::LONG), place);
                let frame = scope.frame().map_err(|e| Error::new(span, e))?;
                let frame = self.sym(&frame, span)?;
                let then = self.b.push(Op::Entry(Kept::Time, frame), Width::W64);
                let now = self.b.push(Op::Input(Input::Time), Width::W64);
                let v = self.b.bin(BinOp::Sub, now, then);
                return Ok(self.int(v, Int::LONG));
            }
            _ => {}
        }
        if let Some(reg) = Reg::by_name(name) {
            if !scope.has_registers() {
                return Err(Error::new(span, format!("`{shown}` cannot be read by this kind of probe"))
                    .help("a probe at an instruction sees the registers: the place FUNC+0 (in `kprism explain`, --at FUNC+0)"));
            }
            // The types are those that GDB gives these registers.
            let pointer = matches!(reg, Reg::Rsp | Reg::Rbp | Reg::Rip);
            let void = Rc::new(Ty::Void);
            let ty = if pointer { Ty::Ptr(void.clone()) } else { Ty::Int(Int::LONG) };
            self.note(&shown, "register", &ty, reg.name().to_owned());
            let v = self.b.push(Op::Input(Input::Reg(reg)), Width::W64);
            let scalar = if pointer { Scalar::Ptr(void) } else { Scalar::Int(Int::LONG) };
            return Ok(Operand::Value(v, scalar, ty));
        }
        if let (Some((reg, bits, from)), true) = (regs::part(name), scope.has_registers()) {
            // As in GDB, these are signed.
            let int = Int::of(bits / 8, true);
            self.note(&shown, "register", &Ty::Int(int), format!("{} bits of {}", bits, reg.name()));
            let v = self.b.push(Op::Input(Input::Reg(reg)), Width::W64);
            let shift = self.b.constant(from.into(), Width::W64);
            let v = self.b.bin(BinOp::Shr, v, shift);
            let v = self.b.ext(v, bits, true, Width::W32);
            return Ok(self.int(v, int));
        }
        if let Some(number) = self.env.vars.iter().position(|v| v == name) {
            self.note(&shown, "trace state variable", &Ty::Int(Int::LONG), format!("number {number}"));
            let v = self.b.push(Op::GetVar(number as u16), Width::W64);
            return Ok(self.int(v, Int::LONG));
        }
        Err(self.unknown_dollar(name, span))
    }

    fn fit_int(&mut self, v: crate::ir::Val, int: Int) -> crate::ir::Val {
        if int.size == 4 { self.b.ext(v, 32, false, Width::W32) } else { v }
    }

    pub(super) fn unknown_dollar(&self, name: &str, span: Span) -> Error {
        let known = BUILTIN.iter().copied().chain(regs::ALL.iter().map(|r| r.name()));
        let known = known.chain(self.env.vars.iter().map(String::as_str));
        let error = Error::new(span, format!("no `${name}`"));
        match suggestion(name, known).map(|s| s.replacen('`', "`$", 1)) {
            Some(near) => error.help(near),
            None => {
                let built_in: Vec<String> = BUILTIN.iter().map(|name| format!("${name}")).collect();
                let built_in = built_in.join(", ");
                error.help(format!("there are {built_in}, the registers, and trace state variables"))
            }
        }
    }
}

fn shorten(names: &[String]) -> String {
    let mut shown: Vec<&str> = names.iter().take(12).map(String::as_str).collect();
    if names.len() > shown.len() {
        shown.push("…");
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ast::Tag;
    use crate::ctype::{Def, TypeRef, Types};
    use crate::ir::Space;
    use crate::lower::{Env, condition};
    use crate::scope::{Scope, Sym};

    /// A place in a function: at its entry, or where it returns.
    struct Place {
        at_entry: bool,
    }

    impl Types for Place {
        fn get(&self, _: TypeRef) -> std::result::Result<Def, String> {
            Err("none".to_owned())
        }

        fn find(&self, _: Tag, _: &str) -> std::result::Result<Option<Ty>, String> {
            Ok(None)
        }
    }

    impl Scope for Place {
        fn returned(&self) -> std::result::Result<(Ty, Location), String> {
            Err("none".to_owned())
        }

        fn frame(&self) -> std::result::Result<Rc<Sym>, String> {
            Ok(Rc::new(Sym::Const(0)))
        }

        fn space(&self) -> Space {
            Space::Kernel
        }

        fn at_entry(&self) -> bool {
            self.at_entry
        }

        fn describe(&self) -> String {
            "work, at entry".to_owned()
        }
    }

    #[test]
    fn a_duration_is_not_known_where_a_function_begins() {
        let of = |at_entry, text| condition(text, Env { scope: &Place { at_entry }, vars: &[] });
        assert!(of(false, "$duration > 1us").is_ok());
        assert!(of(true, "$pid == 1").is_ok());
        for text in ["$duration > 1us", "$duration == 0 || $pid == 1"] {
            let said = of(true, text).unwrap_err().render(text);
            assert!(
                said.contains("no time of the call has passed") && said.contains("FUNC%return"),
                "{said}"
            );
        }
    }
}
