#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# All of this folder, one after the other: what the pages of docs/workloads show, and the tables of
# docs/measurements/workloads.md, headed by commit, date and processor. See lib.sh for KPRISM and OUT.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
echo "commit $(git -C "$here" rev-parse --short HEAD), $(date -u +%Y-%m-%d)," \
	"$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
for name in sqlite fio redis ops table2; do
	echo "# $name"
	sh "$here/$name.sh"
done
