// SPDX-License-Identifier: MIT OR Apache-2.0
//! By BPF in a guest: the program `kprism` is given to the guest and records there; its run is brought back.

use anyhow::{Result, bail};
use kprism_lab::{Ended, Report, Share};
use kprism_session::{Progress, durations};
use kprism_store::OptionKey;
use kprism_tracefs::Scope;

use super::{Backend, GUEST_RUN, Recorded, RecordingEnd, Settings, bpf};
use crate::guest::{self, Guest};

/// Path of kprism in the guest.
const GUEST_KPRISM: &str = "/.kprism/kprism";

pub(super) fn record(
    settings: &Settings,
    guest: &Guest,
    progress: &Progress,
    report: Report<'_>,
) -> Result<Recorded> {
    let prepared = guest::prepare(&guest.options, progress)?;
    let mut job = guest.job.clone();
    job.shares.push(Share { host: guest.program.clone(), guest: GUEST_KPRISM.into() });
    job.argv = argv(settings);
    job.collect = Some(GUEST_RUN.into());
    let (run, ran) = guest::record(&guest.settings(settings.output.clone()), &job, &prepared, report)?;
    progress.clear();
    guest::complain(&ran, progress);
    if ran.ended == Ended::Interrupted {
        return Ok(Recorded { run, measured: None, end: RecordingEnd::Interrupted });
    }
    let manifest = run.own_manifest()?;
    // The recorder in the guest says first of all what it records.
    if manifest.option(OptionKey::Record).is_none() {
        bail!("nothing was recorded in the guest; see above, and {}", run.stderr().display());
    }
    let measured = durations::measure(&run, progress)?;
    progress.clear();
    progress.say(&durations::calls(&measured));
    bpf::remarks(&manifest).iter().for_each(|line| progress.say(line));
    progress.say(&format!("recorded in {}", durations::see(&run)));
    Ok(Recorded { run, measured: Some(measured), end: RecordingEnd::Done })
}

/// The command line of kprism in the guest. Settings that this backend does not have were refused.
fn argv(settings: &Settings) -> Vec<String> {
    let trace = &settings.trace;
    let mut argv: Vec<String> =
        [GUEST_KPRISM, "--quiet", "record", "durations", "-o", GUEST_RUN].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: String| argv.extend([name.to_owned(), value]);
    let backend = match settings.backend {
        Backend::Auto => "auto",
        Backend::Ftrace => "ftrace",
        Backend::BpfFentry => "bpf-fentry",
        Backend::BpfKprobe => "bpf-kprobe",
    };
    option("--backend", backend.to_owned());
    trace.functions.iter().for_each(|glob| option("-T", glob.clone()));
    trace.not_functions.iter().for_each(|glob| option("-N", glob.clone()));
    if let Some(condition) = &settings.condition {
        option("--if", condition.clone());
    }
    if let Some(time) = trace.longer_than {
        option("--longer-than", format!("{}ns", time.as_nanos()));
    }
    if let Some(time) = trace.duration {
        option("--duration", format!("{}ns", time.as_nanos()));
    }
    option("--buffer-size", format!("{}K", trace.buffer_kib));
    let flags = [
        (settings.aggregate, "--aggregate"),
        (trace.scope == Scope::All, "--all"),
        (!trace.events, "--no-events"),
    ];
    argv.extend(flags.iter().filter(|(given, _)| *given).map(|(_, name)| (*name).to_owned()));
    argv.push("--".into());
    argv.extend(settings.command.iter().cloned());
    argv
}
