#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# off.sh: what a static tracepoint that is off costs: table 4 of paper 4, in the instructions of its function in the guest, callees included.
# The paper's kernel was changed, and its tracepoint called a function more; kprism changes nothing. KPRISM is the program,
# OUT a folder to work in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/probe}/off
source=$top/crates/kprism/tests/gdbserver
calls=1000
rm -rf "$out"
mkdir -p "$out/with" "$out/without" "$out/share"
# The kernel's build changes folders.
out=$(cd "$out" && pwd)
release=$("$kprism" lab run -q --unobserved -o "$out/run" -- uname -r | tr -d '\r')
for kind in with without; do
	cp "$source/kgtp_module.h" "$out/$kind/"
	mkdir -p "$out/c-$kind"
	# Without noipa the compiler drops the arguments that nothing uses, and two functions would be compared.
	sed 's/^static noinline/& __attribute__((noipa))/' "$source/kgtp.c" >"$out/c-$kind/kgtp.c"
	[ "$kind" = with ] || sed -i '/^\ttrace_kgtp_module_event/d' "$out/c-$kind/kgtp.c"
	KCFLAGS="-I$out/$kind" sh "$top/scripts/build-module.sh" "$release" "$out/$kind" "$out/c-$kind/kgtp.c" >/dev/null
	cp "$out/$kind/kgtp.ko" "$out/share/$kind.ko"
done

# row NAME MODULE SHELL-COMMANDS: instructions a call, after the module was loaded and the commands ran.
row() {
	"$kprism" lab run -q -o "$out/run" --share "$out/share:/bench" --before "insmod /bench/$2.ko; $3" -- \
		sh -c "echo $calls > /proc/kgtp"
	"$kprism" report functions -q -i "$out/run" --json --limit 0 | python3 -c '
import json, sys
rows = [row for row in json.load(sys.stdin)["rows"] if row["function"] == "kgtp_test_function"]
assert len(rows) == 1, rows
calls, insns = rows[0]["calls"], rows[0]["total_instructions"]
assert calls == int(sys.argv[2]), calls
print(f"{sys.argv[1]:44} {insns / calls:7.1f}")' "$1" "$calls"
}

event=/sys/kernel/tracing/events/kgtp/kgtp_module_event/enable
echo "instructions of a call of kgtp_test_function"
row "no tracepoint in it" without true
row "a tracepoint, off" with true
row "the same after it was on" with "echo 1 > $event; echo 0 > $event"
row "on, recorded by ftrace" with "echo 1 > $event"
