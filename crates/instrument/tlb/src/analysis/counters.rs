// SPDX-License-Identifier: MIT OR Apache-2.0
//! A processor's own counts of TLB misses, for comparison.
//!
//! Input: the output of `perf stat -x SEPARATOR -o FILE`. Output: counters, the kinds of access whose misses each
//! counts, and the PTAT paper's relative error (its equation 1).

use kprism_image::is_kernel;

use crate::analysis::profile::Misses;
use crate::model::geometry::Access;
use crate::stream::Miss;

/// A counter.
#[derive(Debug, Clone, PartialEq)]
pub struct Counter {
    /// perf's name, with modifiers.
    pub event: String,
    /// The count; `None` if perf could not count.
    pub count: Option<u64>,
    /// Share of the time that it was active, per cent. Below 100, `count` is an estimate.
    pub running: f64,
}

/// The text is not perf's output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: expected a count, its unit, an event, …, as `perf stat -x, -o FILE -- COMMAND` writes them (without -I, -A and --per-*), not {text:?}"
)]
pub struct CountersError {
    /// Line number, from 1.
    pub line: usize,
    /// Start of the line.
    pub text: String,
}

/// Parses counters. Fields are separated by `;`, a tab or `,`: the first of these in a line.
///
/// # Errors
/// A line has another form.
pub fn parse(text: &str) -> Result<Vec<Counter>, CountersError> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_end();
        if line.trim_start().is_empty() || line.starts_with('#') {
            continue;
        }
        let counter = counter(line)
            .ok_or_else(|| CountersError { line: number, text: line.chars().take(80).collect() })?;
        // A metric has no event of its own.
        all.extend(counter);
    }
    Ok(all)
}

/// Parses a line: `None` if it has another form, `Some(None)` if it holds no counter.
fn counter(line: &str) -> Option<Option<Counter>> {
    let separator = [';', '\t', ','].into_iter().find(|&c| line.contains(c))?;
    let fields: Vec<&str> = line.split(separator).collect();
    if fields.len() >= 6 && fields[..5].iter().all(|f| f.is_empty()) {
        return Some(None);
    }
    let [count, _unit, rest @ ..] = fields.as_slice() else { return None };
    // Commas inside an event are not escaped: `cpu/event=0xd0,umask=0x11/`.
    let mut event = (*rest.first()?).to_owned();
    let mut rest = &rest[1..];
    while event.matches('/').count() == 1 {
        event.push(separator);
        event.push_str(rest.first()?);
        rest = &rest[1..];
    }
    let name = event.chars().next()?;
    if !name.is_ascii_alphabetic() && name != '_' {
        return None;
    }
    let _on_ns: u64 = rest.first()?.parse().ok()?;
    let running: f64 = rest.get(1)?.parse().ok().filter(|r| (0.0..=100.0).contains(r))?;
    let count = match *count {
        "<not counted>" | "<not supported>" => None,
        number => Some(number.parse::<f64>().ok().filter(|n| (0.0..=1.8e19).contains(n))?.round() as u64),
    };
    Some(Some(Counter { event, count, running }))
}

/// The code whose accesses a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Programs' and the kernel's.
    Both,
    /// Programs' (`:u`).
    User,
    /// The kernel's (`:k`).
    Kernel,
}

/// Events that count misses of the last level, each of an access or a walk for it. perf's generic events do so on
/// Intel's processors; on AMD's they count misses of the first level. Sources: perf's generic events as the kernel maps
/// them (arch/x86/events), Intel's and AMD's event lists (tools/perf/pmu-events/arch/x86).
const EVENTS: [(&str, &[Access]); 17] = [
    ("dtlb-load-misses", &[Access::Load]),
    ("dtlb-store-misses", &[Access::Store]),
    ("itlb-load-misses", &[Access::Fetch]),
    ("itlb-misses", &[Access::Fetch]),
    ("dtlb_load_misses.miss_causes_a_walk", &[Access::Load]),
    ("dtlb_load_misses.walk_completed", &[Access::Load]),
    ("dtlb_store_misses.miss_causes_a_walk", &[Access::Store]),
    ("dtlb_store_misses.walk_completed", &[Access::Store]),
    ("itlb_misses.miss_causes_a_walk", &[Access::Fetch]),
    ("itlb_misses.walk_completed", &[Access::Fetch]),
    ("mem_inst_retired.stlb_miss_loads", &[Access::Load]),
    ("mem_inst_retired.stlb_miss_stores", &[Access::Store]),
    ("mem_uops_retired.stlb_miss_loads", &[Access::Load]),
    ("mem_uops_retired.stlb_miss_stores", &[Access::Store]),
    ("ls_l1_d_tlb_miss.all_l2_miss", &[Access::Load, Access::Store]),
    ("bp_l1_tlb_miss_l2_tlb_miss", &[Access::Fetch]),
    ("bp_l1_tlb_miss_l2_tlb_miss.all", &[Access::Fetch]),
];

