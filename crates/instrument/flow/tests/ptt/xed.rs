// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the flow with the output of `ptxed`: the addresses of instructions, where the flow stops and starts, errors
//! and overflows, times, changes of CR3.

use kprism_flow::errata::Errata;
use kprism_flow::error::FaultKind;
use kprism_flow::event::{Event, EventKind, Sink};
use kprism_flow::{Decoder, Setup, Stats};
use kprism_image::Image;
use kprism_image::resolve::Regions;

use crate::Verdict;
use crate::dump::config;
use crate::suite::{Case, number};

/// The decoder's output.
#[derive(Debug, Default)]
struct Told {
    /// Addresses, cut where the flow stops or starts.
    runs: Vec<Vec<u64>>,
    times: Vec<u64>,
    spaces: Vec<u64>,
}

impl Sink for Told {
    const IPS: bool = true;

    fn event(&mut self, event: Event) {
        match event.kind {
            EventKind::Start | EventKind::Resume | EventKind::Stop => self.runs.push(Vec::new()),
            EventKind::Space => self.spaces.push(event.ip),
            _ => {}
        }
    }

    fn time(&mut self, _: u32, ns: u64) {
        self.times.push(ns);
    }

    fn ips(&mut self, ips: &[u64]) {
        if self.runs.is_empty() {
            self.runs.push(Vec::new());
        }
        self.runs.last_mut().expect("a run").extend(ips);
    }
}

/// The output of `ptxed`, as far as it is compared.
#[derive(Debug, Default)]
struct Expected {
    runs: Vec<Vec<u64>>,
    overflows: u64,
    /// Errors: address and message.
    errors: Vec<(u64, String)>,
    times: Vec<u64>,
    spaces: Vec<u64>,
    /// The last run continues after the last packet.
    open: bool,
    /// The number of instructions, where statistics are printed.
    insns: Option<usize>,
}

fn expected(case: &Case) -> Option<Expected> {
    let mut expected = Expected { runs: vec![Vec::new()], ..Expected::default() };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    for line in case.xed.as_ref()?.lines() {
        let line = line.trim();
        let Some(event) = line.strip_prefix('[') else {
            if let Some(insns) = line.strip_prefix("insn:") {
                expected.insns = insns.trim().trim_end_matches('.').parse().ok();
            }
            let ip = line.strip_prefix('?').unwrap_or(line).trim();
            if ip.len() == 16 {
                expected.runs.last_mut()?.push(hex(ip)?);
            }
            continue;
        };
        let event = event.strip_suffix(']').unwrap_or(event);
        // With --event:time, the time comes first.
        let event = match event.split_once("  ") {
            Some((time, event)) => {
                expected.times.push(hex(time)?);
                event
            }
            None => event,
        };
        let cut = match event.split([',', ':']).next()? {
            "disabled" | "enabled" | "resumed" => true,
            "overflow" => {
                expected.overflows += 1;
                true
            }
            "paging" => {
                expected.spaces.push(hex(event.split("cr3: ").nth(1)?.get(..16)?)?);
                false
            }
            "end of trace" => {
                expected.open = true;
                false
            }
            _ => match event.split_once(": error: ") {
                Some((place, what)) => {
                    expected.errors.push((hex(place.split_once(", ")?.1)?, what.to_owned()));
                    true
                }
                None => false,
            },
        };
        if cut {
            expected.runs.push(Vec::new());
        }
    }
    Some(expected)
}

fn decode(case: &Case, image: &Image, errata: Errata) -> (Told, Stats) {
    let resolver = Regions::default();
    let setup = Setup { image, resolver: &resolver, clock: config(&case.xed_options), watch: None, errata };
    let mut told = Told::default();
    let stats = Decoder::new(&case.pt, setup, true).run(0, case.pt.len(), &mut told);
    (told, stats)
}

/// The code, in a single address space. `--raw FILE:OFFSET:ADDRESS` maps a part of the file at an address of its own.
pub fn flat(case: &Case) -> Image {
    let mut image = Image::flat();
    for raw in case.xed_options.iter().skip_while(|option| *option != "--raw").skip(1).take(1) {
        let [_, offset, address] = raw.split(':').collect::<Vec<_>>()[..] else { panic!("{raw}") };
        image.add(0, number(address), &case.code[number(offset) as usize..]);
    }
    image.add(0, case.org, &case.code);
    image
}

