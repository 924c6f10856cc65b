#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh [RUN]: how soon each kind of page is interactive, and what a frame costs while zooming in the page of a long run; the
# tables of docs/measurements/pages.md. The measuring is that of the browser tests pages_quick and timeline. RUN is a run that is
# there already; else one of 2 billion instructions is recorded in the guest, in half a minute of an idle machine. Needs what the
# browser tests need; KPRISM_GCOV_KERNEL=1 adds the page of coverage of a whole kernel (`make test-gcov-kernel` builds that).
set -eu

cd "$(dirname "$0")/../.."
: "${CARGO:=cargo}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$CARGO build --profile checked --workspace >&2
run=${1:-}
if [ -z "$run" ]; then
	run=$work/long
	"${CARGO_TARGET_DIR:-target}/checked/kprism" -q lab run -o "$run" -- \
		sh -c 'i=0; while [ $i -lt 340 ]; do ls /bin | sed s/a/z/g; i=$((i+1)); done >/dev/null'
fi

# rows TEST [FILTER]: the lines of its table. One test at a time: they would measure one another.
rows() {
	$CARGO test --profile checked -p kprism --test "$@" -- --nocapture --test-threads 1 >"$work/said" 2>&1 || {
		cat "$work/said" >&2
		exit 1
	}
	# With one thread, a test's first row stands behind its name.
	grep -o '| [^|]*\( | [0-9.]*\)* |$' "$work/said"
	grep ' ignored (' "$work/said" >&2 || true
}

echo '| page | bytes | CPU ms | of it script | document ms | drawn ms | interactive ms |'
echo '|---|---:|---:|---:|---:|---:|---:|'
KPRISM_LONG_RUN=$run rows pages_quick
echo
echo '| while zooming | CPU ms a frame | frame every ms | 95 % within ms |'
echo '|---|---:|---:|---:|'
KPRISM_LONG_RUN=$run rows timeline timeline_of_a_long_run
