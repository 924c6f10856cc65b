// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats against the `printf` of this machine, which is C's, and what is refused.

use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use super::*;
use crate::stream::shape::Shape;

/// A conversion with values of one kind: what this module is given, and what the program is.
#[derive(Debug, Clone)]
struct Case {
    format: String,
    values: Vec<(Shape, Value, String)>,
}

/// Flags, width, precision.
fn decoration() -> impl Strategy<Value = String> {
    let flags = proptest::sample::subsequence(vec!["-", "0", "+", " ", "#"], 0..4);
    let number = proptest::option::of(1..24_u32);
    (flags, number, proptest::option::of(proptest::option::of(0..24_u32))).prop_map(
        |(flags, width, precision)| {
            let width = width.map(|n| n.to_string()).unwrap_or_default();
            let precision = precision.map(|n| format!(".{}", n.map(|n| n.to_string()).unwrap_or_default()));
            format!("{}{width}{}", flags.concat(), precision.unwrap_or_default())
        },
    )
}

fn long() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..20_u64, any::<u8>().prop_map(|n| u64::MAX << (n % 64))]
}

fn case() -> impl Strategy<Value = Case> {
    let signed = Shape::Int { size: 8, signed: true };
    let unsigned = Shape::Int { size: 8, signed: false };
    let ints = (prop_oneof![Just("d"), Just("i")], proptest::collection::vec(any::<i32>(), 1..9));
    let ints = ints.prop_map({
        let signed = signed.clone();
        move |(letter, all)| {
            (letter.to_owned(), all.iter().map(|n| (signed.clone(), json!(n), n.to_string())).collect())
        }
    });
    let longs = (prop_oneof![Just("ld"), Just("lli"), Just("zd")], proptest::collection::vec(long(), 1..9));
    let longs = longs.prop_map(move |(letter, all)| {
        let each = |n: &u64| (signed.clone(), json!(n.cast_signed()), n.cast_signed().to_string());
        (letter.to_owned(), all.iter().map(each).collect())
    });
    let letters = prop_oneof![Just("lu"), Just("lx"), Just("llX"), Just("lo"), Just("zu"), Just("jx")];
    let unsigned = (letters, proptest::collection::vec(long(), 1..9)).prop_map(move |(letter, all)| {
        (letter.to_owned(), all.iter().map(|n| (unsigned.clone(), json!(n), n.to_string())).collect())
    });
    let text = proptest::collection::vec("[ -~äß€]{0,12}", 1..9).prop_map(|all| {
        let shape = Shape::Text { room: 64, cut: None };
        ("s".to_owned(), all.into_iter().map(|text| (shape.clone(), json!(text), text)).collect())
    });
    let scaled = |(n, scale): (f64, i32)| n * 10_f64.powi(scale);
    let floats = prop_oneof![any::<f64>(), (-10.0..10.0, -8..20).prop_map(scaled)];
    let letters = proptest::sample::select(vec!["f", "e", "g", "F", "E", "G"]);
    let floats = (letters, proptest::collection::vec(floats, 1..9)).prop_map(|(letter, all)| {
        // All digits, so that the program reads the same number.
        let each = |n: &f64| (Shape::Float { size: 8 }, json!(n), exact(*n));
        (letter.to_owned(), all.iter().filter(|n| n.is_finite()).map(each).collect())
    });
    let values: BoxedStrategy<(String, Vec<_>)> = prop_oneof![ints, longs, unsigned, text, floats].boxed();
    (decoration(), values).prop_map(|(decoration, (letter, values))| {
        // What C leaves undefined, gcc warns of, and the program refuses.
        let decoration = match letter.as_str() {
            "s" => decoration.replace(['0', '+', ' ', '#'], ""),
            "d" | "i" | "ld" | "lli" | "zd" => decoration.replace('#', ""),
            "lu" | "zu" => decoration.replace(['#', '+', ' '], ""),
            letter if letter.ends_with(['x', 'X', 'o']) => decoration.replace(['+', ' '], ""),
            _ => decoration,
        };
        Case { format: format!("%{decoration}{letter}"), values }
    })
}

/// A double as C's hexadecimal constant.
fn exact(n: f64) -> String {
    let (bits, sign) = (n.to_bits(), if n.is_sign_negative() { "-" } else { "" });
    let (exponent, mantissa) = ((bits >> 52 & 0x7ff) as i64, bits & ((1 << 52) - 1));
    match exponent {
        0 => format!("{sign}0x0.{mantissa:013x}p-1022"),
        _ => format!("{sign}0x1.{mantissa:013x}p{}", exponent - 1023),
    }
}

fn ours(format: &str, shape: &Shape, value: &Value) -> String {
    let items =
        [Item { name: "n".into(), ty: String::new(), at: 32, shape: Some(shape.clone()), missing: None }];
    let of = Printf { format: format.to_owned(), items: vec![0] };
    of.text(&items, &|_| Some(value.clone()))
}

