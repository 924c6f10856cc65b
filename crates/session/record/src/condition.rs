// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions that the observer watches for: where a snapshot is taken, where a window opens and closes.
//!
//! Input: `FUNC[%return] [if EXPR]`, or an interval as `irqs_off > 100us [if EXPR]`, and a guest's kernel. Output: the program that
//! the observer interprets, as JSON.

pub(crate) mod interval;

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_btf::{Btf, Kind};
use kprism_expr::error::suggestion;
use kprism_expr::watch::{Error, Watch};
use kprism_image::symbols::kallsyms;
use kprism_lab::Prepared;
use kprism_probe::plan;
use kprism_store::Run;

/// Compiles `spec`, given with `option`, by the symbols and types of the guest's kernel.
///
/// # Errors
/// The kernel has no such function, or the condition cannot be compiled.
pub fn argument(option: &str, spec: &str, prepared: &Prepared) -> Result<String> {
    let folder = prepared.snapshot_folder();
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    compile(option, spec, &read("kallsyms")?, &read("btf")?)
}

/// The same of a guest that does again what `run` recorded: functions of modules that were loaded meanwhile are known by the run's
/// symbols. They are where they were.
///
/// # Errors
/// As of [`argument`].
pub(crate) fn argument_again(option: &str, spec: &str, prepared: &Prepared, run: &Run) -> Result<String> {
    let names = run.kallsyms();
    if !names.is_file() {
        return argument(option, spec, prepared);
    }
    let types = prepared.snapshot_folder().join("btf");
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    compile(option, spec, &read(names.as_path())?, &read(types.as_path())?)
}

/// The same, by the text of the kernel's `/proc/kallsyms` and the bytes of its types, which are empty if it has none.
///
/// # Errors
/// As of [`argument`].
pub fn compile(option: &str, spec: &str, names: &[u8], types: &[u8]) -> Result<String> {
    // Not every condition needs the types: a place by itself works without them, and if they are damaged.
    let btf = || match types.is_empty() {
        true => Ok(None),
        false => Btf::parse("the guest's BTF", types.to_vec(), None).map(Some),
    };
    if let Some((name, condition)) = interval::split(spec) {
        let event = interval::event(name, names, btf).with_context(|| option.to_owned())?;
        return match Watch::without_values(event, condition.as_deref()) {
            Ok(watch) => Ok(watch.json()),
            Err(error) => bail!("{option}: {name} is `$duration` here:\n{error}"),
        };
    }
    let address = |name: &str| kallsyms::value_of(names, name);
    let (place, condition) = plan::split(spec);
    if condition.is_none() {
        return match Watch::always(place, address) {
            Ok(watch) => Ok(watch.json()),
            Err(Error::Gone(name)) => bail!(
                "{option}: this kernel has no function `{name}`; {}functions of programs are not watched for",
                like(&name, btf().ok().flatten().as_ref())
            ),
            Err(error) => Err(error).with_context(|| option.to_owned()),
        };
    }
    let Some(btf) = btf()? else {
        bail!("{option}: the guest's kernel was built without CONFIG_DEBUG_INFO_BTF");
    };
    match Watch::compile(&btf, place, condition, address) {
        Ok(watch) => Ok(watch.json()),
        Err(Error::Condition(text)) => bail!("{option}:\n{text}"),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if the condition can only be compiled by the kernel's types (`CONFIG_DEBUG_INFO_BTF`): it has an expression over
/// values, or is about a task that is woken.
pub fn needs_types(spec: &str) -> bool {
    match interval::split(spec) {
        Some((name, _)) => name == "wakeup" || plan::split(spec).1.is_some(),
        None => plan::split(spec).1.is_some(),
    }
}

/// The question whether a similar name was meant, if the kernel has a function with one.
fn like(name: &str, btf: Option<&Btf>) -> String {
    let functions = btf.into_iter().flat_map(Btf::all).filter(|ty| ty.kind == Kind::Func).map(|ty| ty.name);
    suggestion(name, functions.chain(interval::NAMES))
        .map_or_else(String::new, |question| format!("{question} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_by_itself_needs_no_types() {
        for (spec, needs) in [
            ("vfs_read", false),
            ("vfs_read%return", false),
            ("irqs_off > 100us", false),
            ("vfs_read if count > 4096", true),
            ("irqs_off > 100us if $comm == \"dd\"", true),
            ("wakeup > 1ms", true),
        ] {
            assert_eq!(needs_types(spec), needs, "{spec}");
        }
    }
}
