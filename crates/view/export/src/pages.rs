// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a run whatever its instrument is: which page belongs to it, and the page itself.
//!
//! Input: a run. Output: one HTML file. The page of a flow or of durations is `report_page`; this module leads to the others.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_report::boot;
use kprism_report::cover::page;
use kprism_session::cover::sources::{Remarks, Texts};
use kprism_session::cover::{Loaded, Options, Part, load_and_tell};
use kprism_session::{Progress, held};
use kprism_store::{Instrument, Run};

use crate::{misses, probes};

/// The instrument to whose page a run leads; none if that is the page of a flow or of durations. Recordings of TLB misses, of
/// probes and of boots may have a flow or durations beside what was asked for.
pub fn other(run: &Run) -> Option<Instrument> {
    let first = [Instrument::Tlb, Instrument::Probe, Instrument::Boot];
    let has_profile = run.holds(Instrument::Flow) || run.holds(Instrument::Durations);
    let last = Some(Instrument::Cover).filter(|_| !has_profile);
    first.into_iter().chain(last).find(|&instrument| run.holds(instrument))
}

/// The page of an instrument, of the whole run.
///
/// # Errors
/// The run does not hold it, or cannot be read. A flow and durations have no page here.
pub fn of(path: &Path, instrument: Instrument, progress: &Progress) -> Result<String> {
    let run = Run::open(path)?;
    if !run.holds(instrument) {
        return Err(held::missing(&run, instrument));
    }
    match instrument {
        Instrument::Tlb => Ok(misses::page(&run, progress)?.0),
        Instrument::Probe => Ok(probes::page(&run, &[], progress)?.0),
        Instrument::Boot => {
            let boot = kprism_session::boot::load(path)?;
            let account = kprism_session::boot::account_of_run(path, &boot)?;
            progress.shown(&account);
            let manifest = run.manifest()?;
            let guest = manifest.conditions(None);
            let release = manifest.kernel.map_or_else(String::new, |k| format!(" of {}", k.release));
            boot::render(&boot, &format!("Boot{release}"), &account, &guest).context("HTML page")
        }
        Instrument::Cover => of_coverage(path, progress),
        Instrument::Flow | Instrument::Durations => bail!("{}: a flow has another page", path.display()),
    }
}

fn of_coverage(path: &Path, progress: &Progress) -> Result<String> {
    let options = Options { shows_text: true, ..Options::default() };
    let Loaded { cover, runs, built, account, .. } =
        load_and_tell(path, &options, &Part::default(), progress)?;
    progress.shown(&account);
    progress.step("writing the page");
    let texts = Texts::new(None, &built);
    let title = path.display().to_string();
    let page = page::render(&cover, runs.as_ref(), None, (&title, &account), &|source| texts.text(source))?;
    progress.clear();
    let Remarks { changed, short } = texts.into_remarks();
    changed.iter().chain(&short).take(5).for_each(|text| progress.note(text));
    if page.without_source > 0 {
        progress.note(&format!(
            "{} of {} source files could not be read; `kprism report cover --html FILE --source-dir DIR` names their folder",
            page.without_source, page.files
        ));
    }
    Ok(page.html)
}
