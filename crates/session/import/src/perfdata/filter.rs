// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address filter of a recording: `perf record --filter`.
//!
//! In: the text that perf keeps in AUXTRACE_INFO, such as `filter 0x1130/0x40@/bin/prog`, and the files that were mapped. Out:
//! address ranges in which tracing was on. The decoder needs them on processors with erratum SKL014.

use crate::Module;

/// Index of the text's length among the words of AUXTRACE_INFO; the text is behind it (tools/perf/util/intel-pt.h).
const LENGTH: usize = 16;

/// The text of the filter; empty without one.
pub(super) fn text(words: &[u64]) -> String {
    let length = words.get(LENGTH).map_or(0, |&n| usize::try_from(n).unwrap_or(0));
    let bytes: Vec<u8> =
        words.iter().skip(LENGTH + 1).flat_map(|word| word.to_le_bytes()).take(length).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The first and last address of each range, and the parts of the text whose addresses are not known. Ranges in a file are
/// offsets in it; the file must be mapped at one place.
pub(super) fn ranges(text: &str, modules: &[Module]) -> (Vec<(u64, u64)>, Vec<String>) {
    let (mut ranges, mut unknown) = (Vec::new(), Vec::new());
    let mut words = text.split([' ', ',']).filter(|word| !word.is_empty());
    while let Some(action) = words.next() {
        let Some(range) = words.next() else { break };
        if action != "filter" {
            continue;
        }
        match resolve(range, modules) {
            Some(found) => ranges.push(found),
            None => unknown.push(range.to_owned()),
        }
    }
    (ranges, unknown)
}

fn resolve(range: &str, modules: &[Module]) -> Option<(u64, u64)> {
    let (numbers, file) = range.split_once('@').map_or((range, None), |(n, file)| (n, Some(file)));
    let (from, size) = numbers.split_once('/')?;
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (from, size) = (hex(from)?, hex(size)?);
    let last = from.checked_add(size.checked_sub(1)?)?;
    let Some(file) = file else { return Some((from, last)) };
    let place = |module: &Module| {
        let end = module.pgoff.checked_add(module.end.checked_sub(module.start)?)?;
        let inside = module.path == file && module.pgoff <= from && last < end;
        inside.then(|| (module.start + (from - module.pgoff), module.start + (last - module.pgoff)))
    };
    let mut places: Vec<(u64, u64)> = modules.iter().filter_map(place).collect();
    places.sort_unstable();
    places.dedup();
    // Mapped at several places, the filter was another one in each process.
    match places[..] {
        [place] => Some(place),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, start: u64) -> Module {
        let (path, end) = (path.to_owned(), start + 0x2000);
        Module { path, file: None, pid: 1, start, end, pgoff: 0x1000, asid: 0, t: 0 }
    }

    #[test]
    fn ranges_of_the_kernel_and_of_files() {
        let modules =
            [module("/bin/one", 0x40_1000), module("/bin/two", 0x50_0000), module("/bin/two", 0x60_0000)];
        let text = "filter 0xffffffff81000000/0x100,filter 0x1130/0x40@/bin/one tracestop 0x5/0x1 filter 0x1130/0x40@/bin/two filter 0x10/0x8@/bin/one";
        let (found, unknown) = ranges(text, &modules);
        assert_eq!(found, [(0xffff_ffff_8100_0000, 0xffff_ffff_8100_00ff), (0x40_1130, 0x40_116f)]);
        assert_eq!(unknown, ["0x1130/0x40@/bin/two", "0x10/0x8@/bin/one"]);
        assert_eq!(ranges("", &modules), (vec![], vec![]));
        assert_eq!(ranges("filter main", &modules).1, ["main"]);
    }

    #[test]
    fn the_text_is_behind_its_length() {
        let mut words = vec![0; LENGTH];
        assert_eq!(text(&words), "");
        words.push(10);
        words.extend([u64::from_le_bytes(*b"filter 0"), u64::from_le_bytes(*b"x1\0\0\0\0\0\0")]);
        assert_eq!(text(&words), "filter 0x1");
    }
}
