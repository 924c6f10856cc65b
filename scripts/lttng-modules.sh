#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   scripts/lttng-modules.sh [RELEASE]     builds LTTng's kernel modules for the guest's kernel, or Debian's kernel RELEASE, the
#                                          first time, and prints their folder, for `kprism impact --lttng`
#   scripts/lttng-modules.sh --have        prints it only if it is there
#
# It needs no root and installs nothing. The source is that of Debian 13's lttng-modules-dkms, which knows 6.12; Debian 12's
# does not build for its 6.12 kernels. The kernel's tracepoints are left out: system calls need none of them, they take most
# of the time, and one, lttng-probe-timer, does not build for 6.12.117, whose `hrtimer_start` is a later kernel's.
# Beside the folder, `source` has what probes of other tracepoints are built with, and `package` says what it was.
set -eu

suite=trixie
package=lttng-modules-dkms
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism
have=
[ "${1:-}" != --have ] || { have=yes; shift; }
release=${1:-$(ls "$cache/kernel" 2>/dev/null | sed -n 's/^linux-image-\([^_]*\)_.*/\1/p' | sort -V | tail -n 1)}
[ -n "$release" ] || { echo "lttng-modules: no guest yet: kprism lab prepare" >&2; exit 2; }
folder=$cache/tools/lttng-modules/$release-$(sha256sum <"$here/lttng-modules.sh" | cut -c1-16)
if [ -d "$folder" ]; then echo "$folder/ko"; exit 0; fi
[ -z "$have" ] || exit 1

headers=$(sh "$here/kernel-headers.sh" "$release")
mkdir -p "$cache/tools/lttng-modules"
scratch=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
log=$folder.log
# Into folders of apt's own, so that it learns no new sources. apt checks signatures and hashes.
mkdir -p "$scratch/apt/lists/partial" "$scratch/apt/cache/archives/partial" "$scratch/ko"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
signed=
[ ! -e $keyring ] || signed="[signed-by=$keyring]"
# shellcheck disable=SC2016 # apt's own variables
apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' | sort -u |
	awk -v signed="$signed" -v here="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" -v suite=$suite '
		$1 == "Debian" && $2 == here { print "deb", signed, $3, suite, "main" }' >"$scratch/apt/sources.list"
[ -s "$scratch/apt/sources.list" ] || { echo "lttng-modules: apt has no source of Debian: apt-get update first" >&2; exit 1; }
apt() {
	apt-get -q -o Acquire::Retries=3 -o Dir::Etc::SourceList="$scratch/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::State::Lists="$scratch/apt/lists" -o Dir::Cache="$scratch/apt/cache" \
		-o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false -o APT::Sandbox::User=root "$@"
}
(cd "$scratch/apt" && apt update && apt download $package) >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
deb=$(ls "$scratch"/apt/*.deb)
dpkg-deb -x "$deb" "$scratch/unpacked"
mv "$scratch"/unpacked/usr/src/lttng-modules-* "$scratch/source"
(cd "$scratch/apt" && sha256sum ./*.deb) >"$scratch/package"

# Not those of tracepoints, but the ones that LTTng's core calls: lttng-kprobes, lttng-kretprobes, lttng-uprobes.
sed -i 's/lttng-probe-[a-z0-9-]*\.o//' "$scratch/source/src/probes/Kbuild"
echo "lttng-modules: building $(basename "$deb"), once: a minute or two of every CPU" >&2
make -s -j"$(nproc)" -C "$headers" M="$scratch/source" CC=cc CONFIG_LTTNG=m CONFIG_DEBUG_INFO_BTF_MODULES= modules >>"$log" 2>&1 || {
	tail -n 30 "$log" >&2
	echo "lttng-modules: $(basename "$deb") does not build for $release; all of make's output: $log" >&2
	exit 1
}
find "$scratch/source" -name '*.ko' -exec cp {} "$scratch/ko/" \;
# Names of functions are another section; debug information would be 50 MB more in the guest.
strip --strip-debug "$scratch"/ko/*.ko
find "$scratch/source" -type f ! -name '*.[ch]' ! -name Module.symvers ! -name 'Kbuild*' -delete
rm -rf "$scratch/apt" "$scratch/unpacked" "$log"
chmod 755 "$scratch"
# Another one may have been faster.
mv -T "$scratch" "$folder" 2>/dev/null || [ -d "$folder" ]
echo "$folder/ko"
