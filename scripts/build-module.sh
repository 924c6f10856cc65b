#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# build-module.sh RELEASE OUT SOURCE: builds a kernel module from SOURCE, one C file, for Debian's kernel RELEASE into the
# folder OUT. The kernel's headers are fetched by apt into the user's cache and used from there; nothing is installed.
set -eu

release=$1
out=$2
source=$3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/headers/$release

if [ ! -d "$cache" ]; then
	scratch=$cache.$$
	trap 'rm -rf "$scratch"' EXIT
	mkdir -p "$scratch/debs"
	common=${release%-amd64}
	# Older kernels share their build tools among all builds of a version.
	kbuild=linux-kbuild-$common
	[ -n "$(apt-cache show "$kbuild" 2>/dev/null)" ] || kbuild=linux-kbuild-$(echo "$common" | cut -d. -f1,2)
	(cd "$scratch/debs" && apt-get -q -o Acquire::Retries=3 download \
		"linux-headers-$release" "linux-headers-$common-common" "$kbuild")
	for package in "$scratch"/debs/*.deb; do dpkg-deb -x "$package" "$scratch"; done
	rm -r "$scratch/debs"
	# The packages expect to lie below /usr.
	sed -i "s,^include /usr,include $cache/usr," "$scratch/usr/src/linux-headers-$release/Makefile"
	# Another test may have been faster.
	mv -T "$scratch" "$cache" 2>/dev/null || [ -d "$cache" ]
fi

cp "$source" "$out/"
echo "obj-m := $(basename "$source" .c).o" >"$out/Makefile"
# BTF of modules needs pahole, and nothing here needs it.
make -s -C "$cache/usr/src/linux-headers-$release" M="$out" CC=cc CONFIG_DEBUG_INFO_BTF_MODULES= modules
