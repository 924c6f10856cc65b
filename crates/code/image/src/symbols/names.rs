// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names: demangling, compiler suffixes, and the choice among aliases.
//!
//! Compilers split and clone functions and say so in a suffix. What is done with each:
//!
//! | suffix | made by | treatment |
//! |---|---|---|
//! | `.cold`, `.cold.N` | GCC, Clang: unlikely blocks moved away | folded into the function itself: it is entered by a jump, never called |
//! | `_after_hwframe`, `_safe_stack` | the kernel: labels within its entry code (arch/x86/entry) | folded likewise |
//! | `.part.N` | GCC: outlined rest of a partly inlined function | kept: it is called like any function |
//! | `.constprop.N`, `.isra.N` | GCC: clone with changed parameters | kept: the clone is what ran |
//! | `.llvm.N`, `.lto_priv.N` | promoted local symbols | dropped: the number changes with every build |

use std::cmp::Reverse;

/// Demangles a Rust or C++ name (without hash or parameters); other names are returned as they are.
#[must_use]
pub fn demangle(raw: &str) -> String {
    let name = strip_promoted(raw);
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    // Very long names make the C++ demangler's recursion and output grow; no human reads them either.
    if name.starts_with("_Z") && name.len() <= 4096 {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        if let Ok(symbol) = cpp_demangle::Symbol::new(name)
            && let Ok(text) = symbol.demangle_with_options(&options)
            && text.len() <= 1 << 14
        {
            return text;
        }
    }
    name.to_owned()
}

/// The name without `.llvm.N` or `.lto_priv.N`.
fn strip_promoted(name: &str) -> &str {
    for mark in [".llvm.", ".lto_priv."] {
        if let Some((base, number)) = name.split_once(mark)
            && !base.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
        {
            return base;
        }
    }
    name
}

/// For a name that is a part of another function, such as `foo.cold` or `foo.cold.3`, that function: `foo`.
#[must_use]
pub fn part_of(name: &str) -> Option<&str> {
    let label = ["_after_hwframe", "_safe_stack"].iter().find_map(|label| name.strip_suffix(label));
    if let Some(base) = label.filter(|base| base.starts_with("entry_")) {
        return Some(base);
    }
    let (base, rest) = name.rsplit_once(".cold")?;
    let numbered =
        rest.strip_prefix('.').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    (!base.is_empty() && (rest.is_empty() || numbered)).then_some(base)
}

/// How a symbol binds; greater is preferred among aliases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Visible in its own file only.
    Local,
    /// May be overridden by a global one.
    Weak,
    /// Visible everywhere.
    Global,
}

/// Sort key among names at one address: the greatest is shown.
///
/// A system call's entry (`__x64_sys_*`) beats everything, since the syscall table is read by that name;
/// marks of the linker script (`__sched_text_start`) lose to everything. Between them: binding, then
/// fewer leading underscores, then the shorter name, then the alphabet, so that the choice never depends
/// on the order of a symbol table.
#[must_use]
pub fn preference<'a>(name: &'a str, binding: Binding) -> impl Ord + use<'a> {
    let underscores = name.bytes().take_while(|&b| b == b'_').count();
    (
        name.starts_with("__x64_sys_"),
        !is_section_mark(name),
        binding,
        Reverse(underscores),
        Reverse(name.len()),
        Reverse(name),
    )
}

/// Whether the name is an address the linker script defines rather than code somebody wrote.
fn is_section_mark(name: &str) -> bool {
    matches!(name, "_text" | "_stext" | "_etext" | "_sinittext" | "_einittext" | "__init_begin" | "_init_end")
        || name.ends_with("_text_start")
        || name.ends_with("_text_end")
        || name.starts_with("__pfx_")
        || name.starts_with("__cfi_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demangles_what_is_mangled() {
        assert_eq!(demangle("_ZN3foo3barEi"), "foo::bar");
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangle("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(demangle("vfs_read"), "vfs_read");
        assert_eq!(demangle("_Z"), "_Z");
        assert_eq!(demangle("foo.llvm.123456"), "foo");
        assert_eq!(demangle("foo.isra.0"), "foo.isra.0");
    }

    #[test]
    fn parts_know_their_function() {
        assert_eq!(part_of("entry_SYSCALL_64_after_hwframe"), Some("entry_SYSCALL_64"));
        assert_eq!(part_of("my_safe_stack"), None);
        assert_eq!(part_of("vfs_read.cold"), Some("vfs_read"));
        assert_eq!(part_of("f.isra.0.cold"), Some("f.isra.0"));
        assert_eq!(part_of("f.cold.12"), Some("f"));
        assert_eq!(part_of("f.coldness"), None);
        assert_eq!(part_of(".cold"), None);
        assert_eq!(part_of("f"), None);
    }

    #[test]
    fn alias_choice() {
        let best = |names: &[(&'static str, Binding)]| {
            names.iter().max_by(|a, b| preference(a.0, a.1).cmp(&preference(b.0, b.1))).unwrap().0
        };
        use Binding::*;
        assert_eq!(best(&[("__libc_read", Global), ("read", Weak), ("__read", Global)]), "__read");
        assert_eq!(best(&[("__read", Weak), ("read", Weak)]), "read");
        assert_eq!(
            best(&[("__do_sys_getpid", Local), ("__ia32_sys_getpid", Global), ("__x64_sys_getpid", Global)]),
            "__x64_sys_getpid"
        );
        assert_eq!(best(&[("__sched_text_start", Global), ("__schedule", Local)]), "__schedule");
        assert_eq!(best(&[("a", Local), ("b", Local)]), "a");
    }
}
