// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times and sizes as a user writes them: the inverse of [`units`](crate::units).
//!
//! Input: text. Output: a number, or what was expected instead. Every option takes the same forms: a time is a number with ns,
//! us, ms or s, or seconds; a size is a number with K, M or G (powers of 1024), or bytes.

use std::time::Duration;

/// A time in ns; without floating point, so that every digit counts.
///
/// # Errors
/// The text is no time, or one of 2^64 ns and more.
pub fn time_ns(text: &str) -> Result<u64, String> {
    let units = [("ns", 0), ("us", 3), ("µs", 3), ("ms", 6), ("s", 9), ("", 9)];
    let (number, digits) = units
        .iter()
        .find_map(|(unit, digits)| Some((text.strip_suffix(unit)?, *digits)))
        .unwrap_or((text, 9));
    let expected = || "expected seconds (1.25) or a number with ns, us, ms or s".to_owned();
    let (whole, part) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let none = whole.is_empty() && part.is_empty();
    if none || part.len() > digits || !whole.chars().chain(part.chars()).all(|c| c.is_ascii_digit()) {
        return Err(expected());
    }
    let zeros = "0".repeat(digits - part.len());
    format!("{whole}{part}{zeros}").parse().map_err(|_| expected())
}

/// Offsets `FROM..TO` in bytes, decimal or with 0x; without the one or the other, from the begin or to the end.
///
/// # Errors
/// The text is no such range, or holds nothing.
pub fn offsets(text: &str) -> Result<std::ops::Range<u64>, String> {
    let number = |text: &str, missing: u64| match (text, text.strip_prefix("0x")) {
        ("", _) => Some(missing),
        (_, Some(hex)) => u64::from_str_radix(hex, 16).ok(),
        (decimal, None) => decimal.parse().ok(),
    };
    let range = text.split_once("..").and_then(|(from, to)| Some(number(from, 0)?..number(to, u64::MAX)?));
    range
        .filter(|range| !range.is_empty())
        .ok_or_else(|| "expected FROM..TO in bytes, such as 0x1000..0x2000".to_owned())
}

/// A duration: more than no time, up to 3,000,000 s (a month).
///
/// # Errors
/// The text is no such time.
pub fn duration(text: &str) -> Result<Duration, String> {
    const MOST_NS: u64 = 3_000_000_000_000_000;
    let ns = time_ns(text).ok().filter(|ns| (1..=MOST_NS).contains(ns));
    ns.map(Duration::from_nanos).ok_or_else(|| "expected a time such as 100us, 1ms or 2s".to_owned())
}

/// The same, in minutes (`m`) and hours (`h`) too.
///
/// # Errors
/// The text is no such time.
pub fn long_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 90s, 30m or 2h".to_owned();
    let units = [("m", 60), ("h", 3600)];
    let Some((number, seconds)) = units.iter().find_map(|(unit, s)| Some((text.strip_suffix(unit)?, *s)))
    else {
        return duration(text).map_err(|_| expected());
    };
    let whole: u64 = number.parse().map_err(|_| expected())?;
    let seconds = whole.checked_mul(seconds).ok_or_else(expected)?;
    duration(&seconds.to_string()).map_err(|_| expected())
}

/// A size in bytes. A number without suffix is multiplied by `unit`.
fn size(text: &str, unit: u64) -> Option<u64> {
    let suffixes = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30)];
    let last = text.chars().next_back()?.to_ascii_uppercase();
    let (digits, unit) = match suffixes.iter().find(|(suffix, _)| *suffix == last) {
        Some((_, unit)) => (&text[..text.len() - 1], *unit),
        None => (text, unit),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// A number of bytes above 0.
///
/// # Errors
/// The text is none.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bytes = size(text, 1).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "expected bytes, such as 65536, 512K or 4M".to_owned())
}

