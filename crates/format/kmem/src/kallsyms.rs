// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own symbol table, found in its read-only data by contents.
//!
//! scripts/kallsyms.c writes these tables one after the other, each aligned to 8 bytes:
//!
//! | kernel | order |
//! |---|---|
//! | to 6.1 | addresses, number of symbols, names, markers, tokens, token index |
//! | 6.2, 6.3 | the same, with three bytes for each symbol (the order by name) between markers and tokens |
//! | from 6.4 | number of symbols, names, markers, tokens, token index, addresses |
//!
//! *Names* are length-prefixed strings over 256 *tokens*, which stand for one or more characters each; a length of 128
//! and more has two bytes (from 6.1). *Markers* hold the position of every 256th name, in 4 bytes each, 8 until 4.19.
//! *Addresses* are offsets of 4 bytes from a base that follows them, or addresses of 8 bytes.
//!
//! The search begins at the tokens: those of the ten digits are the digits themselves, so that "0", "1", … "9" stand in
//! a row. Each other table is accepted only if it agrees with those found before: token index with tokens, each marker
//! with the names, the number of symbols with both.

use memchr::memmem;

use crate::{Segment, Symbol};

/// The tokens of the digits, in a row.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
/// Limit of a token's length in bytes.
const LONGEST_TOKEN: usize = 512;
/// Names between two markers.
const NAMES: usize = 256;
/// Limit of a name's compressed length in bytes (KSYM_NAME_LEN is 512 from 6.1).
const LONGEST_NAME: usize = 512;
/// Markers that must be in a row to be taken for markers. No kernel has fewer than 4096 symbols.
const FEWEST_MARKERS: usize = 16;
/// Limit of the distance between markers and tokens: the order by name of a million symbols.
const BETWEEN: usize = 4 << 20;
/// Lowest address of a kernel's image (`__START_KERNEL_map`).
const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// The table that was not found, or did not fit those found before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No token table: the kernel was built without CONFIG_KALLSYMS, or this is not a Linux kernel.
    #[error("no table of kallsyms tokens: not a Linux kernel, or one without CONFIG_KALLSYMS")]
    Tokens,
    /// Tokens were found, but no names that fit.
    #[error("kallsyms tokens, but no names that fit them")]
    Names,
    /// Names were found, but no addresses that fit.
    #[error("kallsyms names, but no addresses that fit them")]
    Addresses,
}

/// Finds the tables in `segments`, and decodes all symbols, in their order: that of addresses.
///
/// # Errors
/// The table of the last step that failed.
pub fn find(segments: &[Segment]) -> Result<Vec<Symbol>, Missing> {
    let mut furthest = Missing::Tokens;
    for segment in segments {
        for at in memmem::find_iter(&segment.bytes, DIGITS) {
            let Some(tokens) = Tokens::around(&segment.bytes, at) else { continue };
            let Some(names) = Names::before(&segment.bytes, &tokens) else {
                furthest = furthest.max(Missing::Names);
                continue;
            };
            match addresses(&segment.bytes, &tokens, &names) {
                Some(addresses) => return Ok(decode(&segment.bytes, &tokens, &names, &addresses)),
                None => furthest = Missing::Addresses,
            }
        }
    }
    Err(furthest)
}

impl PartialOrd for Missing {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Missing {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (*self as u8).cmp(&(*other as u8))
    }
}

/// The token table and its index.
struct Tokens {
    /// Offset of the table.
    start: usize,
    /// Offset of the byte after the index.
    end: usize,
    /// Offset of each token from the table's start.
    index: Vec<usize>,
}

impl Tokens {
    /// The table in which the token of the digit 0 is at `digit`.
    fn around(bytes: &[u8], digit: usize) -> Option<Self> {
        let mut end = digit;
        for _ in b'0'..=255 {
            let piece = bytes.get(end..(end + LONGEST_TOKEN).min(bytes.len()))?;
            end += memchr::memchr(0, piece)? + 1;
        }
        let at = end.next_multiple_of(8);
        let index: Vec<usize> = bytes
            .get(at..at + 512)?
            .as_chunks::<2>()
            .0
            .iter()
            .map(|two| usize::from(u16::from_le_bytes(*two)))
            .collect();
        let start = digit.checked_sub(index[usize::from(b'0')])?;
        let whole = index[0] == 0
            && index.is_sorted_by(|a, b| a < b)
            && start + index[255] < end
            && index[1..].iter().all(|token| bytes[start + token - 1] == 0)
            && memchr::memchr(0, bytes.get(start + index[255]..)?) == Some(end - start - index[255] - 1);
        whole.then_some(Self { start, end: at + 512, index })
    }

