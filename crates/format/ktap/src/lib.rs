// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results of the kernel's tests, as KUnit and kselftest print them.
//!
//! Input: KTAP version 1 (Linux, Documentation/dev-tools/ktap.rst) or TAP 13 and 14, maybe between other lines, maybe behind the
//! kernel log's time stamps. Output: a tree of [`Test`]s, and a [`Fault`] for each line that contradicts another one.
//! Any bytes are accepted: a line that is no result is a diagnostic of the test around it.
//!
//! Tests are nested by indentation. KUnit indents by four columns, the specification by two; each deeper column is a
//! deeper level here. The result of the test itself follows its subtests.

/// All that a text says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// Tests of the outermost level, in order.
    pub tests: Vec<Test>,
    /// Lines outside of every test.
    pub other: Vec<String>,
    /// Contradictions.
    pub faults: Vec<Fault>,
}

/// A test, with its subtests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// Its number on its level, from 1, if it has one.
    pub number: Option<u64>,
    /// Its name; may be empty.
    pub name: String,
    /// Its end.
    pub outcome: Outcome,
    /// The text after the directive: a reason to skip.
    pub reason: String,
    /// Lines that it printed, without `# `.
    pub diagnostics: Vec<String>,
    /// Its subtests. `None` if it is a single test; a test whose plan was for none has an empty list.
    pub subtests: Option<Vec<Test>>,
}

/// The end of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// `ok`.
    Passed,
    /// `not ok`.
    Failed,
    /// `ok … # SKIP`: nothing was tested.
    Skipped,
    /// `not ok … # XFAIL` or `# TODO`: it is known to fail.
    ExpectedFailure,
    /// `not ok … # TIMEOUT`.
    TimedOut,
    /// `not ok … # ERROR`: the test could not be run.
    Error,
    /// The text ended before the result.
    NoResult,
}

/// A line that contradicts another one, or a result that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Line number, from 1.
    pub line: usize,
    /// A sentence.
    pub reason: String,
}

impl Outcome {
    /// True if a run with this test has failed.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::TimedOut | Self::Error | Self::NoResult)
    }

    /// The word for it in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::ExpectedFailure => "expected failure",
            Self::TimedOut => "timed out",
            Self::Error => "error",
            Self::NoResult => "no result",
        }
    }
}

impl Test {
    /// The tests without subtests below this one, itself if it has none, each with the names of the tests around it.
    pub fn leaves(&self) -> Vec<(Vec<&str>, &Test)> {
        let Some(subtests) = &self.subtests else { return vec![(Vec::new(), self)] };
        let mut all = Vec::new();
        for test in subtests {
            for (mut path, leaf) in test.leaves() {
                path.insert(0, self.name.as_str());
                all.push((path, leaf));
            }
        }
        all
    }
}

/// Deepest nesting that is kept apart; deeper tests are taken for siblings.
const DEEPEST: usize = 32;

/// Tests of one indentation that are not closed by a result yet.
#[derive(Debug, Default)]
struct Level {
    indent: usize,
    tests: Vec<Test>,
    /// Number of its tests before the last version line: suites that are printed one after the other count from 1 each.
    before: u64,
    plan: Option<u64>,
    /// From `# Subtest: NAME`.
    name: Option<String>,
    /// Lines since the last result.
    diagnostics: Vec<String>,
    /// True once a version, a plan or a header was seen: this is a list of subtests, and no stray result.
    announced: bool,
}

