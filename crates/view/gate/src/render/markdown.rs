// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict as Markdown (GitHub's), for a comment of a pull request.

use kprism_profile::units::{grouped, printable};

use crate::blame::change;
use crate::render::word;
use crate::verdict::Verdict;

/// Writes it. The first line is a comment by which a bot finds its own comment again.
pub fn write(verdict: &Verdict) -> String {
    let state = if verdict.failed() { "failed" } else { "passed" };
    let mut text = format!("<!-- kprism gate -->\n### kprism gate: {state}\n\n");
    if !verdict.command.is_empty() {
        text += &format!("{} on {}\n\n", code(&verdict.command), escaped(&verdict.kernel));
    }
    text += "| rule | result | baseline | run | change |\n|---|---|---:|---:|---:|\n";
    for finding in &verdict.findings {
        let shown = |value| finding.rule.metric.show(value);
        text += &format!(
            "| {} | {} | {} | {} | {} |\n",
            code(&finding.rule.text),
            word(finding.state),
            finding.old.map(shown).unwrap_or_default(),
            shown(finding.new),
            finding.change_text()
        );
    }
    if let Some(blame) = verdict.blame.as_ref().filter(|blame| !blame.functions.is_empty()) {
        text += "\n| change | function | instructions | calls |\n|---:|---|---:|---:|\n";
        for changed in &blame.functions {
            let [old, new] = changed.insns.map(grouped);
            let [before, after] = changed.calls.map(grouped);
            text += &format!(
                "| {} | {} {} | {old} → {new} | {before} → {after} |\n",
                change(changed.insns),
                code(&changed.name),
                escaped(&changed.module)
            );
        }
        if blame.changed > blame.functions.len() {
            text += &format!(
                "\n{} more functions changed.\n",
                grouped((blame.changed - blame.functions.len()) as u64)
            );
        }
    }
    if let Some(blame) = verdict.blame.as_ref().filter(|blame| !blame.paths.is_empty()) {
        text += "\n<details><summary>paths on which they changed</summary>\n\n";
        for path in &blame.paths {
            text += &format!("- {}: {}\n", change(path.insns), code(&path.shown()));
        }
        text += "\n</details>\n";
    }
    let unjudged = verdict.findings.iter().filter_map(|finding| {
        Some(format!("no verdict on {}: {}", finding.rule.text, finding.why.as_ref()?))
    });
    let environment =
        verdict.environment.iter().flat_map(|e| e.to_text().lines().map(str::to_owned).collect::<Vec<_>>());
    let remarks: Vec<String> = unjudged.chain(environment).chain(verdict.notes.iter().cloned()).collect();
    if !remarks.is_empty() {
        text += "\n";
    }
    for remark in remarks {
        text += &format!("- {}\n", escaped(remark.trim()));
    }
    text
}

/// Text in which nothing is markup, also in a table.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in printable(text).chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '@' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

/// Text in a fixed font, as HTML: a code span of Markdown cannot have every character in a table.
fn code(text: &str) -> String {
    let mut out = String::from("<code>");
    for c in printable(text).chars() {
        match c {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '@' | '~' => out += &format!("&#{};", u32::from(c)),
            _ => out.push(c),
        }
    }
    out + "</code>"
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_not_markup() {
        let (verdict, _) = crate::render::tests::sample();
        let text = super::write(&verdict);
        assert!(text.contains("### kprism gate: failed"));
        assert!(
            text.contains(
                "| <code>kernel&#95;insns &gt; +0</code> | failed | 1,000 | 1,010 | +10 (+1.00 %) |"
            ),
            "{text}"
        );
        assert!(text.contains("op&lt;int&gt;&#124;") && !text.contains("op<int>"), "{text}");
    }
}
