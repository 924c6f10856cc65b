#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Everything that can be tested: what check.sh checks, then all tests (unit, CLI transcripts, other decoders, the guest lab). Lists
# what was skipped and why, prints one closing line with the totals, and fails if anything failed. Called by `make test`.
#
#   SINCE=REVISION      only tests of packages that depend on what changed since then, and those that walk over everything
#                       (scripts/changed.py); `main`: since the branch left it. `make test-changed`
#   KPRISM_TEST_WHOLE=1 all parts of the long tests, of which a whole run takes another part each day. `make test-whole`; so do SINCE and
#                       KPRISM_TEST_ONLY: who names tests wants them
#   KPRISM_TEST_DAY=N   the parts of that day, which the skipped parts of a run name (days since 1970)
#   KPRISM_TEST_ONLY=PATTERNS   only programs of tests like `kprism::cli`, `kprism-pt::*`, separated by commas, and not check.sh
#
# A whole run writes ~/.cache/kprism/last-test. See tests.py for a test that fails and then passes.
set -u

. "$(dirname "$0")/suite.sh"
# The tests use more kinds of guests than the cache keeps, and each would be booted again.
: "${KPRISM_CACHE_KEEP:=100}" "${SINCE:=}" "${KPRISM_TEST_ONLY:=}"
export KPRISM_CACHE_KEEP
# One day for the whole run. Past midnight a test that failed would be tried again with another part, or be ignored.
: "${KPRISM_TEST_DAY:=$(($(date +%s) / 86400))}"
[ -z "$SINCE$KPRISM_TEST_ONLY" ] || : "${KPRISM_TEST_WHOLE:=1}"
case ${KPRISM_TEST_WHOLE:=} in
1) ;;
'') skip "parts of long tests" "this run has day $KPRISM_TEST_DAY's (KPRISM_TEST_DAY=$KPRISM_TEST_DAY), each day has others; make test-whole has all" ;;
*) echo "test.sh: KPRISM_TEST_WHOLE=$KPRISM_TEST_WHOLE: expected 1, or nothing" >&2 && exit 2 ;;
esac
export KPRISM_TEST_DAY KPRISM_TEST_WHOLE

[ -n "$KPRISM_TEST_ONLY" ] || . "$(dirname "$0")/check.sh"
# The lab's tests start the programs that this builds: the plugin, the agent, the command line, with the features that users have. For
# the tests cargo gives serde_core a feature more, which compiles nearly all crates once more.
check "build" $CARGO build --profile checked --workspace
if sh scripts/recorder-arm64.sh --can; then
	check "the recorder for 64-bit ARM" sh scripts/recorder-arm64.sh checked
else
	skip "the recorder for 64-bit ARM" "Rust's standard library for it is not there: rustup target add aarch64-unknown-linux-musl"
fi
if sh scripts/duckdb.sh --have; then
	check "kprism-sql" sh scripts/duckdb.sh build checked
else
	skip "kprism-sql" "DuckDB's library is not there: sh scripts/duckdb.sh fetches it"
fi
check "Intel's decoder" make -sC tests/oracle OUT="$PWD/target"
KPRISM_PTORACLE=$PWD/target/ptoracle
export KPRISM_PTORACLE
if [ -z "$KPRISM_TEST_ONLY" ]; then
	# A kernel with gcov, smaller than users': built once, some minutes of two CPUs.
	printf '\n== a kernel with gcov\n'
	if variables=$(KPRISM=${CARGO_TARGET_DIR:-target}/checked/kprism sh scripts/gcov-small.sh "$PWD/target/gcov-small" </dev/null); then
		eval "$variables"
	else
		echo "== could not be had: the tests that need it will be skipped"
	fi
	# For the guest's kernel, which a fresh machine does not have yet. Built once, 160 seconds of CPU.
	printf '\n== kernel modules of LTTng\n'
	{ "${CARGO_TARGET_DIR:-target}/checked/kprism" lab prepare && sh scripts/lttng-modules.sh; } </dev/null || echo "== could not be had: the tests that need them will be skipped"
	if python3 tests/axes/axes.py --can; then
		# Cases chosen by the day: what the world varies, as far as half a minute of each instrument goes (the whole: make test-axes).
		check "axes, a sample" env KPRISM="$PWD/${CARGO_TARGET_DIR:-target}/checked/kprism" python3 tests/axes/axes.py --sample 30
	else
		skip "axes, a sample" "it takes allpairspy and perf, which scripts/setup.sh test fetches"
	fi
	check "papers, a sample" env KPRISM="${CARGO_TARGET_DIR:-target}/checked/kprism" python3 tests/papers/run.py --sample
fi
suite "tests" python3 scripts/tests.py "$CARGO" checked --since "$SINCE" --only "$KPRISM_TEST_ONLY"

if [ -z "$SINCE$KPRISM_TEST_ONLY" ]; then closing "$cache/last-test"; else closing; fi
