#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The demo: the workload of the papers in a guest with Debian's stock kernel, watched from outside.
# Called by `make demo` with KPRISM (the program), RUN (run folder) and HTML (report) set.
set -eu

workload='for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done'

step() { printf '\n$ %s\n' "$*"; }

step "kprism lab run -o $RUN -- sh -c '$workload'"
# Its output is 10 times the names of all programs: kept in the run folder, not shown.
"$KPRISM" lab run -o "$RUN" -- sh -c "$workload" >/dev/null

step "kprism report functions -i $RUN --limit 15"
"$KPRISM" report functions -i "$RUN" --limit 15
step "kprism report syscalls -i $RUN"
"$KPRISM" report syscalls -i "$RUN"
step "kprism report tree -i $RUN --min-percent 3"
"$KPRISM" report tree -i "$RUN" --min-percent 3
step "kprism report -i $RUN --html $HTML"
"$KPRISM" report -i "$RUN" --html "$HTML"

printf '\nThe run is in %s, its report in %s: open that in a browser.\n' "$RUN" "$HTML"
