// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions on accesses to memory that missed a TLB: which of them a recorder keeps.
//!
//! Input: a condition over the numbers that are known of a miss, such as `access == store && va >= 0x7f0000000000`. Output: a
//! [`Condition`], sent to the recorder as JSON. The recorder runs it with [`crate::interp`] for each miss ([`Miss`]).
//!
//! The names are those of the columns of the table `tlb_misses`.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::ast::Tag;
use crate::ctype::{Def, Int, Ty, TypeRef, Types};
use crate::interp::{self, Machine};
use crate::ir::{Fault, Func, Input, Op, Space, Text};
use crate::lower::{self, Env};
use crate::opt;
use crate::scope::{Location, Role, Scope, Storage, Sym, Variable};
use crate::watch::faulty;

/// Names of the numbers, in the order of their slots.
const NAMES: [&str; 4] = ["va", "ip", "page_bytes", "access"];
/// Kinds of access, in the order of their numbers.
const KINDS: [&str; 3] = ["load", "store", "fetch"];

/// A miss, as far as conditions know it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Miss<'a> {
    /// Address accessed.
    pub va: u64,
    /// Address of the instruction.
    pub ip: u64,
    /// Size of the page in bytes.
    pub page_bytes: u64,
    /// Kind of access: 0 load, 1 store, 2 fetch.
    pub access: u8,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the thread; `None` if it is not known (yet).
    pub comm: Option<&'a str>,
    /// Number of the CPU.
    pub cpu: u32,
    /// Time, ns.
    pub ns: u64,
}

/// Facts that a recorder knows of a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// All of [`Miss`].
    All,
    /// All but the thread's name, the CPU and the time: of one program without its kernel.
    Program,
}

/// A condition on misses.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Condition(Func);

/// Names in a condition.
struct Names;

impl Types for Names {
    fn get(&self, _: TypeRef) -> Result<Def, String> {
        Err("a TLB miss has no types".to_owned())
    }

    fn find(&self, _: Tag, _: &str) -> Result<Option<Ty>, String> {
        Ok(None)
    }
}

impl Scope for Names {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let Some(slot) = NAMES.iter().position(|own| *own == name) else { return Ok(None) };
        let location = Location::Whole(Storage::Value(Rc::new(Sym::Arg(slot as u8))));
        Ok(Some(Variable { name: name.to_owned(), ty: Ty::Int(Int::ULONG), location, role: Role::Parameter }))
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        Ok(KINDS.iter().zip(0..).find(|(own, _)| **own == name).map(|(_, value)| (Ty::Int(Int::INT), value)))
    }

    fn names(&self) -> Vec<String> {
        NAMES.iter().chain(&KINDS).map(|name| (*name).to_owned()).collect()
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        Err("a TLB miss has no `$retval`".to_owned())
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        Err("a TLB miss has no `$duration`".to_owned())
    }

    fn space(&self) -> Space {
        Space::User
    }

    fn has_registers(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "a TLB miss".to_owned()
    }
}

impl Condition {
    /// Compiles a condition for a recorder that knows these facts.
    ///
    /// # Errors
    /// The text points to what is wrong in the condition.
    pub fn compile(text: &str, known: Known) -> Result<Self, String> {
        let lowered = lower::condition(text, Env { scope: &Names, vars: &[] });
        let mut func = lowered.map_err(|error| error.render(text))?.func;
        if let Some(why) = func.ops().find_map(|op| unknown(op, known)) {
            return Err(why.to_owned());
        }
        opt::optimise(&mut func);
        Ok(Condition(func))
    }

    /// Serializes the condition as JSON for the recorder.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the JSON and validates it. The result is safe to run: it terminates, and uses only values that exist.
    ///
    /// # Errors
    /// The text says what was expected.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let condition: Self = serde_json::from_str(text)
            .map_err(|error| format!("expected a condition on misses as kprism writes it: {error}"))?;
        match faulty(&condition.0, is_known) {
            Some(why) => Err(format!("expected a condition on misses as kprism writes it: {why}")),
            None => Ok(condition),
        }
    }

    /// Returns true if the miss meets the condition.
    ///
    /// # Errors
    /// It cannot be computed of this miss: a division by zero, a name that is not known.
    pub fn holds(&self, miss: &Miss<'_>) -> Result<bool, Fault> {
        let mut facts = Facts { miss, lacks_name: false, unused: 0 };
        let value = interp::run(&self.0, &mut facts)?;
        match facts.lacks_name {
            true => Err(Fault::Read),
            false => Ok(value != 0),
        }
    }
}

/// Returns true for inputs that [`Facts`] has.
fn is_known(input: Input) -> bool {
    match input {
        Input::Arg(slot) => usize::from(slot) < NAMES.len(),
        Input::PidTgid | Input::Cpu | Input::Time => true,
        Input::Reg(_) | Input::Context | Input::Cgroup | Input::Measured => false,
    }
}

/// Why an operation needs something that the recorder does not know.
fn unknown(op: &Op, known: Known) -> Option<&'static str> {
    match op {
        Op::InContainer(_) => {
            Some("`$container` is known in the kernel alone, not from outside: name `$pid` or `$comm`")
        }
        Op::Input(Input::Cgroup) => {
            Some("`$cgroup` is known in the kernel alone, not from outside: name `$pid` or `$comm`")
        }
        // Memory is not read: the miss may be of code that nobody has mapped any more when the condition runs.
        Op::Load { .. } | Op::TextEq(Text::Memory { .. }, _) => {
            Some("memory cannot be read at a TLB miss: only its own numbers are known")
        }
        Op::TextEq(Text::Comm, _) if known == Known::Program => {
            Some("`$comm` is not known of one program without its kernel: name `$pid` or `$tid`")
        }
        Op::Input(Input::Cpu) if known == Known::Program => {
            Some("`$cpu` is not known of one program without its kernel")
        }
        Op::Input(Input::Time) if known == Known::Program => {
            Some("`$ts` is not known of one program without its kernel")
        }
        _ => None,
    }
}

