#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# paper.sh: tables 1 and 2 and figures 4 and 5 of "Measuring Function Duration with Ftrace" (Tim Bird, 2009), its
# numbers beside those of a guest with a stock kernel, where an instruction takes a nanosecond. KPRISM is the program,
# OUT a folder to work in, ROUNDS how often the paper's program walks /sys (10).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/func}
mkdir -p "$out/share"
cp "$kprism" "$out/share/kprism"
cp "$here/paper-guest.sh" "$out/share/"
"$kprism" lab run -q --unobserved --mem 2G -o "$out/run" --share "$out/share:/bench" -- \
	env ROUNDS="${ROUNDS:-10}" sh /bench/paper-guest.sh | tr -d '\r' >"$out/paper.txt"
awk -f "$here/paper.awk" "$out/paper.txt"
echo
echo "Figure 4: what function_graph keeps with a filter of 1000 us (paper: entries too)"
sed -n 's/^figure4 //p' "$out/paper.txt"
echo
echo "Figure 5: report func --ftd, of every call of: for i in 1 2 3; do ls /bin | sed s/a/z/g; done"
sed -n 's/^figure5 //p' "$out/paper.txt"
