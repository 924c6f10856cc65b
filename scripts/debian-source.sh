#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   scripts/debian-source.sh PACKAGE FOLDER [SUITE]
#
# Unpacks the source package of this Debian release, or of another, into FOLDER, which must not be there yet. It needs no
# root, installs nothing, and leaves apt's own settings alone, which need not know any sources.
set -eu

package=$1
folder=$2
here=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
suite=${3:-$here}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
signed=
[ ! -e $keyring ] || signed="[signed-by=$keyring]"

# The mirrors that apt uses, for sources too.
# shellcheck disable=SC2016 # apt's own variables
apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' | sort -u |
	awk -v signed="$signed" -v here="$here" -v suite="$suite" '
		$1 == "Debian" && $2 == here { print "deb-src", signed, $3, suite, "main" }
		$1 == "Debian" && $2 == here "-security" && suite == here { print "deb-src", signed, $3, $2, "main" }
	' >"$scratch/sources.list"
[ -s "$scratch/sources.list" ] || {
	echo "debian-source: apt has no source of Debian: apt-get update first" >&2
	exit 1
}

apt() {
	apt-get -q -o Dir::Etc::SourceList="$scratch/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$scratch/lists" -o Dir::Cache="$scratch/cache" -o APT::Sandbox::User=root "$@" >&2
}

apt update
cd "$scratch"
if apt source --download-only "$package"; then
	dpkg-source --no-check -x ./*.dsc "$scratch/unpacked" >&2
else
	# Mirrors have been seen that lack Debian's own patches; the authors' release is as good here.
	apt source --tar-only "$package"
	mkdir "$scratch/unpacked"
	tar -xf ./*.orig.tar.* -C "$scratch/unpacked" --strip-components=1 --no-same-owner
fi
mv "$scratch/unpacked" "$folder"
