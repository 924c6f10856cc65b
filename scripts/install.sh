#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The one list of what belongs to kprism. `make install`, the archive and the Debian package are made by it.
#
#   scripts/install.sh BUILD [DESTDIR]    copies what was built in the folder BUILD below DESTDIR
#
#   PREFIX=/usr/local     place on the system; empty for the top of an archive
#   ZSH=zsh/site-functions             where zsh looks, below $PREFIX/share
#   FISH=fish/vendor_completions.d     where fish looks
#   NOTICES=FILE          licences of the libraries in the programs (scripts/notices.py), if they are to go along
set -eu

build=${1:?usage: scripts/install.sh BUILD [DESTDIR]}
: "${PREFIX=/usr/local}" "${ZSH:=zsh/site-functions}" "${FISH:=fish/vendor_completions.d}" "${NOTICES:=}"
to=${2:-}$PREFIX
top=$(cd "$(dirname "$0")/.." && pwd)
umask 022

for file in kprism kprism-agent kprism-recorder libkprism_observer.so libkprism_user.so; do
	[ -f "$build/$file" ] || {
		echo "install: $build/$file is not built: cargo build --release --workspace" >&2
		exit 1
	}
done
install -Dm755 "$build/kprism" "$to/bin/kprism"
install -Dm755 "$build/kprism-agent" "$to/lib/kprism/kprism-agent"
install -Dm755 "$build/kprism-recorder" "$to/lib/kprism/kprism-recorder"
# Only there if `make recorder-arm64` was asked for, or could be by `make dist`.
[ ! -f "$build/kprism-recorder-aarch64" ] ||
	install -Dm755 "$build/kprism-recorder-aarch64" "$to/lib/kprism/kprism-recorder-aarch64"
# Only there if `make sql` was asked for. It finds DuckDB's library beside it.
[ ! -f "$build/kprism-sql" ] || {
	install -Dm755 "$build/kprism-sql" "$to/lib/kprism/kprism-sql"
	install -Dm644 "$build/libduckdb.so" "$to/lib/kprism/libduckdb.so"
	install -Dm644 "$build/libduckdb.LICENSE" "$to/share/doc/kprism/LICENSE-DuckDB"
}
# QEMU loads these: they need no right to be executed.
install -Dm644 "$build/libkprism_observer.so" "$to/lib/kprism/libkprism_observer.so"
install -Dm644 "$build/libkprism_user.so" "$to/lib/kprism/libkprism_user.so"

share=$to/share
install -Dm644 "$top/scripts/collect-ftrace.sh" "$share/kprism/collect-ftrace.sh"
mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/$ZSH" "$share/$FISH"
"$build/kprism" man "$share/man/man1"
"$build/kprism" completions bash >"$share/bash-completion/completions/kprism"
"$build/kprism" completions zsh >"$share/$ZSH/_kprism"
"$build/kprism" completions fish >"$share/$FISH/kprism.fish"

for file in README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE; do
	install -Dm644 "$top/$file" "$share/doc/kprism/$file"
done
install -Dm644 "$top/crates/guest/qemu-system/LICENSE" "$share/doc/kprism/LICENSE-GPL-2.0"
[ -z "$NOTICES" ] || install -Dm644 "$NOTICES" "$share/doc/kprism/THIRD-PARTY.txt"
