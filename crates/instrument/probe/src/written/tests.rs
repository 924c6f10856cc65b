// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of probes: what they mean, where errors are, and any bytes.

use proptest::prelude::*;

use super::*;

fn one(text: &str) -> Wanted {
    let mut written = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(written.probes.len(), 1, "{text}");
    written.probes.remove(0)
}

#[test]
fn all_that_a_command_line_can_say() {
    let written = parse(
        b"#!/usr/bin/env kprism\n\
          var $n = -3 // a variable\n\
          var $m\n\
          \n\
          vfs_read if count > 4096 && file // large ones\n\
          \x20   collect count, \"a # b\", f[1,2] by $comm hist count,(a, b)\n\
          \t# in between\n\
          \n\
          \x20   linear count,0,4096,512 sum count, len max -n\n\
          \x20   set $n += count set $m = 1 skip 2 pass 30\r\n\
          \x20   printf \"%d\\n\", count\n\
          \"a place\" stop\n\
          busy if n == 300\n\
          \x20 || n < 0 pause\n",
    )
    .expect("a file");
    assert_eq!(written.vars, [("n".to_owned(), -3), ("m".to_owned(), 0)]);
    let [read, place, busy] = &written.probes[..] else { panic!("{written:?}") };
    assert_eq!(read.spec(), "vfs_read if count > 4096 && file");
    assert_eq!(read.collect, ["count", "\"a # b\"", "f[1,2]"]);
    assert_eq!(
        (&read.by[..], &read.hist[..]),
        (&["$comm".to_owned()][..], &["count".into(), "(a, b)".into()][..])
    );
    assert_eq!(read.linear, ["count,0,4096,512"]);
    let sums = [(Function::Sum, "count"), (Function::Sum, "len"), (Function::Max, "-n")];
    assert_eq!(read.aggregates, sums.map(|(function, text)| (function, text.to_owned())));
    assert_eq!(read.set, ["$n += count", "$m = 1"]);
    assert_eq!((read.skip, read.pass, read.printf.as_deref()), (2, Some(30), Some("\"%d\\n\", count")));
    assert_eq!((place.spec(), place.effect), ("a place".into(), RecordingEffect::Stop));
    assert_eq!((busy.spec(), busy.effect), ("busy if n == 300 || n < 0".into(), RecordingEffect::Pause));
    assert_eq!(busy.at, Position { line: 13, column: 1 });
}

#[test]
fn variables_of_threads() {
    let written = parse(b"thread $begun // of each\nvar $n\nthread if $begun set $n++\n").expect("a file");
    assert_eq!(written.thread_vars, ["begun"]);
    assert_eq!(written.vars, [("n".to_owned(), 0)]);
    assert_eq!(written.probes[0].spec(), "thread if $begun");
    for (text, said) in [
        ("thread $n = 3", "1:8: `$n=3`: expected `thread $NAME`, which is 0 at first in each thread"),
        ("var $n\nthread $n", "2:1: `$n` is there already"),
        ("thread $1", "1:8: `1` is no name: letters, digits and _: expected `thread $NAME`"),
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), said);
    }
}

/// Keywords are words of C too.
#[test]
fn names_like_keywords_are_names_where_c_has_one() {
    let wanted = one("by if max > min && (last) collect by, sum - min, (int) max, sizeof set hist set");
    assert_eq!(wanted.spec(), "by if max > min && (last)");
    assert_eq!(wanted.collect, ["by", "sum - min", "(int) max", "sizeof set"]);
    assert_eq!(wanted.hist, ["set"]);
    let wanted = one("f if (a) collect *p set $n++ by $n");
    assert_eq!((wanted.spec(), &wanted.collect[..]), ("f if (a)".into(), &["*p".to_owned()][..]));
    assert_eq!((wanted.set, wanted.by), (vec!["$n++".to_owned()], vec!["$n".to_owned()]));
    assert_eq!(one("ns::f(int,char)%return collect $retval").place, "ns::f(int,char)%return");
}

#[test]
fn errors_have_their_place_and_the_remedy() {
    for (text, at, what) in [
        ("f colect n", "1:3", "found `colect`; did you mean `collect`?"),
        ("f collect n hits", "1:13", "expected an operator, or one of if, collect"),
        ("\n# x\nf collect", "3:3", "expected an expression after `collect`"),
        ("f collect a,,b", "1:12", "on both sides of `,`"),
        ("f collect a,", "1:12", "on both sides of `,`"),
        ("f collect (a", "1:11", "no `)` closes"),
        ("f collect (a\ng", "1:11", "no `)` closes"),
        ("f collect a]", "1:12", "closes nothing"),
        ("f\n  collect \"äb", "2:11", "before the end of the line"),
        ("  f", "1:3", "in the first column"),
        ("f collect a if b", "1:13", "`if` comes first"),
        ("f skip many", "1:8", "expected a number from 0"),
        ("f pass 0", "1:8", "expected a number from 1"),
        ("f stop collect a", "1:1", "write two probes"),
        ("f start stop", "1:9", "one effect"),
        ("f printf a", "1:10", "double quotes"),
        ("f printf \"a\" printf \"b\"", "1:14", "twice"),
        ("var $n = x", "1:5", "expected `var $NAME"),
        ("var $n +", "1:5", "expected `var $NAME"),
        ("var $n\nvar $n = 1", "2:1", "there already"),
        ("f {", "1:3", "expected one of if"),
        ("\"\" collect a", "1:1", "expected a place"),
    ] {
        let error = parse(text.as_bytes()).expect_err(text);
        assert_eq!(error.at.to_string(), at, "{text}: {error}");
        assert!(error.what.contains(what), "{text}: {error}");
    }
    let error = parse(b"f\n  \xc3\xa4 \xff").expect_err("bytes");
    assert_eq!(error.to_string(), "2:5: expected UTF-8 text");
}

/// An error in an expression is where the file has it, also behind a comment and on another line.
#[test]
fn places_of_bytes_of_an_expression() {
    let wanted = one("f if a > # first\n    ä + b\n  collect  x, y");
    let condition = wanted.texts.iter().find(|text| text.text == "a > ä + b").expect("the condition");
    let places =
        ["a", "ä", "b"].map(|name| condition.position(condition.text.find(name).unwrap()).to_string());
    assert_eq!(places, ["1:6", "2:5", "2:9"]);
    let of = |text: &str, at| {
        let pointed = crate::Pointed { text: text.to_owned(), at, shown: String::new() };
        wanted.position(&crate::Error::Expression(pointed)).to_string()
    };
    assert_eq!((of("y", 0), of("x", 9), of("z", 0)), ("3:15".into(), "3:13".into(), "1:1".into()));
}

proptest! {
    /// Any bytes give a value or an error with a place in them.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        check(&bytes)?;
    }

    #[test]
    fn any_words(words in "((f|if|collect|by|sum|stop|var|\\$n|=|1|a|,|\\(|\\)|\"x\"|#|//|\n| |  |\n ){1,3} ?){0,20}") {
        check(words.as_bytes())?;
    }
}

fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let lines = bytes.split(|b| *b == b'\n').count();
    match parse(bytes) {
        Err(error) => prop_assert!((1..=lines).contains(&error.at.line) && error.at.column > 0, "{}", error),
        Ok(written) => {
            for text in written.probes.iter().flat_map(|probe| &probe.texts) {
                prop_assert!(!text.text.contains('\n'));
                for at in 0..=text.text.len() {
                    prop_assert!((1..=lines).contains(&text.position(at).line));
                }
            }
        }
    }
    Ok(())
}
