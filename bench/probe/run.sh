#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh: what a probe costs at each hit, for kprism and its peers. In the guest in instructions; here in nanoseconds, as
# far as this machine's kernel allows, where only ratios mean something. "empty" is a probe that counts and keeps nothing,
# "false" one whose condition 2*a + 3*b < 0 is not met, "record" keeps 2*a + 3*b of each hit, "both" where the condition
# is met. KPRISM is the program, OUT a folder to work in; GUEST=no, NATIVE=no, BPFTRACE=no leave a part out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/probe}
mkdir -p "$out/share"
cc -O2 -g -static -o "$out/share/hit" "$here/hit.c"
cp "$kprism" "$out/share/kprism"
cp "$here/counts.sh" "$here/rate.sh" "$out/share/"
guest() {
	script=$1
	shift
	"$kprism" lab run -q --unobserved -o "$out/run" --share "$out/share:/bench" "$@" -- sh "/bench/$script"
}
if [ "${GUEST:-yes}" = yes ]; then
	KPRISM=$kprism OUT=$out sh "$here/hits.sh"
	guest counts.sh >"$out/counts.txt"
	if [ "${BPFTRACE:-yes}" != no ]; then
		guest counts.sh --mem 3G --package bpftrace --boot-timeout 1200 >>"$out/counts.txt"
	fi
	tr -d '\r' <"$out/guest.txt" | awk -v unit=instructions -f "$here/table.awk"
	cat <<'END'
paper, cycles: KGTP, dynamic                                   202       500       602
paper, cycles: SystemTap, dynamic                              351      1035      1061
paper, cycles: KGTP, static                                    154      1216      1368
paper, cycles: SystemTap, static                               223      1252      1336
paper, cycles: ftrace, static                                  360       297       370

END
	KPRISM=$kprism OUT=$out sh "$here/systemtap.sh" || echo "SystemTap and the others on its kernel are left out" >&2
	echo
	KPRISM=$kprism OUT=$out sh "$here/bytecode.sh"
	echo
	KPRISM=$kprism OUT=$out sh "$here/off.sh"
	echo
	KPRISM=$kprism OUT=$out sh "$here/lttng.sh"
	echo
	echo "counted in the kernel, instructions a hit of ksys_read by fentry"
	tr -d '\r' <"$out/counts.txt" | awk -F '|' '{ printf "  %-10s %-26s %6d\n", $1, $2, $3 }'
	cat <<'END'

records a second of a CPU that does nothing else but take them out, with the default buffer
END
	guest rate.sh --mem 2G
fi
if [ "${NATIVE:-yes}" = yes ]; then
	KPRISM=$kprism OUT=$out sh "$here/native.sh"
	echo
	KPRISM=$kprism sh "$here/jump.sh"
fi
