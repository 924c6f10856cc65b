// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request's condition, values and actions → IR, with the names in scope at the place; optimised, not compiled yet.

use std::collections::BTreeSet;

use kprism_expr::ir::{Func, Kept, Op, Space};
use kprism_expr::lower::{self, Collected, Env, What};
use kprism_expr::opt;
use kprism_expr::scope::Role;

use super::{Actions, LARGEST, MOST_LISTED, Request};
use crate::Error;
use crate::stream::MOST_ITEMS;
use crate::stream::aggregate::{Aggregate, Function};
use crate::stream::tally::{Histogram, LONGEST_KEY, MOST_AGGREGATES, MOST_HISTOGRAMS, Scale};

/// Puts addresses of the running kernel or program into a function.
pub(crate) type Fix<'f> = dyn FnMut(&mut Func) -> Result<(), Error> + 'f;

/// A request in IR.
pub(super) struct Lowered {
    /// The condition.
    pub condition: Option<Func>,
    /// The values to collect. Those that are missing come last: they have no place in a record.
    pub values: Vec<Wanted>,
    /// Assignments to trace state variables, with their text.
    pub set: Vec<(String, Func)>,
    /// Keys by which hits are counted.
    pub keys: Vec<Wanted>,
    /// Histograms, and the values in them.
    pub histograms: Vec<(Histogram, Func)>,
    /// Aggregates, and their values.
    pub aggregates: Vec<(Aggregate, Func)>,
}

/// A value without a place in a record yet.
pub(super) enum Wanted {
    /// An expression, with its text.
    Expression(String, Collected),
    /// A variable or expression that has no value here.
    Missing { name: String, ty: String, why: String },
    /// All registers.
    Registers,
    /// Return addresses: the program's (`user`), or the kernel's.
    Stack { user: bool },
    /// The nearest callers' return addresses, without so many innermost entries.
    Callers { user: bool, skip: u8 },
}

/// Lowers a request. `address`: the code address, if debug information gives one.
pub(super) fn request_to_ir(
    request: &Request<'_>,
    env: Env<'_>,
    address: Option<u64>,
    fix: &mut Fix<'_>,
) -> Result<Lowered, Error> {
    let mut condition = None;
    if let Some(text) = request.condition {
        let lowered = lower::condition(text, env).map_err(|e| Error::expression(text, &e))?;
        let mut func = lowered.func;
        fix(&mut func)?;
        opt::optimise(&mut func);
        condition = Some(func);
    }
    let values = values(request, env, address, fix)?;
    let actions = &request.actions;
    let set = assignments(actions, env, fix)?;
    let histograms = histograms(actions, env, fix)?;
    let keys = keys(actions, env, fix)?;
    let aggregates = aggregates(actions, env, fix)?;
    Ok(Lowered { condition, values, set, keys, histograms, aggregates })
}

impl Lowered {
    /// Values that the program at the function's entry must keep.
    pub fn kept(&self) -> BTreeSet<Kept> {
        let expressions = self.values.iter().chain(&self.keys).filter_map(|wanted| match wanted {
            Wanted::Expression(_, collected) => Some(collected),
            Wanted::Missing { .. } | Wanted::Registers => None,
            Wanted::Stack { .. } | Wanted::Callers { .. } => None,
        });
        let expressions =
            expressions.flat_map(|c| c.parts.iter().filter_map(|part| part.func.as_ref()).chain([&c.func]));
        let set = self.set.iter().map(|(_, func)| func);
        let histograms = self.histograms.iter().map(|(_, func)| func);
        let aggregates = self.aggregates.iter().map(|(_, func)| func);
        let counted = histograms.chain(aggregates);
        self.condition.iter().chain(expressions).chain(set).chain(counted).flat_map(Func::kept).collect()
    }
}

/// The values to collect.
fn values(
    request: &Request<'_>,
    env: Env<'_>,
    address: Option<u64>,
    fix: &mut Fix<'_>,
) -> Result<Vec<Wanted>, Error> {
    let mut wanted = Vec::new();
    for text in request.collect {
        match text.trim() {
            "$args" => names(env, Role::Parameter, &mut wanted),
            "$locals" => names(env, Role::Local, &mut wanted),
            "$regs" if !env.scope.has_registers() => {
                let what = match address {
                    Some(_) => "`$regs` are not all known here: the tracepoint itself calls the program",
                    None => {
                        "`$regs` cannot be read by a probe that BTF alone describes: name the kernel's debug information (-k VMLINUX)"
                    }
                };
                return Err(Error::Cannot(what.to_owned()));
            }
            "$regs" => wanted.push(Wanted::Registers),
            text => wanted.push(match expression(text, env) {
                Err(Error::Expression(why)) if request.several => {
                    let why = why.shown.lines().next().unwrap_or_default().to_owned();
                    Wanted::Missing { name: text.to_owned(), ty: String::new(), why }
                }
                wanted => wanted?,
            }),
        }
    }
    let is_missing = |item: &Wanted| matches!(item, Wanted::Missing { .. });
    wanted.sort_by_key(is_missing);
    let values = wanted.iter().filter(|item| !is_missing(item)).count();
    if values > MOST_ITEMS {
        let what = format!("{values} values are collected, a record has room for {MOST_ITEMS}");
        return Err(Error::Cannot(what));
    }
    wanted.truncate(MOST_LISTED);
    for item in &mut wanted {
        if let Wanted::Expression(_, collected) = item {
            let parts = collected.parts.iter_mut().filter_map(|part| part.func.as_mut());
            for func in parts.chain([&mut collected.func]) {
                fix(func)?;
                opt::optimise(func);
            }
        }
    }
    Ok(wanted)
}

