// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of runs, as `kprism report … --html` and `kprism diff --html` write them.
//!
//! In: a run and a view, or two runs. Out: the page's text, made from the run as it is now.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use kprism_export::{misses, probes, report_page};
use kprism_report::cover::page as cover_page;
use kprism_report::diff::{Diff, Scale, Within};
use kprism_report::environment::{Compared, unknown};
use kprism_report::header::Header;
use kprism_report::{boot, html};
use kprism_session::cover::sources::Texts;
use kprism_session::cover::{Options, Part, load_and_tell};
use kprism_session::{Progress, boot as boots, open_profile};
use kprism_store::{Instrument, Manifest, Run};

use crate::data::Sources;
use crate::route::View;

/// The views that a run has, in the order of the index.
pub fn views(run: &Run) -> Vec<View> {
    let held = run.instruments();
    let has = |view: &View| match view {
        View::Report => held.contains(&Instrument::Flow) || held.contains(&Instrument::Durations),
        View::Tlb => held.contains(&Instrument::Tlb),
        View::Probe => held.contains(&Instrument::Probe),
        View::Boot => held.contains(&Instrument::Boot),
        View::Cover => held.contains(&Instrument::Cover),
    };
    View::ALL.into_iter().map(|(view, _)| view).filter(has).collect()
}

/// The page of a view.
///
/// # Errors
/// The run does not hold it, or cannot be read.
pub fn page(run: &Run, view: View, sources: &Sources, progress: &Progress) -> Result<String> {
    match view {
        View::Report => {
            let (run, profile, manifest) = open_profile(run.dir(), progress)?;
            report_page(&run, &manifest, &profile, progress)
        }
        View::Tlb => Ok(misses::page(run, progress)?.0),
        View::Probe => Ok(probes::page(run, &[], progress)?.0),
        View::Boot => {
            let (manifest, boot) = (run.manifest()?, boots::load(run.dir())?);
            let account = boots::account_of_run(run.dir(), &boot)?;
            let guest = manifest.conditions(None);
            let release = manifest.kernel.map_or_else(String::new, |k| format!(" of {}", k.release));
            boot::render(&boot, &format!("Boot{release}"), &account, &guest).context("HTML page")
        }
        View::Cover => cover(run.dir(), sources, progress),
    }
}

fn cover(input: &Path, sources: &Sources, progress: &Progress) -> Result<String> {
    let (source_dir, build_dir) = (sources.folder.clone(), sources.build_dir.clone());
    let from = Options { shows_text: true, source_dir, build_dir, ..Options::default() };
    let loaded = load_and_tell(input, &from, &Part::default(), progress)?;
    let texts = Texts::new(sources.folder.as_deref(), &loaded.built);
    let title = input.display().to_string();
    let text = |source: &_| texts.text(source);
    let page =
        cover_page::render(&loaded.cover, loaded.runs.as_ref(), None, (&title, &loaded.account), &text);
    Ok(page.context("HTML page")?.html)
}

/// Two runs side by side.
///
/// # Errors
/// They cannot be compared, or one of them cannot be read.
pub fn diff(old: &Path, new: &Path, progress: &Progress) -> Result<String> {
    let names = [old.display().to_string(), new.display().to_string()];
    match [old, new].map(boots::is_boot) {
        [true, true] => {
            let paths = (old, new);
            let (old, new) = (boots::load(old)?, boots::load(new)?);
            let accounts = [boots::account_of_run(paths.0, &old)?, boots::account_of_run(paths.1, &new)?];
            let manifests = [Run::open(paths.0)?.manifest()?, Run::open(paths.1)?.manifest()?];
            return boot::render_two(
                (&old, &names[0]),
                (&new, &names[1]),
                [Some(&accounts[0]), Some(&accounts[1])],
                Some(&Compared::of_runs(manifests.each_ref())),
            )
            .context("HTML page");
        }
        [false, false] => {}
        _ => bail!("one of the runs is a boot, the other is none: nothing can be compared"),
    }
    let open = |path: &Path| -> Result<(kprism_profile::Profile, Manifest, bool)> {
        let run = Run::open(path)?;
        let held = run.instruments();
        let has_profile = held.contains(&Instrument::Flow) || held.contains(&Instrument::Durations);
        ensure!(has_profile, "{}: only flows, durations and boots are compared", path.display());
        let (_, profile, manifest) = open_profile(path, progress)?;
        // Durations count no instructions.
        Ok((profile, manifest, held.contains(&Instrument::Durations)))
    };
    let (old, new) = (open(old)?, open(new)?);
    let diff = Diff::new(&old.0, &new.0, Within::Everything, &Default::default());
    let diff = diff.context("neither run has anything to compare")?;
    let headers = [&old, &new].map(|(profile, manifest, _)| Header::new(manifest, profile));
    let [first, second] = &headers;
    let compared = Compared::of_runs([&old.1, &new.1]);
    let recorded = [old.1.recorded(), new.1.recorded()];
    let unknown = unknown(recorded.each_ref(), headers.each_ref().map(|header| header.account.as_ref()));
    let diff = diff.with_gaps(unknown, [old.2, new.2]);
    html::render_diff(&diff, Scale::Sums, [first, second], &names, "all", Some(&compared))
        .context("HTML comparison")
}
