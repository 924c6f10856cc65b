#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# lttng.sh: instructions that a tool adds to each call of the paper's function with its static tracepoint, in the guest, callees
# included: tables 5 to 7 of paper 4. Table 7 is an extrapolation, in the paper and here: a false condition of one tool, and
# what LTTng takes to record the event. KPRISM is the program, OUT a folder to work in, KERNEL another kernel package of Debian's than
# the guest's own. SYSTEMTAP, the folder of scripts/systemtap.sh for that kernel, has SystemTap measured too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/probe}/lttng
calls=1000
rm -rf "$out"
mkdir -p "$out/share" "$out/modules"
# The kernel's build changes folders.
out=$(cd "$out" && pwd)
kernel() { "$kprism" lab run -q ${KERNEL:+--kernel "$KERNEL"} -o "$out/run" "$@"; }
release=$(kernel --unobserved -- uname -r | tr -d '\r')
ko=$(sh "$top/scripts/lttng-modules.sh" "$release")
source=$(dirname "$ko")/source
cp -r "$here/lttng/." "$top/crates/kprism/tests/gdbserver/kgtp_module.h" "$out/modules/"
# Without noipa the compiler drops the arguments that nothing uses.
sed 's/^static noinline/& __attribute__((noipa))/' "$top/crates/kprism/tests/gdbserver/kgtp.c" >"$out/modules/kgtp.c"
echo "obj-m := kgtp.o lttng-probe-kgtp.o" >"$out/modules/Makefile"
make -s -C "$(sh "$top/scripts/kernel-headers.sh" "$release")" M="$out/modules" CC=cc KCFLAGS="-I$out/modules -I$source/include" \
	KBUILD_EXTRA_SYMBOLS="$source/Module.symvers" CONFIG_DEBUG_INFO_BTF_MODULES= modules
cp "$kprism" "$out/share/kprism"
set --
for module in "$ko"/*.ko "$out"/modules/*.ko; do set -- "$@" --with-module "$module"; done

# run BEFORE COMMAND MODULES…: instructions of a call.
run() {
	before=$1 command=$2
	shift 2
	kernel --mem 2G --package lttng-tools --package babeltrace2 ${SYSTEMTAP:+--package systemtap-runtime} "$@" \
		--share "$out/share:/bench" --before "modprobe kgtp; $before" -- sh -c "$command" >"$out/said" 2>&1 || { cat "$out/said" >&2; return 1; }
	"$kprism" report functions -q -i "$out/run" --json --limit 0 | python3 -c '
import json, sys
rows = [row for row in json.load(sys.stdin)["rows"] if row["function"] == "kgtp_test_function"]
assert [row["calls"] for row in rows] == [int(sys.argv[1])], rows
print(rows[0]["total_instructions"] / rows[0]["calls"])' "$calls"
}
write="echo $calls > /proc/kgtp"
off=$(run true "$write" "$@")
row() { echo "the paper's event|$1|$2|$(awk -v on="$3" -v off="$off" 'BEGIN { printf "%.0f", on - off }')"; }

# The recorder starts with a program that is compiled before, and says in the end how many hits it kept.
probe() {
	tool=$1 case=$2 kept=$3 given=$4
	shift 4
	took=$(run "/bench/kprism compile -q $given -o /tmp/probe" "/bench/kprism record probe -q -a --program /tmp/probe -o /tmp/run \
		-- sh -c '$write' || [ \$? = 1 ]; grep -q '\"passed\": $kept,' /tmp/run/streams/probe/probes.json" "$@")
	row "$tool" "$case" "$took"
}
sum='2*counter1 + 3*counter2'
event=kgtp:kgtp_module_event
# LTTng and ftrace cannot add: they compare one argument.
lttng() {
	case=$1 kept=$2 filter=$3
	shift 3
	took=$(run "cd /lib/modules/$release && touch modules.order modules.builtin modules.builtin.modinfo && depmod -a
		modprobe lttng-probe-kgtp && lttng-sessiond --daemonize && lttng create bench --output=/tmp/lttng &&
		lttng enable-event --kernel kgtp_module_event $filter && lttng start" \
		"$write; lttng stop; test \$(babeltrace2 /tmp/lttng | wc -l) = $kept" "$@")
	row LTTng "$case" "$took"
}
if [ -n "${SYSTEMTAP:-}" ]; then
	sh "$SYSTEMTAP/events" "$out/tree" "$out/modules/kgtp_module.h"
	echo "$write" >"$out/share/write.sh"
fi
# systemtap CASE KEPT OPTIONS BODY: the probe of the paper's figure 15.
systemtap() {
	case=$1 kept=$2 options=$3 body=$4
	shift 4
	# shellcheck disable=SC2086 # options
	(cd "$out/share" && "$SYSTEMTAP/stap" -r "$out/tree" $options -p4 -m "stap_$case" \
		-e "probe kernel.trace(\"$event\") { $body }" >"$out/said" 2>&1) || { cat "$out/said" >&2; return 1; }
	row SystemTap "$case" "$(run true "staprun -o /tmp/out -c 'sh /bench/write.sh' /bench/stap_$case.ko; \
		test \$(grep -c '^time= ' /tmp/out) = $kept" "$@")"
}
ftrace() {
	case=$1 filter=$2
	shift 2
	folder=/sys/kernel/tracing/events/kgtp/kgtp_module_event
	row 'ftrace, event filter' "$case" "$(run "echo '$filter' > $folder/filter; echo 1 > $folder/enable" "$write" "$@")"
}
{
	probe kprism empty 0 "'$event if 0 && counter1'" "$@"
	probe kprism false 0 "'$event if $sum < 0' --collect counter1,counter2" "$@"
	probe kprism record $calls "$event --collect counter1,counter2" "$@"
	probe kprism both $calls "'$event if $sum > 0' --collect counter1,counter2" "$@"
	lttng false 0 "--filter 'counter1 < 0'" "$@"
	lttng record $calls '' "$@"
	lttng both $calls "--filter 'counter1 > 0'" "$@"
	ftrace false 'counter1 < 0' "$@"
	ftrace record 0 "$@"
	ftrace both 'counter1 > 0' "$@"
	if [ -n "${SYSTEMTAP:-}" ]; then
		stap_sum='2*$counter1 + 3*$counter2'
		# Figure 15's text, of a fixed width: SystemTap 4.8 loses records of many widths (systemtap.sh).
		print='printf("time=%5d count=%6d\n", $counter1, $counter2)'
		# Not optimised, for an empty probe is optimised away.
		systemtap empty 0 -u '' "$@"
		systemtap false 0 '' "if ($stap_sum < 0) $print" "$@"
		systemtap record $calls '' "$print" "$@"
		systemtap both $calls '' "if ($stap_sum > 0) $print" "$@"
	fi
} >"$out/hits.txt"
# As the paper does: T = Treg + Tcond + Tlttng, and a true condition takes as long as a false one.
extrapolated=$(awk -F '|' -v row="the paper's event|kprism's condition, LTTng's buffer|" '
	$2 == "kprism" && $3 == "false" { condition = $4 }
	$2 == "LTTng" && $3 == "record" { data = $4 }
	END { print row "false|" condition; print row "record|" data; print row "both|" condition + data }' "$out/hits.txt")
echo "$extrapolated" >>"$out/hits.txt"
awk -v unit=instructions -f "$here/table.awk" "$out/hits.txt"
cat <<'END'
paper, cycles: KGTP + LTTng (table 7)                          154       333       487
paper, cycles: SystemTap (tables 5 and 7)                      223      1252      1336
END