/// Checks for the same instructions in the same order, with the same cuts; with `--event:time`, the same times.
pub fn flow(case: &Case) -> Verdict {
    flow_on(case, case.errata())
}

/// The same with other errata than those of the case's processor.
pub fn flow_on(case: &Case, errata: Errata) -> Verdict {
    let expected = expected(case)?;
    let (mut told, _) = decode(case, &flat(case), errata);
    let mut runs = expected.runs;
    // The decoder follows code only as far as packets prove that it ran. `ptxed` also lists the rest.
    let tail = if expected.open { runs.pop() } else { None };
    runs.retain(|run| !run.is_empty());
    told.runs.retain(|run| !run.is_empty());
    if told.runs.len() > runs.len() && tail.is_some_and(|tail| tail.starts_with(&told.runs[runs.len()])) {
        told.runs.remove(runs.len());
    }
    if expected.errors.len() == 1 && !goes_on(case) {
        // This decoder does.
        told.runs.truncate(runs.len());
    }
    if case.xed_options.iter().any(|option| option == "--quiet") {
        let insns: usize = told.runs.iter().map(Vec::len).sum();
        return Some(match expected.insns {
            Some(want) if want == insns => Ok(()),
            want => Err(format!("{insns} instructions, not {want:?}")),
        });
    }
    if runs != told.runs {
        return Some(Err(format!("{:x?}, not {runs:x?}", told.runs)));
    }
    expected_times(&expected.times, &told.times)
}

fn goes_on(case: &Case) -> bool {
    case.xed_options.iter().any(|option| option == "--resync-on-error")
}

/// `ptxed` gives the time with each event, the decoder once for each timing packet. So the distinct times are compared.
fn expected_times(expected: &[u64], told: &[u64]) -> Verdict {
    let distinct = |times: &[u64]| {
        let mut times = times.to_vec();
        times.dedup();
        times
    };
    let (expected, told) = (distinct(expected), distinct(told));
    Some(match expected.iter().all(|time| told.contains(time)) {
        true => Ok(()),
        false => Err(format!("times {told:x?}, not {expected:x?}")),
    })
}

/// Checks for as many overflows, and the same errors at the same addresses.
pub fn errors(case: &Case) -> Verdict {
    let mut expected = expected(case)?;
    let (_, stats) = decode(case, &flat(case), case.errata());
    let faults = stats.faults.iter().filter(|fault| fault.kind != FaultKind::Overflow);
    let mut found: Vec<(u64, String)> = faults
        .map(|fault| match fault.kind {
            FaultKind::NoCode(ip) | FaultKind::CutCode(ip, _) => {
                (ip, "no memory mapped at this address".to_owned())
            }
            FaultKind::BadCode(ip) => (ip, "unknown instruction".to_owned()),
            FaultKind::Mismatch(_) | FaultKind::NotReached(_) => {
                (fault.ip, "trace stream does not match query".to_owned())
            }
            kind => (fault.ip, kind.to_string()),
        })
        .collect();
    expected.errors.retain(|error| error.1 != "unknown cpu");
    if expected.errors.len() == 1 && !goes_on(case) {
        found.truncate(1);
    }
    Some(if stats.overflows != expected.overflows {
        Err(format!("{} overflows, not {}", stats.overflows, expected.overflows))
    } else if found != expected.errors {
        Err(format!("{found:x?}, not {:x?}", expected.errors))
    } else {
        Ok(())
    })
}

/// Checks for the same changes of CR3.
pub fn paging(case: &Case) -> Verdict {
    let expected = expected(case)?;
    if expected.spaces.is_empty() {
        return None;
    }
    // The page in CR3 identifies an address space.
    let expected: Vec<u64> = expected.spaces.iter().map(|cr3| cr3 & !0xfff).collect();
    let mut image = Image::new();
    image.add(0, case.org, &case.code);
    let (told, _) = decode(case, &image, case.errata());
    // PSB+ states CR3 too, and earlier. Where `ptxed` gives up, this decoder continues.
    Some(match told.spaces.windows(expected.len()).any(|spaces| spaces == expected) {
        true => Ok(()),
        false => Err(format!("{:x?}, not {expected:x?}", told.spaces)),
    })
}
