// SPDX-License-Identifier: MIT OR Apache-2.0
//! Annotated functions for the report's page: source lines and instructions, with counts.
//!
//! In: a run with a flow, its profile, the functions that are asked for. Out: their annotations as JSON, those of the hottest
//! functions first. The flow is replayed once for all of them.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use kprism_image::symbols::FunctionId;
use kprism_profile::Profile;
use kprism_script::Syntax;
use kprism_script::annotate::{Places, hottest, with_sources};
use kprism_session::annotate::{by_function, count};
use kprism_session::functions::{choose, exactly};
use kprism_session::{Progress, flow};
use kprism_store::Run;
use serde_json::{Value, json};

/// Maximum of annotated functions in a page.
pub const MAX_FUNCTIONS: usize = 500;

/// The functions whose annotations are wanted.
#[derive(Debug, Clone, Default)]
pub struct Wanted<'a> {
    /// So many that executed the most instructions themselves.
    pub hottest: usize,
    /// Functions as `kprism annotate` takes them.
    pub named: &'a [String],
}

impl Wanted<'_> {
    /// Returns true if no function is asked for.
    pub fn is_empty(&self) -> bool {
        self.hottest == 0 && self.named.is_empty()
    }
}

/// Annotates them. Functions that did not run are noted to `progress`.
///
/// # Errors
/// There is no such function, there are too many, the run has no flow, or `stop` became true.
pub fn annotated(
    run: &Run,
    profile: &Profile,
    wanted: &Wanted<'_>,
    places: &Places<'_>,
    stop: &dyn Fn() -> bool,
    progress: &Progress,
) -> Result<Vec<Value>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let loaded = flow::load(run, progress)?;
    let symbols = &loaded.symbols;
    let mut chosen = vec![false; symbols.len()];
    let add = |chosen: &mut Vec<bool>, more: &[bool]| {
        chosen.iter_mut().zip(more).for_each(|(own, more)| *own |= more);
    };
    for spec in wanted.named {
        add(&mut chosen, &choose(spec, symbols)?);
    }
    for (name, module) in hottest(profile, wanted.hottest) {
        add(&mut chosen, &exactly(&name, &module, None, symbols));
    }
    progress.step("counting");
    let (counts, _) = count(&loaded, &chosen, &|_, _| true, None, stop, progress);
    if stop() {
        bail!("interrupted: nothing was written");
    }
    let ran = by_function(&counts);
    for spec in wanted.named {
        let own = choose(spec, symbols)?;
        if !ran.keys().any(|&func| own[func as usize]) {
            progress.note(&format!("{spec} did not run: nothing of it is in the page"));
        }
    }
    ensure!(
        ran.len() <= MAX_FUNCTIONS,
        "{} functions: a page holds {MAX_FUNCTIONS}; `kprism view` shows each when it is asked for",
        ran.len()
    );
    let mut order: Vec<(u32, u64)> = ran.into_iter().collect();
    order.sort_by_key(|&(func, insns)| (std::cmp::Reverse(insns), func));
    let (mut all, mut missing) = (Vec::new(), BTreeSet::new());
    for (func, _) in order {
        progress.step("reading source lines");
        let function = symbols.function(FunctionId(func));
        let mut value = with_sources(run, &loaded, func, &counts, places, Syntax::default());
        value["asked"] = json!({"name": function.name, "module": function.module});
        missing.extend(value["missing"].as_str().map(str::to_owned));
        all.push(value);
    }
    missing.iter().for_each(|text| progress.note(text));
    Ok(all)
}
