// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record func` by BPF in a guest: kprism itself is given to the guest and records there; what it left is
//! brought back.

use std::io::Write;

use anyhow::{Context, Result};
use clap::ValueEnum as _;
use kprism_lab::{Ended, Share};
use kprism_store::Manifest;

use super::func::GUEST_RUN;
use super::func_args::Args;
use super::func_bpf;
use crate::cmd::lab::{self, PacketArgs, RunArgs};
use crate::exit::{self, Outcome};
use kprism_session::Progress;
use kprism_session::durations;

/// Where kprism is in the guest.
const GUEST_KPRISM: &str = "/.kprism/kprism";

/// Records.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_lab::interrupt::catch_signals();
    let program = std::env::current_exe().context("kprism's own file, for the guest")?;
    let prepared = lab::prepared(&args.guest_args, progress)?;
    let run_args = RunArgs::recording(
        &args.command,
        args.output.clone(),
        (&args.place, &args.guest_args),
        PacketArgs::default(),
    );
    let mut job = run_args.job();
    job.shares.push(Share { host: program, guest: GUEST_KPRISM.into() });
    job.argv = argv(args);
    job.collect = Some(GUEST_RUN.into());
    // The run's own manifest is the lab's: what the guest's says is added to it.
    job.after = vec![format!("cat {GUEST_RUN}/manifest.json")];
    let mut output = lab::Output::new(out, progress);
    let (run, ran) = lab::record(&run_args, &job, None, &prepared, &mut |p| output.pass(p))?;
    progress.clear();
    lab::complain(&ran, progress);
    if ran.ended == Ended::Interrupted {
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    let said = ran.after.first().and_then(|text| serde_json::from_str::<Manifest>(text).ok());
    let said = said.with_context(|| {
        format!("nothing was recorded in the guest; see above, and {}", run.stderr().display())
    })?;
    let mut manifest = run.manifest()?;
    manifest.clock = said.clock;
    manifest.exit_code = said.exit_code;
    manifest.stopped = manifest.stopped.or(said.stopped);
    manifest.options.extend(said.options);
    manifest.other.extend(said.other);
    run.write_manifest(&manifest)?;
    let measured = durations::measure(&run, progress)?;
    progress.clear();
    progress.say(&durations::calls(&measured));
    func_bpf::remarks(&manifest).iter().for_each(|line| progress.say(line));
    progress.say(&format!("recorded in {}", durations::see(&run)));
    Ok(Outcome::Done)
}

/// What was asked for, as kprism in the guest is asked. Options that this backend does not have were refused.
fn argv(args: &Args) -> Vec<String> {
    let mut argv: Vec<String> =
        [GUEST_KPRISM, "--quiet", "record", "func", "-o", GUEST_RUN].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: String| argv.extend([name.to_owned(), value]);
    if let Some(backend) = args.backend.to_possible_value() {
        option("--backend", backend.get_name().to_owned());
    }
    args.functions.iter().for_each(|glob| option("-T", glob.clone()));
    args.not_functions.iter().for_each(|glob| option("-N", glob.clone()));
    if let Some(time) = args.longer_than {
        option("--longer-than", format!("{}ns", time.as_nanos()));
    }
    if let Some(time) = args.duration {
        option("--duration", format!("{}ns", time.as_nanos()));
    }
    option("--buffer-size", format!("{}K", args.buffer_size));
    let flags = [(args.aggregate, "--aggregate"), (args.all, "--all"), (args.no_events, "--no-events")];
    argv.extend(flags.iter().filter(|(given, _)| *given).map(|(_, name)| (*name).to_owned()));
    argv.push("--".into());
    argv.extend(args.command.iter().cloned());
    argv
}
