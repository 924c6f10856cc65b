// SPDX-License-Identifier: MIT OR Apache-2.0
//! The condition of `record durations --if`: compiled for each function by its types in BTF.
//!
//! Input: an expression, functions, and how they are hooked. Output: for each function its condition; or the functions
//! left out, because a name of the condition does not exist there.
//!
//! A condition that asks for `$retval` or `$duration` is evaluated where the call returns, any other where it is entered.

use anyhow::{Result, bail};
use kprism_bpf::func::{Condition, Hook};
use kprism_bpf::kernel::{Function, Kernel};
use kprism_bpf::names::Names;
use kprism_expr::btf::Place;
use kprism_expr::emit::{self, Cpu};
use kprism_expr::ir::{Op, Space};
use kprism_expr::lower::{self, Env};
use kprism_expr::opt;
use kprism_expr::scope::{Bare, Scope};

/// A condition for each of the functions that stay.
pub(super) struct Compiled {
    /// Functions for which the condition has a meaning, and it.
    pub kept: Vec<(Function, Condition)>,
    /// Those for which it has none, with the first line of the reason.
    pub left_out: Vec<(String, String)>,
}

/// Compiles `text` for all functions. `named` tells those that were named in full: a condition without a meaning there is
/// an error.
pub(super) fn compile(
    text: &str,
    functions: Vec<Function>,
    kernel: &mut Kernel,
    hook: Hook,
    named: &dyn Fn(&Function) -> bool,
) -> Result<Compiled> {
    let mut compiled = Compiled { kept: Vec::new(), left_out: Vec::new() };
    let mut first = None;
    for function in functions {
        match at(text, &function, kernel, hook) {
            Ok(condition) => compiled.kept.push((function, condition)),
            Err(why) if named(&function) => bail!("--if, at {}: {why}", function.name),
            Err(why) => {
                let brief = why.lines().next().unwrap_or_default().to_owned();
                compiled.left_out.push((function.name.clone(), brief));
                first.get_or_insert((function.name, why));
            }
        }
    }
    match first {
        Some((name, why)) if compiled.kept.is_empty() => bail!("--if, at {name}: {why}"),
        _ => Ok(compiled),
    }
}

fn at(text: &str, function: &Function, kernel: &mut Kernel, hook: Hook) -> Result<Condition, String> {
    kernel.knows(function);
    let Some(btf) = kernel.describes(function) else {
        return without_types(text, hook);
    };
    let place = |spec: &str| match Place::find(btf, spec) {
        Ok(place) if hook == Hook::Fentry => Ok(place.measured()),
        Ok(place) => Ok(place.by_registers().measured()),
        Err(error) => Err(error.to_string()),
    };
    // All names are in scope where the function returns.
    let end = place(&format!("{}%return", function.name))?;
    match asks_for_the_end(text, &end) {
        Ok(true) => one(text, &end, true),
        Ok(false) => one(text, &place(&function.name)?, false),
        // A message names the place that the condition was meant for.
        Err(why) if text.contains("$retval") || text.contains("$duration") => Err(why),
        Err(why) => Err(one(text, &place(&function.name)?, false).err().unwrap_or(why)),
    }
}

/// Without types there are no parameters, but registers and what every place has.
fn without_types(text: &str, hook: Hook) -> Result<Condition, String> {
    let why = "BTF does not describe this function, or several have its name: registers ($rdi is the first parameter), $comm, $pid \
               and the like are known";
    match one(text, &Bare(Space::Kernel), false) {
        Ok(condition) if hook != Hook::Fentry => Ok(condition),
        Ok(_) => Err(format!("{why}, with --backend bpf-kprobe")),
        Err(error) => Err(format!("{error}\n{why}")),
    }
}

/// Whether the condition can only be evaluated where the call returns.
fn asks_for_the_end(text: &str, scope: &dyn Scope) -> Result<bool, String> {
    let lowered = lower::condition(text, Env { scope, vars: &[] }).map_err(|error| error.render(text))?;
    Ok(lowered.uses.iter().any(|used| matches!(used.name.as_str(), "$retval" | "$duration")))
}

fn one(text: &str, scope: &dyn Scope, at_return: bool) -> Result<Condition, String> {
    let mut func = lower::condition(text, Env { scope, vars: &[] }).map_err(|error| error.render(text))?.func;
    if !func.kept().is_empty() {
        return Err("a condition on the result or the duration cannot ask for parameters too with this \
                    backend: use --backend bpf-fentry"
            .to_owned());
    }
    opt::optimise(&mut func);
    if scope.has_registers() && func.ops().any(|op| matches!(op, Op::CalledBy(_))) {
        return Err("who called is known with --backend bpf-fentry alone".to_owned());
    }
    let mut program = emit::segment(&func, Cpu::V3, &[]).map_err(|error| error.to_string())?;
    let mut names = Names::default();
    program.bind(&mut |name| names.find(name))?;
    Ok(Condition { program, at_return })
}
