// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism annotate` of TLB misses: the lines of [`kprism_script::misses`].

use std::io::Write;

use anyhow::Result;
use kprism_debuginfo::source::Source;
use kprism_image::symbols::FunctionId;
use kprism_report::Style;
use kprism_script::misses::Annotation;
use kprism_session::Progress;
use kprism_session::functions::choose;
use kprism_session::tlb::{Loaded, by_function, bytes_at};
use kprism_store::Run;

use super::annotate::{Args, several};
use super::output::print_json;
use crate::exit::Outcome;

/// Shows the instructions of a function that missed, each with its misses, and its source.
pub fn annotate(
    args: &Args,
    run: &Run,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    progress.step("reading the misses");
    let mut loaded = Loaded::open(run)?;
    let profile = loaded.profile()?;
    progress.found(&loaded.account(&profile));
    let symbols = loaded.symbols()?;
    progress.clear();
    for note in &loaded.notes {
        progress.note(note);
    }
    if let Some(condition) = loaded.condition() {
        progress.note(&format!("only misses for which `{condition}` were recorded"));
    }
    let chosen = choose(&args.func, &symbols)?;
    let mut missed = by_function(&profile, &symbols, &chosen);
    let (func, sites) = match missed.len() {
        0 => {
            progress.say(&format!("no instruction of {} missed", args.func));
            return Ok(Outcome::NothingMatched);
        }
        1 => missed.pop_first().unwrap_or_default(),
        _ => {
            let sums = missed.iter().map(|(&func, sites)| (func, sites.values().sum())).collect();
            return several(args, &symbols, &sums, "misses", out);
        }
    };
    let function = symbols.function(FunctionId(func));
    let file = run.root().join(function.module.trim_start_matches('/'));
    let mut source = match function.kernel {
        true => None,
        false => Source::of_file(&file, &args.cover.debug.files().folders(run)).unwrap_or_else(|reason| {
            progress.note(&format!("no source lines: {reason}"));
            None
        }),
    };
    let code = if function.kernel { None } else { std::fs::read(&file).ok() };
    let bytes = |address| code.as_deref().and_then(|file| bytes_at(file, address)).unwrap_or_default();
    let of = loaded.source()?;
    let annotation = Annotation::new(function, &sites, &bytes, source.as_ref(), args.syntax);
    if args.json {
        print_json(&annotation.to_json(profile.all()[0], &of), out)?;
    } else {
        write!(out, "{}", annotation.to_text(profile.all()[0], &of, source.as_mut(), style))?;
    }
    Ok(Outcome::Done)
}
