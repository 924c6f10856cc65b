// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions for a recorder that observes the machine from outside. It runs no BPF; it interprets the IR.
//!
//! Input: a function's entry or return, a condition, the kernel's BTF. Output: a [`Watch`], sent to the recorder as
//! JSON. The recorder runs it with [`crate::interp`] over the registers and the memory of the observed machine.

use kprism_btf::Btf;
use serde::{Deserialize, Serialize};

use crate::btf;
use crate::ir::{Block, Func, Input, Op, Term, Val};
use crate::lower::{self, Env};
use crate::opt;
use crate::scope::ProbePoint;

/// An event that a recorder waits for: a function's entry or return, with a condition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Watch {
    /// Address of the function's entry.
    pub entry: u64,
    /// True if the event is the function's return.
    pub at_return: bool,
    /// Number of [`Input::Arg`] slots that arguments take; the next slot is the return value.
    pub slots: u8,
    /// The condition. None: every call matches.
    pub condition: Option<Func>,
}

/// Reason why a [`Watch`] cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The place was not found in BTF.
    #[error(transparent)]
    Place(#[from] btf::Error),
    /// The condition is wrong. The text points into it.
    #[error("{0}")]
    Condition(String),
    /// The kernel has no symbol of this name. The compiler may have removed or inlined the function.
    #[error("this kernel has no function {0}; functions of programs are not watched for")]
    Gone(String),
    /// The JSON was not written by [`Watch::json`].
    #[error("expected a condition as kprism writes it: {0}")]
    Json(String),
}

/// Returns true if the interpreter has this input. Registers need a place at an instruction, which BTF does not
/// describe.
fn known(input: Input, slots: u8) -> bool {
    match input {
        Input::Arg(n) => n <= slots,
        Input::Reg(_) | Input::Context | Input::Cgroup => false,
        Input::PidTgid | Input::Cpu | Input::Time => true,
    }
}

impl Watch {
    /// Compiles `condition` at `place`, which is `FUNC` or `FUNC%return`. `address` returns a kernel function's
    /// address.
    pub fn compile(
        btf: &Btf,
        place: &str,
        condition: Option<&str>,
        address: impl FnOnce(&str) -> Option<u64>,
    ) -> Result<Self, Error> {
        let scope = btf::Place::find(btf, place)?;
        let condition = condition
            .map(|text| {
                let lowered = lower::condition(text, Env { scope: &scope, vars: &[] });
                let mut func = lowered.map_err(|e| Error::Condition(e.render(text)))?.func;
                opt::optimise(&mut func);
                if func.ops().any(|op| matches!(op, Op::Input(Input::Cgroup))) {
                    let what =
                        "`$cgroup` is known in the kernel alone, not from outside: name `$pid` or `$comm`";
                    return Err(Error::Condition(what.to_owned()));
                }
                Ok::<_, Error>(func)
            })
            .transpose()?;
        let name = place.trim_end_matches("%return");
        let at_return = scope.probe_point() == ProbePoint::Return;
        let slots = u8::try_from(scope.slots()).unwrap_or(u8::MAX);
        let entry = address(name).ok_or_else(|| Error::Gone(name.to_owned()))?;
        Ok(Self { entry, at_return, slots, condition })
    }

    /// A watch without a condition at `FUNC` or `FUNC%return`. It does not need the function's type, so any symbol
    /// works: BTF omits functions written in assembly and system-call stubs.
    ///
    /// # Errors
    /// [`Error::Gone`] if the kernel has no such symbol.
    pub fn always(place: &str, address: impl FnOnce(&str) -> Option<u64>) -> Result<Self, Error> {
        let (name, at_return) = match place.strip_suffix("%return") {
            Some(name) => (name, true),
            None => (place, false),
        };
        let entry = address(name).ok_or_else(|| Error::Gone(name.to_owned()))?;
        Ok(Self { entry, at_return, slots: 0, condition: None })
    }