/// The environment of a condition.
struct Facts<'a> {
    miss: &'a Miss<'a>,
    /// The thread's name was asked for, and it is not known.
    lacks_name: bool,
    /// Trace state variables; there are none.
    unused: u64,
}

impl Machine for Facts<'_> {
    fn input(&mut self, input: Input) -> u64 {
        let miss = self.miss;
        match input {
            Input::Arg(0) => miss.va,
            Input::Arg(1) => miss.ip,
            Input::Arg(2) => miss.page_bytes,
            Input::Arg(3) => miss.access.into(),
            Input::PidTgid => u64::from(miss.pid) << 32 | u64::from(miss.tid),
            Input::Cpu => miss.cpu.into(),
            Input::Time => miss.ns,
            // `Condition` rejects all others.
            Input::Arg(_) | Input::Reg(_) | Input::Context | Input::Cgroup | Input::Measured => 0,
        }
    }

    fn read(&mut self, _space: Space, _addr: u64, _into: &mut [u8]) -> bool {
        false
    }

    fn comm(&mut self) -> [u8; 16] {
        let mut comm = [0; 16];
        self.lacks_name |= self.miss.comm.is_none();
        let name = self.miss.comm.unwrap_or_default().as_bytes();
        let length = name.len().min(15);
        comm[..length].copy_from_slice(&name[..length]);
        comm
    }

    fn var(&mut self, _number: u16) -> &mut u64 {
        &mut self.unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISS: Miss<'static> = Miss {
        va: 0xffff_8880_0000_1000,
        ip: 0x40_1000,
        page_bytes: 4096,
        access: 1,
        tid: 8,
        pid: 7,
        comm: Some("bfs"),
        cpu: 1,
        ns: 5_000,
    };

    fn holds(text: &str) -> bool {
        let condition = Condition::compile(text, Known::All).unwrap();
        Condition::from_json(&condition.json()).unwrap().holds(&MISS).unwrap()
    }

    #[test]
    fn each_name_has_its_number() {
        for yes in [
            "access == store",
            "va >= 0xffff800000000000 && page_bytes == 4096",
            "(va & 0xfff) == 0",
            "ip == 0x401000",
            "$pid == 7 && $tid == 8 && $cpu == 1",
            "$comm == \"bfs\"",
            "$ts >= 5us && $ts < 6us",
            "access != load && access != fetch",
        ] {
            assert!(holds(yes), "{yes}");
            assert!(!holds(&format!("!({yes})")), "!({yes})");
        }
    }

    #[test]
    fn what_a_miss_does_not_have_is_refused() {
        for (bad, expected) in [
            ("$retval == 1", "has no `$retval`"),
            ("$duration > 1us", "has no `$duration`"),
            ("$rax == 1", "$rax"),
            ("$cgroup == 1", "from outside"),
            ("adr == 1", "no `adr` at a TLB miss"),
            ("*(int *)va == 1", "memory cannot be read"),
            ("va ==", "expected"),
        ] {
            let said = Condition::compile(bad, Known::All).unwrap_err();
            assert!(said.contains(expected), "{bad}: {said}");
        }
        for (bad, expected) in [("$comm == \"a\"", "$comm"), ("$cpu == 0", "$cpu"), ("$ts > 0", "$ts")] {
            assert!(Condition::compile(bad, Known::All).is_ok());
            let said = Condition::compile(bad, Known::Program).unwrap_err();
            assert!(said.contains(expected) && said.contains("without its kernel"), "{bad}: {said}");
        }
        assert!(Condition::compile("$pid == 1 && $tid == 2", Known::Program).is_ok());
    }

    #[test]
    fn what_cannot_be_computed_is_told() {
        let by_name = Condition::compile("$comm == \"bfs\"", Known::All).unwrap();
        assert_eq!(by_name.holds(&Miss { comm: None, ..MISS }), Err(Fault::Read));
        // Where the rest decides, the name is not needed.
        let stores = Condition::compile("access == load && $comm == \"bfs\"", Known::All).unwrap();
        assert_eq!(stores.holds(&Miss { comm: None, ..MISS }), Ok(false));
        let divided = Condition::compile("100 / (va - va) == 1", Known::All).unwrap();
        assert_eq!(divided.holds(&MISS), Err(Fault::Divide));
    }

    #[test]
    fn what_comes_from_outside_is_checked() {
        let func = |op: &str| {
            let value = format!(r#"{{"op":{op},"width":"W64"}}"#);
            format!(
                r#"{{"vals":[{value}],"blocks":[{{"params":[],"insts":[0],"term":{{"Return":0}}}}],"layout":[0],"formats":[]}}"#
            )
        };
        assert!(Condition::from_json(&func(r#"{"Input":{"Arg":3}}"#)).is_ok());
        for bad in ["", "1", "{}", &func(r#"{"Input":{"Arg":4}}"#), &func(r#"{"Input":"Cgroup"}"#)] {
            assert!(Condition::from_json(bad).unwrap_err().contains("as kprism writes it"), "{bad}");
        }
    }
}
