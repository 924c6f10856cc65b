// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data of a run that a page asks for: a function's source, lines of the flow, a whole tree.
//!
//! In: a run and what is asked for. Out: JSON, bounded in size. A function's counts and lines take a replay of the flow.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use kprism_report::html::{Scope, tree_json};
use kprism_report::plain::plain;
use kprism_script::annotate::{Places, several_json, with_sources};
use kprism_script::flow::Options;
use kprism_script::list::{Source, Subject};
use kprism_script::{Fields, Output, Select, Syntax};
use kprism_session::annotate::{by_function, count};
use kprism_session::cover::DebugFiles;
use kprism_session::functions::exactly;
use kprism_session::progress::Update;
use kprism_session::{Progress, flow, open_profile};
use kprism_signals::end_requested;
use kprism_store::{Instrument, Run};
use serde_json::{Value, json};

use crate::route::{Asked, Tree};

/// Maximum of lines of the flow in an answer.
pub const MAX_LINES: u64 = 2000;
/// Maximum of their bytes.
const MAX_BYTES: usize = 4 << 20;
/// Maximum of calling contexts in a tree.
const MAX_CONTEXTS: usize = 300_000;

/// Places of debug information and sources, named on the command line.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Files with debug information.
    pub debug: DebugFiles,
    /// Folder of the sources.
    pub folder: Option<PathBuf>,
    /// Folder with the notes (.gcno) of the build, for coverage by counters.
    pub build_dir: Option<PathBuf>,
}

/// The answer as JSON; `None` if the run has nothing of that name.
///
/// # Errors
/// The run does not hold it, or cannot be read.
pub fn answer(run: &Run, asked: &Asked, sources: &Sources) -> Result<Option<String>> {
    match asked {
        Asked::Source { name, module, start } => source(run, (name, module, *start), sources),
        Asked::Lines { calls, cpu, task, from, to } => {
            let select = Select {
                cpus: cpu.iter().copied().collect(),
                pids: task.iter().copied().collect(),
                from: *from,
                to: Some(*to),
                ..Select::default()
            };
            lines(run, *calls, select).map(Some)
        }
        Asked::Tree(tree) => {
            let (_, profile, _) = open_profile(run.dir(), &Progress::silent())?;
            let scope = match tree {
                Tree::All => Scope::All,
                Tree::Task(number) => Scope::Task(*number),
                Tree::Syscall(name) => Scope::Syscall(name),
            };
            Ok(tree_json(&profile, scope, MAX_CONTEXTS)?)
        }
    }
}

/// Collects remarks, such as what could not be decoded.
fn remarks() -> (Progress, Arc<Mutex<Vec<String>>>) {
    let remarks: Arc<Mutex<Vec<String>>> = Arc::default();
    let to = Arc::clone(&remarks);
    let progress = Progress::new(false, move |update| {
        if let Update::Note(text) = update {
            to.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        }
    });
    (progress, remarks)
}

fn shown(remarks: &Mutex<Vec<String>>) -> Value {
    remarks.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|text| plain(text)).collect()
}

fn source(
    run: &Run,
    (name, module, start): (&str, &str, Option<u64>),
    sources: &Sources,
) -> Result<Option<String>> {
    let (progress, remarks) = remarks();
    let loaded = flow::load(run, &progress)?;
    let chosen = exactly(name, module, start, &loaded.symbols);
    if !chosen.contains(&true) {
        return Ok(None);
    }
    let (counts, _) = count(&loaded, &chosen, &|_, _| true, None, &end_requested, &progress);
    let ran = by_function(&counts);
    let mut value = match (ran.len(), ran.keys().next()) {
        (1, Some(&func)) => {
            let places = Places { debug: sources.debug.clone(), source_dir: sources.folder.as_deref() };
            with_sources(run, &loaded, func, &counts, &places, Syntax::default())
        }
        (0, _) => return Ok(None),
        _ => several_json(&loaded.symbols, &ran, "instructions"),
    };
    value["remarks"] = shown(&remarks);
    Ok(Some(value.to_string()))
}

/// Takes bytes up to a bound, and then refuses.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_BYTES.saturating_sub(self.0.len());
        if room == 0 {
            return Err(io::Error::other("too many bytes"));
        }
        let taken = bytes.len().min(room);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines(run: &Run, calls: bool, select: Select) -> Result<String> {
    let subject = match calls || run.holds(Instrument::Durations) {
        true => Subject::Calls,
        false => Subject::Insns,
    };
    let (progress, remarks) = remarks();
    let source = Source::open(run, subject, &progress)?;
    let options = Options { select, fields: Fields::default(), json: false, syntax: Syntax::default() };
    let mut bytes = Bounded(Vec::new());
    // One more, to know whether there are more.
    let output = Output::new(&mut bytes, Some(MAX_LINES + 1), &end_requested);
    let listed = source.list(subject, options, usize::MAX, &progress, output);
    let full = bytes.0.len() >= MAX_BYTES;
    if let Err(error) = listed
        && !full
    {
        return Err(error);
    }
    let text = String::from_utf8_lossy(&bytes.0).into_owned();
    let mut all: Vec<&str> = text.lines().collect();
    let cut = full || all.len() as u64 > MAX_LINES;
    if cut {
        all.truncate(all.len().saturating_sub(1).min(MAX_LINES as usize));
    }
    let lines: Vec<_> = all.into_iter().map(plain).collect();
    Ok(json!({"lines": lines, "cut": cut, "remarks": shown(&remarks)}).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded() {
        let mut to = Bounded(Vec::new());
        assert!(to.write_all(&vec![0; MAX_BYTES]).is_ok());
        assert!(to.write_all(&[0]).is_err());
        assert_eq!(to.0.len(), MAX_BYTES);
    }
}
