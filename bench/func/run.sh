#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# run.sh: instructions that measuring a function adds to each call of it (entry and return), for kprism's BPF
# backend, function_graph, kprobe events and bpftrace, in one guest where an instruction takes a nanosecond.
# Prints a table. KPRISM is the program, OUT a folder to work in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/func}
mkdir -p "$out/share"
cc -O2 -static -o "$out/share/loop" "$here/loop.c"
cp "$kprism" "$out/share/kprism"
cp "$here/guest.sh" "$out/share/"
guest() { "$kprism" lab run -q --unobserved -o "$out/run" --share "$out/share:/bench" "$@" -- sh /bench/guest.sh; }
guest
# bpftrace brings a compiler of 150 MB: its guest takes minutes to make, once.
[ "${BPFTRACE:-yes}" = no ] || guest --mem 3G --package bpftrace --boot-timeout 1200
