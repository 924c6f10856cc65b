// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions for a recorder that observes the machine from outside. It runs no BPF; it interprets the IR.
//!
//! Input: a function's entry or return, or an interval, a condition, the kernel's BTF. Output: a [`Watch`], sent to the recorder as
//! JSON. The recorder runs it with [`crate::interp`] over the registers and the memory of the observed machine.

use std::rc::Rc;

use kprism_btf::Btf;
use serde::{Deserialize, Serialize};

use crate::ast::Tag;
use crate::btf;
use crate::ctype::{Def, Ty, TypeRef, Types};
use crate::dwarf::InModule;
use crate::ir::{Block, Func, Input, Op, Space, Term, Val};
use crate::lower::{self, Env};
use crate::opt;
use crate::scope::{Location, ProbePoint, Scope, Sym};

/// An event that a recorder waits for, with a condition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Watch {
    /// The event.
    pub event: Event,
    /// The condition. None: every such event matches.
    pub condition: Option<Func>,
}

/// An event that a recorder sees.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A function's entry or return.
    Call {
        /// Address of the function's entry.
        entry: u64,
        /// True if the event is the function's return.
        at_return: bool,
        /// Number of [`Input::Arg`] slots that arguments take; the next slot is the return value.
        slots: u8,
    },
    /// The end of an interval.
    Interval(Interval),
}

/// An interval with a length, of which a recorder sees both ends. Addresses are the kernel's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// Interrupts are off on a CPU.
    IrqsOff {
        /// Addresses at which `syscall` and `sysenter` enter the kernel, which switch interrupts off.
        entries: Vec<u64>,
    },
    /// The preemption count of a CPU is not 0.
    PreemptOff {
        /// Address of the count, relative to the base of `gs`.
        count: u64,
    },
    /// A CPU holds a spinlock, or a reader's or writer's lock: from the return of a function that locks to the call of one
    /// that unlocks. Of several locks the last one is taken to be given back first.
    Locked {
        /// Entries of the functions that lock, in ascending order.
        locks: Vec<u64>,
        /// Entries of the functions that unlock, in ascending order.
        unlocks: Vec<u64>,
    },
    /// From a task's wake-up until it runs.
    Wakeup {
        /// `try_to_wake_up(task, state, …)`.
        wake: u64,
        /// `__switch_to(previous, next)`.
        switch: u64,
        /// Offset of `task_struct.__state`, in bytes.
        state: u32,
        /// Offset of `task_struct.on_rq`, in bytes.
        on_rq: u32,
        /// Offset of `task_struct.se.sched_delayed`, in bytes, if the kernel leaves tasks that sleep on the queue for a while
        /// (since 6.12).
        delayed: Option<u32>,
    },
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

const NO_CGROUP: &str = "`$cgroup`, `$container` and who called are known in the kernel alone, not from outside: name `$pid` or `$comm`";

/// The scope of an event of which no variable is known.
struct NoValues;

impl Types for NoValues {
    fn get(&self, _: TypeRef) -> Result<Def, String> {
        Err("an interval has no types".to_owned())
    }

    fn find(&self, _: Tag, _: &str) -> Result<Option<Ty>, String> {
        Ok(None)
    }
}

impl Scope for NoValues {
    fn returned(&self) -> Result<(Ty, Location), String> {
        Err("an interval has no `$retval`".to_owned())
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        // The recorder has paired both ends, so `$duration` needs no frame to find the other.
        Ok(Rc::new(Sym::Const(0)))
    }

    fn space(&self) -> Space {
        Space::Kernel
    }

    fn has_registers(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        "the end of an interval, where `$duration`, `$comm`, `$pid`, `$tid`, `$cpu` and `$ts` are known"
            .to_owned()
    }
}

/// Returns true if the interpreter has this input. Registers need a place at an instruction, which BTF does not
/// describe.
fn known(input: Input, slots: u8) -> bool {
    match input {
        Input::Arg(n) => n <= slots,
        Input::Reg(_) | Input::Context | Input::Cgroup | Input::Measured => false,
        Input::PidTgid | Input::Cpu | Input::Time => true,
    }
}

