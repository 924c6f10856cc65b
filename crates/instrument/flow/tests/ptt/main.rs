// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test suite of Intel's libipt, run against this decoder.
//!
//! libipt (github.com/intel/libipt, test/src) writes each case as one annotated assembler file: the code, the packets,
//! the output of `ptdump` for the packets and of `ptxed` for the flow. Its tool `pttc` turns that into a stream, the
//! code's bytes and the two outputs. This repository holds none of it. With `KPRISM_LIBIPT` naming a checkout, the
//! tests build `pttc` from it and run every case, else they are ignored. They need cmake, a C compiler and yasm.
//!
//! Each case passes, or is listed in [`exceptions`] with the reason. A listed case that passes fails the test.

mod dump;
mod events;
mod exceptions;
mod suite;
mod xed;

use exceptions::{Check, EXCEPTIONS};
use kprism_flow::errata::Errata;
use kprism_test::test;
use suite::Case;

/// Result of one check of a case: `None` if the case does not cover it, else the difference.
type Verdict = Option<Result<(), String>>;

/// Runs `check` on every case and compares the results with the list of exceptions.
fn judge(kind: Check, check: impl Fn(&Case) -> Verdict) {
    let cases = suite::cases();
    let mut wrong = Vec::new();
    let mut groups: Vec<(&str, usize, usize)> = Vec::new();
    for case in cases {
        let Some(verdict) = check(case) else { continue };
        let exception = EXCEPTIONS.iter().find(|e| e.0 == case.name && e.1 == kind);
        match (&verdict, exception) {
            (Err(why), None) => wrong.push(format!("{}: {why:.400}", case.name)),
            (Ok(()), Some(_)) => wrong.push(format!("{}: passes, but is listed as an exception", case.name)),
            _ => {}
        }
        let group = suite::group(&case.name);
        let at = groups.iter().position(|g| g.0 == group).unwrap_or_else(|| {
            groups.push((group, 0, 0));
            groups.len() - 1
        });
        groups[at].1 += usize::from(verdict.is_ok());
        groups[at].2 += 1;
    }
    groups.sort_unstable();
    for (group, passed, all) in &groups {
        println!("{kind:?}: {group}: {passed} of {all}");
    }
    let (passed, all) = groups.iter().fold((0, 0), |sum, g| (sum.0 + g.1, sum.1 + g.2));
    println!("{kind:?}: {passed} of {all}, {} listed exceptions", all - passed);
    assert!(all > 0, "no case was run");
    assert!(wrong.is_empty(), "{} of {all} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn packets_are_ptdumps() {
    judge(Check::Packets, dump::packets);
}

#[test]
fn times_are_ptdumps() {
    judge(Check::Times, dump::times);
}

#[test]
fn flow_is_ptxeds() {
    judge(Check::Flow, xed::flow);
}

/// The cases of errata that only the processor tells are decoded otherwise without it.
#[test]
fn without_the_processor_the_flow_is_another() {
    let mut seen = Vec::new();
    for case in suite::cases() {
        let name = case.name.as_str();
        if ["skd007", "skz84", "skd022", "skl014-call", "skl014-jmp", "skl014-jmp-jmp"].contains(&name) {
            let verdict = xed::flow_on(case, Errata::NONE).expect("an output of ptxed");
            assert!(verdict.is_err(), "{name} has the same flow on any processor");
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), 6, "{seen:?}");
}

#[test]
fn errors_are_ptxeds() {
    judge(Check::Errors, xed::errors);
}

#[test]
fn events_are_ptxeds() {
    judge(Check::Events, events::events);
}

#[test]
fn paging_is_ptxeds() {
    judge(Check::Paging, xed::paging);
}

kprism_test::main!();
