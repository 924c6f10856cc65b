#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The packages on machines without Rust: a bare Debian in a folder, what `make dist` wrote, the commands of docs/install.md as root, and
# then the tour of docs/tour.md as an ordinary user. Called by `make test-dist`, as root.
#
#   SUITE=trixie        or bookworm
#   FROM=archive        or deb, or container (contrib/container/Containerfile, without an engine; SUITE is the recipe's)
#   DIST=target/dist    the folder with the packages
#   HEADINGS=…          sections of docs/tour.md, separated by `;`: "A tour;The account of a run"
#   KEEP=no             or yes: the folder stays
#
# Commands that cannot be run as they stand are in tests/dist/skip.tsv, with the reason; each is printed. Logs are in
# target/test-dist/SUITE-FROM.log.
set -eu

: "${SUITE:=trixie}" "${FROM:=archive}" "${KEEP:=no}" "${HEADINGS:=A tour;The account of a run}"
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/bare-debian.sh
: "${DIST:=${CARGO_TARGET_DIR:-target}/dist}"
case $SUITE-$FROM in
trixie-archive | trixie-deb | bookworm-archive | bookworm-deb) ;;
*-container) SUITE=$(sh scripts/containerfile.sh contrib/container/Containerfile suite) ;;
*) echo "test-dist: SUITE=$SUITE FROM=$FROM: see the head of $0" >&2; exit 2 ;;
esac
bare_needs test-dist
[ -f "$DIST/SHA256SUMS" ] || { echo "test-dist: $DIST/SHA256SUMS is not there: make dist writes it" >&2; exit 2; }

# All mounts are of this script alone, and go with it.
if [ -z "${KPRISM_DIST_INNER:-}" ]; then
	export SUITE FROM KEEP HEADINGS DIST
	KPRISM_DIST_INNER=1 exec unshare --mount --propagation private sh "$0"
fi

place=$(mkdir -p "${CARGO_TARGET_DIR:-target}/test-dist" && cd "${CARGO_TARGET_DIR:-target}/test-dist" && pwd)
root=$place/$SUITE-$FROM
log=$place/$SUITE-$FROM.log
commands=$place/$SUITE-$FROM.commands
skip=tests/dist/skip.tsv
rm -rf "$root"
mkdir -p "$root"
failed=0 ran=0

printf '== %s, %s: making a bare Debian\n' "$SUITE" "$FROM" | tee "$log"
bare_make "$SUITE" "$root" "$place/$SUITE-$FROM.mmdebstrap" ca-certificates
bare_mounts "$root"

# run USER FOLDER: each of the commands in the file, its output in the log. `kprism` is found as the page for its kind says.
run() {
	while IFS= read -r command; do
		ran=$((ran + 1))
		printf '\n[%s]%% %s\n' "$1" "$command" >>"$log"
		began=$(date +%s)
		if bare_inside "$root" "$1" "$2" "$setting$command" >>"$log" 2>&1; then result=ok; else result=FAILED failed=$((failed + 1)); fi
		printf '%-6s %4d s  %s\n' "$result" $(($(date +%s) - began)) "$(echo "$command" | head -n 1)"
	done <"$commands"
}

user=kprism folder=/home/kprism setting="export DEBIAN_FRONTEND=noninteractive; "
if [ "$FROM" = container ]; then
	sh scripts/containerfile.sh contrib/container/Containerfile build "$DIST" "$root" >>"$log" 2>&1 ||
		{ tail -n 20 "$log"; exit 1; }
	sh scripts/containerfile.sh contrib/container/Containerfile start >"$commands"
	{ read -r user && read -r folder; } <"$commands"
else
	chroot "$root" useradd -m -s /bin/sh kprism
	case $FROM in
	archive) cp "$DIST"/kprism-*[0-9]-x86_64-linux.tar.gz "$DIST/SHA256SUMS" "$root/home/kprism/" ;;
	deb) cp "$DIST"/kprism_*.deb "$root/root/" ;;
	esac
	case $SUITE in trixie) heading="Debian 13" ;; bookworm) heading="Debian 12" ;; esac
	python3 tests/dist/console.py docs/install.md --root "$heading" >"$commands"
	run root /root
	case $FROM in
	archive) python3 tests/dist/console.py docs/install.md "From the archive" >"$commands" && run kprism /home/kprism ;;
	deb) python3 tests/dist/console.py docs/install.md --root "From the Debian package" >"$commands" && run root /root ;;
	esac
	# The page lets the reader choose how kprism comes into PATH; here the shortest.
	[ "$FROM" = deb ] || setting='PATH=$(echo $HOME/kprism-*-x86_64-linux/bin):$PATH; '
fi
[ "$FROM" = archive ] || setting=

for absent in cargo rustc gcc cc; do
	! bare_inside "$root" "$user" / "command -v $absent" || { echo "FAILED: $absent is here: this is no bare machine"; failed=$((failed + 1)); }
done
echo "kprism check" >"$commands"
run "$user" "$folder"
# shellcheck disable=SC2086 # split at semicolons
(IFS=';' && set -f && python3 tests/dist/console.py docs/tour.md --skip $skip $HEADINGS) >"$commands"
run "$user" "$folder"

printf '== %s, %s: %d commands, %d failed; %s\n' "$SUITE" "$FROM" "$ran" "$failed" "$log" | tee -a "$log"
[ "$KEEP" = yes ] || bare_end "$root"
[ "$failed" -eq 0 ]
