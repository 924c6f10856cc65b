// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel code that comes and goes: BPF programs, trampolines.
//!
//! The input is the history's KSYMBOL records, and the code of BPF programs, which perf writes without a time; the output is names and
//! code with their times, and notes on those of which nothing tells when they were there.

use std::collections::{BTreeMap, BTreeSet};

use kprism_image::ranges::Ranges;
use kprism_perfdata::bpf::Function;

use super::tasks::{BPF, History};
use crate::{Capture, KernelName, Placed};

/// The code of BPF programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// Where nothing else was: it need not have a time.
    pub always: Vec<Placed>,
    /// Where other code was at other times: the time from which it holds, perf's, and the code, which has no offset yet.
    pub timed: Vec<(u64, Placed)>,
}

/// Adds the code of BPF programs. Where several were at an address, the tag in the name of a KSYMBOL record tells when each was there;
/// without such a record, the code is not used.
pub(super) fn code(
    functions: Vec<Function>,
    history: &History<'_>,
    timed: bool,
    capture: &mut Capture,
) -> Code {
    let mut code = Code::default();
    let all = history.symbols.iter().zip(history.shared_addresses());
    let shared = all.filter(|(_, shared)| *shared).map(|(symbol, _)| (symbol.start, symbol.end, ()));
    let shared = Ranges::new(shared.collect());
    let mut comes: BTreeMap<u64, Vec<&KernelName>> = BTreeMap::new();
    for symbol in history.symbols.iter().filter(|symbol| !symbol.gone && timed) {
        comes.entry(symbol.start).or_default().push(symbol);
    }
    // perf writes each program: two at one address were there one after the other, also where no record tells so.
    let several = with_several_codes(functions.iter().map(|function| (function.va, &function.code[..])));
    // Programs of the same instructions with other maps have one tag.
    let alike = with_several_codes(
        functions.iter().map(|function| ((function.va, function.tag), &function.code[..])),
    );
    let mut unused = 0;
    for function in functions {
        let is_shared = several.contains(&function.va) || shared.at(function.va).next().is_some();
        let is_told = is_shared && !alike.contains(&(function.va, function.tag));
        let here = comes.get(&function.va).map_or(&[][..], Vec::as_slice);
        let times = here.iter().filter(|symbol| is_told && function.is_named(&symbol.name));
        let times: Vec<u64> = times.map(|symbol| symbol.t).collect();
        if is_shared && times.is_empty() {
            unused += 1;
            continue;
        }
        let placed = capture.add_region(function.va, function.code);
        match is_shared {
            true => code.timed.extend(times.into_iter().map(|t| (t, Placed { replaces: true, ..placed }))),
            false => code.always.push(placed),
        }
    }
    code.timed.sort_by_key(|(t, _)| *t);
    if unused > 0 {
        capture.notes.push(format!(
            "{unused} functions of BPF programs are at addresses that had several, and nothing tells when each was there: their \
             code is not used"
        ));
    }
    code
}

/// The keys that have more than one code.
fn with_several_codes<'c, K: Ord>(all: impl Iterator<Item = (K, &'c [u8])>) -> BTreeSet<K> {
    let mut codes: BTreeMap<K, BTreeSet<&[u8]>> = BTreeMap::new();
    for (key, code) in all {
        codes.entry(key).or_default().insert(code);
    }
    codes.into_iter().filter(|(_, codes)| codes.len() > 1).map(|(key, _)| key).collect()
}

