# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
#
# A bare Debian in a folder, for scripts that try something on a fresh machine: test-fresh.sh, test-dist.sh, containerfile.sh.
# They source this file. Mirrors are those of this machine's apt.

bare_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# bare_needs NAME: ends with the reason if this machine, or this user, cannot make one.
bare_needs() {
	[ "$(id -u)" -eq 0 ] || { echo "$1: making a file system and mounting needs root: sudo $0" >&2; exit 2; }
	command -v mmdebstrap >/dev/null || { echo "$1: needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 2; }
}

# bare_mirror "" | security: the first mirror of that kind.
bare_mirror() {
	# shellcheck disable=SC2016 # apt's own variables
	apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
		awk -v suffix="$1" '$1 == "Debian" && $2 !~ /backports/ && ($2 ~ /-security$/) == (suffix != "") { print $3; exit }'
}

# bare_make SUITE ROOT LOG PACKAGES: the file system, with this machine's name servers and authorities, mounted onto itself.
bare_make() {
	main=$(bare_mirror "")
	security=$(bare_mirror security)
	mmdebstrap --quiet --variant=minbase --include="$4" "$1" "$2" \
		"deb $main $1 main" "deb $main $1-updates main" "deb $security $1-security main" \
		>"$3" 2>&1 || { tail -n 5 "$3" >&2; exit 1; }
	# A root that is no mount has no propagation that `unshare --mount` could change, as a machine's root has.
	mount --bind "$2" "$2"
	cp /etc/resolv.conf /etc/hosts "$2/etc/"
	# This machine's own authorities, if it has any.
	if [ -d /usr/local/share/ca-certificates ] && [ -x "$2/usr/sbin/update-ca-certificates" ]; then
		cp -r /usr/local/share/ca-certificates "$2/usr/local/share/"
		chroot "$2" update-ca-certificates >/dev/null 2>&1
	fi
}

# bare_mounts ROOT: what a running system has.
bare_mounts() {
	mount -t proc proc "$1/proc"
	mount --rbind /sys "$1/sys"
	mount --rbind /dev "$1/dev"
	mount -t tmpfs tmpfs "$1/dev/shm"
}

# bare_inside ROOT USER FOLDER COMMAND: a shell's command line in it, with a clean environment and no input.
bare_inside() {
	if [ "$2" = root ]; then
		env -i HOME=/root PATH=$bare_path LANG=C.UTF-8 chroot "$1" sh -c "cd $3 && $4" </dev/null
	else
		env -i HOME="/home/$2" PATH=$bare_path LANG=C.UTF-8 chroot --userspec="$2:$2" "$1" sh -c "cd $3 && $4" </dev/null
	fi
}

# bare_end ROOT: removes it, with all that is mounted below it.
bare_end() {
	umount -l "$1"
	rm -rf --one-file-system "$1"
}
