#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# programs.sh [PART...]: builds what commands of the documentation share with the guest, into OUT (target): `tlb` and `flow-cost`, programs
# of their own; `ptat`, a kernel module; `lttng`, LTTng's kernel modules. All of them, if none is named. Called by `make programs`.
# Programs take seconds; modules the kernel's headers, by apt, and LTTng's 160 seconds of CPU, once. KPRISM is the program, which fetches
# the guest's kernel.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
: "${KPRISM:=target/release/kprism}" "${OUT:=target}"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism

# The release of the guest's kernel; the guest is prepared if there is none yet.
release() {
	latest() { ls "$cache/kernel" 2>/dev/null | sed -n 's/^linux-image-\([^_]*\)_.*/\1/p' | sort -V | tail -n 1; }
	[ -n "$(latest)" ] || "$KPRISM" lab prepare >&2
	latest
}

[ $# -gt 0 ] || set -- tlb flow-cost ptat lttng
mkdir -p "$OUT"
for part in "$@"; do
	case $part in
	tlb) sh "$here/../bench/tlb/build.sh" "$OUT/tlb" ;;
	flow-cost) sh "$here/../bench/flow-cost/build.sh" "$OUT/flow-cost/programs" ;;
	ptat) sh "$here/../kmod/ptat/build.sh" "$(release)" "$OUT/ptat" ;;
	lttng)
		modules=$(sh "$here/lttng-modules.sh" "$(release)")
		ln -sfn "$modules" "$OUT/lttng"
		;;
	*) echo "programs: no part is called '$part': tlb, flow-cost, ptat, lttng" >&2; exit 2 ;;
	esac
done
