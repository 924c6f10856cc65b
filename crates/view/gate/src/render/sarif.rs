// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict as SARIF 2.1.0 (OASIS), for code scanning.

use kprism_profile::units::printable;
use serde_json::{Value, json};

use crate::verdict::{Finding, Verdict};

/// Writes it: a result for each rule that fired or has no verdict, with the functions behind it as logical locations. Nothing tells which
/// file a function is in, so that results have no physical ones.
pub fn write(verdict: &Verdict) -> String {
    let rule = |finding: &Finding| json!({"id": printable(&finding.rule.text), "shortDescription": {"text": finding.rule.metric.kind.about}});
    let fired = verdict.findings.iter().filter(|finding| finding.state.fails());
    let locations: Vec<Value> = verdict
        .blame
        .iter()
        .flat_map(|blame| &blame.functions)
        .map(|function| {
            let name = printable(&function.name);
            let full = format!("{}!{name}", printable(&function.module));
            json!({"logicalLocations": [{"name": name, "fullyQualifiedName": full, "kind": "function"}]})
        })
        .collect();
    let result = |finding: &Finding| {
        let shown = |value| finding.rule.metric.show(value);
        let old = finding.old.map(|old| format!(" (baseline {})", shown(old))).unwrap_or_default();
        let text = format!(
            "{} is {}{old} {}",
            printable(&finding.rule.metric.to_string()),
            shown(finding.new),
            finding.change_text()
        );
        let text = match &finding.why {
            Some(why) => format!("no verdict: {why}; {}", text.trim()),
            None => text,
        };
        let mut result = json!({
            "ruleId": printable(&finding.rule.text),
            "level": "error",
            "message": {"text": text.trim()},
        });
        if !locations.is_empty() {
            result["locations"] = locations.clone().into();
        }
        result
    };
    let sarif = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "kprism",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": verdict.findings.iter().map(rule).collect::<Vec<_>>(),
            }},
            "results": fired.map(result).collect::<Vec<_>>(),
        }],
    });
    format!("{sarif:#}\n")
}
