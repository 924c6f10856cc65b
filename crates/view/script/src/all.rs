// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists everything that a run holds, in order of time. In: moments ([`kprism_session::moments()`]). Out: a line for each, as text
//! or as an object of JSON; then remarks on what is not in the list.

use std::fmt::Write as _;

use anyhow::Result;
use kprism_profile::Ending;
use kprism_profile::units::printable;
use kprism_session::Progress;
use kprism_session::moments::{self, Moment, Phase, Wanted};
use kprism_store::{Account, Run};
use serde_json::{Value, json};

use crate::flow::Options;
use crate::output::Output;
use crate::select::Select;

/// Selection of a run's moments, by the options of the command.
fn wanted(select: &Select) -> Wanted {
    Wanted {
        kinds: select.kinds.clone(),
        cpus: select.cpus.clone(),
        pids: select.pids.clone(),
        comms: select.comms.clone(),
        from: select.from,
        to: select.to,
        tlb_ns: select.tlb_ns,
    }
}

/// Writes the lines, and as JSON an object with the kinds that were asked for and not recorded. Returns the account of the flow, if it was replayed.
///
/// # Errors
/// A file of the run is not what it should be.
pub fn list<'w>(
    run: &Run,
    options: &Options,
    progress: &Progress,
    mut to: Output<'w>,
) -> Result<(Output<'w>, Option<Account>)> {
    if to.is_done() {
        return Ok((to, None));
    }
    let mut text = String::new();
    let summary = moments::each(run, &wanted(&options.select), progress, &mut |moment| {
        text.clear();
        match options.json {
            true => text.push_str(&moment.to_json().to_string()),
            false => line(moment, &mut text),
        }
        text.push('\n');
        to.line(&text);
        !to.is_done()
    })?;
    summary.notes.iter().for_each(|note| progress.note(note));
    if options.json && !summary.not_recorded.is_empty() {
        to.remark(&format!("{}\n", json!({"not_recorded": summary.not_recorded})));
    }
    Ok((to, summary.account))
}

/// A moment as text: task, CPU, time, kind, name, values, length.
pub fn line(moment: &Moment, out: &mut String) {
    // Writing to memory cannot fail.
    let _ = write!(out, "{:>15} ", printable(&moment.comm));
    let _ = match moment.pid {
        Some(pid) => write!(out, "{pid:>6} "),
        None => write!(out, "{:>6} ", ""),
    };
    let _ = match moment.cpu {
        Some(cpu) => write!(out, "[{cpu:03}] "),
        None => write!(out, "      "),
    };
    let (seconds, ns) = (moment.ns / 1_000_000_000, moment.ns % 1_000_000_000);
    let part = match moment.phase {
        Phase::Point => "",
        Phase::Begin => "{",
        Phase::End(_) | Phase::Unended { .. } => "}",
    };
    let _ =
        write!(out, "{seconds:>5}.{ns:09}: {:<7} {part:<1} {}", moment.kind.name(), printable(&moment.name));
    if let Some(length) = moment.length_ns() {
        let _ = write!(out, " {}.{:03} us", length / 1000, length % 1000);
    }
    if let Some(remark) = moment.unended().and_then(Ending::remark) {
        let _ = write!(out, " /* {remark} */");
    }
    for (name, value) in &moment.args {
        let value = match value {
            Value::String(text) => printable(text),
            other => printable(&other.to_string()),
        };
        let _ = write!(out, " {}={value}", printable(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_session::moments::Kind;

    #[test]
    fn a_call_that_did_not_end_has_no_length() {
        let mut moment = Moment {
            ns: 5,
            cpu: None,
            pid: None,
            comm: String::new(),
            kind: Kind::Call,
            phase: Phase::End(1_234),
            name: "f".to_owned(),
            args: Vec::new(),
        };
        let told = |moment: &Moment| {
            let mut text = String::new();
            line(moment, &mut text);
            text.split_once("call ").map(|(_, rest)| rest.trim().to_owned())
        };
        assert_eq!(told(&moment).as_deref(), Some("} f 1.234 us"));
        assert_eq!(moment.to_json().get("ending"), None);
        for (ending, remark) in
            [(Ending::Left, "it left its stack"), (Ending::Untraced, "its end was not traced")]
        {
            moment.phase = Phase::Unended { ns: 1_234, ending };
            assert_eq!(told(&moment), Some(format!("}} f /* {remark} */")));
            let json = moment.to_json();
            assert_eq!((&json["length_ns"], &json["ending"]), (&Value::Null, &json!(ending.name())));
        }
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let moment = Moment {
            ns: 5_000_000_001,
            cpu: Some(3),
            pid: Some(7),
            comm: "a\u{1b}[2J".to_owned(),
            kind: Kind::Event,
            phase: Phase::End(1_234),
            name: "x\ny".to_owned(),
            args: vec![
                ("k\r".to_owned(), "v\u{7}".into()),
                ("n".to_owned(), Value::Array(vec!["\u{9b}".into()])),
            ],
        };
        let mut text = String::new();
        line(&moment, &mut text);
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.contains("[003]     5.000000001: event   } x"), "{text}");
        assert!(text.contains("1.234 us"), "{text}");
    }
}
