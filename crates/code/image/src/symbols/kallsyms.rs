// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel functions from the text of `/proc/kallsyms`. The input is that text; the output is a [`Kernel`].
//!
//! Lines have the form `address type name` with an optional tab and `[module]` (kernel/kallsyms.c, `s_show`). BPF
//! programs are listed as module `[bpf]`. Types are those of `nm`: `t T w W` are code, and others are data, which only
//! bound their neighbours. kallsyms contains no sizes, so a function extends to the next symbol of any type, and the
//! last symbol of a module to the end of its page.
//!
//! Addresses of a 32-bit kernel have 8 digits, and those of a kernel with an address space of its own (s390x) are low ones.
//! [`upper_half`] makes addresses of them that lie where those of other kernels do.

use std::borrow::Cow;

use super::names::Binding;
use super::table::{Function, Symbol, Table};
use crate::glob::glob;
use crate::x86::address::is_kernel;

/// An error in a kallsyms text.
#[derive(Debug, thiserror::Error)]
pub enum KallsymsError {
    /// A line that is not `address type name [module]`.
    #[error("kallsyms line {line}: expected `address type name [module]`, found {found:?}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// First characters of the line.
        found: String,
    },
    /// All addresses are 0, because the reader was not permitted to see them.
    #[error(
        "kallsyms: every address is 0; it was read without the right to see addresses \
         (read it as root, or with kernel.kptr_restrict=0)"
    )]
    Hidden,
}

/// The functions of the kernel and its modules.
#[derive(Debug, Default)]
pub struct Kernel {
    /// Function ranges over kernel addresses.
    pub table: Table,
    /// Index into `modules` for each function of the table.
    pub module_of: Vec<u32>,
    /// Module names: `[kernel]` first, then `[module]` in order of appearance.
    pub modules: Vec<String>,
}

const PAGE: u64 = 4096;

/// The address of a kernel's code, put into the upper half if it is not there: of a kernel of 32 bits, or of one that has an address
/// space of its own (s390x).
#[must_use]
pub fn upper_half(address: u64) -> u64 {
    match address {
        0..0x1_0000_0000 => address | 0xffff_ffff_0000_0000,
        _ => address | 1 << 63,
    }
}

/// Whether the kernel's own code is in the lower half: it begins at `_stext`.
fn is_low(text: &[u8]) -> bool {
    value_of(text, "_stext").is_some_and(|start| start != 0 && start < 1 << 63)
}

