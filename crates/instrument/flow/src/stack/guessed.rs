// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was guessed of the stacks, because there was no room to follow more of them.

/// Numbers of guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guessed {
    /// Tasks whose callers are not known.
    pub orphans: u64,
    /// Stacks that went on with the times of another one.
    pub borrowed: u64,
}

impl Guessed {
    /// Those that are not zero, with their names in an account.
    pub fn units(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("tasks whose callers are not known", self.orphans),
            ("stacks whose times are another's", self.borrowed),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}
