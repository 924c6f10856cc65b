// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compiler's version word, and format differences between versions.

use std::fmt;

/// Compiler version as written in the files: four characters such as `B22*` (12.2) or `407*` (4.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version(pub u32);

impl Version {
    /// Major and minor version; None if the word is not a version.
    pub fn numbers(self) -> Option<(u32, u32)> {
        let [a, b, c, _] = self.0.to_be_bytes();
        let digit = |byte: u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
        // Up to GCC 7 the first character is the major version, then the first two are.
        match a {
            b'A'..=b'Z' => Some((u32::from(a - b'A') * 10 + digit(b)?, digit(c)?)),
            _ => Some((digit(a)?, digit(b)? * 10 + digit(c)?)),
        }
    }

    /// Returns true if this crate supports the format.
    pub fn is_known(self) -> bool {
        self.numbers().is_some_and(|numbers| ((4, 7)..(17, 0)).contains(&numbers))
    }

    /// Number of counter kinds in a kernel built by this compiler (`GCOV_COUNTERS`, `kernel/gcov/gcc_4_7.c`).
    pub fn counter_kinds(self) -> u8 {
        match self.numbers().unwrap_or_default() {
            (15.., _) => 10,
            (14, _) => 9,
            (10.., _) => 8,
            (7.., _) => 9,
            (6, _) | (5, 1..) => 10,
            _ => 9,
        }
    }

    fn is_since(self, major: u32) -> bool {
        self.numbers().is_some_and(|(found, _)| found >= major)
    }

    /// Returns true if lengths and strings are measured in bytes, and a checksum follows the stamp.
    pub fn in_bytes(self) -> bool {
        self.is_since(12)
    }

    /// Returns true if the notes contain the compiler's working directory, and functions have an end column.
    pub fn has_cwd(self) -> bool {
        self.is_since(9)
    }

    /// Returns true if functions have columns and an end line, and the number of blocks is a word.
    pub fn has_ranges(self) -> bool {
        self.is_since(8)
    }

    /// Returns true if the summary of a data file is for the object (runs, highest sum), not for the program.
    pub fn has_object_summary(self) -> bool {
        self.is_since(9)
    }

    /// Returns true if libgcov may omit counters that are all zero. The kernel always writes them.
    pub fn leaves_out_zeros(self) -> bool {
        self.is_since(10)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.numbers() {
            Some((major, minor)) => write!(f, "{major}.{minor}"),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_words_of_all_ages() {
        for (word, numbers) in [
            (*b"407*", (4, 7)),
            (*b"504*", (5, 4)),
            (*b"A93*", (9, 3)),
            (*b"B22*", (12, 2)),
            (*b"B62*", (16, 2)),
        ] {
            let version = Version(u32::from_be_bytes(word));
            assert_eq!(version.numbers(), Some(numbers));
            assert!(version.is_known());
        }
        assert!(!Version(u32::from_be_bytes(*b"404*")).is_known());
        assert!(!Version(0).is_known());
        assert_eq!(Version(7).to_string(), "0x00000007");
    }
}