/// A line that means something.
enum Line<'t> {
    Version,
    Plan(u64),
    Header(&'t str),
    Diagnostic(&'t str),
    BailOut(&'t str),
    Result { ok: bool, number: Option<u64>, name: &'t str, directive: Option<(Directive, &'t str)> },
}

#[derive(Clone, Copy)]
enum Directive {
    Skip,
    Todo,
    ExpectedFailure,
    Timeout,
    Error,
}

/// Reads a text. Bytes that are not UTF-8 are replaced.
pub fn read(bytes: &[u8]) -> Document {
    let text = String::from_utf8_lossy(bytes);
    let mut document = Document::default();
    let mut levels: Vec<Level> = Vec::new();
    let mut last = 0;
    for (number, line) in text.lines().enumerate() {
        let line = without_time(line);
        let content = line.trim_start_matches([' ', '\t']);
        let indent = line.len() - content.len();
        last = number + 1;
        let Some(parsed) = parse(content.trim_end()) else {
            note(&mut document, &mut levels, content.trim_end());
            continue;
        };
        if let Line::BailOut(reason) = parsed {
            document.faults.push(Fault { line: last, reason: format!("the tests were given up: {reason}") });
            continue;
        }
        if let Line::Diagnostic(text) = parsed {
            // KUnit prints those of a test with parameters to the left of its subtests, while these go on.
            let around = levels.iter().rposition(|level| level.indent <= indent).map_or(0, |index| index + 1);
            note(&mut document, &mut levels[..around], text);
            continue;
        }
        // Subtests that are under way end with the result of the test around them.
        if let Line::Result { ok, number, name, directive } = parsed {
            let inner = close_to(&mut levels, indent, &mut document.faults, last);
            open(&mut levels, indent);
            let faults = &mut document.faults;
            let Some(level) = levels.last_mut() else { continue };
            let test = result(level, inner, (ok, number, name, directive));
            let expected = (level.tests.len() as u64).saturating_sub(level.before) + 1;
            if let Some(number) = test.number.filter(|number| *number != expected) {
                let reason = format!("test {number} where {expected} was expected");
                faults.push(Fault { line: last, reason });
            }
            level.tests.push(test);
            continue;
        }
        if levels.last().is_some_and(|level| level.indent > indent) {
            // Something is announced further left: what was under way never got its result.
            let inner = close_to(&mut levels, indent, &mut document.faults, last);
            open(&mut levels, indent);
            if let (Some(level), Some(inner)) = (levels.last_mut(), inner) {
                level.tests.push(unfinished(inner));
            }
        }
        open(&mut levels, indent);
        let Some(level) = levels.last_mut() else { continue };
        match parsed {
            Line::Version => {
                level.announced = true;
                level.before = level.tests.len() as u64;
            }
            Line::Plan(plan) => {
                level.announced = true;
                level.plan = Some(level.before.saturating_add(plan));
            }
            Line::Header(name) => {
                level.announced = true;
                level.name = Some(name.to_owned());
            }
            Line::Diagnostic(_) | Line::Result { .. } | Line::BailOut(_) => {}
        }
    }
    finish(&mut document, levels, last);
    document
}

/// The test that this line ends, with the subtests before it.
fn result(
    level: &mut Level,
    inner: Option<Level>,
    (ok, number, name, directive): (bool, Option<u64>, &str, Option<(Directive, &str)>),
) -> Test {
    let mut diagnostics = std::mem::take(&mut level.diagnostics);
    let subtests = inner.map(|inner| {
        diagnostics.extend(inner.diagnostics);
        inner.tests
    });
    let outcome = match (directive.map(|(directive, _)| directive), ok) {
        (Some(Directive::Skip), _) => Outcome::Skipped,
        (_, true) => Outcome::Passed,
        (Some(Directive::Todo | Directive::ExpectedFailure), false) => Outcome::ExpectedFailure,
        (Some(Directive::Timeout), false) => Outcome::TimedOut,
        (Some(Directive::Error), false) => Outcome::Error,
        (None, false) => Outcome::Failed,
    };
    let reason = directive.map(|(_, text)| text.to_owned()).unwrap_or_default();
    Test { number, name: name.to_owned(), outcome, reason, diagnostics, subtests }
}

/// Ends all levels deeper than `indent`. Returns the outermost of them.
fn close_to(levels: &mut Vec<Level>, indent: usize, faults: &mut Vec<Fault>, line: usize) -> Option<Level> {
    let mut inner: Option<Level> = None;
    while levels.last().is_some_and(|level| level.indent > indent) {
        let mut level = levels.pop()?;
        if let Some(inner) = inner.take() {
            level.tests.push(unfinished(inner));
        }
        check_plan(&level, faults, line);
        inner = Some(level);
    }
    inner
}

/// Subtests whose test has no result.
fn unfinished(level: Level) -> Test {
    Test {
        number: None,
        name: level.name.unwrap_or_default(),
        outcome: Outcome::NoResult,
        reason: String::new(),
        diagnostics: level.diagnostics,
        subtests: Some(level.tests),
    }
}

fn check_plan(level: &Level, faults: &mut Vec<Fault>, line: usize) {
    let there = level.tests.len() as u64;
    if let Some(plan) = level.plan.filter(|plan| *plan != there) {
        let of = level.name.as_deref().map(|name| format!(" of {name}")).unwrap_or_default();
        faults.push(Fault { line, reason: format!("{there} results{of}, and {plan} were planned") });
    }
}

/// Makes sure that the innermost level has this indentation.
fn open(levels: &mut Vec<Level>, indent: usize) {
    if levels.len() < DEEPEST && levels.last().is_none_or(|level| level.indent < indent) {
        levels.push(Level { indent, ..Level::default() });
    }
}

/// Keeps a line that is no result.
fn note(document: &mut Document, levels: &mut [Level], text: &str) {
    if text.is_empty() {
        return;
    }
    match levels.last_mut() {
        Some(level) if level.announced => level.diagnostics.push(text.to_owned()),
        _ => document.other.push(text.to_owned()),
    }
}

fn finish(document: &mut Document, mut levels: Vec<Level>, line: usize) {
    let first = levels.first().map_or(0, |level| level.indent);
    let inner = close_to(&mut levels, first, &mut document.faults, line);
    if let Some(mut level) = levels.pop() {
        level.tests.extend(inner.map(unfinished));
        check_plan(&level, &mut document.faults, line);
        document.tests = level.tests;
        document.other.extend(level.diagnostics);
    }
}

/// Removes the time stamp of the kernel's log: `[    1.234567] `, maybe with the CPU or the task.
fn without_time(line: &str) -> &str {
    let inside = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match inside {
        Some((time, rest)) if is_time(time) => {
            let rest = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((task, rest)) if task.trim_start().starts_with(['T', 'C']) => rest,
                _ => rest,
            };
            rest.strip_prefix(' ').unwrap_or(rest)
        }
        _ => line,
    }
}