/// Parses one or more concatenated kallsyms texts. Later lines add to earlier ones.
///
/// # Errors
/// Fails if a line has another form, or if all addresses are hidden.
pub fn parse(text: &[u8]) -> Result<Kernel, KallsymsError> {
    let mut modules = vec!["[kernel]".to_owned()];
    let mut entries: Vec<(Symbol<'_>, u32)> = Vec::with_capacity(text.len() / 40);
    let mut seen = 0usize;
    let is_low = is_low(text);
    let has_32_bits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count() == 8;
    for (i, raw) in text.split(|&b| b == b'\n').enumerate() {
        if raw.trim_ascii().is_empty() {
            continue;
        }
        let parsed = usual_line(raw).or_else(|| parse_line(std::str::from_utf8(raw).ok()?));
        let Line { address, kind, name, module } = parsed.ok_or_else(|| {
            let found = String::from_utf8_lossy(raw).chars().take(60).collect();
            KallsymsError::Line { line: i + 1, found }
        })?;
        seen += 1;
        let mut symbol = symbol(address, kind, name);
        if (has_32_bits || is_low) && symbol.start != 0 {
            symbol.start = upper_half(symbol.start);
        }
        // Per-CPU symbols are offsets and not addresses. User addresses cannot be kernel code.
        if symbol.start < 1 << 63 {
            continue;
        }
        let module = match module {
            None => 0,
            // The lines of a module are consecutive, so it is almost always the last one.
            Some(name) => match modules.iter().rposition(|m| m == name) {
                Some(i) => i as u32,
                None => {
                    modules.push(name.to_owned());
                    (modules.len() - 1) as u32
                }
            },
        };
        entries.push((symbol, module));
    }
    if entries.is_empty() && seen > 0 {
        return Err(KallsymsError::Hidden);
    }
    entries.sort_by_key(|(symbol, _)| symbol.start);
    keep_last_module(&mut entries);
    let symbols = bounded(&entries);
    let limit = entries.last().map_or(0, |(s, _)| page_end(s.start));
    let table = Table::build(symbols, limit);
    let module_of = modules_of(&entries, table.functions());
    Ok(Kernel { table, module_of, modules })
}

/// Address, name and module, without brackets, of each symbol of code, in the text that the running kernel writes. All other lines are
/// passed over. A tenth of the work of [`parse`], for those who look for names.
pub fn code_symbols(text: &str) -> impl Iterator<Item = (u64, &str, Option<&str>)> {
    let ends = memchr::memchr_iter(b'\n', text.as_bytes()).chain([text.len()]);
    let mut start = 0;
    let lines = ends.map(move |end| &text[std::mem::replace(&mut start, end + 1)..end]);
    lines.filter_map(|line| {
        // Half of the lines are data: nothing else of them is read.
        if matches!(line.as_bytes().get(16..19), Some([b' ', kind, b' ']) if !is_code(*kind)) {
            return None;
        }
        let line =
            usual_line(line.as_bytes()).or_else(|| parse_line(line)).filter(|line| is_code(line.kind))?;
        Some((line.address, line.name, line.module.map(|module| module.trim_matches(['[', ']']))))
    })
}

/// The value of the first symbol with this name, of any type and including per-CPU offsets.
pub fn value_of(text: &[u8], name: &str) -> Option<u64> {
    // Few lines have the name anywhere, so only those are looked at.
    memchr::memmem::find_iter(text, name).find_map(|at| {
        let start = memchr::memrchr(b'\n', &text[..at]).map_or(0, |end| end + 1);
        let line = text[start..].split(|&b| b == b'\n').next()?;
        let mut words = line.split(|b| b.is_ascii_whitespace());
        let (address, _kind, found) = (words.next()?, words.next()?, words.next()?);
        if found != name.as_bytes() {
            return None;
        }
        u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()
    })
}

/// Addresses of the functions whose names match one of the globs, in ascending order.
pub fn functions_like(text: &[u8], globs: &[&str]) -> Vec<u64> {
    let one = |line: &[u8]| {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
        let is_wanted =
            matches!(kind, "t" | "T" | "w" | "W") && globs.iter().any(|pattern| glob(pattern, name));
        let address = if is_wanted { u64::from_str_radix(address, 16).ok()? } else { 0 };
        // Zero means that the addresses were hidden.
        (address != 0).then_some(address)
    };
    let mut all: Vec<u64> = text.split(|&b| b == b'\n').filter_map(one).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Location of a kernel's preemption count, and the functions that add an argument to it. What is not known is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preemption {
    /// Address of a CPU's count, relative to the base of `gs`. To Linux 6.14 per-CPU symbols are small offsets. Since 6.15 (commit
    /// 9d7de2aa8b41) they are addresses of the kernel, and the base is a difference of addresses.
    pub count: Option<u64>,
    /// `__local_bh_disable_ip`, which adds its second argument to the count (kernel/softirq.c).
    pub bh_disable: Option<u64>,
    /// `__local_bh_enable_ip`, which subtracts it: all but one first.
    pub bh_enable: Option<u64>,
}

/// The kernel's preemption count: a variable of its own, or in 6.2 to 6.13 a member of `pcpu_hot` behind a pointer
/// (arch/x86/include/asm/current.h).
pub fn preemption(text: &[u8]) -> Preemption {
    // The kernel shows 0 for the symbols that it hides.
    let shown = |name| value_of(text, name).filter(|&value| value != 0);
    let count = shown("__preempt_count")
        .or_else(|| Some(shown("pcpu_hot")? + 8))
        .filter(|&value| value < 1 << 32 || is_kernel(value));
    let function = |name| value_of(text, name).filter(|&address| address != 0);
    Preemption {
        count,
        bh_disable: function("__local_bh_disable_ip"),
        bh_enable: function("__local_bh_enable_ip"),
    }
}

/// If modules share an address, one was loaded where another had been. Keeps the symbols of the module listed last.
fn keep_last_module(entries: &mut Vec<(Symbol<'_>, u32)>) {
    let mut kept = 0;
    for next in 0..entries.len() {
        let (start, module) = (entries[next].0.start, entries[next].1);
        while kept > 0 && entries[kept - 1].0.start == start && entries[kept - 1].1 != module {
            kept -= 1;
        }
        entries.swap(kept, next);
        kept += 1;
    }
    entries.truncate(kept);
}

/// The symbols, with an end mark after the last one of each module, so that it does not extend into another module.
fn bounded<'a>(entries: &[(Symbol<'a>, u32)]) -> Vec<Symbol<'a>> {
    let mut symbols: Vec<Symbol<'a>> = Vec::with_capacity(entries.len() + 64);
    for (i, (symbol, module)) in entries.iter().enumerate() {
        symbols.push(symbol.clone());
        if let Some((next, next_module)) = entries.get(i + 1)
            && next_module != module
            && next.start > page_end(symbol.start)
        {
            symbols.push(Symbol {
                start: page_end(symbol.start),
                size: 0,
                name: Cow::Borrowed(""),
                binding: Binding::Local,
                code: false,
            });
        }
    }
    symbols
}

