#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# vmlinux.sh [RELEASE]: prints the path of the vmlinux with debug information of Debian's kernel RELEASE, or of the guest's kernel;
# fetches Debian's package of it the first time (1 GB, of which 350 MB are kept, in ~/.cache/kprism/debug).
set -eu

cache="${XDG_CACHE_HOME:-$HOME/.cache}/kprism"
release=${1:-$(ls "$cache/kernel" 2>/dev/null | sed -n 's/^linux-image-\([^_]*\)_.*/\1/p' | sort -V | tail -n 1)}
[ -n "$release" ] || { echo "no guest yet: kprism lab prepare" >&2; exit 2; }
file="$cache/debug/vmlinux-$release"
if [ ! -s "$file" ]; then
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
	echo "fetching linux-image-$release-dbg (1 GB)" >&2
	(cd "$folder" && apt-get download "linux-image-$release-dbg" >&2)
	mkdir -p "$cache/debug"
	dpkg-deb --fsys-tarfile "$folder"/*.deb |
		tar -x -C "$folder" --no-same-owner "./usr/lib/debug/boot/vmlinux-$release"
	mv "$folder/usr/lib/debug/boot/vmlinux-$release" "$file"
fi
echo "$file"
