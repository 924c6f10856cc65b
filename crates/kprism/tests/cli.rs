// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transcripts of the command line: `tests/cmd/*.trycmd`, each with its folder of files.
//!
//! `report.in/true.data` is a run of `true` in the lab, tables and manifest only. To renew transcripts after
//! an intended change: `TRYCMD=overwrite cargo test -p kprism --test cli`.

use kprism_test::{NO_INTEL_PT, needs, test};

fn transcripts_of(files: &str) {
    // Colours and width must not depend on who runs the tests.
    trycmd::TestCases::new().env("NO_COLOR", "1").env("COLUMNS", "100").case(files);
}

#[test]
fn transcripts() {
    transcripts_of("tests/cmd/*.trycmd");
}

/// A machine that can record does not refuse.
#[test]
fn transcripts_without_intel_pt() {
    needs(&[NO_INTEL_PT]);
    transcripts_of("tests/cmd/no_pmu/*.trycmd");
}

kprism_test::main!();