fn page_end(address: u64) -> u64 {
    (address | (PAGE - 1)).saturating_add(1)
}

/// The module of each function: that of the first code symbol at its start; 0 (the kernel) if there is none. Both lists
/// are in order of address.
fn modules_of(entries: &[(Symbol<'_>, u32)], functions: &[Function]) -> Vec<u32> {
    let mut rest = entries;
    let module = |function: &Function| {
        let before = rest.iter().take_while(|(s, _)| s.start < function.start).count();
        rest = &rest[before..];
        let here = rest.iter().take_while(|(s, _)| s.start == function.start);
        here.filter(|(s, _)| s.code).map(|&(_, module)| module).next().unwrap_or(0)
    };
    functions.iter().map(module).collect()
}

/// The words of a line.
#[derive(Debug, PartialEq, Eq)]
struct Line<'t> {
    address: u64,
    /// The letter of `nm` for the symbol's type.
    kind: u8,
    name: &'t str,
    /// With its brackets.
    module: Option<&'t str>,
}

/// Parses a line as the kernel writes it: 16 digits, one space before and behind the type, a tab before the module.
/// `None` for others, which [`parse_line`] may know.
fn usual_line(line: &[u8]) -> Option<Line<'_>> {
    let (digits, [b' ', kind, b' ', rest @ ..]) = line.split_first_chunk::<16>()? else { return None };
    let address = usual_address(digits)?;
    let (name, module) = match rest.iter().position(|byte| *byte <= b' ') {
        Some(end) if rest[end] == b'\t' => (&rest[..end], Some(&rest[end + 1..])),
        Some(_) => return None,
        None => (rest, None),
    };
    let is_word = |word: &[u8]| !word.is_empty() && !word.iter().any(u8::is_ascii_whitespace);
    let is_module = |m: &[u8]| is_word(m) && m.starts_with(b"[") && m.ends_with(b"]");
    if name.is_empty() || !module.is_none_or(is_module) || !kind.is_ascii() || kind.is_ascii_whitespace() {
        return None;
    }
    let module = module.map(std::str::from_utf8).transpose().ok()?;
    Some(Line { address, kind: *kind, name: std::str::from_utf8(name).ok()?, module })
}

/// The number of 16 hexadecimal digits as the kernel writes them: no capitals. There are some hundred thousand: eight digits at a time.
fn usual_address(digits: &[u8; 16]) -> Option<u64> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let half = |digits: [u8; 8]| {
        let digits = u64::from_be_bytes(digits);
        // `0` to `9` are 0x30 to 0x39, `a` to `f` 0x61 to 0x66: bit 6 is a letter's.
        let letters = digits >> 6 & EACH;
        let values = (digits & (0x0f * EACH)) + 9 * letters;
        // Back from the values. Other bytes give other digits, or values above 15.
        let is_above_9 = (values + 6 * EACH) >> 4 & EACH;
        let is_value = values & (0xf0 * EACH) == 0;
        if !is_value || values + 0x30 * EACH + 0x27 * is_above_9 != digits {
            return None;
        }
        let bytes = (values | values >> 4) & 0x00ff_00ff_00ff_00ff;
        let words = (bytes | bytes >> 8) & 0x0000_ffff_0000_ffff;
        Some((words | words >> 16) & 0xffff_ffff)
    };
    let (high, low) = digits.split_at(8);
    Some(half(high.try_into().ok()?)? << 32 | half(low.try_into().ok()?)?)
}

fn parse_line(line: &str) -> Option<Line<'_>> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next().filter(|k| k.len() == 1 && k.is_ascii())?.as_bytes()[0];
    let name = words.next()?;
    let module = words.next();
    if words.next().is_some() || module.is_some_and(|m| !(m.starts_with('[') && m.ends_with(']'))) {
        return None;
    }
    Some(Line { address, kind, name, module })
}

