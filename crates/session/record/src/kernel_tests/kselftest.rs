// SPDX-License-Identifier: MIT OR Apache-2.0
//! kselftest: programs of the kernel tree's `tools/testing/selftests`, built on this machine and run in the guest one after
//! the other, as the selftests' own runner does it (Linux, tools/testing/selftests/kselftest/runner.sh).

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use kprism_lab::{KernelSource, Outcome, Report, Share, kselftest};
use kprism_session::Progress;
use kprism_store::{KernelTests, Run};

use super::TASKS;
use crate::guest::{self, Settings, show};

/// Where the tests are in the guest.
const PLACE: &str = "/kselftest";

/// Runs the tests that its list names. Of each it leaves name, process id, output and exit code in a folder.
const SCRIPT: &str = r#"
out=/run/kselftest/tests
mkdir -p "$out" || exit 2
number=0
while IFS=: read -r collection test; do
	number=$((number + 1))
	cd "/kselftest/$collection" || exit 2
	limit=45
	if [ -f settings ]; then
		while IFS== read -r name value; do
			[ "$name" = timeout ] && limit=$value
		done <settings
	fi
	echo "$collection:$test" >"$out/$number.name"
	echo "$collection: $test"
	if [ "$limit" -gt 0 ]; then
		timeout -k 1 "$limit" sh -c 'echo $$ >"$0" && exec "./$1"' "$out/$number.pid" "$test" >"$out/$number.out" 2>&1 </dev/null
	else
		sh -c 'echo $$ >"$0" && exec "./$1"' "$out/$number.pid" "$test" >"$out/$number.out" 2>&1 </dev/null
	fi
	echo $? >"$out/$number.code"
done </kselftest/kprism-list
exit 0
"#;

/// Builds the tests, runs them and records them. Each of `tests` is a collection, as `timers`, or one of its tests, as
/// `timers:posix_timers`. The settings' command is replaced.
///
/// # Errors
/// The guest's kernel is not that of a tree, the tests cannot be built; else as of [`guest::run`].
pub fn run(
    settings: &Settings,
    tests: &[String],
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    let KernelSource::Tree(tree) = &settings.guest.kernel else {
        bail!("the selftests are built from a kernel tree: name it with --tree");
    };
    kprism_lab::require_options(tree, &[TASKS])?;
    let built = kselftest::build(tree, tests, &mut |p| show(progress, p))?;
    progress.clear();
    built.notes.iter().for_each(|note| progress.say(&format!("note: {note}")));
    let mut list = String::new();
    for (collection, test) in &built.tests {
        writeln!(list, "{collection}:{test}").ok();
    }
    let file = built.folder.join("kprism-list");
    std::fs::write(&file, list).with_context(|| file.display().to_string())?;
    let mut settings = settings.clone();
    settings.tests = Some(KernelTests::Kselftest);
    settings.job.argv = std::iter::once("kselftest".to_owned()).chain(tests.iter().cloned()).collect();
    let mut job = settings.job.clone();
    job.argv = ["/bin/sh", "-c", SCRIPT].map(str::to_owned).to_vec();
    job.shares.push(Share { host: built.folder, guest: PLACE.to_owned() });
    job.collect = Some("/run/kselftest".to_owned());
    guest::run_job(&settings, &job, progress, report)
}
