#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Measures in one run, so that ratios mean something on a busy machine too. Called by `make bench`.
#
#   1. the observer: the same guest command with and without it, in turns; wall-clock time from the moment
#      the guest takes the command to its end, best of RUNS
#   2. the flow decoder against Intel's (libipt's block decoder, its fastest) on the stream just recorded,
#      and on the real captures in KPRISM_TEST_DATA, if that is set
set -eu

: "${CARGO:=cargo}" "${RUNS:=5}"
target=${CARGO_TARGET_DIR:-$PWD/target}
kprism=$target/release/kprism
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$CARGO build --release --workspace --examples >&2
make -sC tests/oracle OUT="$PWD/target" >&2

# seconds NAME OPTION... -- CMD...: time of the command in the guest.
seconds() {
	name=$1
	shift
	"$kprism" -v lab run -o "$work/$name" --no-decode "$@" 2>&1 >/dev/null |
		sed -n 's/.*took the command after \([0-9.]*\) s, ended after \([0-9.]*\) s.*/\1 \2/p' |
		awk '{ print $2 - $1 }'
}

slowdown() {
	title=$1
	shift
	best_off= best_on=
	for _ in $(seq "$RUNS"); do
		off=$(seconds off --unobserved -- "$@")
		on=$(seconds on -- "$@")
		best_off=$(printf '%s\n%s\n' "$off" "${best_off:-$off}" | sort -g | head -n 1)
		best_on=$(printf '%s\n%s\n' "$on" "${best_on:-$on}" | sort -g | head -n 1)
	done
	peak=$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' "$work/on/streams/counts.json")
	awk -v t="$title" -v a="$best_off" -v b="$best_on" -v p="$peak" 'BEGIN {
		printf "%-34s %7.3f s %7.3f s   %.2fx   %5.1f MiB\n", t, a, b, b / a, p / 1048576 }'
}

"$kprism" -q lab prepare
echo "observer, best of $RUNS             without      with   ratio   its memory"
slowdown "demo workload" sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done'
mv "$work/on" "$work/demo"
slowdown "system calls (dd, 1 byte each)" dd if=/dev/zero of=/dev/null bs=1 count=100000
slowdown "user code (sha256sum of 8 MB)" sh -c 'head -c 8000000 /dev/zero | sha256sum'

echo
echo "flow decoder, the demo's stream"
RUNS=$RUNS "$target/release/examples/decode_bench" "$work/demo"
echo "libipt on the same"
"$PWD/target/ptoracle" --block-bench "$RUNS" "$work/demo/streams" 0

if [ -d "${KPRISM_TEST_DATA:-}" ]; then
	# As folders or packed.
	mkdir "$work/captures"
	find "$KPRISM_TEST_DATA" -name '*.tar.xz' -exec tar -xf {} -C "$work/captures" ';'
	for pt in $(find "$KPRISM_TEST_DATA" "$work/captures" -name xpages.txt | sort); do
		folder=$(dirname "$pt")
		echo
		echo "$folder"
		RUNS=$RUNS "$target/release/examples/decode_bench" "$folder"
		for stream in "$folder"/*.pt; do
			"$PWD/target/ptoracle" --block-bench "$RUNS" --raw "$stream" --pages "$pt" || true
		done
	done
fi
