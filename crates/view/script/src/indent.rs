// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indentation of a graph of calls. In: the level of a call. Out: two blanks a level; from [`DEEPEST`] on, the level as a number. A
//! recursion of 20,000 levels would otherwise write 40,000 blanks a line, and a damaged record may have any level.

use std::io::Write;

/// Levels that are shown by blanks.
pub(crate) const DEEPEST: usize = 128;

/// Writes the indentation of `level`.
pub(crate) fn write_indent(out: &mut Vec<u8>, level: usize) {
    out.extend(std::iter::repeat_n(b' ', 2 * level.min(DEEPEST)));
    if level > DEEPEST {
        let _ = write!(out, "[level {level}] ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_level_is_a_number() {
        let text = |level| {
            let mut out = Vec::new();
            write_indent(&mut out, level);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(2), "    ");
        assert_eq!(text(DEEPEST), " ".repeat(2 * DEEPEST));
        assert_eq!(text(20_001), format!("{}[level 20001] ", " ".repeat(2 * DEEPEST)));
    }
}
