// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matching of names with wildcards. The input is a pattern and a text; the output is whether they match. The wildcards
//! `*` and `?` are the only ones, because they are enough for names.

/// True if the whole text matches the pattern, in which `*` stands for any characters and `?` for one. Linear in both
/// lengths, except that a mismatch goes back to the last star.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
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
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