/// Compiles a condition for a recorder that observes from outside.
fn lowered(text: &str, scope: &dyn Scope) -> Result<Func, Error> {
    let lowered = lower::condition(text, Env { scope, vars: &[] });
    let mut func = lowered.map_err(|e| Error::Condition(e.render(text)))?.func;
    opt::optimise(&mut func);
    let is_inside = |op: &Op| matches!(op, Op::Input(Input::Cgroup) | Op::InContainer(_) | Op::CalledBy(_));
    if func.ops().any(is_inside) {
        return Err(Error::Condition(NO_CGROUP.to_owned()));
    }
    Ok(func)
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
        let condition = condition.map(|text| lowered(text, &scope)).transpose()?;
        let name = place.trim_end_matches("%return");
        let at_return = scope.probe_point() == ProbePoint::Return;
        let slots = u8::try_from(scope.slots()).unwrap_or(u8::MAX);
        let entry = address(name).ok_or_else(|| Error::Gone(name.to_owned()))?;
        Ok(Self { event: Event::Call { entry, at_return, slots }, condition })
    }

    /// Compiles `condition` at the entry or return of a function of a module, by the module's debug information. `entry` is the function's
    /// address where the module is loaded.
    ///
    /// # Errors
    /// [`Error::Condition`].
    pub fn in_module(place: InModule<'_, '_, '_>, condition: &str, entry: u64) -> Result<Self, Error> {
        let place = place.by_slots();
        let condition = Some(lowered(condition, &place)?);
        let at_return = place.probe_point() == ProbePoint::Return;
        Ok(Self { event: Event::Call { entry, at_return, slots: InModule::SLOTS }, condition })
    }

    /// Compiles `condition` for the end of an interval, whose length is `$duration`, or for another event of which nothing
    /// else is known than the task, the CPU and the time.
    ///
    /// # Errors
    /// [`Error::Condition`].
    pub fn without_values(event: Event, condition: Option<&str>) -> Result<Self, Error> {
        let condition = condition.map(|text| lowered(text, &NoValues)).transpose()?;
        Ok(Self { event, condition })
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
        Ok(Self { event: Event::Call { entry, at_return, slots: 0 }, condition: None })
    }

    /// Serializes the watch as JSON for the recorder.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the JSON and validates it. The result is safe to run: it terminates, and uses only values that exist.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let watch: Self = serde_json::from_str(text).map_err(|e| Error::Json(e.to_string()))?;
        let slots = match watch.event {
            Event::Call { slots, .. } => slots,
            // No argument is known.
            Event::Interval(_) => 0,
        };
        match watch.condition.as_ref().map(|func| faulty(func, |input| known(input, slots))) {
            Some(Some(why)) => Err(Error::Json(why)),
            _ => Ok(watch),
        }
    }
}

/// Checks a function from an untrusted source, which may use the inputs that are `known`. Returns a description of the first
/// error.
pub(crate) fn faulty(func: &Func, known: impl Fn(Input) -> bool) -> Option<String> {
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
        Op::Input(input) if !known(*input) => Some(format!("{input:?} is not known here")),
        Op::GetVar(_) | Op::SetVar(..) | Op::AddVar(..) => Some("there are no trace state variables".into()),
        Op::CalledBy(_) | Op::InContainer(_) => Some("it asks for what only the kernel knows".into()),
        Op::Record(_) => Some("there is nowhere to put a record".into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(condition: &str) -> Result<Watch, Error> {
        Watch::from_json(&format!(
            r#"{{"event":{{"call":{{"entry":1,"at_return":false,"slots":1}}}},"condition":{condition}}}"#
        ))
    }

    #[test]
    fn without_a_condition_a_symbol_will_do() {
        let address = |name: &str| (name == "entry_SYSCALL_64").then_some(0x10);
        let watch = Watch::always("entry_SYSCALL_64%return", address).unwrap();
        assert!(matches!(watch.event, Event::Call { entry: 0x10, at_return: true, slots: 0 }));
        assert!(watch.condition.is_none());
        assert!(Watch::from_json(&watch.json()).is_ok());
        assert!(matches!(Watch::always("main", address), Err(Error::Gone(name)) if name == "main"));
    }

    #[test]
    fn an_interval_has_its_length_and_its_task() {
        let compile =
            |text| Watch::without_values(Event::Interval(Interval::IrqsOff { entries: vec![] }), Some(text));
        let watch = compile(r#"$duration > 100us && $comm == "dd" && $cpu == 1"#).unwrap();
        assert!(Watch::from_json(&watch.json()).is_ok());
        assert!(compile("$duration > 0ns && $duration >= 0").is_ok());
        for (bad, expected) in [
            ("$retval", "has no `$retval`"),
            ("$rax", "$rax"),
            ("count > 1", "count"),
            ("$cgroup == 1", "from outside"),
        ] {
            let said = compile(bad).unwrap_err().to_string();
            assert!(said.contains(expected), "{bad}: {said}");
        }
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
