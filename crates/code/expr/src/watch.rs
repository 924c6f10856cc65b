// SPDX-License-Identifier: MIT OR Apache-2.0
//! A condition for a recorder that looks on from outside and runs no BPF: it interprets.
//!
//! In: a function's entry or return, a condition, the kernel's BTF. Out: a [`Watch`], as JSON on its way to the
//! recorder, where [`crate::interp`] runs it over the registers and the memory of what is watched.

use kprism_btf::Btf;
use serde::{Deserialize, Serialize};

use crate::btf;
use crate::ir::{Block, Func, Input, Op, Term, Val};
use crate::lower::{self, Env};
use crate::opt;
use crate::scope::Moment;

/// A moment that a recorder waits for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Watch {
    /// Where the function is entered.
    pub entry: u64,
    /// Whether its return is meant.
    pub at_return: bool,
    /// Slots of [`Input::Arg`] that arguments take; the next is the value returned.
    pub slots: u8,
    /// What has to hold; nothing: always.
    pub condition: Option<Func>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The place.
    #[error(transparent)]
    Place(#[from] btf::Error),
    /// The condition; the text points into it.
    #[error("{0}")]
    Condition(String),
    /// The function is not in memory: the compiler left nothing of it.
    #[error("this kernel has no function {0}; functions of programs are not watched for")]
    Gone(String),
    /// JSON that [`Watch::json`] did not write.
    #[error("expected a condition as kprism writes it: {0}")]
    Json(String),
}

/// What a place by BTF can name. Registers would need a place at an instruction.
fn known(input: Input, slots: u8) -> bool {
    match input {
        Input::Arg(n) => n <= slots,
        Input::Reg(_) | Input::Context => false,
        Input::PidTgid | Input::Cpu | Input::Time => true,
    }
}

impl Watch {
    /// Compiles `condition` at `place`, `FUNC` or `FUNC%return`; `address` is where the kernel has a function.
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
                Ok::<_, Error>(func)
            })
            .transpose()?;
        let name = place.trim_end_matches("%return");
        let at_return = scope.moment() == Moment::Return;
        let slots = u8::try_from(scope.slots()).unwrap_or(u8::MAX);
        let entry = address(name).ok_or_else(|| Error::Gone(name.to_owned()))?;
        Ok(Self { entry, at_return, slots, condition })
    }

    /// The moment itself, `FUNC` or `FUNC%return`, without a condition. It needs no type of the function, so every function
    /// with a symbol will do: BTF leaves out those in assembly, and stubs of system calls.
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

    /// As text for the recorder.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// From that text. What it gives is safe to run: it ends, and names only what is there.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let watch: Self = serde_json::from_str(text).map_err(|e| Error::Json(e.to_string()))?;
        match watch.condition.as_ref().map(|func| faulty(func, watch.slots)) {
            Some(Some(why)) => Err(Error::Json(why)),
            _ => Ok(watch),
        }
    }
}

/// What is wrong with a function that came from outside.
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
