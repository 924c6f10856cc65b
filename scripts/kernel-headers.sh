#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# kernel-headers.sh RELEASE: prints the folder with which modules of Debian's kernel RELEASE are built. The headers are fetched
# by apt into the user's cache and used from there; nothing is installed.
set -eu

release=$1
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
		"linux-headers-$release" "linux-headers-$common-common" "$kbuild") >&2
	for package in "$scratch"/debs/*.deb; do dpkg-deb -x "$package" "$scratch"; done
	rm -r "$scratch/debs"
	# The packages expect to lie below /usr.
	sed -i "s,^include /usr,include $cache/usr," "$scratch/usr/src/linux-headers-$release/Makefile"
	# Another one may have been faster.
	mv -T "$scratch" "$cache" 2>/dev/null || [ -d "$cache" ]
fi
echo "$cache/usr/src/linux-headers-$release"
