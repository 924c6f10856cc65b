// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that a text names.
//!
//! In: a text, a run's symbols. Out: the functions, marked by number.

use anyhow::{Result, anyhow, bail};
use kprism_image::glob::glob;
use kprism_image::is_kernel;
use kprism_image::symbols::{Function, FunctionId, Symbols};

/// Names that are suggested for one that is not there.
const SUGGESTIONS: usize = 5;

/// Marks the functions that a text names: NAME, NAME@MODULE, or an address (`0x…`); `*` and `?` are allowed in names.
///
/// # Errors
/// There is none. The error suggests others.
pub fn choose(spec: &str, symbols: &Symbols) -> Result<Vec<bool>> {
    let mut chosen = vec![false; symbols.len()];
    let all = || (0..symbols.len() as u32).map(FunctionId);
    if let Some(address) = spec.strip_prefix("0x") {
        let address = u64::from_str_radix(address, 16).map_err(|e| anyhow!("{spec}: {e}"))?;
        // Code of the kernel may have come and gone there.
        for at in symbols.kernel_functions(address).iter().filter(|_| is_kernel(address)) {
            chosen[at.func.0 as usize] = true;
        }
        // Programs' functions by their address in the file.
        for id in all().filter(|&id| !is_kernel(address) && symbols.function(id).start == address) {
            chosen[id.0 as usize] = true;
        }
    } else {
        let (name, module) = spec.rsplit_once('@').map_or((spec, None), |(n, m)| (n, Some(m)));
        // The `@` of a PLT entry belongs to its name.
        let (name, module) = if module == Some("plt") { (spec, None) } else { (name, module) };
        let in_module = |id: FunctionId| {
            let own = symbols.function(id).module.as_str();
            let bare = own.trim_matches(['[', ']']);
            let file = bare.rsplit('/').next();
            module.is_none_or(|wanted| [Some(own), Some(bare), file].contains(&Some(wanted)))
        };
        for id in all() {
            chosen[id.0 as usize] = glob(name, &symbols.function(id).name) && in_module(id);
        }
        // A function has one name here and may have several in the symbol table: `write` is `__write`.
        if !chosen.contains(&true) {
            for (_, id) in symbols.aliases().filter(|(alias, id)| glob(name, alias) && in_module(*id)) {
                chosen[id.0 as usize] = true;
            }
        }
        // A table that is older than the debug package has the name of a function without a symbol.
        if !chosen.contains(&true)
            && let Some((file, digits)) = name.rsplit_once("+0x")
            && let Ok(start) = u64::from_str_radix(digits, 16)
        {
            for id in all().filter(|&id| in_module(id)) {
                let function = symbols.function(id);
                let is_of_file = function.module.rsplit('/').next() == Some(file);
                chosen[id.0 as usize] = is_of_file && !function.kernel && function.start == start;
            }
        }
    }
    if chosen.contains(&true) {
        return Ok(chosen);
    }
    let bare = spec.trim_start_matches('_');
    let mut near: Vec<&str> = all()
        .map(|id| symbols.function(id).name.as_str())
        .filter(|n| n.contains(bare) && !n.starts_with("__pfx_"))
        .collect();
    near.sort_unstable_by_key(|n| (n.len(), *n));
    near.dedup();
    near.truncate(SUGGESTIONS);
    let hint = if near.is_empty() {
        "kprism report functions lists those that ran".to_owned()
    } else {
        format!("there are {}", near.join(", "))
    };
    bail!("{spec}: no such function; {hint}")
}

/// Marks the functions of exactly this name in this module; with `start`, only the one that begins there. Characters that are
/// patterns for [`choose`] stand for themselves.
pub fn exactly(name: &str, module: &str, start: Option<u64>, symbols: &Symbols) -> Vec<bool> {
    let all = || (0..symbols.len() as u32).map(|id| symbols.function(FunctionId(id)));
    let is_there = |f: &Function| f.module == module && start.is_none_or(|at| at == f.start);
    let named: Vec<bool> = all().map(|f| f.name == name && is_there(f)).collect();
    if named.contains(&true) || start.is_none_or(is_kernel) {
        return named;
    }
    // Since the names were stored, a debug package came or went.
    all().map(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_image::sideband::{Mmap, Record};

    /// Of several names at one address one is shown, and all are found.
    #[test]
    fn functions_are_found_by_their_other_names() {
        let kallsyms =
            b"ffffffff81000000 T _text\nffffffff81000010 T ksys_write\nffffffff81000010 t alias_of_it\n\
            ffffffff81000100 T next_one\nffffffff81000200 T _etext\n";
        let symbols = Symbols::load(kallsyms, &[], None).unwrap();
        let found = |name: &str| {
            let chosen = choose(name, &symbols).unwrap();
            let all = (0..symbols.len() as u32).filter(|&id| chosen[id as usize]);
            all.map(|id| symbols.function(FunctionId(id)).start).collect::<Vec<_>>()
        };
        assert_eq!(found("alias_of_it"), [0xffff_ffff_8100_0010]);
        assert_eq!(found("ksys_write"), found("alias_of_it"));
        assert_eq!(found("next_one"), [0xffff_ffff_8100_0100]);
        assert!(choose("nobody", &symbols).is_err());
    }

    /// A table was made before a debug package was installed: its name is that of a function without a symbol.
    #[test]
    fn a_functions_address_in_its_file_finds_it_under_any_name() {
        let exe = std::env::current_exe().unwrap();
        let path = exe.to_str().unwrap().to_owned();
        let (start, end) = (0x5000_0000_0000, 0x5010_0000_0000);
        let mmap =
            Mmap { t: 0, cpu: 0, pid: 1, tgid: 1, asid: 0x1000, start, end, pgoff: 0, exec: true, path };
        let records = [Record::Mmap(mmap)];
        let symbols = Symbols::load(b"", &records, Some(std::path::Path::new("/"))).unwrap();
        let mut all = (0..symbols.len() as u32).map(FunctionId);
        let id = all.find(|&id| symbols.function(id).name == "main").unwrap();
        let function = symbols.function(id);
        let file = exe.file_name().unwrap().to_str().unwrap();
        let old = format!("{file}+{:#x}", function.start);
        let only = |chosen: &[bool]| chosen[id.0 as usize] && chosen.iter().filter(|&&is| is).count() == 1;
        assert!(only(&choose(&old, &symbols).unwrap()));
        assert!(only(&exactly(&old, &function.module, Some(function.start), &symbols)));
        assert!(!exactly(&old, &function.module, None, &symbols).contains(&true));
        assert!(choose(&format!("other+{:#x}", function.start), &symbols).is_err());
    }
}
