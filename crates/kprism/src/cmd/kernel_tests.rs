// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab kunit`, `kprism lab kselftest`: the kernel's own tests run in the guest, each of them measured.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use kprism_export::kernel_tests::show;
use kprism_lab::Ended;
use kprism_record::guest::{self, Settings};
use kprism_record::kernel_tests::{kselftest, kunit};
use kprism_session::{Progress, flow, kernel_tests};
use kprism_signals::Second;
use kprism_store::KernelTests;

use super::ended::{code, interrupted};
use super::guest_args::{GuestArgs, PlaceArgs};
use super::output::style;
use super::report::tests;
use crate::exit::{self, Outcome};

/// Help of `lab kunit` that follows the options.
pub const KUNIT: &str = "\
  kprism lab kunit --tree ~/linux                  every suite of that kernel
  kprism lab kunit --tree ~/linux 'list*' --json   suites by name or pattern
  kprism lab kunit --tree ~/linux --module drivers/foo/foo-test.ko
  kprism report tests --junit tests.xml            the same run again, for CI

The kernel needs CONFIG_KUNIT and CONFIG_KUNIT_DEBUGFS, and Linux 6.8 or later. Suites run
once in the boot, and again for this recording. See docs/kernel-tests.md.

Exit codes: 0 if no test failed, 1 if one did or a suite could not be run; 124 after
--timeout or --max-size, 125 if kprism or the guest failed, 130 after Ctrl-C.";

/// Help of `lab kselftest` that follows the options.
pub const KSELFTEST: &str = "\
  kprism lab kselftest --tree ~/linux timers                 a collection
  kprism lab kselftest --tree ~/linux timers:posix_timers futex
  kprism report tests --junit tests.xml                      the same run again, for CI

The tests are built outside of the tree, with this machine's compiler. A test may take as
long as its collection's `settings` say, else 45 s of the guest's time. See
docs/kernel-tests.md.

Exit codes: 0 if no test failed, 1 if one did; 124 after --timeout or --max-size,
125 if kprism or the guest failed, 130 after Ctrl-C.";

/// Options of both.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tests to run
    #[arg(value_name = "TEST")]
    tests: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    show: tests::TestsArgs,
}

/// Runs, records, decodes, reports.
pub fn run(
    kind: KernelTests,
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    kprism_signals::catch(Second::EndsProcess)?;
    record_and_report(kind, args, color, progress, out).or_else(interrupted)
}

fn record_and_report(
    kind: KernelTests,
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    ensure!(
        args.place.warm == 0,
        "--warm runs one command before it is recorded, and this is a list of tests: leave it out, or record one with `kprism lab run`"
    );
    let settings = Settings::new(args.output.clone(), args.guest.options(), args.place.job(&[]));
    let mut report = |p: kprism_lab::Progress<'_>| match p {
        kprism_lab::Progress::Stderr(bytes) => {
            progress.clear();
            // If nobody reads our standard error, there is nowhere to say so.
            let _ = std::io::stderr().write_all(bytes);
        }
        kprism_lab::Progress::Stdout(bytes) if kind == KernelTests::Kselftest => {
            progress.detail(String::from_utf8_lossy(bytes).trim_end());
        }
        p => guest::show(progress, p),
    };
    let (run, ran) = match kind {
        KernelTests::Kunit => kunit::run(&settings, &args.tests, progress, &mut report)?,
        KernelTests::Kselftest => kselftest::run(&settings, &args.tests, progress, &mut report)?,
    };
    if ran.ended == Ended::Interrupted {
        progress.say(&format!("what was recorded is in {}", run.dir().display()));
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    flow::decode(&run, progress)?;
    let loaded = kernel_tests::load(run.dir(), &args.show.debug.files(), progress)?;
    let shown = args.show.output.shown(0, style(color, progress));
    show(&loaded, (&shown, args.show.junit.as_deref()), progress, out)?;
    Ok(match (&ran.ended, ran.exit_code) {
        (Ended::Normal, Some(code @ (0 | kunit::NOT_RUN))) => {
            Outcome::of_rows(loaded.0.failed() || loaded.0.tests.is_empty() || code != 0)
        }
        _ => Outcome::Code(code(&ran)),
    })
}
