// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions that the observer watches for: where a snapshot is taken, where a window opens and closes.
//!
//! Input: `FUNC[%return] [if EXPR]`, or an interval as `irqs_off > 100us [if EXPR]`, a guest's kernel, and files of its modules. Output:
//! the program that the observer interprets, as JSON.

pub(crate) mod interval;
pub(crate) mod module;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use kprism_btf::{Btf, Kind};
use kprism_expr::error::suggestion;
use kprism_expr::watch::{Error, Watch};
use kprism_image::symbols::kallsyms;
use kprism_lab::{ModuleFile, Prepared, module_name};
use kprism_probe::plan;
use kprism_session::cover::executed::{of_the_build, recorded_module};
use kprism_store::Run;

/// A module of the user's, by whose debug information conditions on values in its functions are compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, as in `/proc/modules`.
    pub name: String,
    /// Its file (`.ko`), of the build that is loaded.
    pub file: PathBuf,
}

impl Module {
    /// Those that the user put into a guest.
    pub(crate) fn all(prepared: &Prepared) -> Vec<Self> {
        let of = |module: &ModuleFile| Module { name: module.name.clone(), file: module.file.clone() };
        prepared.module_files().iter().map(of).collect()
    }
}

/// Compiles `spec`, given with `option`, by the symbols and types of the guest's kernel and of the user's modules in the guest.
///
/// # Errors
/// The kernel has no such function, or the condition cannot be compiled.
pub fn argument(option: &str, spec: &str, prepared: &Prepared) -> Result<String> {
    let folder = prepared.snapshot_folder();
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    compile(option, spec, &read("kallsyms")?, &read("btf")?, &Module::all(prepared))
}

/// The same of a guest that does again what `run` recorded: functions of modules that were loaded meanwhile are known by the run's
/// symbols, and by their files that it keeps, or that are `named`. They are where they were.
///
/// # Errors
/// As of [`argument`].
pub(crate) fn argument_again(
    option: &str,
    spec: &str,
    prepared: &Prepared,
    run: &Run,
    named: &[PathBuf],
) -> Result<String> {
    let names = run.kallsyms();
    if !names.is_file() {
        return argument(option, spec, prepared);
    }
    let types = prepared.snapshot_folder().join("btf");
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    let manifest = run.manifest()?;
    for file in named {
        of_the_build(&manifest, file).map_err(|why| anyhow!(why))?;
    }
    let recorded = manifest.kernel.iter().flat_map(|kernel| &kernel.modules);
    // One that was built again is of no use: its functions are unknown, as those of other modules.
    let modules = recorded.filter_map(|module| {
        Some(Module { name: module.name.clone(), file: recorded_module(run, module).ok()? })
    });
    let named = named.iter().map(|file| Module { name: module_name(file), file: file.clone() });
    let modules: Vec<Module> = modules.chain(named).collect();
    compile(option, spec, &read(names.as_path())?, &read(types.as_path())?, &modules)
}

/// The same, by the text of the kernel's `/proc/kallsyms`, the bytes of its types, which are empty if it has none, and the files of
/// modules.
///
/// # Errors
/// As of [`argument`].
pub fn compile(option: &str, spec: &str, names: &[u8], types: &[u8], modules: &[Module]) -> Result<String> {
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
    let Some(condition) = condition else {
        return match Watch::always(place, address) {
            Ok(watch) => Ok(watch.json()),
            Err(Error::Gone(name)) => bail!(
                "{option}: this kernel has no function `{name}`; {}functions of programs are not watched for, and those of a module \
                 that the command loads are not there yet: load it by --module",
                like(&name, btf().ok().flatten().as_ref())
            ),
            Err(error) => Err(error).with_context(|| option.to_owned()),
        };
    };
    let not_the_kernels = match btf()? {
        Some(btf) => match Watch::compile(&btf, place, Some(condition), address) {
            Ok(watch) => return Ok(watch.json()),
            Err(Error::Condition(text)) => bail!("{option}:\n{text}"),
            Err(error) => error.into(),
        },
        None => anyhow!("{option}: the guest's kernel was built without CONFIG_DEBUG_INFO_BTF"),
    };
    let of_module = module::compile(option, (place, condition), names, modules)?;
    of_module.ok_or(not_the_kernels)
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
