#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# build.sh [DIR]: compiles the TLB workloads, static, into DIR (target/tlb).
set -eu
here=$(dirname "$0")
out=${1:-target/tlb}
mkdir -p "$out"
for name in stride gups bfs chase threads family; do
	${CC:-gcc} -O2 -g -Wall -Wextra -static -pthread -o "$out/$name" "$here/$name.c"
done