/// The parameters or locals in scope.
fn names(env: Env<'_>, role: Role, wanted: &mut Vec<Wanted>) {
    for name in env.scope.names() {
        let Ok(Some(variable)) = env.scope.variable(&name) else { continue };
        if variable.role != role {
            continue;
        }
        let ty = kprism_expr::ctype::name(env.scope, &variable.ty);
        wanted.push(match lower::collect(&name, env) {
            Ok(Collected { what: What::Memory(size), .. }) if !(1..=LARGEST).contains(&size) => {
                let why = format!("it has {size} bytes, {LARGEST} can be collected");
                Wanted::Missing { name, ty, why }
            }
            Ok(collected) => Wanted::Expression(name, collected),
            Err(error) => {
                let why = match error.help {
                    Some(help) => format!("{}; {help}", error.message),
                    None => error.message,
                };
                Wanted::Missing { name, ty, why }
            }
        });
    }
}

/// Lowers an expression, or a stack.
fn expression(text: &str, env: Env<'_>) -> Result<Wanted, Error> {
    Ok(match text.trim() {
        "$stack" => Wanted::Stack { user: false },
        "$ustack" => Wanted::Stack { user: true },
        "$callers" => {
            let callers = env.scope.callers().map_err(|why| Error::Cannot(format!("`$callers`: {why}")))?;
            Wanted::Callers { user: env.scope.space() == Space::User, skip: callers.skip }
        }
        text => {
            let collected = lower::collect(text, env).map_err(|e| Error::expression(text, &e))?;
            Wanted::Expression(text.to_owned(), collected)
        }
    })
}

/// A number, computed at the hit.
fn number(text: &str, env: Env<'_>, fix: &mut Fix<'_>) -> Result<lower::Lowered, Error> {
    let mut found = lower::value(text, env).map_err(|e| Error::expression(text, &e))?;
    fix(&mut found.func)?;
    opt::optimise(&mut found.func);
    Ok(found)
}

fn assignments(actions: &Actions<'_>, env: Env<'_>, fix: &mut Fix<'_>) -> Result<Vec<(String, Func)>, Error> {
    let mut set = Vec::new();
    for text in actions.set {
        let func = number(text, env, fix)?.func;
        if !func.ops().any(|op| matches!(op, Op::SetVar(..) | Op::AddVar(..))) {
            return Err(Error::Cannot(format!("`{text}` sets nothing: write `$name = …` or `$name += …`")));
        }
        set.push((text.clone(), func));
    }
    Ok(set)
}

fn histograms(
    actions: &Actions<'_>,
    env: Env<'_>,
    fix: &mut Fix<'_>,
) -> Result<Vec<(Histogram, Func)>, Error> {
    let mut scales: Vec<(&str, Scale)> =
        actions.hist.iter().map(|text| (text.as_str(), Scale::Log2)).collect();
    for text in actions.linear {
        scales.push(Scale::linear(text)?);
    }
    if scales.len() > MOST_HISTOGRAMS {
        let what = format!("{} histograms, a probe has up to {MOST_HISTOGRAMS}", scales.len());
        return Err(Error::Cannot(what));
    }
    let mut values = Vec::new();
    for (text, scale) in scales {
        let found = number(text, env, fix)?;
        if matches!(scale, Scale::Linear { min, .. } if min < 0 && !found.signed) {
            return Err(Error::Cannot(format!("`{text}` is unsigned ({}): MIN is 0 or more", found.ty)));
        }
        let histogram = Histogram { name: text.to_owned(), ty: found.ty, signed: found.signed, scale };
        values.push((histogram, found.func));
    }
    Ok(values)
}

fn aggregates(
    actions: &Actions<'_>,
    env: Env<'_>,
    fix: &mut Fix<'_>,
) -> Result<Vec<(Aggregate, Func)>, Error> {
    if actions.aggregates.len() > MOST_AGGREGATES {
        let what = format!(
            "{} sums and other aggregates, a probe has up to {MOST_AGGREGATES}",
            actions.aggregates.len()
        );
        return Err(Error::Cannot(what));
    }
    let each = |(function, text): &(Function, String)| {
        let found = number(text, env, fix)?;
        let (function, name) = (*function, text.clone());
        Ok((Aggregate { function, name, ty: found.ty, signed: found.signed }, found.func))
    };
    actions.aggregates.iter().map(each).collect()
}

fn keys(actions: &Actions<'_>, env: Env<'_>, fix: &mut Fix<'_>) -> Result<Vec<Wanted>, Error> {
    let mut keys = Vec::new();
    for text in actions.by {
        let mut wanted = expression(text, env)?;
        if let Wanted::Expression(_, collected) = &mut wanted {
            fix(&mut collected.func)?;
            opt::optimise(&mut collected.func);
            if matches!(collected.what, What::Parts(_)) {
                return Err(Error::Cannot(format!(
                    "`{text}` is not in memory as a whole: name a member of it"
                )));
            }
            if matches!(collected.what, What::Memory(size) if size > u64::from(LONGEST_KEY)) {
                return Err(Error::Cannot(format!("`{text}` is too large to count by: name a member of it")));
            }
        }
        keys.push(wanted);
    }
    Ok(keys)
}
