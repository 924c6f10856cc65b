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
	to=$out/share/stap/$(dirname "$1") module=$(basename "$1")
	mkdir -p "$to"
	# shellcheck disable=SC2086 # options
	(cd "$out/work" && "$stap/stap" -r "$out/tree" $2 -p4 -m "$module" -e "$3" >"$out/said" 2>&1) || { cat "$out/said" >&2; return 1; }
	mv "$out/work/$module".* "$to/"
}
# records NAME OPTIONS PLACE WHERE FORMAT A B
records() {
	name=$1 options=$2 place=$3 where=$4 print="printf($5)" sum="s = 2*$6 + 3*$7"
	probe "$name/record" "$options" "probe $place { $where { $sum; $print } }"
	probe "$name/both" "$options" "probe $place { $where { $sum; if (s < 0) $print } }"
}
# cases, of the same: also those without a record.
cases() {
	records "$@"
	# Not optimised, for an empty probe is optimised away.
	probe "$name/empty" "-u $options" "probe $place { }"
	probe "$name/false" "$options" "probe $place { $where { $sum; if (s < 0) $print } }"
}
# SystemTap has one type of numbers, of 64 bits: an `int` in a register is made one by two shifts.
int() { echo "((\$$1 << 32) >> 32)"; }
# With its header of 8 bytes each record has 16. SystemTap 4.8 writes a header or none into the rest of a page, and its reader
# loses what follows a page where fewer bytes than a header's are left.
text='"%7d\n", s' number='"%8b", s'
read='kernel.function("ksys_read")' enter='kernel.trace("raw_syscalls:sys_enter")'
cases 'dynamic/SystemTap, kprobe, text' '' "$read" '' "$text" "$(int fd)" "\$count"
records 'dynamic/SystemTap, kprobe, binary' '' "$read" '' "$number" "$(int fd)" "\$count"
# Reads alone, of everybody, for values of other calls are wider than a record.
cases 'static/SystemTap, reads, text' '' "$enter" "if (\$id == 0)" "$text" "$(int 'regs->di')" "\$regs->dx"
records 'static/SystemTap, reads, binary' '' "$enter" "if (\$id == 0)" "$number" "$(int 'regs->di')" "\$regs->dx"
# As BPF, 4.8 has the event's record in place of its arguments (`--compatible=4.1`), and no variables at a function: Linux 6.1
# refuses those programs ("R0 invalid mem access"), because what reads a variable writes through its value too.
probe 'dynamic/SystemTap, BPF/empty' '-u --runtime=bpf' "probe $read { }"
cases 'static/SystemTap, BPF, reads, text' '--runtime=bpf --compatible=4.1' "$enter" "if (\$id == 0)" "$text" "$(int 'args[0]')" "\$args[2]"

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
