// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict, for people and for services.
//!
//! In: a [`Verdict`]. Out: text of one form each. What people wrote and what binaries name is escaped for each form.

pub mod bench;
pub mod json;
pub mod junit;
pub mod markdown;
pub mod sarif;
pub mod text;

use anyhow::{Result, bail};

use crate::summary::Summary;
use crate::verdict::{State, Verdict};

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A comment of a pull request.
    Markdown,
    /// JUnit's XML: a test case for each rule.
    Junit,
    /// SARIF 2.1.0: a result for each rule that fired.
    Sarif,
    /// The whole verdict.
    Json,
    /// Values for github-action-benchmark (`customSmallerIsBetter`).
    Benchmark,
    /// Values for Bencher (its metric format).
    Bencher,
}

/// Forms by name.
pub const FORMS: [(&str, Form); 6] = [
    ("markdown", Form::Markdown),
    ("junit", Form::Junit),
    ("sarif", Form::Sarif),
    ("json", Form::Json),
    ("github-action-benchmark", Form::Benchmark),
    ("bencher", Form::Bencher),
];

impl Form {
    /// Finds a form by its name.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn parse(name: &str) -> Result<Self> {
        match FORMS.iter().find(|(of, _)| *of == name) {
            Some((_, form)) => Ok(*form),
            None => {
                let names: Vec<&str> = FORMS.iter().map(|(name, _)| *name).collect();
                bail!("no form {name:?}; there are: {}", names.join(", "))
            }
        }
    }

    /// Writes the verdict; `new` has the numbers of the run that was judged.
    pub fn write(self, verdict: &Verdict, new: &Summary) -> String {
        match self {
            Form::Markdown => markdown::write(verdict),
            Form::Junit => junit::write(verdict),
            Form::Sarif => sarif::write(verdict),
            Form::Json => json::write(verdict),
            Form::Benchmark => bench::benchmark(verdict, new),
            Form::Bencher => bench::bencher(verdict, new),
        }
    }
}

/// A rule's result in one word.
pub(crate) fn word(state: State) -> &'static str {
    match state {
        State::Passed => "passed",
        State::Fired => "failed",
        State::Noise => "noise",
        State::NoVerdict => "no verdict",
        State::NotWhole => "not whole",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rule::Rule;
    use crate::summary::{Flow, Function};
    use crate::verdict::{Side, judge};

    /// A verdict with one rule that fired, one that passed, and names that every form must escape.
    pub(crate) fn sample() -> (Verdict, Summary) {
        let summary = |insns| Summary {
            command: vec!["sh".into(), "-c".into(), "a < b && echo \"|x|\"".into()],
            kernel: "6.12.1".into(),
            flow: Some(Flow {
                kernel_insns: insns,
                functions: vec![Function {
                    name: "op<int>|\u{1b}[31m&".into(),
                    module: "[kernel]".into(),
                    kernel: true,
                    calls: 3,
                    self_insns: insns,
                    total_insns: insns,
                }],
                ..Flow::default()
            }),
            ..Summary::default()
        };
        let side = |insns| Side { summaries: vec![summary(insns)], profile: None };
        let rules = ["kernel_insns > +0", "calls[op*] > 3"].map(|text| Rule::parse(text).unwrap());
        (judge(&rules, Some(&side(1000)), &side(1010), crate::Damage::Fails).unwrap(), summary(1010))
    }

    #[test]
    fn no_form_passes_on_what_commands_a_terminal() {
        let (verdict, new) = sample();
        for (name, form) in FORMS {
            let text = form.write(&verdict, &new);
            assert!(!text.contains('\u{1b}'), "{name}: {text}");
            assert!(text.ends_with('\n'), "{name}");
        }
        assert!(Form::parse("xml").unwrap_err().to_string().contains("junit"));
    }
}
