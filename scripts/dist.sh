#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Packs kprism for machines without Rust. Called by `make dist`. Writes into target/dist:
#
#   kprism-VERSION-x86_64-linux.tar.gz          everything, below one folder; runs from where it was unpacked
#   kprism-VERSION-debug-x86_64-linux.tar.gz    names and line tables of the same programs, for gdb
#   kprism_VERSION_amd64.deb                    the Debian package (scripts/deb.sh)
#   kprism-guest-VERSION-x86_64.tar             a guest image, for machines without apt; only where there is apt (GUEST=no: none)
#   SHA256SUMS
#
#   BUILT=FOLDER               takes the programs from there, for a quick look, instead of building the profile `shipped`;
#                              such an archive may hold paths of this machine
#   SOURCE_DATE_EPOCH=SECONDS  time of every file in the archives; that of the commit if it is not set
#
# The same commit and compilers give the same bytes, in whatever folder: times, order, owners and paths are fixed.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
: "${CARGO:=cargo}" "${BUILT:=}" "${GUEST:=yes}"
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=kprism-$version-x86_64-linux
debug=kprism-$version-debug-x86_64-linux
out=$target/dist
stage=$out/stage
programs="kprism kprism-agent kprism-recorder libkprism_observer.so libkprism_user.so"
say() { printf 'dist: %s\n' "$*" >&2; }

if [ -z "$BUILT" ]; then
	# Cargo leaves this flag out of the names of symbols, so the folder leaves no trace there either.
	us=$(printf '\037')
	cargo_home=${CARGO_HOME:-$HOME/.cargo}
	flags="--remap-path-prefix=$target=/kprism/target${us}--remap-path-prefix=$top=/kprism"
	flags="$flags${us}--remap-path-prefix=$cargo_home=/cargo${us}--remap-path-prefix=$(rustc --print sysroot)=/rust"
	CARGO_ENCODED_RUSTFLAGS=$flags $CARGO build --locked --profile shipped \
		-p kprism -p kprism-agent -p kprism-observer -p kprism-user
	# For boards. Its linker is in .cargo/config.toml, and these flags stand in for those there.
	rm -f "$target/shipped/kprism-recorder-aarch64"
	if sh scripts/recorder-arm64.sh --can; then
		CARGO_ENCODED_RUSTFLAGS="$flags${us}-Clink-self-contained=yes" CARGO="$CARGO" sh scripts/recorder-arm64.sh shipped
	else
		say "no recorder for 64-bit ARM boards: rustup target add aarch64-unknown-linux-musl"
	fi
	BUILT=$target/shipped
	hidden="$top $cargo_home"
else
	say "taking the programs of $BUILT as they are"
	hidden=
fi

rm -rf "$out"
mkdir -p "$stage/built" "$stage/$debug/.build-id"

# Names and line tables go apart; gdb finds them by the build ID.
for file in $programs; do
	id=$(readelf -n "$BUILT/$file" | sed -n 's/^ *Build ID: //p')
	[ -n "$id" ] || { say "$BUILT/$file has no build ID: its debug information could not be found again"; exit 1; }
	folder=$stage/$debug/.build-id/$(echo "$id" | cut -c 1-2)
	mkdir -p "$folder"
	objcopy --only-keep-debug --compress-debug-sections=zlib "$BUILT/$file" "$folder/$(echo "$id" | cut -c 3-).debug"
	case $file in
	*.so) strip --strip-unneeded -o "$stage/built/$file" "$BUILT/$file" ;;
	*) strip --strip-all -o "$stage/built/$file" "$BUILT/$file" ;;
	esac
	for path in $hidden; do
		! grep -qF "$path/" "$stage/built/$file" || { say "$file holds the path $path of this machine"; exit 1; }
	done
done
# binutils of this machine may not know ARM: Rust's own objcopy does, if it is there, and otherwise names stay in it.
arm=kprism-recorder-aarch64
if [ -f "$BUILT/$arm" ]; then
	objcopy=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-objcopy
	"$objcopy" --strip-all "$BUILT/$arm" "$stage/built/$arm" ||
		{ say "$arm keeps its names: there is no rust-objcopy"; cp "$BUILT/$arm" "$stage/built/$arm"; }
	for path in $hidden; do
		! grep -qF "$path/" "$stage/built/$arm" || { say "$arm holds the path $path of this machine"; exit 1; }
	done
fi
chmod -R a+rX "$stage/built"

python3 scripts/notices.py >"$stage/THIRD-PARTY.txt"
PREFIX='' NOTICES=$stage/THIRD-PARTY.txt sh scripts/install.sh "$stage/built" "$stage/$name"
for file in README.md LICENSE-MIT LICENSE-APACHE LICENSE-GPL-2.0; do
	ln -s "share/doc/kprism/$file" "$stage/$name/$file"
done
cat >"$stage/$debug/README" <<END
Names and line tables of the programs in $name.tar.gz. gdb finds them by the build ID:

  gdb -iex 'set debug-file-directory $debug' $name/bin/kprism
END

# pack FOLDER: gzip, because every machine unpacks it.
pack() {
	tar -C "$stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$1" |
		gzip -9n >"$out/$1.tar.gz"
}
pack "$name"
pack "$debug"
NOTICES=$stage/THIRD-PARTY.txt sh scripts/deb.sh "$stage/built" "$out" "$version"
if [ "$GUEST" = yes ] && command -v apt-get >/dev/null; then
	"$stage/built/kprism" --no-options-file lab save-guest "$out/kprism-guest-$version-x86_64.tar"
elif [ "$GUEST" = yes ]; then
	say "no guest image: there is no apt here to make it with"
fi
(cd "$out" && find . -maxdepth 1 -name 'kprism*' -type f | sort | xargs sha256sum | sed 's, \./, ,' >SHA256SUMS)

glibc=$(objdump -T "$stage/built/libkprism_observer.so" "$stage/built/libkprism_user.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
say "the plugins need $glibc or later; kprism, kprism-agent and kprism-recorder need none"
rm -rf "$stage"
(cd "$out" && ls -l ./kprism*) | awk '{ print $5, $NF }' >&2
