// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demangles function names as c++filt does: C++ with parameters, Rust without the hash.

use std::borrow::Cow;

/// Limit of the length of a mangled name in bytes. Longer names are not demangled: demanglers are recursive, and nobody
/// reads the result.
const LONGEST: usize = 4 << 10;
/// Limit of the length of a demangled name in bytes. A short mangled name can expand to a very long one.
const LONGEST_SHOWN: usize = 64 << 10;

/// Returns the demangled name; a C name is returned unchanged.
pub fn demangled(name: &str) -> Cow<'_, str> {
    if !name.starts_with(['_', 'R', '?']) || name.len() > LONGEST {
        return Cow::Borrowed(name);
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return Cow::Owned(format!("{rust:#}"));
    }
    if name.starts_with("_Z") || name.starts_with("__Z") {
        let text = cpp_demangle::Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok());
        if let Some(text) = text.filter(|text| text.len() <= LONGEST_SHOWN) {
            return Cow::Owned(text);
        }
    }
    Cow::Borrowed(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (name, shown) in [
            ("_ZN2ns13free_functionEiPKc", "ns::free_function(int, char const*)"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_do_fork", "_do_fork"),
            ("schedule", "schedule"),
            ("_Zgarbage", "_Zgarbage"),
        ] {
            assert_eq!(demangled(name), shown);
        }
        assert_eq!(demangled(&"_Z".repeat(1 << 20)).len(), 2 << 20);
    }
}
