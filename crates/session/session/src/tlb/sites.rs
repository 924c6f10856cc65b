// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of the places that allocate, for people: functions and lines, without what C++ adds to them.

use std::collections::HashMap;
use std::path::PathBuf;

use kprism_debuginfo::source::Source;
use kprism_image::symbols::Symbols;
use kprism_profile::units::offset_text;
use kprism_store::Run;
use kprism_tlb::objects::allocs::Site;

use crate::debug_folders::debug_folders;

/// Beginnings of names of C++'s own library.
const LIBRARY: [&str; 2] = ["std::", "__gnu_cxx::"];
/// Longest name.
const LONGEST: usize = 80;

/// Names places, as `malloc by insert (tree.c:41) < main (tree.c:90)`.
pub struct Names<'a> {
    symbols: &'a Symbols,
    root: PathBuf,
    debug: Vec<PathBuf>,
    sources: HashMap<String, Option<Source>>,
}

impl<'a> Names<'a> {
    /// Names places in the programs of `run`.
    pub fn new(symbols: &'a Symbols, run: &Run) -> Self {
        Names { symbols, root: run.root(), debug: debug_folders(run), sources: HashMap::new() }
    }

    /// The name of a place, of code in this address space.
    pub fn name(&mut self, site: &Site, space: u64) -> Option<String> {
        let mut parts = Vec::new();
        for &back in site.frames.iter().take_while(|&&back| back != 0) {
            // The call is before the address that it returns to.
            let Some(at) = self.symbols.locate(space, back - 1, u64::MAX) else { break };
            let f = self.symbols.function(at.func);
            let path = self.root.join(f.module.trim_start_matches('/'));
            let source = self
                .sources
                .entry(f.module.clone())
                .or_insert_with(|| Source::of_file(&path, &self.debug).ok().flatten());
            let address = f.start.wrapping_add((back - 1).wrapping_sub(at.entry));
            let frames = source.as_ref().map(|s| s.frames(address)).unwrap_or_default();
            if frames.is_empty() {
                parts.push((short(&f.name), offset_text(back.wrapping_sub(at.entry))));
            }
            for frame in frames {
                let file = frame.file.rsplit('/').next().unwrap_or_default();
                let name = frame.function.as_deref().unwrap_or(&f.name);
                parts.push((short(name), format!(" ({file}:{})", frame.line)));
            }
            // What calls main is the same in every program.
            if f.name == "main" {
                break;
            }
        }
        // What C++'s library does within itself says less than who called it.
        let own = |(name, _): &(String, String)| !LIBRARY.iter().any(|begin| name.starts_with(begin));
        if parts.iter().any(own) {
            parts.retain(own);
        }
        let texts: Vec<String> = parts.into_iter().map(|(name, place)| name + &place).collect();
        (!texts.is_empty()).then(|| format!("{} by {}", site.name(), texts.join(" < ")))
    }
}

/// A function's name without its result, parameters and template arguments: `void ns::f<int>(char)` is `ns::f<…>`.
fn short(name: &str) -> String {
    let (mut text, mut depth) = (String::new(), 0u32);
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let after_operator = text.trim_end_matches(['<', '>', '-', '=', '(']).ends_with("operator");
        match c {
            '<' if !after_operator => {
                if depth == 0 {
                    text.push_str("<…>");
                }
                depth += 1;
            }
            '>' if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            '(' if after_operator && rest.peek() == Some(&')') => text.push('('),
            // "(anonymous namespace)::f", "f()::{lambda()#1}".
            '(' if rest.clone().take(9).eq("anonymous".chars()) => text.push(c),
            '(' => break,
            _ => text.push(c),
        }
    }
    // Templates' names begin with their result.
    let begin = match text.find("operator") {
        Some(at) => text[..at].rfind(' ').map_or(0, |space| space + 1),
        None if text.contains("(anonymous") => 0,
        None => text.trim_end().rfind(' ').map_or(0, |space| space + 1),
    };
    let text = text[begin..].trim_end();
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_results_parameters_and_arguments() {
        for (name, expected) in [
            ("main", "main"),
            ("void ns::f<int, std::vector<int> >(char)", "ns::f<…>"),
            ("std::vector<int, std::allocator<int> >::push_back(int const&)", "std::vector<…>::push_back"),
            ("operator new(unsigned long)", "operator new"),
            ("bool operator<(A const&, B const&)", "operator<"),
            ("A::operator()(int) const", "A::operator()"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("alloc::vec::Vec<T>::reserve", "alloc::vec::Vec<…>::reserve"),
            ("", ""),
            ("<<<<(((", "<…>"),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
        assert_eq!(short(&"x".repeat(900)).chars().count(), LONGEST + 1);
    }
}
