#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# build-module.sh RELEASE OUT SOURCE: builds a kernel module from SOURCE, one C file, for Debian's kernel RELEASE into the
# folder OUT.
#
# A source without headers of its own is built once, in the user's cache: its debug information has the same paths each time, so that
# it is the same file, and a guest with it starts from its snapshot.
set -eu

release=$1
out=$2
source=$3
headers=$(sh "$(dirname "$0")/kernel-headers.sh" "$release")
name=$(basename "$source" .c)

# Builds $source in the folder $1.
build() {
	cp "$source" "$1/"
	echo "obj-m := $name.o" >"$1/Makefile"
	# BTF of modules needs pahole, and nothing here needs it.
	make -s -C "$headers" M="$1" CC=cc CONFIG_DEBUG_INFO_BTF_MODULES= modules
}

if [ -n "${KCFLAGS:-}" ] || grep -q '^#include "' "$source"; then
	build "$out"
	exit
fi
key=$({ echo "$release $name"; cc --version; cat "$0" "$source"; } | sha256sum | cut -c1-24)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/modules/$key
mkdir -p "$cache"
(
	flock 9
	[ -e "$cache/done" ] || { build "$cache" && touch "$cache/done"; }
) 9>"$cache/lock"
cp "$cache/$name.c" "$cache/$name.ko" "$out/"
