// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matching of names with wildcards. The input is a pattern and a text; the output is whether they match. The wildcards
//! `*` and `?` are the only ones, because they are enough for names.

/// True if the whole text matches the pattern, in which `*` stands for any characters and `?` for one. Linear in both
/// lengths, except that a mismatch goes back to the last star.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // What follows the last star, and the text that it does not stand for.
    let mut star = None;
    loop {
        match (pattern.next(), text.clone().next()) {
            (Some('*'), _) => star = Some((pattern.clone(), text.clone())),
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => _ = text.next(),
            (None, None) => return true,
            _ => {
                let Some((after, from)) = &mut star else { return false };
                if from.next().is_none() {
                    return false;
                }
                (pattern, text) = (after.clone(), from.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("ls", "ls", true),
            ("ls", "lsd", false),
            ("k*/?", "kworker/0", true),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbxc", false),
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("**", "a", true),
            ("*?", "", false),
            ("a*", "a", true),
            ("*aab", "aaab", true),
            ("*a?c*", "xaüabcy", true),
            ("*?", "ü", true),
            ("??", "ü", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
