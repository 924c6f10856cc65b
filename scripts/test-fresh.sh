#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A fresh machine: a bare Debian in a folder, a clean clone in it, and the commands of the README in either order. Called by
# `make test-fresh`, as root (it makes file systems and mounts). What is committed is what is tried.
#
#   SUITE=bookworm      or trixie
#   ORDER=demo,test     targets that ./x is given, in this order; test,demo is the other
#   AS=root             or user, who has sudo
#   RUST=without        or with: this machine's toolchain of rustup, read-only
#   CARGO_CACHE=yes     what cargo has downloaded here is used there; no: downloaded anew
#   KEEP=no             or yes: the folder stays; it takes 20 GB
#   REUSE=              target folder of an earlier run of the same SUITE, AS and RUST: what `make test` compiled there is used,
#                       but for files that were changed since its commit. It halves the time of the second order. The demo's
#                       programs are always compiled. Folders gcov-kernel and tools in it are put into the cache of kprism.
#
# Mirrors are those of this machine's apt. Logs are in target/fresh/SUITE-ORDER-AS-RUST/*.log; closing lines are printed.
set -eu

: "${SUITE:=bookworm}" "${ORDER:=demo,test}" "${AS:=root}" "${RUST:=without}" "${CARGO_CACHE:=yes}" "${KEEP:=no}" "${REUSE:=}"
case $SUITE-$AS-$RUST in
bookworm-root-* | bookworm-user-* | trixie-root-* | trixie-user-*) ;;
*)
	echo "test-fresh: SUITE=$SUITE AS=$AS RUST=$RUST: see the head of $0" >&2
	exit 2
	;;
esac
. "$(dirname "$0")/bare-debian.sh"
bare_needs test-fresh

# All mounts are of this script alone, and go with it.
if [ -z "${KPRISM_FRESH_INNER:-}" ]; then
	KPRISM_FRESH_INNER=1 exec unshare --mount --propagation private sh "$0"
fi

top=$(cd "$(dirname "$0")/.." && pwd)
place=${CARGO_TARGET_DIR:-$top/target}/fresh/$SUITE-$(echo "$ORDER" | tr , -)-$AS-$RUST
root=$place/root
commit=$(git -C "$top" rev-parse HEAD)
case $REUSE/ in
"$place"/*) echo "test-fresh: REUSE=$REUSE is in $place, which is made anew" >&2; exit 2 ;;
/) ;;
*)
	reused=$(cat "$REUSE/checked/commit" 2>/dev/null) && git -C "$top" cat-file -e "$reused^{commit}" 2>/dev/null || {
		echo "test-fresh: REUSE=$REUSE names no commit of this repository in checked/commit" >&2
		exit 2
	}
	;;
esac
rm -rf "$place"
mkdir -p "$place"
home=/root
[ "$AS" = root ] || home=/home/kprism

printf '== %s, %s, as %s, %s rustup: making it\n' "$SUITE" "$ORDER" "$AS" "$RUST"
bare_make "$SUITE" "$root" "$place/mmdebstrap.log" sudo,ca-certificates
if [ "$AS" = user ]; then
	chroot "$root" useradd -m -s /bin/sh kprism
	echo 'kprism ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/kprism"
fi
git clone -q --no-hardlinks "$top" "$root$home/kprism"
if [ -n "$REUSE" ]; then
	mkdir -p "$root$home/kprism/target"
	cp -a "$REUSE/checked" "$REUSE/debug" "$root$home/kprism/target/"
	# cargo compares times, and a clone's are those of now.
	find "$root$home/kprism" -path "$root$home/kprism/target" -prune -o -type f -exec touch -d @1700000000 {} +
	git -C "$top" diff -z --name-only --diff-filter=d "$reused" "$commit" |
		(cd "$root$home/kprism" && xargs -0 -r touch)
	for kept in gcov-kernel tools; do
		[ ! -d "$REUSE/$kept" ] || { mkdir -p "$root$home/.cache/kprism" && cp -a "$REUSE/$kept" "$root$home/.cache/kprism/"; }
	done
fi

# For the next REUSE.
mkdir -p "$root$home/kprism/target/checked"
echo "$commit" >"$root$home/kprism/target/checked/commit"

bare_mounts "$root"
# bind_ro FROM TO
bind_ro() {
	mkdir -p "$root$2"
	mount --bind "$1" "$root$2"
	mount -o remount,bind,ro "$root$2"
}
mkdir -p "$root$home/.cargo"
if [ "$RUST" = with ]; then
	bind_ro "${RUSTUP_HOME:-$HOME/.rustup}" "$home/.rustup"
	bind_ro "${CARGO_HOME:-$HOME/.cargo}/bin" "$home/.cargo/bin"
fi
if [ "$CARGO_CACHE" = yes ] && [ -d "${CARGO_HOME:-$HOME/.cargo}/registry" ]; then
	cp -r "${CARGO_HOME:-$HOME/.cargo}/registry" "$root$home/.cargo/"
fi
[ "$AS" = root ] || chroot "$root" sh -c "chown kprism $home/.cargo && chown -R kprism $home/kprism && \
	for kept in .cargo/registry .cache; do if [ -d $home/\$kept ]; then chown -R kprism $home/\$kept; fi; done"

# Captures are not part of a fresh machine.
inside() {
	user=root
	[ "$AS" = root ] || user=kprism
	bare_inside "$root" $user "$home/kprism" "$1"
}

failed=0
for target in $(echo "$ORDER" | tr , ' '); do
	began=$(date +%s)
	if inside "./x $target" >"$place/$target.log" 2>&1; then result=ok; else result=FAILED failed=1; fi
	printf '== %s %s: %s after %d s; %s\n' "$SUITE" "$target" "$result" $(($(date +%s) - began)) "$place/$target.log"
	if [ "$target" = test ]; then sed -n '/^skipped:$/,$p' "$place/$target.log"; fi
	tail -n 3 "$place/$target.log"
done
if [ "$KEEP" = no ]; then
	bare_end "$root"
fi
exit $failed
