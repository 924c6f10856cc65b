// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole verdict as JSON.

use kprism_profile::units::printable;
use serde_json::{Value, json};

use crate::metric::Unit;
use crate::render::word;
use crate::verdict::Verdict;

/// Writes it, indented.
pub fn write(verdict: &Verdict) -> String {
    format!("{:#}\n", value(verdict))
}

/// The verdict: `failed`, `rules`, `functions`, `paths`, `environment`, `notes`.
pub fn value(verdict: &Verdict) -> Value {
    let rules: Vec<Value> = verdict
        .findings
        .iter()
        .map(|finding| {
            json!({
                "rule": finding.rule.text,
                "metric": finding.rule.metric.to_string(),
                "unit": unit(finding.rule.metric.kind.unit),
                "state": word(finding.state),
                "old": finding.old,
                "new": finding.new,
                "change": finding.change(),
                "change_percent": finding.percent(),
                "probability": finding.probability,
                "why": finding.why,
            })
        })
        .collect();
    let blame = verdict.blame.clone().unwrap_or_default();
    let functions: Vec<Value> = blame
        .functions
        .iter()
        .map(|f| json!({"function": f.name, "module": f.module, "instructions": f.insns, "calls": f.calls}))
        .collect();
    let paths: Vec<Value> = blame
        .paths
        .iter()
        .map(|p| json!({"frames": p.frames, "cut": p.is_cut, "instructions": p.insns}))
        .collect();
    let mut value = json!({
        "failed": verdict.failed(),
        "command": verdict.command,
        "kernel": verdict.kernel,
        "runs": {"old": verdict.runs[0], "new": verdict.runs[1]},
        "rules": rules,
        "functions": functions,
        "functions_changed": blame.changed,
        "paths": paths,
        "environment": verdict.environment.as_ref().map(|environment| environment.to_json()),
        "notes": verdict.notes,
    });
    plain(&mut value);
    value
}

/// Names from binaries, without what commands a terminal.
fn plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(all) => all.iter_mut().for_each(plain),
        Value::Object(all) => all.values_mut().for_each(plain),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A unit's name.
pub(crate) fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "count",
        Unit::Ns => "ns",
        Unit::Percent => "percent",
    }
}
