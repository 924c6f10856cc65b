// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers, names and command lines for people: scaled units with three decimals, names made safe for terminals.

/// A duration: `999 ns`, `1.234 µs`, `12.345 ms`, `1.000 s`.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => scaled(ns, 1_000, "µs"),
        1_000_000..1_000_000_000 => scaled(ns, 1_000_000, "ms"),
        _ => scaled(ns, 1_000_000_000, "s"),
    }
}

/// A count: `999`, `1.234 k`, `12.345 M`, `1.000 G`.
pub fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => scaled(n, 1_000, "k"),
        1_000_000..1_000_000_000 => scaled(n, 1_000_000, "M"),
        _ => scaled(n, 1_000_000_000, "G"),
    }
}

/// Bytes in the largest binary unit that keeps a digit before the point: `12 B`, `1.5 KiB`.
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len() - 1).find(|&u| n >> (10 * (u + 1)) == 0).unwrap_or(units.len() - 1);
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{:.1} {}", n as f64 / (1u64 << (10 * unit)) as f64, units[unit])
    }
}

/// Truncates after three decimals, in integers: a value never appears larger than it is.
fn scaled(value: u64, unit: u64, name: &str) -> String {
    format!("{}.{:03} {name}", value / unit, value % unit / (unit / 1000))
}

/// An exact count with thousands separated: `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its unit, which is in the plural: `1,234 files`, and `1 file`.
pub fn counted(n: u64, unit: &str) -> String {
    match n {
        1 => format!("1 {}", singular(unit)),
        n => format!("{} {unit}", grouped(n)),
    }
}

/// The unit for a count of one. Its first word in the plural becomes singular.
fn singular(unit: &str) -> String {
    let is_plural = |word: &str| word.ends_with('s') && !word.ends_with("ss") && !word.ends_with("'s");
    let mut found = false;
    let one = |word: &str| {
        if found || !is_plural(word) {
            return word.to_owned();
        }
        found = true;
        match word {
            _ if word.ends_with("ies") => format!("{}y", &word[..word.len() - 3]),
            _ if word.ends_with("ches") || word.ends_with("sses") => word[..word.len() - 2].to_owned(),
            _ => word[..word.len() - 1].to_owned(),
        }
    };
    unit.split(' ').map(one).collect::<Vec<_>>().join(" ")
}

/// A measure with three decimals, or as a power of ten if those would all be zero.
pub fn real(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        0.001.. => format!("{x:.3}"),
        _ => format!("{x:.1e}"),
    }
}

/// `part` of `whole` in percent; 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// A name from a binary, safe to print: control characters (which could drive the terminal) and
/// characters that break lines or reverse the direction of text are shown as escapes.
pub fn printable(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        let misleads = matches!(
            c,
            '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        );
        if c.is_control() || misleads {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// A command line that a shell reads as the same words.
pub fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    let one = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// An offset from a function's entry, with its sign: in a part that stands before the entry, which compilers make, it is negative.
pub fn offset_text(offset: u64) -> String {
    match offset.cast_signed() {
        before @ ..0 => format!("-{:#x}", before.unsigned_abs()),
        _ => format!("+{offset:#x}"),
    }
}

/// Prefixes of the functions that system calls lead to, and a mark of the call that another entry makes. SYSCALL_DEFINEx of
/// arch/x86/include/asm/syscall_wrapper.h makes these names.
const BODIES: [(&str, &str); 11] = [
    ("__x64_sys_", ""),
    ("__se_sys_", ""),
    ("__do_sys_", ""),
    ("__ia32_compat_sys_", " (ia32)"),
    ("__ia32_sys_", " (ia32)"),
    ("__x64_compat_sys_", " (x32)"),
    ("__x32_compat_sys_", " (x32)"),
    // Before 4.17.
    ("compat_SyS_", " (ia32)"),
    ("compat_sys_", " (ia32)"),
    ("SyS_", ""),
    ("sys_", ""),
];

/// The system call's name as in its man page: `__x64_sys_openat` is `openat`. Names of the 32-bit entry keep a mark,
/// because they are different calls.
pub fn syscall_name(symbol: &str) -> String {
    let name = |(prefix, suffix): &(&str, &str)| Some(format!("{}{suffix}", symbol.strip_prefix(prefix)?));
    BODIES.iter().find_map(name).unwrap_or_else(|| symbol.to_string())
}

/// Returns true for the function that a system call is known by when none does its work: the kernel's entry. seccomp or a tracer
/// refused the call, there is none of its number (compilers put `ni_syscall` into `do_syscall_64`), or a gap hid the function.
/// Nothing in a trace tells the number then.
/// False for a kernel without symbols, of which no function is known.
pub fn is_without_body(symbol: &str) -> bool {
    !symbol.starts_with("0x") && !BODIES.iter().any(|(prefix, _)| symbol.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_before_the_entry_is_negative() {
        let offsets = [0, 8, 0_u64.wrapping_sub(0x100), u64::MAX, 1 << 63].map(offset_text);
        assert_eq!(offsets, ["+0x0", "+0x8", "-0x100", "-0x1", "-0x8000000000000000"]);
    }

    #[test]
    fn a_refused_call_has_the_name_of_the_entry() {
        assert!(is_without_body("entry_SYSCALL_64") && is_without_body("entry_INT80_compat"));
        let bodies = ["__x64_sys_read", "__ia32_sys_read", "sys_read", "0xffffffff81000000"];
        assert!(!bodies.into_iter().any(is_without_body));
        assert_eq!(syscall_name("entry_SYSCALL_64"), "entry_SYSCALL_64");
    }

    #[test]
    fn units_scale_with_three_decimals() {
        assert_eq!(duration(0), "0 ns");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_234), "1.234 µs");
        assert_eq!(duration(999_999_999), "999.999 ms");
        assert_eq!(duration(u64::MAX), "18446744073.709 s");
        assert_eq!(count(1_050), "1.050 k");
        assert_eq!(count(12_345_678), "12.345 M");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(100), "100");
        assert_eq!([real(0.0), real(12.0), real(0.001), real(0.000_12)], ["0", "12.000", "0.001", "1.2e-4"]);
    }

    #[test]
    fn one_is_no_plural() {
        for (unit, text) in [
            ("decode errors", "1 decode error"),
            ("branches that nobody explains", "1 branch that nobody explains"),
            ("entries or returns missed", "1 entry or returns missed"),
            ("TLB misses", "1 TLB miss"),
            ("address spaces not followed", "1 address space not followed"),
            ("the recorder's files", "1 the recorder's file"),
        ] {
            assert_eq!(counted(1, unit), text);
        }
        assert_eq!((counted(0, "files"), counted(1234, "files")), ("0 files".into(), "1,234 files".into()));
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["sh", "-c", "for i in 1; do ls; done", "it's", ""].map(String::from);
        assert_eq!(quoted(&words), r"sh -c 'for i in 1; do ls; done' 'it'\''s' ''");
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{202e}c\n"), "a\\u{1b}[2Jb\\u{202e}c\\n");
        assert_eq!(printable("größe☃"), "größe☃");
    }

    #[test]
    fn syscalls_are_called_as_in_their_man_page() {
        assert_eq!(syscall_name("__x64_sys_openat"), "openat");
        assert_eq!(syscall_name("__ia32_compat_sys_open"), "open (ia32)");
        assert_eq!((syscall_name("SyS_read"), syscall_name("sys_read")), ("read".into(), "read".into()));
        assert_eq!(syscall_name("entry"), "entry");
    }
}