fn is_time(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.trim_start().split_once('.').is_some_and(|(seconds, micros)| digits(seconds) && digits(micros))
}

fn parse(text: &str) -> Option<Line<'_>> {
    if let Some(comment) = text.strip_prefix('#') {
        let comment = comment.strip_prefix(' ').unwrap_or(comment);
        let header = comment.strip_prefix("Subtest:").or_else(|| comment.strip_prefix("Subtest "));
        return Some(header.map_or(Line::Diagnostic(comment), |name| Line::Header(name.trim())));
    }
    if let Some(version) = text.strip_prefix("KTAP version ").or_else(|| text.strip_prefix("TAP version ")) {
        return version.trim().parse::<u32>().ok().map(|_| Line::Version);
    }
    if let Some(plan) = text.strip_prefix("1..") {
        let plan = plan.split(['#', ' ']).next().unwrap_or_default();
        return plan.parse().ok().map(Line::Plan);
    }
    if let Some(reason) = text.strip_prefix("Bail out!") {
        return Some(Line::BailOut(reason.trim()));
    }
    let (ok, rest) = match text.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok")?),
    };
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let rest = rest.trim_start();
    let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
    let (number, name) = match word.parse() {
        Ok(number) => (Some(number), after.trim_start()),
        Err(_) => (None, rest),
    };
    let name = name.strip_prefix("- ").unwrap_or(name);
    let (name, directive) = directive(name);
    Some(Line::Result { ok, number, name: name.trim(), directive })
}

