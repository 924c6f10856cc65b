// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions on values in functions of modules that the user built.
//!
//! In: the function and the condition, the kernel's symbols with those of its modules, the modules' files. Out: the program that the
//! observer interprets. Such modules have no BTF as a rule; their own debug information describes them.

use anyhow::{Result, bail};
use kprism_debuginfo::Image;
use kprism_expr::dwarf::{Debug, InModule};
use kprism_expr::watch::{Error, Watch};

use super::Module;

/// Compiles a place and a condition there, by the module that has the function; `None` if none has.
///
/// # Errors
/// Several modules have it, the function's module has no debug information, its address is not known, or the condition is wrong.
pub(super) fn compile(
    option: &str,
    (place, condition): (&str, &str),
    names: &[u8],
    modules: &[Module],
) -> Result<Option<String>> {
    let function = place.strip_suffix("%return").unwrap_or(place);
    let mut compiled: Option<(&str, String)> = None;
    for Module { name, file } in modules {
        // A file of --module-file beside the run's own copy.
        if compiled.as_ref().is_some_and(|(other, _)| other == name) {
            continue;
        }
        let address = |symbol: &str| address(names, name, symbol);
        let image = match Image::open(file) {
            Ok(image) => image,
            Err(error) if address(function).is_some() => {
                bail!("{option}: `{function}` is a function of the module {name}: {error}")
            }
            // The function may be another module's.
            Err(_) => continue,
        };
        let debug = Debug::new(&image)?;
        let Some(found) = InModule::find(&debug, place, &address)? else { continue };
        let Some(entry) = address(function).or_else(|| address(found.symbol())) else {
            bail!(
                "{option}: `{function}` is a function of the module {name}, and where that is loaded is not known: the guest's symbols \
                 do not have it, or have it twice"
            );
        };
        if let Some((other, _)) = &compiled {
            bail!(
                "{option}: `{function}` is a function of the modules {other} and {name}: leave one of them out"
            );
        }
        let watch = match Watch::in_module(found, condition, entry) {
            Ok(watch) => watch.json(),
            Err(Error::Condition(text)) => bail!("{option}:\n{text}"),
            Err(error) => return Err(error.into()),
        };
        compiled = Some((name, watch));
    }
    Ok(compiled.map(|(_, watch)| watch))
}

/// The address of a module's symbol in a text as /proc/kallsyms; `None` if it is not there, or at several addresses.
pub(crate) fn address(names: &[u8], module: &str, symbol: &str) -> Option<u64> {
    let end = format!("[{module}]");
    let own = names.split(|&byte| byte == b'\n').filter(|line| line.ends_with(end.as_bytes()));
    let mut found = own.filter_map(|line| {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (address, _kind, name) = (words.next()?, words.next()?, words.next()?);
        if name == symbol { u64::from_str_radix(address, 16).ok() } else { None }
    });
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_that_is_there_twice_has_no_address() {
        let names = b"ffffffff81000000 T work\nffffffffc0000000 t work\t[my_mod]\nffffffffc0000040 t twice\t[my_mod]\n\
            ffffffffc0000080 t twice\t[my_mod]\nffffffffc0100000 t alone\t[other]\n";
        assert_eq!(address(names, "my_mod", "work"), Some(0xffff_ffff_c000_0000));
        assert_eq!((address(names, "my_mod", "twice"), address(names, "my_mod", "alone")), (None, None));
    }

    #[test]
    fn a_module_without_debug_information_is_named_if_the_function_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my-mod.ko");
        std::fs::write(&file, "no ELF file").unwrap();
        let modules = [Module { name: "my_mod".to_owned(), file }];
        let names = b"ffffffffc0000000 t work\t[my_mod]\n";
        let compiled = |place: &str| compile("--from", (place, "key > 1"), names, &modules);
        let refused = compiled("work%return").unwrap_err().to_string();
        assert!(refused.contains("`work` is a function of the module my_mod: "), "{refused}");
        assert_eq!(compiled("other").unwrap(), None);
    }
}
