// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of coverage from counters: what is in it, and what is not.

use std::path::Path;

use kprism_gcov::Gaps;
use kprism_store::{Account, Fate};

use super::many::Inputs;
use crate::cover::loaded::{Loaded, Problem, ProblemKind};

/// Unit of the account: objects without counters.
pub const NEVER_RAN: &str = "objects that never ran (notes, and no counters)";
/// Unit of the account: lines with calls that returned more often than they were made.
const RETURNED: &str = "lines with calls that returned more often than they were made";
/// Unit of the account: lines whose counters several CPUs changed at once, or that changed while they were read.
pub const TORN: &str = "lines with counts that cannot be (torn counters)";

/// The account of a coverage: what it contains, and what it lacks.
pub fn account(all: &Inputs, loaded: &Loaded, gaps: &[(String, Gaps)]) -> Account {
    let cover = &loaded.cover;
    let footprint = loaded.footprint.unwrap_or_default();
    let (left_out, restarted): (Vec<&Problem>, Vec<&Problem>) =
        loaded.problems.iter().partition(|problem| matches!(problem.kind, ProblemKind::LeftOut));
    let texts = |problems: &[&Problem]| problems.iter().map(|p| p.text.clone()).collect::<Vec<_>>();
    let (gone, restarted): (Vec<&Problem>, Vec<&Problem>) =
        restarted.into_iter().partition(|problem| matches!(problem.kind, ProblemKind::Unloaded));
    let resets = loaded.resets.iter().map(|(run, objects)| reset_text(run, *objects));
    let unsettled = loaded.unsettled.unwrap_or_default();
    let others = all.runs.iter().map(|(_, run)| run.others.len()).sum::<usize>();
    let never = all.never_ran.as_ref();
    let seen = all.objects.len() + never.map_or(0, Vec::len) + others;
    let gap = |of: fn(&Gaps) -> u64| {
        let found = gaps.iter().map(move |(name, gaps)| (name, of(gaps))).filter(|(_, count)| *count > 0);
        let places = found.clone().map(|(name, count)| format!("{name}: {count}")).collect();
        (found.map(|(_, count)| count).sum::<u64>(), places)
    };
    let (without_data, data_places) = gap(|gaps| gaps.without_data);
    let (without_notes, notes_places) = gap(|gaps| gaps.without_notes);
    let (unknown, unknown_places) = gap(|gaps| gaps.unknown);
    let (after_end, end_places) = gap(|gaps| gaps.after_end);
    let account = Account::new().with(Fate::Seen, "objects", seen as u64).with(
        Fate::Kept,
        "objects",
        u64::from(cover.objects),
    );
    let account = match never {
        Some(never) => account.with(Fate::Kept, NEVER_RAN, never.len() as u64),
        None => account,
    };
    // No fault: a call that was made before the window or a reset of the counters returned after it, and fork() returns
    // twice. Of a kernel without atomic counters they may be torn ones.
    let account = account.with(Fate::Kept, RETURNED, cover.returned_only() as u64);
    account
        .at(Fate::Lost, "objects left out", left_out.len() as u64, texts(&left_out))
        .at(Fate::Lost, "objects of modules that went in the window", gone.len() as u64, texts(&gone))
        .at(Fate::Lost, RESET_OBJECTS, restarted.len() as u64, texts(&restarted))
        .at(Fate::Lost, RESETS, loaded.resets.len() as u64, resets.collect())
        .at(Fate::Lost, "functions without counters, shown as never called", without_data, data_places)
        .with(Fate::NotUnderstood, TORN, cover.torn() as u64)
        .at(Fate::NotUnderstood, "functions that the notes do not have", without_notes, notes_places)
        .at(Fate::NotUnderstood, "records of unknown kinds", unknown, unknown_places)
        .at(Fate::NotUnderstood, "bytes after the end of counters", after_end, end_places)
        .with(Fate::Guessed, "functions whose counts include the reading's own", footprint.unsure as u64)
        .with(
            Fate::Guessed,
            "functions whose counts change at every reading",
            unsettled.functions.saturating_sub(unsettled.reading),
        )
}

/// Unit of the account: objects whose counters restarted (their module was loaded again).
pub const RESET_OBJECTS: &str = "objects whose counters were reset in the window";
/// Unit of the account: runs all of whose counters were cleared.
pub const RESETS: &str = "windows cut by a reset of all counters";

/// The remark on an object whose counters restarted.
pub fn reset_object_text(object: &Path) -> String {
    format!(
        "{}: its counters were reset in the window: only what was counted after the reset is shown",
        object.display()
    )
}

/// The remark on a reset.
pub fn reset_text(run: &str, objects: usize) -> String {
    format!(
        "{run}: all counters were cleared in the window ({objects} objects count less at its end than at its beginning): \
         this is since the reset, with what reading them added"
    )
}
