#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   scripts/qemu-user.sh            puts a qemu-x86_64 that takes plugins into the user's cache, and prints its path
#   scripts/qemu-user.sh --have     succeeds if there is one
#   scripts/qemu-user.sh --needs    prints the Debian packages that this takes, one a line
#
# `kprism record tlb --method user` needs it. Debian's qemu-user from version 9 on is linked statically and takes no plugins.
# Where apt knows an older one, as on Debian 12, that package is unpacked; else the one program is built from Debian's
# source package (three minutes of CPU). Nothing is installed, and no root is needed.
set -eu

place=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/tools/qemu-user
say() { printf 'qemu-user: %s\n' "$*" >&2; }

takes_plugins() { "$1" -help 2>/dev/null | grep -q -e '^-plugin '; }

# The newest version with plugins that apt knows; nothing if there is none.
packaged() {
	apt-cache madison qemu-user | awk '{ split($3, v, /[:.]/); if (v[2] >= 6 && v[2] < 9) { print $3; exit } }'
}

unpack() {
	(cd "$scratch" && apt-get -q -o APT::Sandbox::User=root download "qemu-user=$1" >&2)
	dpkg-deb --fsys-tarfile "$scratch"/qemu-user_*.deb | tar -x -C "$scratch" ./usr/bin/qemu-x86_64
	mv "$scratch/usr/bin/qemu-x86_64" "$scratch/qemu-x86_64"
}

# One command: where it is called, `set -e` does not hold.
build() {
	sh "$(dirname "$0")/debian-source.sh" qemu "$scratch/src" &&
		mkdir "$scratch/build" &&
		cd "$scratch/build" &&
		# What one program has no use for is left out, so that little else has to be installed; firmware, which Debian's
		# source lacks, too.
		../src/configure --target-list=x86_64-linux-user --enable-plugins --without-default-features \
			--disable-system --disable-tools --disable-docs --disable-install-blobs --disable-werror \
			--disable-download &&
		ninja qemu-x86_64 &&
		mv qemu-x86_64 ..
}

found() {
	for there in ${KPRISM_QEMU_USER:+"$KPRISM_QEMU_USER"} "$place/qemu-x86_64" qemu-x86_64; do
		if takes_plugins "$there"; then
			command -v "$there"
			return 0
		fi
	done
	return 1
}

case ${1:-} in
--needs)
	# apt may not have been updated yet: which release this is says it, too.
	if [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" = bookworm ]; then
		printf '%s\n' libcapstone4 libglib2.0-0 libgnutls30 libnuma1 liburing2
	else
		printf '%s\n' bison dpkg-dev flex gcc libglib2.0-dev meson ninja-build pkg-config python3-venv xz-utils
	fi
	exit 0
	;;
--have)
	found >/dev/null
	exit
	;;
esac
if found; then exit 0; fi

mkdir -p "$place"
scratch=$(mktemp -d "$place/.new.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
version=$(packaged)
if [ -n "$version" ]; then
	say "unpacking Debian's qemu-user $version into $place"
	unpack "$version"
else
	say "building qemu-x86_64 with plugins from Debian's source package into $place"
	(build) >"$place/build.log" 2>&1 || {
		tail -n 20 "$place/build.log" >&2
		say "it could not be built: see $place/build.log; --method model, in the guest, needs none of it"
		exit 1
	}
fi
takes_plugins "$scratch/qemu-x86_64" || {
	say "what was made does not start, or takes no plugins: $("$scratch/qemu-x86_64" --version 2>&1 | head -n 1)"
	exit 1
}
mv "$scratch/qemu-x86_64" "$place/qemu-x86_64"
echo "$place/qemu-x86_64"
