#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh: tables 1 and 2 and figures 4 and 5 of "Measuring Function Duration with Ftrace", in a guest where an
# instruction takes a nanosecond, the kernel's own tracer and kprism beside each other. KPRISM is the program, OUT a
# folder to work in, ROUNDS how often the loop goes round.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/durations}
mkdir -p "$out/share"
cp "$(dirname "$kprism")/kprism-recorder" "$out/share/"
cp "$here/guest.sh" "$out/share/"
"$kprism" lab run -q --unobserved --mem 3G -o "$out/tables" --share "$out/share:/bench" -- sh /bench/guest.sh "${ROUNDS:-10}"
echo
echo "figures 4 and 5: ls /bin | sed s/a/z/g, 10 times, calls of 1 ms and more"
"$kprism" record func -q --guest --longer-than 1ms -o "$out/run" -- \
	sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done' >/dev/null
"$kprism" report func -q -i "$out/run" --tree --limit 25 --min-percent 1
echo
"$kprism" report func -q -i "$out/run" --ftd --limit 10
