// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways in which a call goes off its task's stack, and the words for them in every view and export.
//!
//! There is no input; the analyses of a flow state an [`Ending`] for each call. Only one of them is the end of a call whose
//! duration is known, so a listing, a timeline or a trace that leaves the others out takes them for it.

use serde::{Deserialize, Serialize};

/// Why a call is off its task's stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It ended.
    #[default]
    Seen,
    /// It ended where nothing was traced: its duration is not known.
    Untraced,
    /// The program left its stack for another, as goroutines do. The call may go on later.
    Left,
    /// It was under way when the recording ended.
    Open,
}

impl Ending {
    /// All of them.
    pub const ALL: [Ending; 4] = [Ending::Seen, Ending::Untraced, Ending::Left, Ending::Open];

    /// The word for it in files for other programs.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Seen => "seen",
            Ending::Untraced => "untraced",
            Ending::Left => "left",
            Ending::Open => "open",
        }
    }

    /// The ending of this name, if there is one.
    pub fn of_name(name: &str) -> Option<Self> {
        Ending::ALL.into_iter().find(|ending| ending.name() == name)
    }

    /// A sentence for people on a call that did not end; `None` of one that did.
    pub fn remark(self) -> Option<&'static str> {
        match self {
            Ending::Seen => None,
            Ending::Untraced => Some("its end was not traced"),
            Ending::Left => Some("it left its stack"),
            Ending::Open => Some("the recording ended in it"),
        }
    }
}

/// Numbers of calls that went off their stack in another way than by ending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unended {
    /// Calls of [`Ending::Untraced`].
    pub untraced: u64,
    /// Calls of [`Ending::Left`]. A call counts each time that the program leaves its stack.
    pub left: u64,
}

impl Unended {
    /// Counts a call.
    pub fn add(&mut self, ending: Ending) {
        match ending {
            Ending::Seen | Ending::Open => {}
            Ending::Untraced => self.untraced += 1,
            Ending::Left => self.left += 1,
        }
    }

    /// Those that are not zero, with their units in an account.
    pub fn units(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("calls whose end was not traced", self.untraced),
            ("calls whose stack was left in them", self.left),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_a_name_of_its_own_and_only_an_end_no_remark() {
        for ending in Ending::ALL {
            assert_eq!(Ending::of_name(ending.name()), Some(ending));
            assert_eq!(ending.remark().is_none(), ending == Ending::Seen);
        }
        assert_eq!(Ending::of_name("unknown"), None);
    }

    #[test]
    fn ends_are_not_counted_among_what_did_not_end() {
        let mut counts = Unended::default();
        Ending::ALL.into_iter().chain([Ending::Left]).for_each(|ending| counts.add(ending));
        let units: Vec<_> = counts.units().collect();
        assert_eq!(units, [("calls whose end was not traced", 1), ("calls whose stack was left in them", 2)]);
        assert_eq!(Unended::default().units().count(), 0);
    }
}
