// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses names as written in C, C++ and Rust: `f`, `ns::Class::f`, `f<int>`, `Class::f(int)`.

/// A parsed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// True for `::f`: the name has no enclosing scope.
    global: bool,
    /// Scopes from the outermost one, then the name.
    parts: Vec<String>,
    /// Parameter types as written, with parentheses.
    params: Option<String>,
}

/// Removes spaces: compilers and people place them differently.
fn tight(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Returns the offset of the parameter list's opening parenthesis, if there is a list.
fn parameters(text: &str) -> Option<usize> {
    let end = text.trim_end_matches("const").trim_end();
    if !end.ends_with(')') || end.ends_with("operator()") {
        return None;
    }
    let mut depth = 0;
    for (at, c) in end.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let anonymous = end[at..].starts_with("(anonymous");
            return (at > 0 && !anonymous).then_some(at);
        }
    }
    None
}

/// Splits at each `::` that is outside of brackets.
fn parts(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut depth = 0_i32;
    let mut rest = text.chars().peekable();
    let mut operator = false;
    while let Some(c) = rest.next() {
        match c {
            '<' | '(' | '{' | '[' if !operator => depth += 1,
            '>' | ')' | '}' | ']' if !operator => depth -= 1,
            ':' if depth == 0 && rest.peek() == Some(&':') => {
                rest.next();
                all.push(String::new());
                operator = false;
                continue;
            }
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
            operator = last.ends_with("operator") || (operator && !c.is_alphanumeric());
        }
    }
    all.iter().map(|part| tight(part)).collect()
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        let text = text.trim();
        let (global, text) = match text.strip_prefix("::") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (name, params) = match parameters(text) {
            Some(at) => (&text[..at], Some(tight(&text[at..]))),
            None => (text, None),
        };
        Self { global, parts: parts(name), params }
    }

    /// Returns the name without scopes and template arguments. Debug information contains it alone or followed by `<`.
    pub fn base(&self) -> &str {
        let last = self.last();
        match last.find('<') {
            Some(at) if at > 0 && !last.starts_with("operator") => &last[..at],
            _ => last,
        }
    }

    fn last(&self) -> &str {
        self.parts.last().map_or("", String::as_str)
    }

    pub fn has_params(&self) -> bool {
        self.params.is_some()
    }

    /// Returns true for a plain name of C: no scopes, no parameters, no template arguments.
    pub fn is_plain(&self) -> bool {
        self.parts.len() == 1 && !self.global && self.params.is_none() && !self.last().contains('<')
    }

    /// Returns true if a DIE's name matches the last part.
    pub fn is_name(&self, name: &str) -> bool {
        same(self.last(), name)
    }

    /// Returns true if the scopes around a DIE, outermost first, match the written ones. Anonymous and inline scopes
    /// (`false` next to their name) may be omitted.
    pub fn is_within(&self, scopes: &[(String, bool)]) -> bool {
        let mut wanted = self.parts[..self.parts.len() - 1].iter().rev().peekable();
        for (name, needed) in scopes.iter().rev() {
            match wanted.peek() {
                Some(part) if same(part, name) => drop(wanted.next()),
                None if !self.global => break,
                _ if !needed => {}
                _ => return false,
            }
        }
        wanted.peek().is_none()
    }

    /// Returns true if a demangled name matches, as a whole or from one of its scopes on.
    pub fn is_demangled(&self, name: &str) -> bool {
        // A template's demangled name begins with its return type.
        let found = Self::new(outer_space(name).map_or(name, |at| &name[at + 1..]));
        if let Some(params) = &self.params {
            let bare = |p: &str| p.trim_end_matches("const").to_owned();
            let theirs = found.params.as_deref().map(bare).unwrap_or_default();
            if bare(params) != theirs && !(params == "()" && theirs == "(void)") {
                return false;
            }
        }
        let scopes: Vec<(String, bool)> = found.parts[..found.parts.len() - 1]
            .iter()
            .map(|part| (part.clone(), part != "(anonymousnamespace)" && !part.starts_with("__cxx")))
            .collect();
        found.parts.last().is_some_and(|last| self.is_name(last)) && self.is_within(&scopes)
    }
}

/// Returns the offset of the last space before the parameters that is outside of brackets.
fn outer_space(name: &str) -> Option<usize> {
    let end = parameters(name)?;
    let mut depth = 0_i32;
    let mut found = None;
    for (at, c) in name[..end].char_indices() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            ' ' if depth == 0 && !name[..at].ends_with("operator") => found = Some(at),
            _ => {}
        }
    }
    found
}

fn same(wanted: &str, name: &str) -> bool {
    let name = tight(name);
    wanted == name
        || (!wanted.contains('<')
            && !wanted.starts_with("operator")
            && name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('<')))
}

/// Demangles a symbol's name; None for a C name.
pub(crate) fn demangled(name: &str) -> Option<String> {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return Some(format!("{rust:#}"));
    }
    if !name.starts_with("_Z") {
        return None;
    }
    // A suffix that the compiler adds to copies of a function is not part of its name.
    let bare = name.split('.').next().unwrap_or(name);
    cpp_demangle::Symbol::new(bare).ok()?.demangle().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(all: &[&str]) -> Vec<(String, bool)> {
        all.iter().map(|s| ((*s).to_owned(), true)).collect()
    }

    #[test]
    fn names_and_their_scopes() {
        let plain = Pattern::new("work");
        assert!(plain.is_plain() && plain.is_name("work") && plain.is_name("work<int>"));
        assert!(!plain.is_name("worker") && plain.is_within(&scopes(&["ns"])));
        let method = Pattern::new("ns::Foo::bar( int , char const* )");
        assert_eq!(method.base(), "bar");
        assert!(method.has_params() && method.is_within(&scopes(&["outer", "ns", "Foo<int>"])));
        assert!(!method.is_within(&scopes(&["other", "Foo"])));
        assert!(Pattern::new("::f").is_within(&[]) && !Pattern::new("::f").is_within(&scopes(&["ns"])));
        assert!(Pattern::new("std::f").is_within(&[("std".into(), true), ("__cxx11".into(), false)]));
        assert_eq!(Pattern::new("Foo::operator()").base(), "operator()");
        assert_eq!(Pattern::new("a::max<std::pair<int, x::y>>").base(), "max");
    }

    #[test]
    fn what_a_linker_knows() {
        let name = demangled("_ZN2ns3Foo3barEiPKc").expect("C++");
        assert_eq!(name, "ns::Foo::bar(int, char const*)");
        for wanted in ["bar", "Foo::bar", "ns::Foo::bar", "ns::Foo::bar(int,char const *)"] {
            assert!(Pattern::new(wanted).is_demangled(&name), "{wanted}");
        }
        for other in ["ba", "oo::bar", "::bar", "ns::Foo::bar(int)", "x::ns::Foo::bar"] {
            assert!(!Pattern::new(other).is_demangled(&name), "{other}");
        }
        let template = demangled("_Z4mostIiET_S0_S0_").expect("a template");
        assert_eq!(template, "int most<int>(int, int)");
        for wanted in ["most", "most<int>", "most<int>(int, int)"] {
            assert!(Pattern::new(wanted).is_demangled(&template), "{wanted}");
        }
        assert!(!Pattern::new("most<long>").is_demangled(&template));
        assert_eq!(demangled("main"), None);
        let rust = demangled("_ZN4demo5shape4area17h0123456789abcdefE").expect("Rust");
        assert!(Pattern::new("shape::area").is_demangled(&rust) && Pattern::new("area").is_demangled(&rust));
    }
}
