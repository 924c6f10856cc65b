#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# gcov-small.sh OUT: a smaller kernel with gcov than `kprism lab gcov-kernel` builds (half of its units, counted below five
# folders), for the tests that need one: built once, some minutes of CPU. Runs a load on it and lays out in OUT what gcov
# and a browser are to judge; prints the variables that tell the tests. KPRISM is the command line.
set -eu

: "${KPRISM:=target/checked/kprism}"
out=$1
rm -rf "$out"
mkdir -p "$out"
args=$(tr '\n' ' ' <"$(dirname "$0")/gcov-small.args")
# shellcheck disable=SC2086 # several words
"$KPRISM" lab gcov-kernel $args --smp 2 --fast -o "$out/run" -- \
	sh -c 'ls -lR /usr >/dev/null; cat /proc/[0-9]*/stat | wc -l; (echo b; echo a) | sort; sleep 0.1' >&2
sh bench/cover/tree.sh "$out/run" "$out/tree" >&2
"$KPRISM" report cover -i "$out/run" --html "$out/cover.html" >&2
source=$(sed -n 's/.*"folder": "\(.*\)".*/\1/p' "$out/run/manifest.json")
[ -n "$source" ] || { echo "gcov-small: $out/run names no tree" >&2; exit 1; }
# The same kernel with types, for conditions on values, takes as long again: built if asked for, used if there.
types=${KPRISM_GCOV_TYPES:-}
for built in "${XDG_CACHE_HOME:-$HOME/.cache}"/kprism/gcov-kernel/*/whole; do
	config=${built%/whole}/linux/.config
	if grep -qs '^CONFIG_DEBUG_INFO_BTF=y' "$config" && grep -qs '^# CONFIG_GCOV_PROFILE_ALL is not set' "$config"; then types=1; fi
done
if [ -n "$types" ]; then echo "KPRISM_GCOV_TYPES=1; export KPRISM_GCOV_TYPES"; fi
cat <<-END
	KPRISM_GCOV_KERNEL=small KPRISM_GCOV_ARGS='$args'
	KPRISM_GCOV_TREE='$out/tree' KPRISM_COVER_PAGE='$out/cover.html'
	KPRISM_GCOV_SOURCE='$source'
	export KPRISM_GCOV_KERNEL KPRISM_GCOV_ARGS KPRISM_GCOV_TREE KPRISM_COVER_PAGE KPRISM_GCOV_SOURCE
END
