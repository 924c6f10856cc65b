// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of functions: demangling, compiler suffixes, and the choice among aliases. The input is names from symbol
//! tables; the output is names for people, which must not change from build to build.
//!
//! Compilers split and clone functions and mark the parts with a suffix. The treatment of each suffix is:
//!
//! | suffix | made by | treatment |
//! |---|---|---|
//! | `.cold`, `.cold.N` | GCC, Clang: unlikely blocks moved away | merged: entered by a jump and never called |
//! | `_after_hwframe`, `_safe_stack` | the kernel: labels in its entry code (arch/x86/entry) | merged likewise |
//! | `.part.N` | GCC: outlined rest of a partly inlined function | kept: called like any function |
//! | `.constprop.N`, `.isra.N` | GCC: clone with changed parameters | kept: the clone is the code that ran |
//! | `.llvm.N`, `.lto_priv.N` | promoted local symbols | dropped: the number changes with every build |

use std::cmp::Reverse;

/// Demangles a Rust or C++ name, without its hash or parameters ([`with_parameters`]). Other names are returned unchanged, except that
/// `.llvm.N` and `.lto_priv.N` are dropped.
#[must_use]
pub fn demangle(raw: &str) -> String {
    let name = strip_promoted(raw);
    // A kernel has 100,000 names, and the demanglers look at each for long. Both kinds of Rust's begin with Z or R, and C++'s with Z.
    if !name.trim_start_matches('_').starts_with(['Z', 'R']) {
        return name.to_owned();
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    cpp(name, false).unwrap_or_else(|| name.to_owned())
}

/// Demangles a C++ name with its parameters, which tell overloads apart. `None` for other names.
#[must_use]
pub fn with_parameters(raw: &str) -> Option<String> {
    cpp(strip_promoted(raw), true)
}

/// Demangles a C++ name. A compiler's suffix (`.cold`, `.isra.0`) stays behind it, as behind a C name.
fn cpp(name: &str, parameters: bool) -> Option<String> {
    // Very long names make the recursion and output of the C++ demangler grow, and nobody reads them.
    if !is_cpp(name) || name.len() > 4096 {
        return None;
    }
    let (base, suffix) = name.split_at(name.find('.').unwrap_or(name.len()));
    let options = cpp_demangle::DemangleOptions::new().no_return_type();
    let options = if parameters { options } else { options.no_params() };
    let text = cpp_demangle::Symbol::new(base).ok()?.demangle_with_options(&options).ok()?;
    (text.len() <= 1 << 14).then(|| text + suffix)
}

/// True for a name that may be C++'s (Itanium C++ ABI, 5.1).
pub(super) fn is_cpp(raw: &str) -> bool {
    raw.starts_with("_Z")
}

/// The name without `.llvm.N` or `.lto_priv.N`.
fn strip_promoted(name: &str) -> &str {
    // A kernel has 100,000 names, and few have a dot.
    if !name.contains('.') {
        return name;
    }
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

/// The function of a name that is a part of it: `foo` for `foo.cold` or `foo.cold.3`. `None` for other names.
#[must_use]
pub fn part_of(name: &str) -> Option<&str> {
    let label = ["_after_hwframe", "_safe_stack"].iter().find_map(|label| name.strip_suffix(label));
    if let Some(base) = label.filter(|base| base.starts_with("entry_")) {
        return Some(base);
    }
    if !name.contains('.') {
        return None;
    }
    let (base, rest) = name.rsplit_once(".cold")?;
    let numbered =
        rest.strip_prefix('.').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    (!base.is_empty() && (rest.is_empty() || numbered)).then_some(base)
}

/// Binding of a symbol. Among aliases, the greater one is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Visible only in its own file.
    Local,
    /// Can be overridden by a global symbol.
    Weak,
    /// Visible everywhere.
    Global,
}

/// Sort key among the names at one address. The greatest is shown.
///
/// The entry of a system call (`__x64_sys_*`) is preferred to everything, because the system call table is read by that
/// name. Marks of the linker script (`__sched_text_start`) come last. Between them, the order is binding, then fewer
/// leading underscores, then the shorter name, then the alphabet, so that the choice never depends on the order of a
/// symbol table.
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

/// True if the name is a mark of the linker script or the compiler (`__pfx_`, `__cfi_`) instead of the name of a
/// function.
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
        assert_eq!(demangle("_ZN3foo3barEi.cold"), "foo::bar.cold");
        assert_eq!(demangle("_ZN3foo3barEi.isra.0"), "foo::bar.isra.0");
        assert_eq!(with_parameters("_ZN3foo3barEi.cold").as_deref(), Some("foo::bar(int).cold"));
        assert_eq!(with_parameters("vfs_read"), None);
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
