// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text inside XML: JUnit and Cobertura files.

use kprism_profile::units::printable;

/// Text for XML 1.0, in attributes too. Line ends stay; other control characters become visible escapes.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        for c in printable(line.trim_end_matches('\n')).chars() {
            match c {
                '<' => out += "&lt;",
                '>' => out += "&gt;",
                '&' => out += "&amp;",
                '"' => out += "&quot;",
                '\'' => out += "&apos;",
                // XML 1.0 has no place for these two, however they are written.
                '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
                _ => out.push(c),
            }
        }
        if line.ends_with('\n') {
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_is_markup_and_every_character_is_allowed() {
        assert_eq!(
            escaped("a<b> & \"c\" 'd'\n\u{ffff}"),
            "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;\n\u{fffd}"
        );
        assert!(!escaped("\u{1b}[31m\u{7}").contains(['\u{1b}', '\u{7}']));
    }
}
