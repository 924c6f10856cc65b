#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes a disk image for tests, the first time: this machine's release of Debian with systemd, sshd and its own kernel, on
# ext4. Beside disk.raw are that kernel and its initramfs. Needs root, or sudo without a password.
# usage: systemd-image.sh [--have]   --have: only tells whether it is there
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/tools/systemd-image
recipe=$(cat "$here/systemd-image.sh" "$here"/systemd-image/* | sha256sum | cut -c1-24)
if [ "$(cat "$folder/recipe" 2>/dev/null)" = "$recipe" ]; then exit 0; fi
[ "${1:-}" != --have ] || exit 1

root=
if [ "$(id -u)" -ne 0 ]; then
	sudo -n true 2>/dev/null || { echo "systemd-image: needs root, or sudo without a password" >&2; exit 1; }
	root="sudo -n"
fi
command -v mmdebstrap >/dev/null || { echo "systemd-image: needs mmdebstrap" >&2; exit 1; }

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror() {
	# shellcheck disable=SC2016 # apt's own variables
	apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
		awk -v suite="$1" '$1 == "Debian" && $2 == suite { print $3; exit }'
}
set --
for name in "$suite" "$suite-updates" "$suite-security"; do
	uri=$(mirror "$name")
	[ -z "$uri" ] || set -- "$@" "deb $uri $name main"
done

mkdir -p "$folder"
work=$(mktemp -d "$folder/.new.XXXXXX")
trap '$root rm -rf "$work"' EXIT
# Debian's programs must be able to enter the folder of their root.
chmod 755 "$work"
cc -O2 -static -o "$work/kprism-work" "$here/systemd-image/work.c"
dd if=/dev/zero of="$work/input" bs=1000 count=10 status=none
$root mmdebstrap --quiet --variant=minbase \
	--include=systemd-sysv,udev,dbus,openssh-server,e2fsprogs,linux-image-amd64,initramfs-tools \
	--customize-hook="copy-in $here/systemd-image/kprism-work.service /etc/systemd/system" \
	--customize-hook="upload $work/kprism-work /usr/local/bin/kprism-work" \
	--customize-hook="upload $work/input /etc/kprism-work" \
	--customize-hook='chmod 755 "$1/usr/local/bin/kprism-work"' \
	--customize-hook='chroot "$1" systemctl enable kprism-work.service' \
	"$suite" "$work/root" "$@"
$root /usr/sbin/mke2fs -q -t ext4 -L rootfs -d "$work/root" "$work/disk.raw" 2G
for file in vmlinuz initrd.img; do
	$root cp "$work"/root/boot/$file-* "$work/$file"
done
$root chown "$(id -u):$(id -g)" "$work/disk.raw" "$work/vmlinuz" "$work/initrd.img"
for file in disk.raw vmlinuz initrd.img; do
	mv "$work/$file" "$folder/$file"
done
echo "$recipe" >"$folder/recipe"
