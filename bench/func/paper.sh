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
cp "$here/paper-lib.sh" "$here/paper-guest.sh" "$out/share/"
"$kprism" lab run -q --unobserved --mem 2G -o "$out/run" --share "$out/share:/bench" -- \
	env ROUNDS="${ROUNDS:-10}" sh /bench/paper-guest.sh | tr -d '\r' >"$out/paper.txt"
awk -f "$here/paper.awk" "$out/paper.txt"
echo
echo "Figure 4: function_graph with a filter of 1000 us; since 2009 it has lost the entries, and with them the nesting"
sed -n 's/^figure4 //p' "$out/paper.txt"
echo
echo "Figure 4, by kprism script: the calls put together again from their exits (ls /bin | sed s/a/z/g, three times)"
sed -n 's/^script4 //p' "$out/paper.txt"
echo
echo "Figure 5: report durations --ftd (every call of the same; ns), beside the paper's (us)"
sed -n 's/^figure5 //p' "$out/paper.txt" >"$out/figure5.txt"
paste -d '|' "$out/figure5.txt" - <<'END' | awk -F '|' '{ printf "%-70s   %s\n", $1, $2 }'
Function               Count        Time    Average        Local

schedule                  70 1353560.333  19336.576  1337519.333
pipe_wait                  1  526363.500 526363.500       56.535
preempt_schedule         320  414278.260   1294.620     3870.986
preempt_schedule_irq      17  294134.456  17302.027      -82.004
_text                    465  278833.987    599.643   -58897.146
handle_IRQ_event         436  239268.153    548.780    88927.501
handle_mm_fault          396  228733.980    577.611     5986.491
local_bh_enable         1342  220684.604    164.445    16004.635
do_DataAbort             304  197972.822    651.226    61489.333
sys_wait4                  4  144681.433  36170.358   144681.433
END
