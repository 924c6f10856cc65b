// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict as JUnit's XML, as the schema of Jenkins' xUnit plugin and of Surefire has it.

use kprism_report::Style;
use kprism_report::xml::escaped;

use crate::render::text;
use crate::verdict::{State, Verdict};

/// Writes it: a test case for each rule. A change that is not significant is a test that was skipped, and a rule
/// without a verdict, or about a run that is not whole, is one with an error.
pub fn write(verdict: &Verdict) -> String {
    let count = |state| verdict.findings.iter().filter(|finding| finding.state == state).count();
    let (all, failed, noise) = (verdict.findings.len(), count(State::Fired), count(State::Noise));
    let unknown = count(State::NoVerdict) + count(State::NotWhole);
    // A pipeline may have several gates, whose cases differ by the command.
    let class = match verdict.command.as_str() {
        "" => "kprism".to_owned(),
        command => format!("kprism: {}", escaped(command)),
    };
    let counts = format!("tests=\"{all}\" failures=\"{failed}\" errors=\"{unknown}\"");
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts} time=\"0\">\n  \
         <testsuite name=\"kprism gate\" {counts} skipped=\"{noise}\" time=\"0\">\n"
    );
    for finding in &verdict.findings {
        let name = escaped(&finding.rule.text);
        let old = finding.old.map(|old| finding.rule.metric.show(old) + " → ").unwrap_or_default();
        let values = format!("{old}{} {}", finding.rule.metric.show(finding.new), finding.change_text());
        let values = escaped(values.trim());
        out += &format!("    <testcase classname=\"{class}\" name=\"{name}\" time=\"0\"");
        out += &match finding.state {
            State::Passed => "/>\n".to_owned(),
            State::Noise => {
                format!("><skipped message=\"{values}: the runs do not differ significantly\"/></testcase>\n")
            }
            State::NoVerdict | State::NotWhole => {
                let why = escaped(finding.why.as_deref().unwrap_or_default());
                format!("><error message=\"no verdict: {why}\" type=\"rule\"/></testcase>\n")
            }
            State::Fired => format!(
                "><failure message=\"{values}\" type=\"rule\">{}</failure></testcase>\n",
                escaped(&text::write(verdict, Style::default()))
            ),
        };
    }
    out + "  </testsuite>\n</testsuites>\n"
}
