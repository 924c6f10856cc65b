// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the names in rules are names of anything.
//!
//! In: rules, both sides, the folders of the runs to be judged. Out: nothing, or an error with the nearest name. A function that did
//! not run counts as 0. So does a name that is misspelt, and a rule about it could never fire: each name must be one that ran on a
//! side, or one of the run's symbols.

use std::cell::OnceCell;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use kprism_expr::error::suggestion;
use kprism_image::glob::glob;
use kprism_image::symbols::{FunctionId, Symbols};
use kprism_profile::units::{is_without_body, syscall_name};
use kprism_session::{Progress, flow};
use kprism_store::{Instrument, Run};

use crate::metric::{Metric, Subject};
use crate::rule::Rule;
use crate::summary::Summary;
use crate::verdict::Side;

/// Checks the names of all rules. `runs`: the run folders or summaries to be judged.
///
/// # Errors
/// A name is none, or it ran nowhere and the symbols that would tell are not there.
pub fn check(rules: &[Rule], old: Option<&Side>, new: &Side, runs: &[PathBuf]) -> Result<()> {
    let summaries: Vec<&Summary> = old.into_iter().chain([new]).flat_map(|side| &side.summaries).collect();
    let known = OnceCell::new();
    for rule in rules {
        let (Some(name), Some(subject)) = (rule.metric.argument.as_deref(), rule.metric.subject()) else {
            continue;
        };
        if subject == Subject::Tlb
            || summaries.iter().any(|summary| names_anything(&rule.metric, name, summary))
        {
            continue;
        }
        let why = match subject {
            Subject::Path => Some(format!("no file with lines of code is below {name}")),
            _ if summaries.iter().all(|summary| summary.flow.is_none()) => {
                Some(format!("nothing of the name {name} was recorded: it did not run, or was not asked for"))
            }
            _ => {
                let symbols = known.get_or_init(|| symbols(runs)).as_ref();
                let symbols = symbols.map_err(|why| {
                    anyhow!("{name} did not run, and whether there is such a name is not known: {why}")
                });
                symbols
                    .map(|symbols| unknown(name, subject, symbols))
                    .unwrap_or_else(|why| Some(why.to_string()))
            }
        };
        if let Some(why) = why {
            bail!("--fail-if {:?}: {why}", rule.text);
        }
    }
    Ok(())
}

/// True if the name is one of the summary's.
fn names_anything(metric: &Metric, name: &str, summary: &Summary) -> bool {
    let flow = summary.flow.as_ref();
    match metric.subject() {
        Some(Subject::Syscall) => flow.is_some_and(|flow| flow.syscalls.iter().any(|s| glob(name, &s.name))),
        Some(Subject::Function) => {
            let timed = summary.durations.iter().flatten().any(|f| glob(name, &f.name));
            timed || flow.is_some_and(|flow| flow.functions.iter().any(|f| glob(name, &f.name)))
        }
        Some(Subject::Path) => metric.value(summary).is_some_and(|_| metric.has_lines(summary)),
        Some(Subject::Tlb) | None => true,
    }
}

/// The symbols of the first run that has a flow, or the reason why there are none.
fn symbols(runs: &[PathBuf]) -> Result<Symbols, String> {
    let Some(folder) = runs.iter().find(|path| path.is_dir()) else {
        return Err("a saved summary names only what ran; give the run's folder".to_owned());
    };
    let read = || -> Result<Symbols> {
        let run = Run::open(folder)?;
        if !run.holds(Instrument::Flow) {
            bail!("{}: no flow", folder.display());
        }
        let loaded = flow::load(&run, &Progress::silent()).with_context(|| folder.display().to_string())?;
        Ok(loaded.symbols)
    };
    let symbols = read().map_err(|error| format!("{error:#}"))?;
    match symbols.is_empty() {
        true => Err(format!("{}: no symbols", folder.display())),
        false => Ok(symbols),
    }
}

