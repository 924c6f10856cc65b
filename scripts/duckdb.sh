#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# DuckDB's own build of libduckdb.so, which kprism-sql is linked with. It comes from the package of its bindings for Node, whose
# version and hash crates/view/sql/library/package-lock.json locks, and is kept in the cache under that version.
#
#   sh scripts/duckdb.sh                fetches it if it is not there, and prints the folder
#   sh scripts/duckdb.sh --have         fetches nothing: fails if it is not there
#   sh scripts/duckdb.sh build PROFILE  builds kprism-sql, and puts the library beside it
set -eu

cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"
lock=crates/view/sql/library
cache=${KPRISM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kprism}
version=$(sed -n 's/.*"@duckdb[^"]*x64": "\(.*\)".*/\1/p' $lock/package.json)
folder=$cache/duckdb/$version-$(uname -m)
if [ "${1:-}" = --have ]; then exec test -f "$folder/libduckdb.so"; fi

# The crate 1.10506.1 is the binding of DuckDB 1.5.6. With another library, calls would have another meaning.
crate=$(awk '/^name = "libduckdb-sys"/ { getline; gsub(/version = |"/, ""); print }' Cargo.lock)
bound=$(echo "$crate" | awk -F. '{ printf "%d.%d.%d", $2 / 10000, $2 / 100 % 100, $2 % 100 }')
case $version in
"$bound"-*) ;;
*)
	echo "duckdb.sh: the crate libduckdb-sys $crate is for DuckDB $bound, $lock/package.json has $version: they are changed together" >&2
	exit 1
	;;
esac

if [ ! -f "$folder/libduckdb.so" ]; then
	command -v npm >/dev/null || {
		echo "duckdb.sh: there is no npm here (Debian's package: npm)" >&2
		exit 1
	}
	mkdir -p "$cache/duckdb"
	work=$(mktemp -d "$cache/duckdb/.fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cp $lock/package.json $lock/package-lock.json $lock/.npmrc "$work"
	(cd "$work" && npm ci --ignore-scripts --silent >&2)
	# npm takes the package of this processor, and none where there is none.
	library=$(find "$work/node_modules" -name libduckdb.so | head -n 1)
	[ -n "$library" ] || {
		echo "duckdb.sh: DuckDB has no library for Linux on $(uname -m) with this C library" >&2
		exit 1
	}
	chmod -R u=rwX,go=rX "$(dirname "$library")"
	# Somebody else may have fetched it meanwhile.
	[ -d "$folder" ] || mv "$(dirname "$library")" "$folder" || [ -f "$folder/libduckdb.so" ]
	rm -rf "$work"
	trap - EXIT
fi

case ${1:-} in
build)
	profile=${2:?usage: duckdb.sh build PROFILE}
	DUCKDB_LIB_DIR=$folder $CARGO build -p kprism-sql --features linked --profile "$profile"
	cp "$folder/libduckdb.so" "${CARGO_TARGET_DIR:-target}/$profile/"
	# Whoever gets the library gets its licence (MIT, as that asks for).
	cp "$folder/LICENSE" "${CARGO_TARGET_DIR:-target}/$profile/libduckdb.LICENSE"
	;;
*) echo "$folder" ;;
esac
