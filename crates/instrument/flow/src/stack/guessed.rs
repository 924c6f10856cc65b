// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was guessed of tasks and their stacks: there was no room to follow more of them, nothing in the trace tells which
//! of several goes on, the records of task switches and the flow do not meet, or a system call ended in a gap.

/// Numbers of guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Guessed {
    /// Tasks whose callers are not known.
    pub orphans: u64,
    /// Stacks that went on with the times of another one.
    pub borrowed: u64,
    /// Choices between several stacks that wait at the same place.
    pub unsure: u64,
    /// Task switches in the flow without a record: which task runs then is not known.
    pub untold: u64,
    /// Records of task switches that have no place in the flow, which was followed then.
    pub unseen: u64,
    /// Times of repeated instructions (`rep stosb`) that may be those of another one, in another call.
    pub shared: u64,
    /// System calls that a profile has until the flow is known again, as their end was not traced.
    pub untimed: u64,
}

impl Guessed {
    /// Those that are not zero, with their names in an account.
    pub fn units(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("tasks whose callers are not known", self.orphans),
            ("stacks whose times are another's", self.borrowed),
            ("choices between stacks that wait at the same place", self.unsure),
            ("task switches in the flow without a record", self.untold),
            ("records of task switches without a place in the flow", self.unseen),
            ("times of repeated instructions that may be another one's", self.shared),
            ("system calls whose end was not traced", self.untimed),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }

    /// The sums of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            orphans: self.orphans + other.orphans,
            borrowed: self.borrowed + other.borrowed,
            unsure: self.unsure + other.unsure,
            untold: self.untold + other.untold,
            unseen: self.unseen + other.unseen,
            shared: self.shared + other.shared,
            untimed: self.untimed + other.untimed,
        }
    }
}
