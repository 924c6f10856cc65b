#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# systemtap.sh: instructions that SystemTap adds to each hit, in the guest, on a kernel that it knows (Debian 12's 6.1), and what
# kprism, bpftrace and ftrace add on the same kernel: tables 2, 5 and 7 of paper 4. SystemTap runs as it does by default, a
# kernel module, and as BPF (`--runtime=bpf`). KPRISM is the program, OUT a folder to work in; BPFTRACE=no leaves that one out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/probe}/systemtap
stap=$(sh "$top/scripts/systemtap.sh")
release=$(cat "$stap/release")
kernel=linux-image-$release
rm -rf "$out"
mkdir -p "$out/share/stap" "$out/work"
out=$(cd "$out" && pwd)
cc -O2 -g -static -o "$out/share/hit" "$here/hit.c"
cp "$here/systemtap-guest.sh" "$stap/root/usr/bin/stapbpf" "$out/share/"

sh "$stap/events" "$out/tree" "$(realpath "$stap/tree/source")/include/trace/events/syscalls.h"

# probe FILE OPTIONS SCRIPT: compiled for the guest's kernel.
probe() {
	folder=$out/share/stap/$(dirname "$1") name=$(basename "$1")
	mkdir -p "$folder"
	# shellcheck disable=SC2086 # options
	(cd "$out/work" && "$stap/stap" -r "$out/tree" $2 -p4 -m "$name" -e "$3" >"$out/said" 2>&1) || { cat "$out/said" >&2; return 1; }
	mv "$out/work/$name".* "$folder/"
}
# cases NAME OPTIONS PLACE A B
cases() {
	sum="2*$4 + 3*$5"
	# Not optimised, for an empty probe is optimised away.
	probe "$1/empty" "-u $2" "probe $3 { }"
	probe "$1/false" "$2" "probe $3 { if ($sum < 0) printf(\"%d\\n\", $sum) }"
	probe "$1/record" "$2" "probe $3 { printf(\"%d\\n\", $sum) }"
	probe "$1/both" "$2" "probe $3 { if ($sum < 0) printf(\"%d\\n\", $sum) }"
}
# SystemTap has one type of numbers, of 64 bits: an `int` in a register is made one by two shifts.
int() { echo "((\$$1 << 32) >> 32)"; }
read='kernel.function("ksys_read")' enter='kernel.trace("raw_syscalls:sys_enter")'
cases 'dynamic/SystemTap, kprobe' '' "$read" "$(int fd)" "\$count"
# Text is formatted in the kernel. SystemTap can also keep a number as it is.
sum="2*$(int fd) + 3*\$count"
probe 'dynamic/SystemTap, kprobe, binary/record' '' "probe $read { printf(\"%8b\", $sum) }"
probe 'dynamic/SystemTap, kprobe, binary/both' '' "probe $read { if ($sum < 0) printf(\"%8b\", $sum) }"
cases 'dynamic/SystemTap, BPF' --runtime=bpf "$read" "$(int fd)" "\$count"
cases 'static/SystemTap' '' "$enter" "$(int 'regs->di')" "\$regs->dx"
# For BPF, the event's record instead of its arguments: stap finds that this kernel lacks those.
cases 'static/SystemTap, BPF' '--runtime=bpf --compatible=4.1' "$enter" "$(int 'args[0]')" "\$args[2]"

KPRISM=$kprism OUT=$out KERNEL=$kernel sh "$here/hits.sh"
"$kprism" lab run -q --unobserved --kernel "$kernel" --mem 2G --package systemtap-runtime -o "$out/run" --share "$out/share:/bench" -- \
	sh /bench/systemtap-guest.sh >>"$out/guest.txt"
echo "Linux $release"
tr -d '\r' <"$out/guest.txt" | awk -v unit=instructions -f "$here/table.awk"
cat <<'END'
paper, cycles: SystemTap, dynamic (table 2)                    351      1035      1061
paper, cycles: SystemTap, static (table 5)                     223      1252      1336

END
KPRISM=$kprism OUT=$out KERNEL=$kernel SYSTEMTAP=$stap sh "$here/lttng.sh"
