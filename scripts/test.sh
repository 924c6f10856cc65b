#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Everything that can be tested: format, lints, documentation, then all tests (unit, CLI transcripts,
# other decoders, the guest lab). Lists what was skipped and why, prints one closing line with the totals, and fails if
# anything failed. Called by `make test`.
set -u

: "${CARGO:=cargo}"
log=$(mktemp) || exit 1
reasons=$(mktemp) || exit 1
failures=$(mktemp) || exit 1
slow=$(mktemp) || exit 1
trap 'rm -f "$log" "$reasons" "$failures" "$slow"' EXIT
passed=0
failed=0
skipped=0
# The tests use more kinds of guests than the cache keeps, and each would be booted again.
: "${KPRISM_CACHE_KEEP:=60}"
export KPRISM_CACHE_KEEP

# took NAME BEGIN: keeps how long a part took, for the table at the end.
took() {
	printf '%6d s  %s\n' "$(($(date +%s) - $2))" "$1" >>"$slow"
}

# check NAME COMMAND...: one check that passes or fails as a whole.
check() {
	name=$1
	shift
	printf '\n== %s\n' "$name"
	started=$(date +%s)
	{
		"$@" 2>&1 </dev/null
		echo "check exit $?"
	} | tee "$log" | grep -v '^check exit '
	took "$name" "$started"
	if [ "$(tail -n 1 "$log")" = "check exit 0" ]; then
		passed=$((passed + 1))
	else
		printf '== FAILED: %s\n' "$name"
		failed=$((failed + 1))
		{
			printf '%s\n' "$name"
			tail -n 40 "$log" | cut -c 1-2000
		} >>"$failures"
	fi
}

# skip NAME REASON: a check that cannot be made here.
skip() {
	skipped=$((skipped + 1))
	printf '%s: %s\n' "$1" "$2" >>"$reasons"
}

# suite NAME COMMAND...: a cargo test run, whose tests are counted one by one.
suite() {
	name=$1
	shift
	printf '\n== %s\n' "$name"
	started=$(date +%s)
	# A pipe would hide cargo's exit code, and POSIX sh has no pipefail: it goes through the file.
	{
		"$@" 2>&1 </dev/null
		echo "suite exit $?"
	} | tee "$log"
	took "$name, and their compilation" "$started"
	# Of each program of tests, by cargo's and the runners' lines.
	awk '/^ +Running / { name = $0; sub(/ \(.*/, "", name); sub(/^ +Running (unittests )?/, "", name)
			of = $NF; sub(/.*\//, "", of); sub(/-[0-9a-f]*\)$/, "", of) }
		/^test result:.* finished in / { took = $0; sub(/.* finished in /, "", took); sub(/s$/, "", took)
			if (took >= 10) printf "%6d s  %s (%s)\n", took, of, name }' "$log" >>"$slow"
	counts=$(awk '/^test result:/ { p += $4; f += $6; s += $8 } END { print p + 0, f + 0, s + 0 }' "$log")
	read -r p f s <<-END
		$counts
	END
	passed=$((passed + p))
	failed=$((failed + f))
	skipped=$((skipped + s))
	# The built-in runner writes `ignored, why`, that of crates/testing/test `ignored (why)`.
	sed -n -e 's/^test \(.*[^ ]\) *\.\.\. ignored (\(.*\))$/\1: \2/p' \
		-e 's/^test \(.*[^ ]\) *\.\.\. ignored, \(.*\)$/\1: \2/p' "$log" >>"$reasons"
	# What failed is said again at the end: where only the end of a log is kept, it is the part that is needed.
	if [ "$f" -gt 0 ]; then
		{
			sed -n 's/^test \(.*[^ ]\) *\.\.\. FAILED.*/\1/p' "$log"
			grep -a -A 12 'panicked at' "$log" | cut -c 1-2000 | head -n 200
			grep -a '^error: the tests of' "$log"
		} >>"$failures"
	fi
	# Failed without a failing test: it did not compile, or a test process died.
	if [ "$(tail -n 1 "$log")" != "suite exit 0" ] && [ "$f" -eq 0 ]; then
		printf '== FAILED: %s\n' "$name"
		failed=$((failed + 1))
		{
			printf '%s\n' "$name"
			# What a program printed before it died stands above our line; what the compiler says stands below its own.
			if grep -a -q '^error: the tests of' "$log"; then
				grep -a -B 10 '^error: the tests of' "$log"
			else
				grep -a -B 5 -A 20 '^error' "$log"
			fi | cut -c 1-2000 | head -n 100
		} >>"$failures"
	fi
}

if $CARGO fmt --version >/dev/null 2>&1; then
	check "format" $CARGO fmt --all --check
else
	skip "format" "this Rust toolchain has no rustfmt: rustup component add rustfmt"
fi
if $CARGO clippy --version >/dev/null 2>&1; then
	# With `linked`, DuckDB's binding is checked, and nothing is linked.
	check "lints" $CARGO clippy --workspace --all-targets --features kprism-sql/linked -- -D warnings
else
	skip "lints" "this Rust toolchain has no clippy: rustup component add clippy"
fi
# Fuzzing wants another compiler, so the targets are a workspace of their own: here they are only type-checked.
check "fuzz targets" $CARGO check --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}/fuzz"
check "documentation" env RUSTDOCFLAGS="-D warnings" $CARGO doc --workspace --no-deps --quiet
check "links of the documentation" python3 tests/docs/links.py
# The lab's tests start the programs that this builds: the plugin, the agent, the command line.
check "build" $CARGO build --profile checked --workspace
if sh scripts/recorder-arm64.sh --can; then
	check "the recorder for 64-bit ARM" sh scripts/recorder-arm64.sh checked
else
	skip "the recorder for 64-bit ARM" "Rust's standard library for it is not there: rustup target add aarch64-unknown-linux-musl"
fi
# DuckDB is compiled once for all checkouts, an hour of CPU: too long for a test's first run.
if sh scripts/duckdb.sh --if-there >/dev/null 2>&1; then
	check "kprism-sql" sh scripts/duckdb.sh build --profile checked
else
	skip "kprism-sql" "DuckDB is not compiled yet: make sql (once, an hour of CPU)"
fi
check "Intel's decoder" make -sC tests/oracle OUT="$PWD/target"
KPRISM_PTORACLE=$PWD/target/ptoracle
export KPRISM_PTORACLE
# A kernel with gcov, smaller than users': built once, some minutes of two CPUs.
printf '\n== a kernel with gcov\n'
if variables=$(KPRISM=${CARGO_TARGET_DIR:-target}/checked/kprism sh scripts/gcov-small.sh "$PWD/target/gcov-small" </dev/null); then
	eval "$variables"
else
	echo "== could not be had: the tests that need it will be skipped"
fi
suite "tests" python3 scripts/tests.py "$CARGO" checked

if [ "$skipped" -gt 0 ]; then
	printf '\nskipped:\n'
	sed 's/^/  /' "$reasons"
fi
printf '\nwhat took longest:\n'
sort -rn "$slow" | head -n 20 | sed 's/^/  /'
if [ -s "$failures" ]; then
	printf '\nfailed:\n'
	sed 's/^/  /' "$failures"
fi
printf '\ntest result: %s. %d passed; %d failed; %d ignored\n' \
	"$([ "$failed" -eq 0 ] && echo ok || echo FAILED)" "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