/// A number of bytes from `least` to `most`, both whole KiB.
///
/// # Errors
/// The text is none; the message names the limits.
pub fn bytes_within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let short = |bytes: u64| match bytes.trailing_zeros() {
        30.. => format!("{}G", bytes >> 30),
        20.. => format!("{}M", bytes >> 20),
        _ => format!("{}K", bytes >> 10),
    };
    let bytes = size(text, 1).filter(|bytes| (least..=most).contains(bytes));
    bytes.ok_or_else(|| {
        format!("expected {} to {}, as a number with suffix K, M or G", short(least), short(most))
    })
}

/// A size in whole MiB; a number without suffix is one of MiB.
///
/// # Errors
/// The text is none.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    let mib = size(text, 1 << 20).filter(|bytes| bytes.is_multiple_of(1 << 20)).map(|bytes| bytes >> 20);
    mib.ok_or_else(|| "expected a number with suffix M or G".to_owned())
}

/// The size of a ring buffer of 64 KiB to 64 GiB, in KiB.
///
/// # Errors
/// It is not.
pub fn ring_kib(text: &str) -> Result<u64, String> {
    bytes_within(text, 64 << 10, 64 << 30).map(|bytes| bytes >> 10)
}

/// `NAME=VALUE`; the value may be empty, and hold more `=`.
///
/// # Errors
/// There is no `=`, or nothing before it.
pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_durations_are_in_minutes_and_hours_too() {
        let seconds = |text| long_duration(text).map(|time| time.as_secs());
        assert_eq!((seconds("30m"), seconds("2h"), seconds("90s")), (Ok(1800), Ok(7200), Ok(90)));
        assert_eq!(long_duration("5ms"), Ok(Duration::from_millis(5)));
        for bad in ["", "m", "0m", "-1m", "1.5h", "99999999999999999999h", "18446744073709551615m", "30x"] {
            assert!(long_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn offsets_are_ranges() {
        assert_eq!(offsets("0x10..32"), Ok(16..32));
        assert_eq!((offsets("..8"), offsets("8..")), (Ok(0..8), Ok(8..u64::MAX)));
        for bad in ["", "8", "8..8", "9..8", "x..", "0x..1"] {
            assert!(offsets(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(time_ns("1.25"), Ok(1_250_000_000));
        assert_eq!(time_ns("17ns"), Ok(17));
        assert_eq!(time_ns("1.5us"), Ok(1_500));
        assert_eq!(time_ns("2 ms"), Ok(2_000_000));
        assert_eq!(time_ns("0.000000001s"), Ok(1));
        let ns = |text| duration(text).map(|time| time.as_nanos());
        assert_eq!(ns("1ms"), Ok(1_000_000));
        assert_eq!(ns("100us"), Ok(100_000));
        assert_eq!(ns("2.5s"), Ok(2_500_000_000));
        assert_eq!(ns("3"), Ok(3_000_000_000));
        assert_eq!(ns("0.5"), Ok(500_000_000));
        for text in ["", "ms", "-1ms", "1h", "nan", "inf", "1e300s", "1 m s", "1.5ns", "99999999999"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert_eq!((time_ns("0"), duration("0").is_err()), (Ok(0), true));
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("512k"), Ok(512 << 10));
        for text in ["", "0", "0K", "4T", "M", "K4", "1.5M", "-1", "4µ", "99999999999999999999G"] {
            assert!(bytes(text).is_err(), "{text:?}");
        }
        let ring = ring_kib;
        assert_eq!((ring("4M"), ring("65536")), (Ok(4 << 10), Ok(64)));
        for text in ["4", "1K", "65G"] {
            let said = ring(text).unwrap_err();
            assert_eq!(said, "expected 64K to 64G, as a number with suffix K, M or G");
        }
        assert_eq!([mebibytes("512"), mebibytes("512M"), mebibytes("2G")], [Ok(512), Ok(512), Ok(2048)]);
        assert_eq!((mebibytes("2048K"), mebibytes("1K").is_err()), (Ok(2), true));
    }
}
