#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   kernel.sh [small] ARGUMENT...   the folder of the kernel that `kprism lab gcov-kernel ARGUMENT...` builds, once. `small` takes
#                                   away what scripts/gcov-small.args does (network, ext4, control groups): half of the units.
#
# KPRISM is the command line. Fails with what was said if there is no such kernel.
set -eu

: "${KPRISM:=target/release/kprism}"
if [ "${1:-}" = small ]; then
	shift
	# Its --only is for kernels that count in some folders.
	# shellcheck disable=SC2046 # words
	set -- $(grep -v -e --only "$(dirname "$0")/../scripts/gcov-small.args") "$@"
fi
said=$("$KPRISM" lab gcov-kernel "$@" 2>&1) || { echo "$said" >&2; exit 1; }
# The last line: `ready: RELEASE in TREE, IMAGE`.
echo "$said" | sed -n 's/.*ready: [^ ]* in \(.*\), .*/\1/p'