    /// Serializes the watch as JSON for the recorder.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the JSON and validates it. The result is safe to run: it terminates, and uses only values that exist.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let watch: Self = serde_json::from_str(text).map_err(|e| Error::Json(e.to_string()))?;
        match watch.condition.as_ref().map(|func| faulty(func, watch.slots)) {
            Some(Some(why)) => Err(Error::Json(why)),
            _ => Ok(watch),
        }
    }
}

/// Checks a function from an untrusted source. Returns a description of the first error.
fn faulty(func: &Func, slots: u8) -> Option<String> {
    let val = |v: &Val| (v.0 as usize) < func.vals.len();
    let mut place = vec![None; func.blocks.len()];
    for (n, Block(block)) in func.layout.iter().enumerate() {
        match place.get_mut(*block as usize) {
            Some(free @ None) => *free = Some(n),
            _ => return Some(format!("block {block} is not there, or twice")),
        }
    }
    for (n, block) in func.layout.iter().enumerate() {
        let body = func.body(*block);
        let used = body.insts.iter().filter(|v| val(v)).flat_map(|v| func.op(*v).uses());
        let ends = body.term.iter().flat_map(Term::uses);
        let mut all = body.params.iter().chain(&body.insts).copied().chain(used).chain(ends);
        if let Some(v) = all.find(|v| !val(v)) {
            return Some(format!("value {} is not there", v.0));
        }
        let ahead = |b: Block| place.get(b.0 as usize).copied().flatten().is_some_and(|to| to > n);
        if let Some(target) = body.term.iter().flat_map(Term::targets).find(|t| !ahead(t.block)) {
            return Some(format!("block {} does not go forward to {}", block.0, target.block.0));
        }
    }
    func.ops().find_map(|op| match op {
        Op::Input(input) if !known(*input, slots) => Some(format!("{input:?} is not known here")),
        Op::GetVar(_) | Op::SetVar(..) | Op::AddVar(..) => Some("there are no trace state variables".into()),
        Op::Record(_) => Some("there is nowhere to put a record".into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(condition: &str) -> Result<Watch, Error> {
        Watch::from_json(&format!(r#"{{"entry":1,"at_return":false,"slots":1,"condition":{condition}}}"#))
    }

    #[test]
    fn without_a_condition_a_symbol_will_do() {
        let address = |name: &str| (name == "entry_SYSCALL_64").then_some(0x10);
        let watch = Watch::always("entry_SYSCALL_64%return", address).unwrap();
        assert_eq!((watch.entry, watch.at_return, watch.condition.is_none()), (0x10, true, true));
        assert!(Watch::from_json(&watch.json()).is_ok());
        assert!(matches!(Watch::always("main", address), Err(Error::Gone(name)) if name == "main"));
    }

    fn func(vals: &str, blocks: &str, layout: &str) -> String {
        format!(r#"{{"vals":[{vals}],"blocks":[{blocks}],"layout":{layout},"formats":[]}}"#)
    }

    const ONE: &str = r#"{"op":{"Const":1},"width":"W32"}"#;

    #[test]
    fn what_comes_from_outside_is_checked() {
        let end = r#"{"params":[],"insts":[0],"term":{"Return":0}}"#;
        assert!(with("null").is_ok());
        assert!(with(&func(ONE, end, "[0]")).is_ok());
        let back = r#"{"params":[],"insts":[0],"term":{"Jump":{"block":0,"args":[]}}}"#;
        let far = r#"{"params":[],"insts":[0],"term":{"Return":7}}"#;
        let context = r#"{"op":{"Input":"Context"},"width":"W64"}"#;
        let variable = r#"{"op":{"SetVar":[0,0]},"width":"W64"}"#;
        for (bad, expected) in [
            (func(ONE, back, "[0]"), "does not go forward"),
            (func(ONE, end, "[0,0]"), "is not there, or twice"),
            (func(ONE, end, "[3]"), "is not there, or twice"),
            (func(ONE, far, "[0]"), "value 7 is not there"),
            (func(context, end, "[0]"), "Context is not known here"),
            (func(variable, end, "[0]"), "no trace state variables"),
            ("1".to_owned(), "expected a condition as kprism writes it"),
        ] {
            let said = with(&bad).unwrap_err().to_string();
            assert!(said.contains(expected), "{bad}: {said}");
        }
    }
}
