// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about the guest's kernel for the observer: some functions and offsets, as `key=value` lines. Facts that a
//! kernel does not have are left out. The observer then does not record the data that depend on them.

use std::fmt::Write;

use kprism_btf::Btf;

use crate::error::Result;

const SYMBOLS: [&str; 7] = [
    "__switch_to",
    "perf_event_mmap",
    "__set_task_comm",
    "do_init_module",
    "do_free_init",
    "free_module",
    "module_arch_cleanup",
];

const MEMBERS: [(&str, &[&str]); 11] = [
    ("task_struct", &["pid", "tgid", "comm", "fs"]),
    ("fs_struct", &["root"]),
    ("vm_area_struct", &["vm_start", "vm_end", "vm_pgoff", "vm_file", "vm_flags", "vm_private_data"]),
    ("file", &["f_path"]),
    ("path", &["dentry", "mnt"]),
    ("vfsmount", &["mnt_root"]),
    ("mount", &["mnt", "mnt_parent", "mnt_mountpoint"]),
    ("dentry", &["d_name", "d_parent"]),
    ("qstr", &["name"]),
    ("module", &["name", "kallsyms"]),
    ("mod_kallsyms", &["symtab", "num_symtab", "strtab", "typetab"]),
];

/// The lines, from `/proc/kallsyms` and `/sys/kernel/btf/vmlinux`. Either may be empty, for a kernel without it.
pub fn make(kallsyms: &[u8], btf: &[u8]) -> Result<String> {
    let mut lines = String::new();
    for symbol in SYMBOLS {
        if let Some(address) = find_symbol(kallsyms, symbol) {
            writeln!(lines, "sym.{symbol}={address:#x}").ok();
        }
    }
    if !btf.is_empty() {
        let btf = Btf::parse("the guest's BTF", btf.to_vec(), None)?;
        for (structure, members) in MEMBERS {
            for member in members {
                if let Ok(offset) = btf.offset(structure, member) {
                    writeln!(lines, "off.{structure}.{member}={offset}").ok();
                }
            }
        }
    }
    Ok(lines)
}

/// Address of the kernel's own function `name`: lines are `ADDRESS TYPE NAME`, with a `[MODULE]` for others.
fn find_symbol(kallsyms: &[u8], name: &str) -> Option<u64> {
    kallsyms.split(|&byte| byte == b'\n').find_map(|line| {
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.split_ascii_whitespace();
        let (address, kind, found) = (words.next()?, words.next()?, words.next()?);
        let ours = found == name && matches!(kind, "t" | "T" | "w" | "W") && words.next().is_none();
        let address = if ours { u64::from_str_radix(address, 16).ok()? } else { 0 };
        // Zero means that the addresses were hidden.
        (address != 0).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_left_out() {
        let kallsyms = b"ffffffff81000000 T _text\nffffffff81001000 D __set_task_comm\n\
            ffffffffc0000000 t perf_event_mmap\t[mod]\nffffffff81002000 T __switch_to\n\xff\xfe garbage\n";
        assert_eq!(make(kallsyms, b"").unwrap(), "sym.__switch_to=0xffffffff81002000\n");
        assert_eq!(make(b"0000000000000000 T __switch_to\n", b"").unwrap(), "");
        let module = b"ffffffff811a66d0 t do_init_module\nffffffff811a65d0 t free_module.isra.0\n";
        assert_eq!(make(module, b"").unwrap(), "sym.do_init_module=0xffffffff811a66d0\n");
        assert!(make(b"", b"garbage").is_err());
    }
}
