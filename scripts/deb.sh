#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Makes the Debian package from built programs. Called by scripts/dist.sh.
#
#   scripts/deb.sh BUILD OUT VERSION      writes OUT/kprism_VERSION_amd64.deb
#
# What it depends on is read from the plugins, which are linked dynamically; texts are in contrib/debian.
set -eu

build=$1 out=$2 version=$3
top=$(cd "$(dirname "$0")/.." && pwd)
: "${SOURCE_DATE_EPOCH:=$(git -C "$top" log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
for program in dpkg-deb dpkg-shlibdeps; do
	command -v $program >/dev/null || {
		echo "deb: no $program: apt-get install dpkg-dev" >&2
		exit 1
	}
done
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
PREFIX=/usr ZSH=zsh/vendor-completions sh "$top/scripts/install.sh" "$build" "$root"

doc=$root/usr/share/doc/kprism
# Debian's policy: licences stand in copyright, and texts are compressed.
rm -f "$doc"/LICENSE-* 
install -m644 "$top/contrib/debian/copyright" "$doc/copyright"
cat >"$work/changelog" <<END
kprism ($version) unstable; urgency=medium

  * Release $version: see changelog.gz.

 -- kprism's authors <kprism@localhost>  $(date -u -d "@$SOURCE_DATE_EPOCH" -R)
END
mv "$doc/CHANGELOG.md" "$work/upstream"
gzip -9nc "$work/upstream" >"$doc/changelog.gz"
gzip -9nc "$work/changelog" >"$doc/changelog.Debian.gz"
gzip -9n "$root"/usr/share/man/man1/*
install -Dm644 "$top/contrib/debian/lintian-overrides" "$root/usr/share/lintian/overrides/kprism"

# The functions of QEMU and glib are those of the QEMU that loads a plugin: no library is linked for them.
mkdir -p "$work/debian"
printf 'Source: kprism\n\nPackage: kprism\nArchitecture: amd64\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O -e"$root/usr/lib/kprism/libkprism_observer.so" \
	-e"$root/usr/lib/kprism/libkprism_user.so" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { echo "deb: dpkg-shlibdeps found no libraries of the plugins" >&2; exit 1; }

mkdir -p "$root/DEBIAN"
size=$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f 1)
sed -e "s/@VERSION@/$version/" -e "s/@SIZE@/$size/" -e "s/@DEPENDS@/$depends/" \
	"$top/contrib/debian/control" >"$root/DEBIAN/control"
(cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum >DEBIAN/md5sums)
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$root" "$out/kprism_${version}_amd64.deb" >/dev/null
