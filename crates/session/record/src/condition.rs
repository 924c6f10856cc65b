// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions that the observer watches for: where a snapshot is taken, where a window opens and closes.
//!
//! Input: `FUNC[%return] [if EXPR]` and a guest's kernel. Output: the program that the observer interprets, as JSON.

use anyhow::{Context, Result, bail};
use kprism_btf::{Btf, Kind};
use kprism_expr::error::suggestion;
use kprism_expr::watch::{Error, Watch};
use kprism_image::symbols::kallsyms;
use kprism_lab::Prepared;
use kprism_probe::plan;

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

/// The same, by the text of the kernel's `/proc/kallsyms` and the bytes of its types, which are empty if it has none.
///
/// # Errors
/// As of [`argument`].
pub fn compile(option: &str, spec: &str, names: &[u8], types: &[u8]) -> Result<String> {
    let address = |name: &str| kallsyms::value_of(names, name);
    let (place, condition) = plan::split(spec);
    if condition.is_none() {
        return match Watch::always(place, address) {
            Ok(watch) => Ok(watch.json()),
            Err(Error::Gone(name)) => bail!(
                "{option}: this kernel has no function `{name}`; {}functions of programs are not watched for",
                like(&name, types.to_vec())
            ),
            Err(error) => Err(error).with_context(|| option.to_owned()),
        };
    }
    if types.is_empty() {
        bail!("{option}: the guest's kernel was built without CONFIG_DEBUG_INFO_BTF");
    }
    let btf = Btf::parse("the guest's BTF", types.to_vec(), None)?;
    match Watch::compile(&btf, place, condition, address) {
        Ok(watch) => Ok(watch.json()),
        Err(Error::Condition(text)) => bail!("{option}:\n{text}"),
        Err(error) => Err(error.into()),
    }
}

/// The question whether a similar name was meant, if the kernel has a function with one.
fn like(name: &str, types: Vec<u8>) -> String {
    let Ok(btf) = Btf::parse("the guest's BTF", types, None) else { return String::new() };
    let functions = btf.all().filter(|ty| ty.kind == Kind::Func).map(|ty| ty.name);
    suggestion(name, functions).map_or_else(String::new, |question| format!("{question} "))
}
