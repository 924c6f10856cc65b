#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds kprism-recorder for 64-bit ARM (see docs/board.md), as kprism-recorder-aarch64 beside the programs of the same profile.
#
#   scripts/recorder-arm64.sh [PROFILE]    PROFILE: release
#   scripts/recorder-arm64.sh --can        only tells whether it can be built here
set -eu

cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"
target=aarch64-unknown-linux-musl
if ! [ -d "$(rustc --print target-libdir --target $target)" ]; then
	[ "${1:-}" != --can ] || exit 1
	echo "recorder-arm64: Rust's standard library for $target is not there: rustup target add $target" >&2
	exit 1
fi
[ "${1:-}" != --can ] || exit 0
profile=${1:-release}
# Linker and flags for it are in .cargo/config.toml.
$CARGO build --locked --profile "$profile" -p kprism --bin kprism-recorder --target $target
built=${CARGO_TARGET_DIR:-target}
mkdir -p "$built/$profile"
cp "$built/$target/$profile/kprism-recorder" "$built/$profile/kprism-recorder-aarch64"
