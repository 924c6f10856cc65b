#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   scripts/systemtap.sh [RELEASE]        fetches SystemTap for Debian's kernel RELEASE, or the newest 6.1 that apt knows, the first
#                                         time, and prints its folder
#   scripts/systemtap.sh --have [RELEASE] prints it only if it is there
#
# In the folder, `stap -p4 -m NAME SCRIPT.stp` makes NAME.ko for that kernel, and `stap --runtime=bpf -p4 -m NAME …` NAME.bo. In
# a guest with that kernel (`--kernel linux-image-RELEASE --package systemtap-runtime`), `staprun NAME.ko` runs the first, and
# the folder's `root/usr/bin/stapbpf NAME.bo` the second. `release` has the kernel's release, `package` the packages' hashes.
# `sh events DIR HEADER.h…` makes DIR a folder for `stap -r DIR`, where `kernel.trace` knows the static tracepoints of these headers
# alone: of a module too, which are in no header of the kernel, and in seconds in place of minutes.
#
# It needs no root and installs nothing. SystemTap is that of the machine's own Debian; Debian 12's, 4.8, knows kernels up to
# 6.1, which is Debian 12's. The kernel's debug information is needed too: 1 GB is fetched, 350 MB are kept (scripts/vmlinux.sh).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism
have=
[ "${1:-}" != --have ] || { have=yes; shift; }
case ${1:-} in -*)
	sed -n '4,6s/^# *//p' "$0" >&2
	exit 2
	;;
esac
release=${1:-$(apt-cache pkgnames linux-image-6.1. 2>/dev/null | sed -n 's/^linux-image-\(6\.1\.[0-9]*-[0-9]*-amd64\)$/\1/p' | sort -V | tail -n 1)}
[ -n "$release" ] || { echo "systemtap: apt knows no linux-image-6.1.0-…-amd64: it is a kernel of Debian 12, and the newest that SystemTap 4.8 knows" >&2; exit 2; }
folder=$cache/tools/systemtap/$release-$(sha256sum <"$here/systemtap.sh" | cut -c1-16)
if [ -d "$folder" ]; then echo "$folder"; exit 0; fi
[ -z "$have" ] || exit 1

# With the packages that it needs and this machine has not: they are unpacked beside it, not installed.
needed=$(apt-get -s -o APT::Install-Recommends=false install systemtap | awk '$1 == "Inst" { print $2 }')
headers=$(sh "$here/kernel-headers.sh" "$release")
vmlinux=$(sh "$here/vmlinux.sh" "$release")
mkdir -p "$cache/tools/systemtap"
scratch=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
log=$folder.log
mkdir "$scratch/debs" "$scratch/root" "$scratch/tree"
# shellcheck disable=SC2086 # names of packages
(cd "$scratch/debs" && apt-get -q -o Acquire::Retries=3 -o APT::Sandbox::User=root download \
	$(printf '%s\n' systemtap systemtap-common systemtap-runtime $needed | sort -u)) >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
for package in "$scratch"/debs/*.deb; do dpkg-deb -x "$package" "$scratch/root"; done
(cd "$scratch/debs" && sha256sum ./*.deb) >"$scratch/package"
rm -r "$scratch/debs"
echo "$release" >"$scratch/release"

# The folder that stap takes for the kernel's: headers, their sources and the debug information, which are packages of their own.
for file in "$headers"/* "$headers"/.[!.]*; do ln -s "$file" "$scratch/tree/"; done
ln -s "$vmlinux" "$scratch/tree/vmlinux"
common=$(sed -n 's,^include \(/.*\)/Makefile$,\1,p' "$headers/Makefile")
ln -s "$common" "$scratch/tree/source"
# A later 6.1 gave `task_work_cancel` of Linux 6.1.0 the name `task_work_cancel_func`; SystemTap 4.8 does not know that.
runtime=$scratch/root/usr/share/systemtap/runtime
if grep -q task_work_cancel_func "$common/include/linux/task_work.h"; then
	sed -i 's/\btask_work_cancel\b/task_work_cancel_func/' "$runtime/stp_task_work.c"
fi
cat >"$scratch/stap" <<-END
	#!/bin/sh
	# SystemTap for $release, by kprism's scripts/systemtap.sh; -r DIR takes another folder for the kernel's.
	folder=\$(cd "\$(dirname "\$0")" && pwd)
	export SYSTEMTAP_TAPSET="\$folder/root/usr/share/systemtap/tapset" SYSTEMTAP_RUNTIME="\$folder/root/usr/share/systemtap/runtime"
	export SYSTEMTAP_DIR="\${SYSTEMTAP_DIR:-\$folder/state}"
	export LD_LIBRARY_PATH="\$folder/root/usr/lib/x86_64-linux-gnu:\$folder/root/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
	exec "\$folder/root/usr/bin/stap" -r "\$folder/tree" "\$@"
END
cat >"$scratch/events" <<'END'
#!/bin/sh
# events DIR HEADER.h…: a folder for `stap -r DIR` with the static tracepoints of these headers.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/events/include/trace/events"
to=$(cd "$1" && pwd)
shift
for header; do ln -s "$(realpath "$header")" "$to/events/include/trace/events/"; done
# stap includes <trace/events/HEADER.h> with `source` on the compiler's path.
ln -s include/trace "$to/events/trace"
for file in "$folder"/tree/* "$folder"/tree/.[!.]*; do
	[ "${file##*/}" = source ] || ln -s "$file" "$to/"
done
ln -s events "$to/source"
END
chmod 755 "$scratch" "$scratch/stap"

# A probe that does nothing: the release may be one that this SystemTap does not know.
echo "systemtap: trying $(awk -F '[_/]' '/\/systemtap_/ { print $3 }' "$scratch/package") with $release, once: half a minute" >&2
(cd "$scratch" && ./stap -p4 -m kprism_try -e 'probe begin { exit() }' >"$log" 2>&1) || {
	tail -n 30 "$log" >&2
	echo "systemtap: $(awk -F / '/\/systemtap_/ { print $2 }' "$scratch/package") makes no module for $release; all it said: $log" >&2
	exit 1
}
rm "$scratch/kprism_try.ko" "$log"
# Another one may have been faster.
mv -T "$scratch" "$folder" 2>/dev/null || [ -d "$folder" ]
echo "$folder"