    fn get<'b>(&self, bytes: &'b [u8], token: u8) -> &'b [u8] {
        let rest = &bytes[self.start + self.index[usize::from(token)]..];
        &rest[..memchr::memchr(0, rest).unwrap_or(0)]
    }
}

/// The compressed names.
struct Names {
    /// Offset of the first.
    start: usize,
    /// Range of each.
    ranges: Vec<(u32, u16)>,
}

impl Names {
    /// The names whose markers are before the tokens.
    fn before(bytes: &[u8], tokens: &Tokens) -> Option<Self> {
        let lowest = tokens.start.saturating_sub(BETWEEN);
        let places = (lowest.next_multiple_of(8)..tokens.start).rev().filter(|at| at % 8 == 0);
        places.flat_map(|at| [(at, 4), (at, 8)]).find_map(|(at, width)| {
            // Most places fail at the first word.
            (word(bytes, at, width)? == 0 && is_step(0, word(bytes, at + width, width)?)).then_some(())?;
            let markers = markers(&bytes[..tokens.start], at, width);
            (markers.len() >= FEWEST_MARKERS).then(|| Self::of(bytes, at, &markers)).flatten()
        })
    }

    /// The names that end where their markers begin, at `end`.
    fn of(bytes: &[u8], end: usize, markers: &[u64]) -> Option<Self> {
        // What follows the markers may look like another one.
        (FEWEST_MARKERS..=markers.len()).rev().take(8).find_map(|count| {
            let last = usize::try_from(markers[count - 1]).ok()?;
            let highest = end.checked_sub(last)?;
            let lowest = highest.saturating_sub(NAMES * (LONGEST_NAME + 2));
            let starts = (lowest.next_multiple_of(8)..=highest).rev().filter(|start| start % 8 == 0);
            starts.filter(|start| *start >= 8).find_map(|start| {
                let number = usize::try_from(word(bytes, start - 8, 8)?).ok()?;
                (number.div_ceil(NAMES) == count).then_some(())?;
                Self::walk(&bytes[..end], start, number, &markers[..count])
            })
        })
    }

    /// The names from `start` on, if there are `number`, the markers are right, and all that is left are zeros.
    fn walk(bytes: &[u8], start: usize, number: usize, markers: &[u64]) -> Option<Self> {
        let mut ranges = Vec::with_capacity(number);
        let mut at = start;
        for name in 0..number {
            if name % NAMES == 0 && markers[name / NAMES] != (at - start) as u64 {
                return None;
            }
            let mut length = usize::from(*bytes.get(at)?);
            at += 1;
            if length & 0x80 != 0 {
                length = length & 0x7f | usize::from(*bytes.get(at)?) << 7;
                at += 1;
            }
            if length == 0 || length > LONGEST_NAME {
                return None;
            }
            ranges.push((u32::try_from(at).ok()?, length as u16));
            at += length;
        }
        let rest = bytes.get(at..)?;
        (rest.len() < 8 && rest.iter().all(|byte| *byte == 0)).then_some(Self { start, ranges })
    }
}

/// True if names between two markers can have this length.
fn is_step(from: u64, to: u64) -> bool {
    to.checked_sub(from).is_some_and(|step| (2 * NAMES as u64..(NAMES * LONGEST_NAME) as u64).contains(&step))
}

/// The words from `at` on that can be markers.
fn markers(bytes: &[u8], at: usize, width: usize) -> Vec<u64> {
    let mut found = vec![0];
    let mut last = 0;
    for next in (1..).map_while(|number| word(bytes, at + number * width, width)) {
        if !is_step(last, next) {
            break;
        }
        found.push(next);
        last = next;
    }
    found
}

