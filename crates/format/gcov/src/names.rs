// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of functions as their source has them, as c++filt writes them: C++ with parameters, Rust without its hash.

use std::borrow::Cow;

/// Longer names are left as they are: demanglers recur by their parts, and nobody reads the result.
const LONGEST: usize = 4 << 10;
/// A short name can stand for a very long one: such are left as they are, too.
const LONGEST_SHOWN: usize = 64 << 10;

/// The name as the source has it; of C, the name itself.
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
