// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes on the warm-up turns of a command (`--warm`).
//!
//! In: how a run in the guest ended. Out: notes for the manifest and for the user. Turns whose exit code is 0 are not spoken of; their
//! number is an option of the manifest.

use kprism_lab::{Ended, Outcome};

/// Failures of warm-up turns, a sentence each.
pub(crate) fn notes(ran: &Outcome) -> Vec<String> {
    failures(ran.warm_turns, &ran.warm, ran.ended == Ended::Normal)
}

/// `codes`: of the turns that ended.
fn failures(turns: u32, codes: &[u8], came_to_its_end: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let failed = codes.iter().filter(|&&code| code != 0).count();
    if let Some((number, code)) = (1..).zip(codes).find(|(_, code)| **code != 0) {
        notes.push(format!("{failed} of {turns} warm-up turns failed: turn {number} with exit code {code}"));
    }
    let ended = codes.len();
    if !came_to_its_end && ended < turns as usize {
        notes.push(format!(
            "the run ended after {ended} of {turns} warm-up turns, before the turn that is recorded"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_failed_is_told_with_its_exit_code() {
        assert_eq!(failures(0, &[], true), [""; 0]);
        assert_eq!(failures(2, &[0, 0], true), [""; 0]);
        let told = failures(3, &[0, 137, 3], true);
        assert_eq!(told, ["2 of 3 warm-up turns failed: turn 2 with exit code 137"]);
    }

    #[test]
    fn a_run_that_ended_in_a_turn_says_so() {
        let told = failures(2, &[0], false);
        assert_eq!(told, ["the run ended after 1 of 2 warm-up turns, before the turn that is recorded"]);
        assert_eq!(failures(2, &[0, 0], false), [""; 0], "it ended in the recorded turn");
        assert_eq!(failures(0, &[], false), [""; 0]);
    }
}