/// Whether this letter is that of code.
fn is_code(kind: u8) -> bool {
    matches!(kind, b't' | b'T' | b'w' | b'W')
}

/// A symbol by its type letter in kallsyms. Its size is not known.
#[must_use]
pub fn symbol(start: u64, kind: u8, name: &str) -> Symbol<'_> {
    let binding = match kind {
        b'w' | b'W' => Binding::Weak,
        k if k.is_ascii_uppercase() => Binding::Global,
        _ => Binding::Local,
    };
    Symbol { start, size: 0, name: Cow::Borrowed(name), binding, code: is_code(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"0000000000000000 A fixed_percpu_data
ffffffff81000000 T startup_64
ffffffff81000000 T _stext
ffffffff81000100 t vfs_read
ffffffff81000200 T __x64_sys_getpid
ffffffff81000200 t __do_sys_getpid
ffffffff81000240 t vfs_read.cold
ffffffff81000300 D some_data
ffffffffc0200000 t ext4_a\t[ext4]
ffffffffc0200800 t ext4_b\t[ext4]
ffffffffc0300000 t bpf_prog_6deef7357e7b4530_x\t[bpf]
";

    fn at(kernel: &Kernel, address: u64) -> (&str, &str) {
        let Some(range) = kernel.table.find(address) else { return ("-", "-") };
        let func = range.func as usize;
        (&kernel.table.functions()[func].name, &kernel.modules[kernel.module_of[func] as usize])
    }

    #[test]
    fn kernel_modules_and_bpf() {
        let kernel = parse(TEXT).unwrap();
        assert_eq!(at(&kernel, 0xffff_ffff_8100_0004), ("startup_64", "[kernel]"));
        assert_eq!(at(&kernel, 0xffff_ffff_8100_01ff), ("vfs_read", "[kernel]"));
        assert_eq!(at(&kernel, 0xffff_ffff_8100_0210), ("__x64_sys_getpid", "[kernel]"));
        assert_eq!(at(&kernel, 0xffff_ffff_8100_0250), ("vfs_read", "[kernel]"));
        assert_eq!(at(&kernel, 0xffff_ffff_8100_0300), ("-", "-"));
        assert_eq!(at(&kernel, 0xffff_ffff_c020_0900), ("ext4_b", "[ext4]"));
        assert_eq!(at(&kernel, 0xffff_ffff_c020_1000), ("-", "-"));
        assert_eq!(at(&kernel, 0xffff_ffff_c030_0fff), ("bpf_prog_6deef7357e7b4530_x", "[bpf]"));
        assert_eq!(at(&kernel, 0xffff_ffff_c030_1000), ("-", "-"));
    }

    #[test]
    fn the_preemption_count_is_an_offset_or_an_address_of_the_kernel() {
        let count = |text: &str| preemption(text.as_bytes()).count;
        assert_eq!(count("0000000000032d08 D __preempt_count\n"), Some(0x3_2d08));
        assert_eq!(count("0000000000034c40 D pcpu_hot\n"), Some(0x3_4c48));
        // Linux 6.15 and later.
        assert_eq!(count("ffffffff83a2e00c D __preempt_count\n"), Some(0xffff_ffff_83a2_e00c));
        // Hidden, and none.
        assert_eq!(count("0000000000000000 D __preempt_count\n"), None);
        assert_eq!(count("0000000000000000 D pcpu_hot\n"), None);
        assert_eq!(count("ffffffff81000000 T _stext\n"), None);
    }

    #[test]
    fn the_last_module_at_an_address_wins() {
        let text = b"ffffffffc0200000 t old_init\t[old]\nffffffffc0200000 t new_init\t[new]\n";
        assert_eq!(at(&parse(text).unwrap(), 0xffff_ffff_c020_0000), ("new_init", "[new]"));
    }

    #[test]
    fn both_ways_to_read_a_line_agree() {
        for line in [
            "ffffffff81000000 T _stext",
            "FFFFFFFF81000000 w x",
            "ffffffffc0200000 t ext4_a\t[ext4]",
            "ffffffffc0200000 t ext4_a [ext4]",
            "ffffffffc0200000 t ext4_a\t[ext4] ",
            "ffffffffc0200000 t a\tb",
            "ffffffffc0200000 t a\t[]\t",
            "ffffffffc0200000 t ",
            "ffffffffc020000g t a",
            "+fffffffc0200000 t a",
            "ffffffffc0200000  t a",
            "81000000 t short",
            "ffffffffc0200000 \u{e9} a",
            "ffffffffc0200000 t a\u{e9}",
            "ffffffffc0200000 t a\rb",
            "ffffffffc0200000 t a\u{1}b",
        ] {
            if let Some(usual) = usual_line(line.as_bytes()) {
                assert_eq!(Some(usual), parse_line(line), "{line}");
            }
        }
        for line in std::str::from_utf8(TEXT).unwrap().lines() {
            assert!(usual_line(line.as_bytes()).is_some(), "{line}");
        }
    }

    #[test]
    fn an_address_is_16_digits_without_capitals() {
        for address in [0, 1, 0x0123_4567_89ab_cdef, 0xffff_ffff_c020_0000, u64::MAX] {
            let digits: [u8; 16] = format!("{address:016x}").into_bytes().try_into().unwrap();
            assert_eq!(usual_address(&digits), Some(address));
            // Any other byte in any place.
            for (place, byte) in (0..16).flat_map(|place| (0..=255).map(move |byte| (place, byte))) {
                let mut changed = digits;
                changed[place] = byte;
                let text = std::str::from_utf8(&changed).ok();
                let expected = text
                    .filter(|text| text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
                    .and_then(|text| u64::from_str_radix(text, 16).ok());
                assert_eq!(usual_address(&changed), expected, "{changed:x?}");
            }
        }
    }

    #[test]
    fn symbols_of_code() {
        let text = "0000000000000000 D data\nffffffff81000010 T one\nnonsense\nffffffffc0000000 t two\t[mod]\nx t three\nc0300100 t four";
        let found: Vec<_> = code_symbols(text).collect();
        let expected = [
            (0xffff_ffff_8100_0010, "one", None),
            (0xffff_ffff_c000_0000, "two", Some("mod")),
            (0xc030_0100, "four", None),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn values_of_symbols() {
        assert_eq!(value_of(TEXT, "some_data"), Some(0xffff_ffff_8100_0300));
        assert_eq!(value_of(TEXT, "ext4_b"), Some(0xffff_ffff_c020_0800));
        assert_eq!(value_of(TEXT, "some"), None);
    }

    #[test]
    fn addresses_of_32_bits_are_put_into_the_upper_half() {
        let kernel =
            parse(b"c0300000 T _stext\nc0300100 t vfs_read\n00000000 A nothing\nbf000000 t f\t[m]\n")
                .unwrap();
        let names = ["_stext", "vfs_read", "f"].map(|name| {
            let function = kernel.table.functions().iter().find(|function| function.name == name);
            function.map(|function| function.start)
        });
        assert_eq!(names, [0xffff_ffff_c030_0000, 0xffff_ffff_c030_0100, 0xffff_ffff_bf00_0000].map(Some));
        let own_space = parse(b"0000000000000000 A zero\n0000000000100000 T _stext\n0000000000100010 T next\n000003ff80001000 t there\t[of]\n");
        let own_space = own_space.unwrap();
        let starts: Vec<u64> = own_space.table.functions().iter().map(|f| f.start).collect();
        assert_eq!(starts, [0x8000_03ff_8000_1000, 0xffff_ffff_0010_0000, 0xffff_ffff_0010_0010]);
        assert_eq!(upper_half(0x3ff_8000_1000), 0x8000_03ff_8000_1000);
        assert_eq!(upper_half(0xc030_0000), 0xffff_ffff_c030_0000);
        assert_eq!(upper_half(0xffff_ffff_8100_0000), 0xffff_ffff_8100_0000);
        assert!(matches!(parse(b"00000000 T _stext\n00000000 t vfs_read\n"), Err(KallsymsError::Hidden)));
    }

    #[test]
    fn hidden_addresses_are_explained() {
        let err = parse(b"0000000000000000 T a\n0000000000000000 t b\n").unwrap_err();
        assert!(err.to_string().contains("kptr_restrict"), "{err}");
    }

    #[test]
    fn other_text_is_refused_with_its_line() {
        for bad in
            ["hello", "zz T a", "ffffffff81000000 TT a", "ffffffff81000000 T", "ffffffff81000000 T a b"]
        {
            let text = format!("ffffffff81000000 T ok\n{bad}\n");
            let err = parse(text.as_bytes()).unwrap_err();
            assert!(err.to_string().contains("line 2"), "{err}");
        }
        assert!(parse(b"").unwrap().table.ranges().is_empty());
    }
}
