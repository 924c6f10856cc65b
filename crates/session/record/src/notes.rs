// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes on a run in the guest: what its init did not start, what it did not take over from the machine, warm-up turns that failed,
//! faults that its kernel reported.
//!
//! In: how a run ended, or the notes of several recordings of one command. Out: lines for the manifest and for the user. They are notes
//! and no losses: the recording of a kernel that failed is as whole as any.

use kprism_lab::{Outcome, TakenOver};
use kprism_profile::units::counted;
use kprism_store::LIKE_HOST_NOTE;

use crate::warm;

/// The notes on a run, a sentence each.
#[must_use]
pub fn of(ran: &Outcome) -> Vec<String> {
    let first = init(ran).into_iter().chain(not_taken_over(&ran.like_host));
    first.chain(warm::notes(ran)).chain(ran.reports.notes()).collect()
}

/// The notes on several recordings of one command, each once, in the order of their first, with the names of the recordings that have
/// it: most are of all of them.
#[must_use]
pub fn of_many<'n>(recordings: impl IntoIterator<Item = (&'n str, &'n [String])>) -> Vec<String> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut count = 0_u64;
    for (name, notes) in recordings {
        count += 1;
        for note in notes {
            match all.iter_mut().find(|(known, _)| known == note) {
                Some((_, names)) if names.contains(&name) => {}
                Some((_, names)) => names.push(name),
                None => all.push((note.as_str(), vec![name])),
            }
        }
    }
    let line = |(note, names): (&str, Vec<&str>)| match names.len() as u64 == count {
        true => format!("{note} (in each of {})", counted(count, "recordings")),
        false => format!("{note} (in {})", names.join(", ")),
    };
    all.into_iter().map(line).collect()
}

/// The state of the guest's own init, if it did not start all.
fn init(ran: &Outcome) -> Option<String> {
    let state = ran.init.as_ref().filter(|state| *state != kprism_lab::INIT_READY)?;
    Some(format!("the guest's init: {state}"))
}

/// Values that the guest did not take over from the recording machine, if any.
fn not_taken_over(taken: &TakenOver) -> Option<String> {
    match taken {
        TakenOver::NotAsked => None,
        TakenOver::NotTold => Some(format!(
            "{LIKE_HOST_NOTE}: not known what was taken over: the guest did not come to its end"
        )),
        TakenOver::AllBut(all) if all.is_empty() => None,
        TakenOver::AllBut(all) => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            Some(format!("{LIKE_HOST_NOTE}: not taken over: {}", all.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use kprism_lab::NotTaken;

    use super::*;

    #[test]
    fn what_was_not_taken_over_is_one_note() {
        let one = |name: &str, why: &str| NotTaken { name: name.into(), why: why.into() };
        let all = vec![one("umask", "0022 in the guest, 0077 here"), one("LANG=xx", "no such locale")];
        assert_eq!(
            not_taken_over(&TakenOver::AllBut(all)).as_deref(),
            Some(
                "--like-host: not taken over: umask (0022 in the guest, 0077 here), LANG=xx (no such locale)"
            )
        );
        assert_eq!(not_taken_over(&TakenOver::AllBut(Vec::new())), None);
        assert_eq!(not_taken_over(&TakenOver::NotAsked), None);
        assert!(not_taken_over(&TakenOver::NotTold).is_some_and(|note| note.contains("not known")));
    }

    #[test]
    fn a_note_of_many_recordings_is_told_once_with_their_names() {
        let (warm, warning) = ("1 of 1 warm-up turns failed".to_owned(), "WARNING: sample".to_owned());
        let all = [
            ("plain", vec![warm.clone()]),
            ("traced", vec![warm.clone(), warning.clone(), warning]),
            ("again", vec![warm]),
        ];
        let told = of_many(all.iter().map(|(name, notes)| (*name, notes.as_slice())));
        assert_eq!(
            told,
            ["1 of 1 warm-up turns failed (in each of 3 recordings)", "WARNING: sample (in traced)"]
        );
        assert!(of_many([("plain", &[][..])]).is_empty());
    }
}
