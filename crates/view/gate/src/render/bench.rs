// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values for services that keep benchmarks over time: those that rules are about, and totals.

use kprism_profile::units::printable;
use serde_json::{Map, Value, json};

use crate::metric::Metric;
use crate::render::json::unit;
use crate::summary::Summary;
use crate::verdict::Verdict;

/// Totals that are written beside the rules' own.
const TOTALS: [&str; 4] = ["insns", "kernel_insns", "syscalls", "tlb_misses"];

/// Each metric once, with its value.
fn values(verdict: &Verdict, new: &Summary) -> Vec<(Metric, f64)> {
    let mut all: Vec<(Metric, f64)> = Vec::new();
    let totals = TOTALS.iter().filter_map(|name| {
        let metric = Metric::parse(name).ok()?;
        let value = metric.value(new)?;
        Some((metric, value))
    });
    let own = verdict.findings.iter().map(|finding| (finding.rule.metric.clone(), finding.new));
    for (metric, value) in own.chain(totals) {
        if all.iter().all(|(known, _)| *known != metric) {
            all.push((metric, value));
        }
    }
    all
}

/// The list that github-action-benchmark reads with `tool: customSmallerIsBetter`.
pub fn benchmark(verdict: &Verdict, new: &Summary) -> String {
    let entry = |(metric, value): &(Metric, f64)| json!({"name": printable(&metric.to_string()), "unit": unit(metric.kind.unit), "value": value});
    format!("{:#}\n", Value::from(values(verdict, new).iter().map(entry).collect::<Vec<_>>()))
}

/// Bencher's metric format: the benchmark is the command, and each metric a measure.
pub fn bencher(verdict: &Verdict, new: &Summary) -> String {
    let mut measures = Map::new();
    for (metric, value) in values(verdict, new) {
        measures.insert(printable(&metric.to_string()), json!({ "value": value }));
    }
    let name = if verdict.command.is_empty() { "kprism".to_owned() } else { printable(&verdict.command) };
    format!("{:#}\n", json!({ name: measures }))
}
