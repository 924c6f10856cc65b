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
            return Cow::Owned(without_void(text));
        }
    }
    Cow::Borrowed(name)
}

/// Removes the return type that the demangler gives to constructors and destructors in functions: they have none.
fn without_void(text: String) -> String {
    let Some(rest) = text.strip_prefix("void ") else { return text };
    // The last two parts of the name before its parameters, without those in brackets.
    let (mut depth, mut parts, mut start) = (0_u32, Vec::new(), 0);
    let bytes = rest.as_bytes();
    let mut end = rest.len();
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            b'(' if depth == 0 && parts.last() == Some(&base(rest[start..at].trim_start_matches('~'))) => {
                end = at;
                break;
            }
            b'<' | b'(' => depth += 1,
            b'>' | b')' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => {
                parts.push(base(&rest[start..at]));
                start = at + 2;
            }
            _ => {}
        }
    }
    if end < rest.len() { rest.to_owned() } else { text }
}

/// A part of a name without template arguments.
fn base(part: &str) -> &str {
    part.split('<').next().unwrap_or(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (name, shown) in [
            ("_ZN2ns13free_functionEiPKc", "ns::free_function(int, char const*)"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            (
                "_ZZNSt6vectorIdSaIdEE17_M_realloc_appendIJdEEEvDpOT_EN6_GuardC2EPdmRS0_",
                "std::vector<double, std::allocator<double> >::_M_realloc_append<double>(double&&)::\
                 _Guard::_Guard(double*, unsigned long, std::allocator<double>&)",
            ),
            (
                "_ZZNSt6vectorIdSaIdEE17_M_realloc_appendIJdEEEvDpOT_EN6_GuardD2Ev",
                "std::vector<double, std::allocator<double> >::_M_realloc_append<double>(double&&)::_Guard::~_Guard()",
            ),
            ("_Z1fIiEvT_", "void f<int>(int)"),
            ("_do_fork", "_do_fork"),
            ("schedule", "schedule"),
            ("_Zgarbage", "_Zgarbage"),
        ] {
            assert_eq!(demangled(name), shown);
        }
        assert_eq!(demangled(&"_Z".repeat(1 << 20)).len(), 2 << 20);
    }
}
