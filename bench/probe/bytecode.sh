#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# bytecode.sh: a condition that is interpreted beside the same as native code: table 1 of paper 4, in the guest's instructions.
# gdbserver's agent in a program has both, as in the paper; the kernel has both of kprism's eBPF. KPRISM is the program, OUT a
# folder to work in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/probe}/bytecode
rm -rf "$out"
mkdir -p "$out/share"
. "$here/fast.sh"
fast_build "$out/share/hit" "$here/hit.c"
fast_place "$out/share/hit" >"$out/share/place"
cp "$kprism" "$out/share/kprism"
cp "$here/fast.sh" "$here/bytecode-guest.sh" "$out/share/"
# GDB brings Python: its guest takes minutes to make, once.
"$kprism" lab run -q --unobserved --mem 3G --package gdb --package gdbserver --boot-timeout 1200 -o "$out/run" \
	--share "$out/share:/bench" -- sh /bench/bytecode-guest.sh >"$out/hits.txt"
tr -d '\r' <"$out/hits.txt" | awk -v unit=instructions -f "$here/table.awk"
cat <<'END'
paper, table 1, ns: bytecode                                   444      3075
paper, table 1, ns: native code                                115      2900
END