impl Counter {
    /// The kinds of access whose misses it counts; `None` if it is not known to count misses of the last level.
    pub fn accesses(&self) -> Option<(&'static [Access], Side)> {
        // `cpu_core/NAME/u` on hybrid processors.
        let bare = match self.event.split('/').collect::<Vec<_>>()[..] {
            [_, name, modifiers] => (name, modifiers.trim_start_matches(':')),
            _ => self.event.split_once(':').unwrap_or((&self.event, "")),
        };
        let (name, modifiers) = (bare.0.to_ascii_lowercase(), bare.1);
        let side = match (modifiers.contains('u'), modifiers.contains('k')) {
            (true, false) => Side::User,
            (false, true) => Side::Kernel,
            _ => Side::Both,
        };
        EVENTS.iter().find(|(event, _)| *event == name).map(|&(_, accesses)| (accesses, side))
    }
}

/// The paper's equation 1: `1 - misses / counted`; `None` if the counter counted none.
pub fn relative_error(misses: u64, counted: u64) -> Option<f64> {
    (counted > 0).then(|| 1.0 - misses as f64 / counted as f64)
}

/// Misses of programs' and the kernel's instructions, by access and geometry.
#[derive(Debug, Clone, Default)]
pub struct BySide([[Misses; 3]; 2]);

impl BySide {
    /// Adds a miss with its weight.
    pub fn add(&mut self, miss: &Miss, weight: u64) {
        let to = &mut self.0[usize::from(is_kernel(miss.ip))][miss.access as usize];
        to.iter_mut().enumerate().for_each(|(g, n)| *n += u64::from(miss.last >> g & 1) * weight);
    }

    /// Misses of these accesses, of one side's code, in the geometry of this number.
    pub fn of(&self, accesses: &[Access], side: Side, geometry: usize) -> u64 {
        let taken = |kernel: usize| match side {
            Side::Both => true,
            Side::User => kernel == 0,
            Side::Kernel => kernel == 1,
        };
        let sum = |kernel: usize| accesses.iter().map(|&a| self.0[kernel][a as usize][geometry]).sum::<u64>();
        (0..2).filter(|&kernel| taken(kernel)).map(sum).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_writes_is_read() {
        // From perf 6.1: an event that the machine lacks, and one that it has; from its manual page: a raw event,
        // metrics at the end.
        let text = "# started on Sun Nov 22 01:50:54 2026\n\n\
            <not supported>,,dTLB-load-misses,0,100.00,,\n\
            50,,page-faults,754217,100.00,66.294,K/sec\n\
            0.75,msec,task-clock,754217,100.00,0.137,CPUs utilized\n\
            1234,,cpu/event=0xd0,umask=0x11/u,754217,49.50,,\n\
            ,,,,,1.25,insn per cycle\n\
            99,,dTLB-store-misses:u,754217,100.00,,\n";
        let all = parse(text).unwrap();
        let named: Vec<_> = all.iter().map(|c| (c.event.as_str(), c.count, c.running)).collect();
        assert_eq!(
            named,
            [
                ("dTLB-load-misses", None, 100.0),
                ("page-faults", Some(50), 100.0),
                ("task-clock", Some(1), 100.0),
                ("cpu/event=0xd0,umask=0x11/u", Some(1234), 49.5),
                ("dTLB-store-misses:u", Some(99), 100.0),
            ]
        );
        assert_eq!(all[0].accesses(), Some((&[Access::Load][..], Side::Both)));
        assert_eq!(all[1].accesses(), None);
        assert_eq!(all[4].accesses(), Some((&[Access::Store][..], Side::User)));
        assert_eq!(parse(&text.replace(',', ";").replace("=0xd0;", "=0xd0,")).unwrap(), all);
        let hybrid = parse("7,,cpu_core/dTLB-load-misses/k,1,100.00,,").unwrap();
        assert_eq!(hybrid[0].accesses(), Some((&[Access::Load][..], Side::Kernel)));
    }

    #[test]
    fn other_text_is_refused_by_line() {
        for (text, line) in [
            ("hello", 1),
            ("# x\n1.000123,50,,page-faults,754217,100.00,,", 2),
            ("1,,a,1,100.00,,\nCPU0,50,,page-faults,754217,100.00,,", 2),
            ("50,,page-faults,754217,200.00,,", 1),
            ("-1,,page-faults,754217,100.00,,", 1),
            ("1,,cpu/event,1,100.00,,", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn the_papers_equation() {
        assert_eq!(relative_error(75, 100), Some(0.25));
        assert_eq!(relative_error(100, 0), None);
    }
}
