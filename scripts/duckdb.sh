#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# DuckDB as a static library, compiled once for all checkouts and profiles: it is 380 C++ files, minutes of every CPU. It comes
# from the source in the crate libduckdb-sys, and is kept in the cache under the crate's version and the compiler's.
#
#   sh scripts/duckdb.sh               prints the variables with which `cargo … --features kprism-sql/linked` links it
#   sh scripts/duckdb.sh --if-there    the same, but compiles nothing: fails if the cache has none
#   sh scripts/duckdb.sh build ARGS    builds kprism-sql with them: cargo build -p kprism-sql ARGS
set -eu

cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"
cache=${KPRISM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kprism}
version=$(awk '/^name = "libduckdb-sys"/ { getline; gsub(/version = |"/, ""); print }' Cargo.lock)
compiler=$(${CXX:-c++} --version | head -n 1)
key=$version-$(printf '%s\n%s\n' "$(${CXX:-c++} -dumpmachine)" "$compiler" | sha256sum | cut -c 1-12)
folder=$cache/duckdb/$key

if [ ! -f "$folder/libduckdb_static.a" ]; then
	if [ "${1:-}" = --if-there ]; then
		echo "duckdb.sh: $folder has no library; sh scripts/duckdb.sh compiles it" >&2
		exit 1
	fi
	mkdir -p "$cache/duckdb"
	# Two at once would only take twice as long.
	exec 9>"$cache/duckdb/$key.lock"
	flock 9
	if [ ! -f "$folder/libduckdb_static.a" ]; then
		echo "duckdb.sh: compiling DuckDB, once: minutes of every CPU, 1 GB of disk meanwhile" >&2
		made=$(mktemp -d "$cache/duckdb/$key.XXXXXX")
		trap 'rm -rf "$made"' EXIT
		$CARGO build --locked --release -p kprism-sql --lib --features bundled --target-dir "$made/target" >&2
		out=$(dirname "$(find "$made/target/release/build" -name libduckdb.a | head -n 1)")
		mkdir "$made/lib"
		cp "$out/libduckdb.a" "$made/lib/libduckdb_static.a"
		cp "$out/libduckdb_static_extension_autoregister.a" "$made/lib/"
		mv "$made/lib" "$folder"
		rm -rf "$made"
		trap - EXIT
	fi
	flock -u 9
fi

DUCKDB_LIB_DIR=$folder DUCKDB_STATIC=1
export DUCKDB_LIB_DIR DUCKDB_STATIC
if [ "${1:-}" = build ]; then
	shift
	exec $CARGO build -p kprism-sql --features linked "$@"
fi
printf "export DUCKDB_LIB_DIR='%s' DUCKDB_STATIC=1\n" "$folder"