/// Splits a result's directive off: ` # SKIP reason`. A `#` that is followed by something else is part of the name.
fn directive(text: &str) -> (&str, Option<(Directive, &str)>) {
    for (at, _) in text.match_indices('#') {
        let after = text[at + 1..].trim_start();
        let word = after.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        let directive = match word.to_ascii_uppercase().as_str() {
            "SKIP" | "SKIPPED" => Directive::Skip,
            "TODO" => Directive::Todo,
            "XFAIL" => Directive::ExpectedFailure,
            "TIMEOUT" => Directive::Timeout,
            "ERROR" => Directive::Error,
            _ => continue,
        };
        let reason = after[word.len()..].trim_start_matches(':').trim();
        return (&text[..at], Some((directive, reason)));
    }
    (text, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As a 6.12 kernel's `/sys/kernel/debug/kunit/example/results` has it.
    const KUNIT: &str = "\
KTAP version 1
1..1
    KTAP version 1
    # Subtest: example
    # module: kunit_example_test
    1..4
    # example_simple_test: initializing
    ok 1 example_simple_test
    # example_skip_test: You should not see a line below.
    ok 2 example_skip_test # SKIP this test should be skipped
        KTAP version 1
        # Subtest: example_params_test
    # example_params_test: initializing
        ok 1 example value 3 
        ok 2 example value 1 # SKIP unsupported param value
    # example_params_test: pass:1 fail:0 skip:1 total:2
    ok 3 example_params_test
    # example_wrong: EXPECTATION FAILED at lib/x.c:7
    Expected 1 == 2
    not ok 4 example_wrong
# example: pass:2 fail:1 skip:1 total:4
# Totals: pass:2 fail:1 skip:2 total:5
not ok 1 example
";

    fn shape(tests: &[Test]) -> String {
        let one = |test: &Test| match &test.subtests {
            Some(subtests) => format!("{}:{}({})", test.name, test.outcome.word(), shape(subtests)),
            None => format!("{}:{}", test.name, test.outcome.word()),
        };
        tests.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn kunit_with_parameters_and_reasons() {
        let document = read(KUNIT.as_bytes());
        assert_eq!(document.faults, []);
        assert_eq!(
            shape(&document.tests),
            "example:failed(example_simple_test:passed example_skip_test:skipped \
             example_params_test:passed(example value 3:passed example value 1:skipped) example_wrong:failed)"
        );
        let leaves = document.tests[0].leaves();
        assert_eq!(leaves.len(), 5);
        assert_eq!(leaves[3].0, ["example", "example_params_test"]);
        assert_eq!(leaves[3].1.reason, "unsupported param value");
        let wrong = ["example_wrong: EXPECTATION FAILED at lib/x.c:7", "Expected 1 == 2"];
        assert_eq!(leaves[4].1.diagnostics, wrong);
        let logged: String = KUNIT.lines().map(|line| format!("[    1.234567] {line}\n")).collect();
        assert_eq!(read(logged.as_bytes()).tests, document.tests);
        let logged: String = KUNIT.lines().map(|line| format!("[   11.234567][    T1] {line}\n")).collect();
        assert_eq!(read(logged.as_bytes()).tests, document.tests);
    }

    #[test]
    fn several_suites_in_a_row() {
        let two = KUNIT.repeat(2);
        let document = read(two.as_bytes());
        assert_eq!(document.tests.len(), 2);
        assert_eq!(document.tests[0].name, document.tests[1].name);
        assert_eq!(document.faults, []);
    }

    #[test]
    fn a_text_that_ends_in_a_test() {
        let cut = KUNIT.find("    # example_wrong").unwrap();
        let document = read(&KUNIT.as_bytes()[..cut]);
        assert!(shape(&document.tests).starts_with("example:no result(example_simple_test:passed "));
        let reasons: Vec<&str> = document.faults.iter().map(|fault| fault.reason.as_str()).collect();
        assert_eq!(reasons, ["3 results of example, and 4 were planned"]);
        let cut = KUNIT.find("        ok 2 example value 1").unwrap();
        let document = read(&KUNIT.as_bytes()[..cut]);
        assert!(
            shape(&document.tests).ends_with("example_params_test:no result(example value 3:passed))"),
            "{}",
            shape(&document.tests)
        );
    }

    #[test]
    fn kselftest_as_its_runner_prints_it() {
        let text = "TAP version 13\n1..3\n# timeout set to 45\n# selftests: timers: posix_timers\n\
                    ok 1 selftests: timers: posix_timers # SKIP\n\
                    not ok 2 selftests: timers: nanosleep # TIMEOUT 45 seconds\n\
                    not ok 3 - rtctest # exit=1\nBail out! No more\n";
        let document = read(text.as_bytes());
        assert_eq!(
            shape(&document.tests),
            "selftests: timers: posix_timers:skipped selftests: timers: nanosleep:timed out rtctest # exit=1:failed"
        );
        assert_eq!(document.tests[1].reason, "45 seconds");
        assert_eq!(document.faults[0].reason, "the tests were given up: No more");
        assert_eq!(document.faults[0].line, 8);
        let document = read(b"ok 1 a\nok 3 b\n1..4\n# ok\nokay\nnot ok 5 c # XFAIL known\n");
        assert_eq!(shape(&document.tests), "a:passed b:passed c:expected failure");
        assert_eq!(document.faults.len(), 3, "{:?}", document.faults);
    }

    #[test]
    fn a_plan_of_none_is_an_empty_list() {
        let document = read(b"KTAP version 1\n1..1\n  KTAP version 1\n  1..0\nok 1 empty # SKIP none\n");
        assert_eq!(document.tests[0].subtests, Some(Vec::new()));
        assert_eq!(document.faults, []);
        assert!(document.tests[0].leaves().is_empty());
    }

    proptest! {
        /// Any lines: no panic, and every result line is one test.
        #[test]
        fn every_result_is_a_test(lines in proptest::collection::vec((0usize..9, 0usize..9), 0..60)) {
            let kinds = ["ok 1 a", "not ok 2 b", "KTAP version 1", "1..3", "# Subtest: s", "# d", "x", "", "ok"];
            let text: String =
                lines.iter().map(|(indent, kind)| format!("{}{}\n", " ".repeat(*indent), kinds[*kind])).collect();
            let document = read(text.as_bytes());
            fn count(tests: &[Test]) -> usize {
                let own = |test: &Test| usize::from(test.outcome != Outcome::NoResult);
                tests.iter().map(|t| own(t) + t.subtests.as_deref().map_or(0, count)).sum()
            }
            let results = lines.iter().filter(|(_, kind)| [0, 1, 8].contains(kind)).count();
            prop_assert_eq!(count(&document.tests), results);
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }
    }
}