/// Address of each symbol.
fn addresses(bytes: &[u8], tokens: &Tokens, names: &Names) -> Option<Vec<u64>> {
    let number = names.ranges.len();
    let after = tokens.end.next_multiple_of(8);
    let before = names.start - 8;
    let base_before = before.checked_sub(8);
    let offsets_before = base_before.and_then(|base| base.checked_sub((4 * number).next_multiple_of(8)));
    let relative =
        [(Some(after), Some(after + (4 * number).next_multiple_of(8))), (offsets_before, base_before)];
    let relative = relative.into_iter().filter_map(|(offsets, base)| {
        let base = word(bytes, base?, 8).filter(|base| *base >= IMAGE)?;
        let offsets = bytes.get(offsets?..offsets? + 4 * number)?.as_chunks::<4>().0;
        Some(from_offsets(offsets, base))
    });
    let absolute = [Some(after), before.checked_sub(8 * number)].into_iter().filter_map(|at| {
        let words = bytes.get(at?..at? + 8 * number)?.as_chunks::<8>().0;
        Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    });
    relative.chain(absolute).find(|addresses: &Vec<u64>| is_sorted_image(addresses))
}

/// Addresses from offsets. With CONFIG_KALLSYMS_ABSOLUTE_PERCPU (to 6.14), negative numbers count from the base downwards
/// and stand for addresses above it, others are absolute.
fn from_offsets(offsets: &[[u8; 4]], base: u64) -> Vec<u64> {
    let offsets = || offsets.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let negative = offsets().filter(|offset| *offset < 0).count();
    let absolute_percpu = 2 * negative > offsets().len();
    let address = |offset: i32| match absolute_percpu {
        true if offset < 0 => base.wrapping_sub(1).wrapping_sub(i64::from(offset) as u64),
        true => offset as u64,
        false => base.wrapping_add(u64::from(offset as u32)),
    };
    offsets().map(address).collect()
}

/// True if these can be a kernel's symbols: nearly all of them in its image, and in order.
fn is_sorted_image(addresses: &[u64]) -> bool {
    let inside = addresses.iter().filter(|address| **address >= IMAGE).count();
    let ordered = addresses.windows(2).filter(|pair| pair[0] <= pair[1]).count() + 1;
    10 * inside > 9 * addresses.len() && 100 * ordered >= 99 * addresses.len()
}

/// Limit of a name's length in bytes, with its type letter (KSYM_NAME_LEN).
const LONGEST: usize = 513;

fn decode(bytes: &[u8], tokens: &Tokens, names: &Names, addresses: &[u64]) -> Vec<Symbol> {
    let one = |(&(at, length), &address): (&(u32, u16), &u64)| {
        let compressed = &bytes[at as usize..at as usize + usize::from(length)];
        let mut text: Vec<u8> = Vec::new();
        for token in compressed {
            text.extend_from_slice(tokens.get(bytes, *token));
            if text.len() > LONGEST {
                text.truncate(LONGEST);
                break;
            }
        }
        let kind = text.first().copied().unwrap_or(b'?');
        Symbol {
            address,
            kind,
            name: String::from_utf8_lossy(text.get(1..).unwrap_or_default()).into_owned(),
        }
    };
    names.ranges.iter().zip(addresses).map(one).collect()
}

