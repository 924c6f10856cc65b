#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# hits.sh, for run.sh and systemtap.sh: instructions that a probe of kprism, ftrace and bpftrace adds to each hit, in the guest, as
# lines for table.awk in OUT/guest.txt. KPRISM is the program, OUT a folder whose share/ has hit, KERNEL another kernel package of
# Debian's than the guest's own; BPFTRACE=no leaves that one out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cp "$here/guest.sh" "$OUT/share/"
cp "$KPRISM" "$OUT/share/kprism"
vmlinux=$(sh "$here/../../scripts/vmlinux.sh" ${KERNEL:+"${KERNEL#linux-image-}"})
sum='2*(int)fd + 3*(int)count'
compile() { "$KPRISM" compile -q "$@" -k "$vmlinux" >/dev/null 2>&1; }
compile 'ksys_read if 0' -o "$OUT/share/kprobe-empty"
compile "ksys_read if $sum < 0" -o "$OUT/share/kprobe-false"
compile ksys_read --collect "$sum" -o "$OUT/share/kprobe-record"
compile "ksys_read if $sum < 0" --collect "$sum" -o "$OUT/share/kprobe-both"
guest() {
	"$KPRISM" lab run -q --unobserved ${KERNEL:+--kernel "$KERNEL"} -o "$OUT/run" --share "$OUT/share:/bench" "$@" -- sh /bench/guest.sh
}
guest >"$OUT/guest.txt"
# bpftrace brings a compiler of 150 MB: its guest takes minutes to make, once.
if [ "${BPFTRACE:-yes}" != no ]; then
	guest --mem 3G --package bpftrace --boot-timeout 1200 >>"$OUT/guest.txt"
fi
