// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict for a terminal.

use kprism_profile::units::{grouped, printable};
use kprism_report::Style;

use crate::blame::change;
use crate::render::word;
use crate::verdict::Verdict;

/// Rules with their values, what is behind those that fired, and remarks.
pub fn write(verdict: &Verdict, style: Style) -> String {
    let title = if verdict.command.is_empty() { "gate".to_owned() } else { printable(&verdict.command) };
    let mut text = style.bold(&title);
    if !verdict.kernel.is_empty() {
        text += &format!(" on {}", printable(&verdict.kernel));
    }
    text += "\n";
    if let Some(environment) = &verdict.environment {
        text += &environment.to_text();
    }
    text += "\n";
    for finding in &verdict.findings {
        let shown = |value| finding.rule.metric.show(value);
        let state = match finding.state.fails() {
            true => style.alert(word(finding.state)),
            false => word(finding.state).to_owned(),
        };
        text += &format!("{state}  {}: ", printable(&finding.rule.text));
        text += &match finding.old {
            Some(old) => format!("{} → {}", shown(old), shown(finding.new)),
            None => shown(finding.new),
        };
        if finding.change().is_some() {
            text += &format!(", {}", finding.change_text());
        }
        if let Some(probability) = finding.probability {
            text += &format!(
                ", medians of {} and {} runs, p = {probability:.3}",
                verdict.runs[0], verdict.runs[1]
            );
        }
        if let Some(why) = &finding.why {
            text += &format!(" ({why})");
        }
        text += "\n";
    }
    if let Some(blame) = &verdict.blame {
        if !blame.functions.is_empty() {
            text += "\nfunctions that changed, by their own instructions\n";
        }
        for changed in &blame.functions {
            let [old, new] = changed.insns.map(grouped);
            let [before, after] = changed.calls.map(grouped);
            text += &format!(
                "{:>12}  {} {}  {old} → {new} instructions, {before} → {after} calls\n",
                change(changed.insns),
                printable(&changed.name),
                printable(&changed.module)
            );
        }
        if blame.changed > blame.functions.len() {
            text +=
                &format!("… {} more functions\n", grouped((blame.changed - blame.functions.len()) as u64));
        }
        if !blame.paths.is_empty() {
            text += "\npaths on which they changed\n";
        }
        for path in &blame.paths {
            text += &format!("{:>12}  {}\n", change(path.insns), printable(&path.shown()));
        }
    }
    for note in &verdict.notes {
        text += &format!("note: {}\n", printable(note));
    }
    text
}
