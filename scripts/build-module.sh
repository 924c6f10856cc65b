#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# build-module.sh RELEASE OUT SOURCE: builds a kernel module from SOURCE, one C file, for Debian's kernel RELEASE into the
# folder OUT.
set -eu

release=$1
out=$2
source=$3
headers=$(sh "$(dirname "$0")/kernel-headers.sh" "$release")

cp "$source" "$out/"
echo "obj-m := $(basename "$source" .c).o" >"$out/Makefile"
# BTF of modules needs pahole, and nothing here needs it.
make -s -C "$headers" M="$out" CC=cc CONFIG_DEBUG_INFO_BTF_MODULES= modules
