// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attribute `#[test]` of kprism-test. It leaves the function unchanged and registers it under its name. A
//! procedural macro must be in its own crate. `#[ignore]` is removed, because the compiler accepts it only beside its
//! own `#[test]`.

use proc_macro::{TokenStream, TokenTree};

/// Registers a test with the runner of kprism-test. `#[ignore = "why"]` below it works as usual.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if !arguments.is_empty() {
        return error("`#[test]` takes nothing: what a test needs it says by `needs(&[..])` in its body");
    }
    let mut kept = Vec::new();
    let mut ignored = "::core::option::Option::None".to_owned();
    let mut name = None;
    let mut tokens = item.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_attribute = name.is_none() && matches!(&token, TokenTree::Punct(p) if p.as_char() == '#');
        if let (true, Some(TokenTree::Group(group))) = (is_attribute, tokens.peek()) {
            let mut inner = group.stream().into_iter();
            match inner.next().map(|word| word.to_string()).as_deref() {
                Some("ignore") => {
                    let why = inner.nth(1).map_or_else(|| "\"\"".to_owned(), |text| text.to_string());
                    ignored = format!("::core::option::Option::Some({why})");
                    tokens.next();
                    continue;
                }
                Some("should_panic") => return error("`#[should_panic]` is not known here: catch the panic"),
                _ => {}
            }
        }
        let is_fn = name.is_none() && matches!(&token, TokenTree::Ident(word) if word.to_string() == "fn");
        if let (true, Some(TokenTree::Ident(word))) = (is_fn, tokens.peek()) {
            name = Some(word.to_string());
        }
        kept.push(token);
    }
    let Some(name) = name else { return error("`#[test]` stands before a function") };
    let mut output: TokenStream = kept.into_iter().collect();
    output.extend(parsed(&format!("::kprism_test::register!({name}, {ignored});")));
    output
}

fn error(message: &str) -> TokenStream {
    parsed(&format!("::core::compile_error!({message:?});"))
}

fn parsed(text: &str) -> TokenStream {
    text.parse().unwrap_or_default()
}