/// Why a name is none; `None` if it is one.
fn unknown(name: &str, subject: Subject, symbols: &Symbols) -> Option<String> {
    let functions = || (0..symbols.len() as u32).map(|id| symbols.function(FunctionId(id)).name.as_str());
    if subject == Subject::Syscall {
        let calls: Vec<String> =
            functions().filter(|symbol| !is_without_body(symbol)).map(syscall_name).collect();
        if calls.iter().any(|call| glob(name, call)) {
            return None;
        }
        // Its symbol was written, and not its name.
        let plain = Some(syscall_name(name)).filter(|call| calls.contains(call));
        let near = plain.map(asked).or_else(|| suggestion(name, calls.iter().map(String::as_str)));
        return Some(format!("no system call {name}{}", behind(near)));
    }
    if functions().any(|function| glob(name, function)) {
        return None;
    }
    // A function has one name here, and may have several in its file.
    let shown = symbols.aliases().find(|(alias, _)| glob(name, alias));
    let near = shown.map(|(_, id)| asked(symbols.function(id).name.clone()));
    Some(format!("no function {name}{}", behind(near.or_else(|| suggestion(name, functions())))))
}

/// The sentence of [`suggestion`], about a name that is meant whether it is similar or not.
fn asked(name: String) -> String {
    format!("did you mean `{name}`?")
}

/// A suggestion, as it stands behind a message.
fn behind(near: Option<String>) -> String {
    near.map(|near| format!("; {near}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Flow, Function, Spread, Syscall};

    fn symbols() -> Symbols {
        let kallsyms =
            b"ffffffff81000000 T _text\nffffffff81000010 T __x64_sys_openat\nffffffff81000100 T vfs_read\n\
            ffffffff81000100 t alias_of_read\nffffffff81000200 T _etext\n";
        Symbols::load(kallsyms, &[], None).unwrap()
    }

    #[test]
    fn a_name_is_one_of_the_symbols_or_another_is_meant() {
        let why = |name: &str, subject| unknown(name, subject, &symbols()).unwrap_or_default();
        for name in ["vfs_read", "vfs_*"] {
            assert_eq!(why(name, Subject::Function), "");
        }
        assert_eq!(why("vfs_raed", Subject::Function), "no function vfs_raed; did you mean `vfs_read`?");
        assert_eq!(
            why("alias_of_read", Subject::Function),
            "no function alias_of_read; did you mean `vfs_read`?"
        );
        assert_eq!(why("zzzz*", Subject::Function), "no function zzzz*");
        assert_eq!(why("openat", Subject::Syscall), "");
        assert_eq!(why("opneat", Subject::Syscall), "no system call opneat; did you mean `openat`?");
        assert_eq!(
            why("__x64_sys_openat", Subject::Syscall),
            "no system call __x64_sys_openat; did you mean `openat`?"
        );
        assert_eq!(why("vfs_read", Subject::Syscall), "no system call vfs_read");
    }

    #[test]
    fn what_ran_on_a_side_is_known_without_symbols() {
        let ran = Flow {
            functions: vec![Function { name: "work".into(), ..Function::default() }],
            syscalls: vec![Syscall { name: "read".into(), insns: 1, wall: Spread::default() }],
            ..Flow::default()
        };
        let side = |flow: Flow| Side {
            summaries: vec![Summary { flow: Some(flow), ..Summary::default() }],
            profile: None,
        };
        let checked = |text: &str| {
            let rules = [Rule::parse(text).unwrap()];
            check(&rules, Some(&side(ran.clone())), &side(Flow::default()), &[PathBuf::from("saved.json")])
                .map_err(|error| error.to_string())
        };
        for text in ["calls[work] > 0", "self_insns[w?rk] > +0", "p99[read] > 5us", "insns > 5"] {
            checked(text).unwrap();
        }
        let error = checked("calls[wrok] > 0").unwrap_err();
        assert!(
            error.contains("calls[wrok]") && error.contains("a saved summary names only what ran"),
            "{error}"
        );
        assert!(checked("syscalls[raed] > 0").unwrap_err().contains("is not known"));
    }
}
