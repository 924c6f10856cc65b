#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# From one snapshot of a whole kernel's counters to lcov's tracefile: kprism and its peers, as far as they are
# installed, in one run; wall and CPU time and the peak memory of the largest process. Called by `make bench-cover`.
# KPRISM is the command line, OUT a folder for what is made; PEERS limits who takes part.
set -eu

: "${KPRISM:=target/release/kprism}" "${OUT:=target/cover}"
: "${PEERS:=kprism gcov-json gcov-text fastcov grcov lcov gcovr}"
case $KPRISM in /*) ;; *) KPRISM=$PWD/$KPRISM ;; esac
here=$(realpath "$(dirname "$0")")
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
[ -d "$OUT/run" ] || "$KPRISM" lab gcov-kernel --fast -o "$OUT/run" -- sh -c 'ls -lR /usr >/dev/null; cat /proc/[0-9]*/stat >/dev/null'
if [ ! -d "$OUT/tree" ]; then sh "$here/tree.sh" "$OUT/run" "$OUT/tree"; fi
source=$(sed -n 's/.*"folder": "\(.*\)".*/\1/p' "$OUT/run/manifest.json")
[ -n "$source" ] || { echo "$OUT/run names no tree: delete it, it will be made again" >&2; exit 1; }
cd "$source"

# measure NAME COMMAND...: one line of the table.
measure() {
	name=$1
	shift
	if ! command -v "$1" >/dev/null; then
		printf '%-22s not installed\n' "$name"
		return
	fi
	/usr/bin/time -f '%e %U %S %M' -o "$OUT/time" "$@" >"$OUT/stdout" 2>"$OUT/stderr" || failed=" (exit $?)"
	tail -n 1 "$OUT/time" | awk -v name="$name" -v failed="${failed:-}" \
		'{ printf "%-22s %8.2f s wall %8.2f s CPU %8.1f MB%s\n", name, $1, $2 + $3, $4 / 1024, failed }'
	failed=
}

uptime | sed 's/.*load/load/'
find "$OUT/tree" -name '*.gcda' | sort >"$OUT/files"
for peer in $PEERS; do
	case $peer in
	kprism)
		measure "kprism report" "$KPRISM" report cover --since-boot -i "$OUT/run"
		measure "kprism lcov info" "$KPRISM" export --since-boot -i "$OUT/run" -o "$OUT/kprism.info"
		;;
	gcov-json) measure "gcov -i -b" sh -c 'xargs gcov -i -b -t <"$0"' "$OUT/files" ;;
	gcov-text) measure "gcov -b -c -n" sh -c 'xargs gcov -b -c -n <"$0"' "$OUT/files" ;;
	fastcov) measure "fastcov" fastcov -b -l -d "$OUT/tree$source" -o "$OUT/fastcov.info" ;;
	grcov) measure "grcov" grcov "$OUT/tree" -t lcov --branch --ignore-not-existing -s "$source" -o "$OUT/grcov.info" ;;
	# The one on PATH: geninfo 2 ends at the first thing it finds odd, and a kernel has many, unless told not to.
	lcov)
		case $(geninfo --version 2>/dev/null) in
		*version\ 1.*) set -- --rc lcov_branch_coverage=1 ;;
		*) set -- --branch-coverage --keep-going --ignore-errors mismatch,inconsistent,negative,source,unsupported,format ;;
		esac
		measure "lcov (geninfo)" geninfo --quiet "$@" -o "$OUT/lcov.info" "$OUT/tree"
		;;
	gcovr) measure "gcovr" gcovr --gcov-ignore-parse-errors=all --merge-mode-functions=merge-use-line-0 \
		-r "$source" --lcov "$OUT/gcovr.info" "$OUT/tree" ;;
	esac
done