#[test]
fn as_the_printf_of_this_machine() {
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let judged = |case: Case| {
        // The program repeats the format until there are no more values.
        let output = Command::new("printf")
            .arg(format!("{}\\n", case.format))
            .args(case.values.iter().map(|(.., word)| word))
            .env("LC_ALL", "C")
            .output()
            .expect("printf runs");
        prop_assert!(case.values.is_empty() || output.status.success(), "{case:?}");
        let wanted: Vec<String> = output.stdout.split(|b| *b == b'\n').map(readable).collect();
        for ((shape, value, word), wanted) in case.values.iter().zip(wanted) {
            prop_assert_eq!(ours(&case.format, shape, value), wanted, "{} of {}", case.format, word);
        }
        Ok(())
    };
    if let Err(why) = runner.run(&case(), judged) {
        panic!("{why}");
    }
}

#[test]
fn as_c_where_the_program_differs() {
    let long = Shape::Int { size: 8, signed: true };
    for (format, value, wanted) in [
        ("%u", json!(-1), "4294967295"),
        ("%x", json!(-2), "fffffffe"),
        ("%hhd", json!(200), "-56"),
        ("%hu", json!(-1), "65535"),
        ("%c%%", json!(65), "A%"),
        ("%3c", json!(-56), "  \\310"),
        ("100%%", json!(1), "100%"),
    ] {
        assert_eq!(ours(format, &long, &value), wanted, "{format}");
    }
    assert_eq!(ours("%p", &Shape::Pointer, &json!("0xffff888004e2c200")), "0xffff888004e2c200");
    assert_eq!(ours("%8p|", &Shape::Pointer, &json!("0x0")), "   (nil)|");
    let colours = Shape::Enum { size: 8, signed: false, names: vec![("GREEN".into(), 5)] };
    assert_eq!(ours("%s", &colours, &json!("GREEN")), "GREEN");
    assert_eq!(ours("%d", &colours, &json!("GREEN")), "5");
    assert_eq!(ours("%s", &colours, &json!(7)), "7");
    // A value cannot speak to the terminal.
    let text = Shape::Text { room: 8, cut: None };
    assert_eq!(ours("%s", &text, &json!("a\x1b[2J\n")), "a\\033[2J\n");
    assert_eq!(ours("%s", &text, &json!([97, 200, 27])), "a\\310\\033");
    assert_eq!(ours("%4d", &long, &Value::Null), "   ?");
}

#[test]
fn wrong_conversions_are_refused_with_the_remedy() {
    let int = |size| Kind::Int { size, signed: true };
    let refused = |format: &str, kind| Printf::check(format, &[("n", "type", kind)]).expect_err(format);
    for (format, kind, remedy) in [
        ("%d", int(8), "write `%ld`"),
        ("%08x", int(8), "write `%08lx`"),
        ("%ld", int(4), "write `%d`"),
        ("%s", int(4), "write `%d`"),
        ("%s", Kind::Int { size: 8, signed: false }, "write `%lu`"),
        ("%-5d", Kind::Text, "write `%-5s`"),
        ("%lx", Kind::Pointer, "write `%p`"),
        ("%p", Kind::Text, "(void *)"),
        ("%d", Kind::Float, "write `%g`"),
        ("%f", int(4), "write `%d`"),
        ("%c", Kind::Enum { size: 4 }, "write `%d`, or `%s` for the name"),
        ("%d", Kind::Other, "name a member"),
        ("%d %d", int(4), "2 conversions, for 1 values: add expressions"),
        ("none", int(4), "add conversions"),
        ("%*d", int(4), "write the number of columns"),
        ("%99999d", int(4), "up to 4096"),
        ("%n", int(4), "leave it out"),
        ("%y", int(4), "no conversion"),
        ("100%", int(4), "write %%"),
        ("%ls", Kind::Text, "without a length"),
    ] {
        let why = refused(format, kind);
        assert!(why.contains(remedy), "{format}: {why}");
    }
    for (format, kind) in [
        ("%hhx", int(1)),
        ("%5.3lld", int(8)),
        ("%zu", int(8)),
        ("%s", Kind::Text),
        ("%s", Kind::Enum { size: 4 }),
        ("%p", Kind::Pointer),
        ("%.3lf", Kind::Float),
        ("%c", int(4)),
    ] {
        assert_eq!(Printf::check(format, &[("n", "type", kind)]), Ok(()), "{format}");
    }
}

#[test]
fn formats_and_arguments() {
    let split = |text| split(text).map_err(|e| (e.at, e.what));
    assert_eq!(
        split("\"%d, \\\"%s\\\"\\n\", f[1, 2], $comm"),
        Ok(("%d, \"%s\"\n".into(), vec!["f[1, 2]".into(), "$comm".into()]))
    );
    assert_eq!(split(" \"x\" "), Ok(("x".into(), Vec::new())));
    for (text, at) in [("%d, n", 0), ("  n", 2), ("\"%d", 0), ("\"%d\" n", 5), ("\"\\q\", n", 0)] {
        assert_eq!(split(text).expect_err(text).0, at, "{text}");
    }
}

proptest! {
    /// Any format gives text or an error.
    #[test]
    fn any_format(format in "[%a-z0-9.*#+ -]{0,12}|\\PC{0,12}") {
        let of = Printf { format: format.clone(), items: vec![0, 7] };
        let items = [Item { name: "n".into(), ty: String::new(), at: 32, shape: Some(Shape::Pointer), missing: None }];
        let _ = of.text(&items, &|_| Some(json!("0x10")));
        let _ = split(&format);
    }
}
