// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transcripts of the command line: `tests/cmd/*.trycmd`, each with its folder of files.
//!
//! `report.in/true.data` is a run of `true` in the lab, tables and manifest only. To renew transcripts after
//! an intended change: `TRYCMD=overwrite cargo test -p kprism --test cli`.

#[test]
fn transcripts() {
    // Colours and width must not depend on who runs the tests.
    let cases = trycmd::TestCases::new();
    cases.env("NO_COLOR", "1").env("COLUMNS", "100").case("tests/cmd/*.trycmd");
    // A machine that can record does not refuse.
    if !std::path::Path::new("/sys/bus/event_source/devices/intel_pt").exists() {
        cases.case("tests/cmd/no_pmu/*.trycmd");
    }
}
