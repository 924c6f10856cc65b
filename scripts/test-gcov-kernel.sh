#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A whole kernel with gcov, judged by gcov: builds it (once, eleven minutes of one CPU), boots it, runs a load, and
# compares every function, line, branch and total of every object, and the sums of all objects with lcov's where lcov
# is installed. Then windows, memory and modules are tested (crates/kprism/tests/cover_kernel.rs, cover_windows.rs), and, if the kernel with
# debug information is there or KPRISM_GCOV_DEBUG is set, the flow beside gcov. Called by `make test-gcov-kernel`, which has built the programs; KPRISM is the command line.
set -eu

: "${CARGO:=cargo}" "${KPRISM:=target/checked/kprism}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

LOAD='ls -lR /usr >/dev/null; cat /proc/[0-9]*/stat | wc -l; (echo b; echo a) | sort; dd if=/dev/zero of=/tmp/f bs=64k count=16 2>/dev/null; sleep 0.1'

"$KPRISM" lab gcov-kernel --smp 2 --fast -o "$work/run" -- sh -c "$LOAD"
sh bench/cover/tree.sh "$work/run" "$work/tree"
source=$(sed -n 's/.*"folder": "\(.*\)".*/\1/p' "$work/run/manifest.json")
[ -n "$source" ]

# gcov counts from the boot on, having but the counters at the end.
KPRISM_GCOV_TREE=$work/tree KPRISM_GCOV_SOURCE=$source \
	$CARGO test --profile checked -p kprism-gcov --test kernel -- --nocapture

# The same kernel with debug information takes another eleven minutes of CPU: built if asked for, used if there.
if [ -n "${KPRISM_GCOV_DEBUG:-}" ]; then "$KPRISM" lab gcov-kernel --debug-info; fi
for built in "${XDG_CACHE_HOME:-$HOME/.cache}"/kprism/gcov-kernel/*/whole; do
	config=${built%/whole}/linux/.config
	if grep -qs '^CONFIG_DEBUG_INFO_DWARF5=y' "$config" && grep -qs '^CONFIG_GCOV_PROFILE_ALL=y' "$config"; then
		KPRISM_GCOV_DEBUG=1
		export KPRISM_GCOV_DEBUG
	fi
done
KPRISM_GCOV_KERNEL=1 $CARGO test --profile checked -p kprism --test cover_kernel --test cover_windows -- --nocapture --test-threads 1
# The page of all of it, in a browser, and how soon it answers.
KPRISM_GCOV_KERNEL=1 $CARGO test --profile checked -p kprism --test pages_quick kernels_coverage -- --nocapture
"$KPRISM" report cover -i "$work/run" --html "$work/cover.html"
KPRISM_COVER_PAGE=$work/cover.html \
	$CARGO test --profile checked -p kprism-report --test cover whole_kernel -- --nocapture

# A line that this configuration drops (its menu, CONFIG_FTRACE, is off) is refused, and no tree stays behind.
before=$(ls "${XDG_CACHE_HOME:-$HOME/.cache}/kprism/gcov-kernel"/*/linux -d)
if "$KPRISM" lab gcov-kernel --config CONFIG_PSI=y --config CONFIG_FUNCTION_GRAPH_TRACER=y 2>"$work/dropped"; then
	echo "test-gcov-kernel: a line that was dropped was not refused" >&2
	exit 1
fi
grep 'not as asked for: CONFIG_FUNCTION_GRAPH_TRACER=y was dropped$' "$work/dropped"
[ "$before" = "$(ls "${XDG_CACHE_HOME:-$HOME/.cache}/kprism/gcov-kernel"/*/linux -d)" ]

if ! command -v lcov >/dev/null; then
	echo "lcov is not installed: its totals are not compared"
	exit 0
fi
"$KPRISM" export --since-boot -i "$work/run" -o "$work/ours.info"
geninfo --quiet --rc lcov_branch_coverage=1 --rc geninfo_adjust_src_path= -o "$work/theirs.info" "$work/tree"
# A record for each object becomes one for each source.
lcov --quiet --rc lcov_branch_coverage=1 -a "$work/theirs.info" -o "$work/sum.info"
sh bench/cover/compare-info.sh "$work/ours.info" "$work/sum.info"
