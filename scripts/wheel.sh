#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Packs the Python wheel out of programs that are built already. Called by `make wheel`. Needs Python 3.11 and readelf.
#
#   BUILT=target/release   the folder with the programs, the plugins and libkprism_python.so
#   OUT=target/dist        where kprism-VERSION-cp39-abi3-manylinux_….whl goes
#   GUEST=FILE             a guest image that goes along, for machines without apt
#   STRIP=no               leaves names in the programs
#   NOTICES=FILE           licences of the libraries in the programs; made by scripts/notices.py if it is not set
#   SOURCE_DATE_EPOCH=SECONDS  time of every file in it; that of the commit if it is not set
#
# The same files give the same bytes.
set -eu

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
: "${BUILT:=$target/release}" "${OUT:=$target/dist}" "${GUEST:=}" "${NOTICES:=}" "${STRIP:=yes}"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$OUT" "$stage/built"
for file in kprism kprism-agent kprism-recorder libkprism_observer.so libkprism_user.so libkprism_python.so; do
	[ -f "$BUILT/$file" ] || {
		echo "wheel: $BUILT/$file is not built: cargo build --release --workspace" >&2
		exit 1
	}
	case $STRIP-$file in
	no-*) cp "$BUILT/$file" "$stage/built/$file" ;;
	*.so) strip --strip-unneeded -o "$stage/built/$file" "$BUILT/$file" ;;
	*) strip --strip-all -o "$stage/built/$file" "$BUILT/$file" ;;
	esac
done
if [ -z "$NOTICES" ]; then
	NOTICES=$stage/THIRD-PARTY.txt
	python3 scripts/notices.py >"$NOTICES"
fi
PREFIX='' NOTICES=$NOTICES sh scripts/install.sh "$stage/built" "$stage/installed"
python3 scripts/wheel.py "$stage/built" "$stage/installed" "$OUT" ${GUEST:+"$GUEST"}
