#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# How much larger a kernel is with gcov's counters: the parts of vmlinux, the image, its modules, and the memory that is
# taken after the boot. Other pairs of kernels can be compared, too.
#
#   size.sh PLAIN COUNTED   folders of the two built kernels; KPRISM is the command line, OUT a folder to work in
set -eu

: "${KPRISM:=target/release/kprism}" "${OUT:=target/cover}"
mkdir -p "$OUT"
for kernel in plain counted; do
	# The guest's memory as the kernel found it, in KiB, and what is left when the first command starts.
	"$KPRISM" lab run -q --unobserved --tree "$1" --mem 768M -o "$OUT/size-run" -- \
		sh -c 'dmesg | grep "Memory: "; cat /proc/meminfo' | tr -d '\r' >"$OUT/size-$kernel.memory"
	size "$1/vmlinux" >"$OUT/size-$kernel.whole"
	# Before it is linked: vmlinux has its code and its constants filled up to multiples of 2 MiB.
	size -A -d "$1/vmlinux.o" >"$OUT/size-$kernel.sections"
	stat -c %s "$1/arch/x86/boot/bzImage" >"$OUT/size-$kernel.image"
	# Without modules, the file is empty.
	(cd "$1" && find . -name '*.ko' -print0 | xargs -0 -r size) >"$OUT/size-$kernel.modules"
	shift
done
python3 - "$OUT" <<'END'
import re, sys
out = sys.argv[1]


def facts(kernel):
    read = lambda part: open(f"{out}/size-{kernel}.{part}").read()
    whole = int(read("whole").splitlines()[1].split()[3])
    sections = {line.split()[0]: int(line.split()[1]) for line in read("sections").splitlines() if re.match(r"\S+\s+\d+\s+\d+$", line)}
    modules = [list(map(int, line.split()[:4])) for line in read("modules").splitlines() if line.split()[0].isdigit()]
    memory = read("memory")
    available, given = map(int, re.search(r"Memory: (\d+)K/(\d+)K available", memory).groups())
    left = int(re.search(r"MemAvailable: *(\d+)", memory).group(1))
    return {
        "code (.text)": sections[".text"],
        "code of the boot (.init.text)": sections[".init.text"],
        "constants (.rodata and strings)": sum(size for name, size in sections.items() if name.startswith(".rodata")),
        "data (.data)": sections[".data"],
        "data of the boot (.init.data)": sections[".init.data"],
        "constructors (.init_array, .ctors)": sections.get(".init_array", 0) + sections.get(".ctors", 0),
        "zeroed data (.bss)": sections[".bss"],
        "vmlinux in memory, aligned to 2 MiB": whole,
        "bzImage (gzip)": int(read("image")),
        "modules (a number)": len(modules),
        "modules, text": sum(row[0] for row in modules),
        "modules, data and bss": sum(row[1] + row[2] for row in modules),
        "memory taken when the kernel begins": (given - available) * 1024,
        "memory taken at the first command": (given - left) * 1024,
    }


plain, counted = facts("plain"), facts("counted")
print(f"{'bytes':<40}{'plain':>14}{'gcov':>14}{'ratio':>8}")
for name, value in plain.items():
    ratio = f"{counted[name] / value:>8.2f}" if value else f"{'-':>8}"
    print(f"{name:<40}{value:>14,}{counted[name]:>14,}{ratio}")
END