/// Adds the names of kernel code that came and went. Without a time, a name is taken only if its addresses had no other.
pub(super) fn names(history: &History<'_>, timed: bool, capture: &mut Capture) {
    let (mut shared, mut listed) = (0u64, BTreeSet::new());
    for (symbol, is_shared) in history.symbols.iter().zip(history.shared_addresses()) {
        let name: String = symbol.name.split_whitespace().collect();
        shared += u64::from(is_shared);
        // kallsyms is for readers that know no time, and has the names of all times.
        if !is_shared && symbol.module == BPF && listed.insert(symbol.start) {
            let line = format!("{:016x} t {name}\t{}\n", symbol.start, symbol.module);
            capture.kallsyms.extend(line.bytes());
        }
        if timed || !is_shared {
            let (t, gone) = (if timed { symbol.t } else { 0 }, symbol.gone && timed);
            capture.kernel_names.push(KernelName { t, gone, name, ..symbol.clone() });
        }
    }
    if shared > 0 && !timed {
        capture.notes.push(format!(
            "{shared} records of names of kernel code (BPF programs, trampolines) are of addresses that had several names: without \
             times, none of them is used"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that stays, two programs one after the other, a trampoline.
    fn passing() -> History<'static> {
        let name = |t, start, gone, name: &str, module| {
            let (name, end) = (name.to_owned(), start + 0x40);
            KernelName { t, start, end, gone, name, module }
        };
        let symbols = vec![
            name(0, 0x1000, false, "stays", BPF),
            name(10, 0x2000, false, "bpf_prog_0000000000000001_one", BPF),
            name(20, 0x2000, true, "bpf_prog_0000000000000001_one", BPF),
            name(30, 0x2000, false, "bpf_prog_0000000000000002_two", BPF),
            name(40, 0x3000, false, "trampoline", "[kernel]"),
            name(50, 0x3000, true, "trampoline", "[kernel]"),
        ];
        History { symbols, ..History::default() }
    }

    /// The capture of these names.
    fn named(timed: bool) -> Capture {
        let mut capture = Capture::default();
        names(&passing(), timed, &mut capture);
        assert_eq!(String::from_utf8_lossy(&capture.kallsyms), "0000000000001000 t stays\t[bpf]\n");
        capture
    }

    #[test]
    fn names_of_kernel_code_have_their_times() {
        let capture = named(true);
        let names = capture.kernel_names.iter().map(|n| (n.t, n.name.rsplit('_').next().unwrap(), n.gone));
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                (0, "stays", false),
                (10, "one", false),
                (20, "one", true),
                (30, "two", false),
                (40, "trampoline", false),
                (50, "trampoline", true)
            ]
        );
        assert_eq!(capture.notes, Vec::<String>::new());
    }

    #[test]
    fn code_of_two_programs_at_one_address_has_the_times_of_their_names() {
        let function = |va, tag: Option<u8>| {
            let tag = tag.map(|tag| [0, 0, 0, 0, 0, 0, 0, tag]);
            Function { va, code: vec![tag.map_or(0xc3, |tag| tag[7])], tag }
        };
        let all = vec![
            function(0x2000, Some(2)),
            function(0x2000, Some(1)),
            function(0x1000, Some(7)),
            function(0x2000, Some(3)),
            function(0x2000, None),
        ];
        let mut capture = Capture::default();
        let found = code(all.clone(), &passing(), true, &mut capture);
        let shown = |placed: &Placed| (placed.va, capture.regions[placed.region].bytes[0], placed.replaces);
        assert_eq!(found.always.iter().map(shown).collect::<Vec<_>>(), [(0x1000, 7, false)]);
        let timed: Vec<_> = found.timed.iter().map(|(t, placed)| (*t, shown(placed))).collect();
        assert_eq!(timed, [(10, (0x2000, 1, true)), (30, (0x2000, 2, true))]);
        let [note] = &capture.notes[..] else { panic!("{:?}", capture.notes) };
        assert!(note.starts_with("2 functions of BPF programs") && note.ends_with("not used"), "{note}");
        // The section alone tells of two, and no record of any.
        let mut capture = Capture::default();
        let found = code(all.clone(), &History::default(), true, &mut capture);
        assert_eq!((found.always.len(), found.timed.len(), capture.notes.len()), (1, 0, 1));
        // Two of one tag, with other maps.
        let alike = vec![function(0x2000, Some(1)), Function { code: vec![9], ..function(0x2000, Some(1)) }];
        let mut capture = Capture::default();
        assert_eq!(code(alike, &passing(), true, &mut capture), Code::default());
        assert!(capture.notes[0].starts_with("2 functions"), "{:?}", capture.notes);
        // Without times, only what had its address for itself.
        let mut capture = Capture::default();
        let found = code(all, &passing(), false, &mut capture);
        assert_eq!((found.always.len(), found.timed.len(), capture.notes.len()), (1, 0, 1));
        assert!(capture.notes[0].starts_with("4 functions"), "{:?}", capture.notes);
    }

    #[test]
    fn without_times_a_name_of_an_address_that_had_others_is_refused() {
        let capture = named(false);
        let names: Vec<_> = capture.kernel_names.iter().map(|n| (n.t, n.name.as_str(), n.gone)).collect();
        assert_eq!(names, [(0, "stays", false), (0, "trampoline", false), (0, "trampoline", false)]);
        assert_eq!(capture.notes.len(), 1);
        assert!(capture.notes[0].starts_with("3 records of names of kernel code"), "{:?}", capture.notes);
    }
}
