// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a bisection, as text and as JSON.

use kprism_gate::Rule;
use kprism_gate::render::{json as gate_json, text as gate_text};
use kprism_profile::units::printable;
use kprism_report::Style;
use serde_json::{Value, json};

use crate::run::{Ended, Found, Revision, State, Tried};

/// A revision that was tried, in a line.
pub fn line(rules: &[Rule], tried: &Tried) -> String {
    let name = tried.revision.short();
    let values = rules.iter().zip(&tried.values);
    let values: Vec<String> =
        values.map(|(rule, value)| format!("{} {}", rule.metric, rule.metric.show(*value))).collect();
    match &tried.state {
        State::Good => format!("{name} is good: {}", values.join(", ")),
        State::Bad => format!("{name} is bad: {}", values.join(", ")),
        State::Skipped(why) => format!("{name} is skipped: {}", printable(why)),
    }
}

/// The first bad revision, with what it added and where; every revision that was tried.
pub fn text(found: &Found, style: Style) -> String {
    let mut text = String::new();
    match &found.ended {
        Ended::First { bad, before, baseline, verdict } => {
            text += &format!("{} {}\n", style.bold("first bad:"), named(bad));
            text += &format!("before it: {}\n", named(before));
            if baseline != before {
                text += &format!("it could not be run; compared with GOOD: {}\n", named(baseline));
            }
            text += "\n";
            text += &gate_text::write(verdict, style);
        }
        Ended::OneOf(all) => {
            text += "the first bad one is one of these; the others of them could not be judged\n";
            all.iter().for_each(|revision| text += &format!("  {}\n", named(revision)));
        }
        Ended::Interrupted => text += "interrupted: the first bad one is not known yet\n",
    }
    text += "\ntried\n";
    for tried in &found.tried {
        text += &format!("  {}\n", line(&found.rules, tried));
    }
    text
}

fn named(revision: &Revision) -> String {
    printable(format!("{} {}", revision.short(), revision.title).trim_end())
}

/// The same for programs: `first_bad`, `before`, `baseline`, `verdict` as of `kprism gate --json`, `one_of`, `tried`.
pub fn json(found: &Found) -> Value {
    let revision = |revision: &Revision| json!({"id": revision.id, "title": printable(&revision.title)});
    let tried = found.tried.iter().map(|tried| {
        let (state, why) = match &tried.state {
            State::Good => ("good", None),
            State::Bad => ("bad", None),
            State::Skipped(why) => ("skipped", Some(printable(why))),
        };
        json!({
            "id": tried.revision.id, "title": printable(&tried.revision.title), "state": state, "why": why,
            "values": tried.values, "run": tried.run,
        })
    });
    let mut value = json!({
        "rules": found.rules.iter().map(|rule| rule.text.clone()).collect::<Vec<_>>(),
        "tried": tried.collect::<Vec<_>>(),
        "interrupted": matches!(found.ended, Ended::Interrupted),
    });
    match &found.ended {
        Ended::First { bad, before, baseline, verdict } => {
            value["first_bad"] = revision(bad);
            value["before"] = revision(before);
            value["baseline"] = revision(baseline);
            value["verdict"] = gate_json::value(verdict);
        }
        Ended::OneOf(all) => value["one_of"] = all.iter().map(revision).collect(),
        Ended::Interrupted => {}
    }
    value
}
