// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions and lines of each test's part of the flow.

use std::collections::{BTreeSet, HashMap};

use kprism_flow::replay::spans::Span;
use kprism_store::Run;

use super::{Measured, Tests};
use crate::cover::DebugFiles;
use crate::cover::executed::kernel_lines;
use crate::flow;

/// Enters each test's span, with its functions and lines.
pub fn measure(
    run: &Run,
    loaded: &flow::Loaded,
    debug: &DebugFiles,
    spans: &[Option<&Span>],
    tests: &mut Tests,
) {
    let mut problems = Vec::new();
    let known = kernel_lines(run, loaded, debug, &mut problems);
    tests.lines_known = !known.is_empty();
    tests.notes.extend(problems);
    if !tests.lines_known {
        tests.notes.push("the kernel has no debug information here: lines are not counted".to_owned());
    }
    let of_span = |span: &Span| {
        let lines: BTreeSet<(u32, u32)> = span.kernel.iter().filter_map(|&ip| known.line(ip)).collect();
        let mut functions = BTreeSet::new();
        let mut covered = 0..0;
        for &ip in span.kernel.iter() {
            if !covered.contains(&ip)
                && let Some(found) = loaded.symbols.locate(0, ip, span.start_ns)
            {
                covered = found.start..found.end;
                functions.insert(found.func);
            }
        }
        (functions.len(), lines)
    };
    let found: Vec<_> = spans.iter().map(|span| span.map(of_span)).collect();
    let mut reached: HashMap<(u32, u32), u32> = HashMap::new();
    for line in found.iter().flatten().flat_map(|(_, lines)| lines) {
        *reached.entry(*line).or_default() += 1;
    }
    for ((test, span), found) in tests.tests.iter_mut().zip(spans).zip(&found) {
        let (Some(span), Some((functions, lines))) = (span, found) else { continue };
        test.measured = Some(Measured {
            insns: span.insns,
            interrupt_insns: span.interrupt_insns,
            ns: span.end_ns - span.start_ns,
            syscalls: span.syscalls,
            functions: *functions,
            lines: lines.len(),
            lines_alone: lines.iter().filter(|line| reached[*line] == 1).count(),
        });
    }
}
