// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel code that comes and goes: BPF programs, trampolines.
//!
//! The input is the history's KSYMBOL records; the output is names with their times, and notes on those that do not tell which code
//! was there.

use std::collections::BTreeSet;

use kprism_image::ranges::Ranges;

use super::tasks::{BPF, History};
use crate::{Capture, KernelName, Placed};

/// Adds the names of kernel code that came and went. Without a time, a name is taken only if its addresses had no other. `bpf` is the
/// code of BPF programs, which has none.
pub(super) fn names(history: &History<'_>, timed: bool, bpf: &[Placed], capture: &mut Capture) {
    let (mut shared, mut listed) = (Vec::new(), BTreeSet::new());
    for (symbol, is_shared) in history.symbols.iter().zip(history.shared_addresses()) {
        let name: String = symbol.name.split_whitespace().collect();
        if is_shared {
            shared.push((symbol.start, symbol.end, ()));
        }
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
    if !shared.is_empty() && !timed {
        capture.notes.push(format!(
            "{} records of names of kernel code (BPF programs, trampolines) are of addresses that had several names: without \
             times, none of them is used",
            shared.len()
        ));
    }
    let shared = Ranges::new(shared);
    let doubtful = bpf.iter().filter(|region| shared.at(region.va).next().is_some()).count();
    if doubtful > 0 {
        capture.notes.push(format!(
            "{doubtful} functions of BPF programs are at addresses that had several names: perf does not tell when each was there, so \
             their code may be another's"
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
            name(10, 0x2000, false, "one", BPF),
            name(20, 0x2000, true, "one", BPF),
            name(30, 0x2000, false, "two", BPF),
            name(40, 0x3000, false, "trampoline", "[kernel]"),
            name(50, 0x3000, true, "trampoline", "[kernel]"),
        ];
        History { symbols, ..History::default() }
    }

    /// The capture of these names, and its BPF programs' code.
    fn named(timed: bool) -> Capture {
        let mut capture = Capture::default();
        let bpf = [0x1000, 0x2000].map(|va| capture.add_region(va, vec![0xc3u8]));
        names(&passing(), timed, &bpf, &mut capture);
        assert_eq!(String::from_utf8_lossy(&capture.kallsyms), "0000000000001000 t stays\t[bpf]\n");
        capture
    }

    #[test]
    fn names_of_kernel_code_have_their_times() {
        let capture = named(true);
        let names: Vec<_> = capture.kernel_names.iter().map(|n| (n.t, n.name.as_str(), n.gone)).collect();
        assert_eq!(
            names,
            [
                (0, "stays", false),
                (10, "one", false),
                (20, "one", true),
                (30, "two", false),
                (40, "trampoline", false),
                (50, "trampoline", true)
            ]
        );
        // The code of programs has no time.
        let [note] = &capture.notes[..] else { panic!("{:?}", capture.notes) };
        assert!(
            note.starts_with("1 functions of BPF programs are at addresses that had several names"),
            "{note}"
        );
    }

    #[test]
    fn without_times_a_name_of_an_address_that_had_others_is_refused() {
        let capture = named(false);
        let names: Vec<_> = capture.kernel_names.iter().map(|n| (n.t, n.name.as_str(), n.gone)).collect();
        assert_eq!(names, [(0, "stays", false), (0, "trampoline", false), (0, "trampoline", false)]);
        assert_eq!(capture.notes.len(), 2);
        assert!(capture.notes[0].starts_with("3 records of names of kernel code"), "{:?}", capture.notes);
    }
}
