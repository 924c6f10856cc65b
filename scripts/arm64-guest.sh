#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Gets what a 64-bit ARM guest for tests is made of, the first time: Debian's kernel for arm64, of this machine's release, the
# modules for its network, busybox, and dropbear with its libraries. apt gets it into a folder of its own; nothing is installed.
# In the folder are then vmlinuz, release, and root.tar with files of the guest.
# usage: arm64-guest.sh [--have]   --have: only tells whether it is there
set -eu
folder=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/tools/arm64-guest
recipe=$(sha256sum <"$0" | cut -c1-24)
if [ "$(cat "$folder/recipe" 2>/dev/null)" = "$recipe" ]; then exit 0; fi
[ "${1:-}" != --have ] || exit 1
for program in apt-get dpkg-deb tar; do
	command -v "$program" >/dev/null || { echo "arm64-guest: needs $program" >&2; exit 1; }
done

mkdir -p "$folder"
work=$(mktemp -d "$folder/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/root"
: >"$work/status"
# The user that apt becomes for downloads must be able to enter it.
chmod 755 "$work"
for_arm64() {
	program=$1
	shift
	"$program" -q -o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" \
		-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= "$@"
}
for_arm64 apt-get update >&2
# The package that names the newest kernel for virtual machines.
kernel=$(for_arm64 apt-cache depends linux-image-cloud-arm64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$kernel" ] || { echo "arm64-guest: apt knows no linux-image-cloud-arm64" >&2; exit 1; }
libraries=$(for_arm64 apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
	--no-enhances dropbear-bin | grep -e '^lib' -e '^zlib' | sort -u)
# shellcheck disable=SC2086 # several names
(cd "$work" && for_arm64 apt-get download "$kernel" busybox-static dropbear-bin $libraries >&2)
for package in "$work"/*.deb; do
	dpkg-deb -x "$package" "$work/all"
done
release=${kernel#linux-image-}
release=${release%-unsigned}
mkdir -p "$work/root/bin" "$work/root/modules"
cp "$work"/all/boot/vmlinuz-* "$work/vmlinuz"
cp "$(find "$work/all" -path "*/bin/busybox" | head -n 1)" "$work/root/bin/busybox"
cp "$(find "$work/all" -path "*/sbin/dropbear" | head -n 1)" "$work/root/bin/dropbear"
# Those that one release has as modules, another has in the kernel.
for module in failover net_failover virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_net; do
	file=$(find "$work/all" -name "$module.ko*" | head -n 1)
	case $file in
	'') ;;
	*.xz) xz -dc "$file" >"$work/root/modules/$module.ko" ;;
	*) cp "$file" "$work/root/modules/$module.ko" ;;
	esac
done
# The libraries of dropbear, by the names that programs use.
mkdir -p "$work/root/lib/aarch64-linux-gnu"
(cd "$work/root/lib" && ln -s aarch64-linux-gnu/ld-linux-aarch64.so.1 ld-linux-aarch64.so.1)
find "$work/all" -path "*aarch64-linux-gnu/*" \( -name "*.so.?" -o -name "*.so.??" -o -name "ld-linux-*" \) | grep -v -e gconv -e audit |
	while read -r library; do cp -L "$library" "$work/root/lib/aarch64-linux-gnu/"; done
tar -C "$work/root" -cf "$work/root.tar" .
echo "$release" >"$work/release"
for file in vmlinuz root.tar release; do
	mv "$work/$file" "$folder/$file"
done
echo "$recipe" >"$folder/recipe"
