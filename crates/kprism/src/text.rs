// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small pieces of text that several commands print.

/// A command line that a shell reads as the same words.
pub fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    let one = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Bytes in the largest binary unit that keeps a digit before the point.
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len() - 1).find(|&u| n >> (10 * (u + 1)) == 0).unwrap_or(units.len() - 1);
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{:.1} {}", n as f64 / (1u64 << (10 * unit)) as f64, units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["sh", "-c", "for i in 1; do ls; done", "it's", ""].map(String::from);
        assert_eq!(quoted(&words), r"sh -c 'for i in 1; do ls; done' 'it'\''s' ''");
    }
}