/// A word of `width` bytes: 4 or 8.
fn word(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Order and form of the tables.
    #[derive(Debug, Clone, Copy)]
    struct Layout {
        addresses_first: bool,
        marker: usize,
        order_by_name: bool,
        offsets: bool,
        absolute_percpu: bool,
    }

    const LAYOUTS: [(&str, Layout); 4] = [
        (
            "4.19",
            Layout {
                addresses_first: true,
                marker: 8,
                order_by_name: false,
                offsets: true,
                absolute_percpu: true,
            },
        ),
        (
            "6.2",
            Layout {
                addresses_first: true,
                marker: 4,
                order_by_name: true,
                offsets: true,
                absolute_percpu: true,
            },
        ),
        (
            "6.18",
            Layout {
                addresses_first: false,
                marker: 4,
                order_by_name: false,
                offsets: true,
                absolute_percpu: false,
            },
        ),
        (
            "5.10 without offsets",
            Layout {
                addresses_first: true,
                marker: 4,
                order_by_name: false,
                offsets: false,
                absolute_percpu: false,
            },
        ),
    ];

    fn symbols(number: u64) -> Vec<Symbol> {
        let one = |n: u64| Symbol {
            address: IMAGE + 0x100_0000 + 48 * n,
            kind: if n.is_multiple_of(3) { b'T' } else { b'd' },
            name: format!("function_{n:x}{}", "_and_a_long_name".repeat((n % 11) as usize)),
        };
        (0..number).map(one).collect()
    }

    /// The tables as scripts/kallsyms.c writes them, at the end of some other data.
    fn tables(symbols: &[Symbol], layout: Layout) -> Vec<u8> {
        let mut bytes = vec![0x41; 4096];
        let align = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(8), 0);
        let base = symbols[0].address;
        let addresses = |bytes: &mut Vec<u8>| {
            for symbol in symbols {
                let offset = symbol.address - base;
                match (layout.offsets, layout.absolute_percpu) {
                    (false, _) => bytes.extend(symbol.address.to_le_bytes()),
                    (true, true) => bytes.extend((-1 - offset as i32).to_le_bytes()),
                    (true, false) => bytes.extend((offset as u32).to_le_bytes()),
                }
            }
            align(bytes);
            if layout.offsets {
                bytes.extend(base.to_le_bytes());
            }
        };
        // One token of several characters; all others stand for themselves.
        const LONG: &[u8] = b"_and_a_long_name";
        let token = |n: u8| match n {
            1 => LONG.to_vec(),
            b'0'..=b'9' | b'a'..=b'z' | b'_' | b'T' => vec![n],
            _ => Vec::new(),
        };
        if layout.addresses_first {
            addresses(&mut bytes);
        }
        bytes.extend((symbols.len() as u64).to_le_bytes());
        let start = bytes.len();
        let mut marks = Vec::new();
        for (n, symbol) in symbols.iter().enumerate() {
            if n % NAMES == 0 {
                marks.push((bytes.len() - start) as u64);
            }
            let text = format!("{}{}", symbol.kind as char, symbol.name).replace("_and_a_long_name", "\u{1}");
            bytes.push(text.len() as u8);
            bytes.extend(text.as_bytes());
        }
        align(&mut bytes);
        for mark in marks {
            bytes.extend(&mark.to_le_bytes()[..layout.marker]);
        }
        align(&mut bytes);
        if layout.order_by_name {
            bytes.extend((0..symbols.len()).flat_map(|n| [0, (n >> 8) as u8, n as u8]));
            align(&mut bytes);
        }
        let mut index = Vec::new();
        let start = bytes.len();
        for n in 0..=255 {
            index.extend(((bytes.len() - start) as u16).to_le_bytes());
            bytes.extend(token(n));
            bytes.push(0);
        }
        align(&mut bytes);
        bytes.extend(index);
        align(&mut bytes);
        if !layout.addresses_first {
            addresses(&mut bytes);
        }
        bytes.extend([0x55; 512]);
        bytes
    }

    fn image(bytes: Vec<u8>) -> Vec<Segment> {
        vec![Segment { start: IMAGE, bytes: DIGITS.repeat(9) }, Segment { start: IMAGE + 0x10_0000, bytes }]
    }

    #[test]
    fn tables_of_each_order() {
        for (name, layout) in LAYOUTS {
            for number in [4096, 5000, 5121] {
                let symbols = symbols(number);
                let found = find(&image(tables(&symbols, layout)));
                assert_eq!(found.as_ref(), Ok(&symbols), "{name}, {number} symbols");
            }
        }
    }

    #[test]
    fn the_missing_table_is_named() {
        let (_, layout) = LAYOUTS[2];
        let whole = tables(&symbols(5000), layout);
        assert_eq!(find(&image(vec![0; 4096])), Err(Missing::Tokens));
        let names = 4096 + 8;
        let mut damaged = whole.clone();
        damaged[names] += 1;
        assert_eq!(find(&image(damaged)), Err(Missing::Names));
        let cut = whole[..whole.len() - 8192].to_vec();
        assert_eq!(find(&image(cut)), Err(Missing::Addresses));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn damage_never_panics(at in 0usize..100_000, with: u8, layout in 0..LAYOUTS.len()) {
            let mut bytes = tables(&symbols(4200), LAYOUTS[layout].1);
            let at = at % bytes.len();
            bytes[at] = with;
            find(&image(bytes.clone())).ok();
            bytes.truncate(at);
            find(&image(bytes)).ok();
        }
    }
}
