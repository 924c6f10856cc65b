// SPDX-License-Identifier: MIT OR Apache-2.0
//! KUnit: suites that are in the kernel, or in modules loaded at boot, are run again in the guest, one after the other.
//!
//! They ran once in the boot, unrecorded; the results of that are kept too, because not every test stands being repeated. `/sys/kernel/debug/kunit/SUITE/run` runs one again (Linux 6.8 and later), and
//! `results` holds its KTAP.

use anyhow::Result;
use kprism_lab::{KernelSource, Outcome, Report};
use kprism_session::Progress;
use kprism_store::{KernelTests, Run};

use super::TASKS;
use crate::guest::{self, Settings};

/// The kernel's options that this needs.
const NEEDED: [(&str, &str); 4] = [
    TASKS,
    ("CONFIG_KUNIT", "the tests' framework"),
    ("CONFIG_DEBUG_FS", "to run suites and to read their results"),
    ("CONFIG_KUNIT_DEBUGFS", "to run suites and to read their results"),
];

/// Exit code of the guest's script if a suite could not be run.
pub const NOT_RUN: u8 = 2;

/// Mounts debugfs, unless something has.
const MOUNT: &str = "[ -d /sys/kernel/debug/tracing ] || [ -d /sys/kernel/debug/kunit ] || \
     mount -t debugfs debugfs /sys/kernel/debug";

/// Keeps the results of the boot, to be compared with.
const BOOT: &str = "mkdir -p /run/kunit/tests && cat /sys/kernel/debug/kunit/*/results \
     >/run/kunit/tests/boot.ktap 2>/dev/null || true";

/// Runs the suites that its arguments name, patterns among them, and prints their results.
const SCRIPT: &str = r#"
cd /sys/kernel/debug/kunit 2>/dev/null || {
	echo "kprism: no /sys/kernel/debug/kunit: the kernel needs CONFIG_KUNIT and CONFIG_KUNIT_DEBUGFS; a module's suites need --module" >&2
	exit 2
}
IFS=
code=0
for pattern in "$@"; do
	for suite in $pattern; do
		if [ ! -e "$suite" ]; then
			echo "kprism: no suite $suite; those in this kernel:" * >&2
			code=2
		elif [ ! -e "$suite/run" ]; then
			echo "kprism: suite $suite cannot be run again: it runs in the boot only, or the kernel is older than 6.8" >&2
			# A pattern need not fit such suites.
			[ "$suite" != "$pattern" ] || code=2
		elif ! echo 1 >"$suite/run" || ! cat "$suite/results"; then
			echo "kprism: suite $suite could not be run" >&2
			code=2
		fi
	done
done
exit $code
"#;

/// Runs the suites and records them. `suites` are names or patterns of the guest's shell; all suites if there are none.
/// The settings' command is replaced.
///
/// # Errors
/// The tree's kernel has no KUnit; else as of [`guest::run`].
pub fn run(
    settings: &Settings,
    suites: &[String],
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    if let KernelSource::Tree(tree) = &settings.guest.kernel {
        kprism_lab::require_options(tree, &NEEDED)?;
    }
    let mut settings = settings.clone();
    settings.tests = Some(KernelTests::Kunit);
    let suites = if suites.is_empty() { &["*".to_owned()][..] } else { suites };
    settings.job.argv = std::iter::once("kunit".to_owned()).chain(suites.iter().cloned()).collect();
    let mut job = settings.job.clone();
    job.before.splice(0..0, [MOUNT, BOOT].map(str::to_owned));
    job.collect = Some("/run/kunit".to_owned());
    job.argv.splice(0..0, ["/bin/sh", "-c", SCRIPT].map(str::to_owned));
    guest::run_job(&settings, &job, progress, report)
}
