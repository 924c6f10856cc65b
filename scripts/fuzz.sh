#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs every fuzz target for SECONDS_EACH seconds, beginning with its corpus. Called by `make fuzz`.
set -eu

: "${CARGO:=cargo}" "${SECONDS_EACH:=60}"
if ! $CARGO +nightly fuzz --version >/dev/null 2>&1; then
	echo "fuzz: needs a nightly toolchain and cargo-fuzz:" >&2
	echo "  rustup toolchain install nightly && cargo install cargo-fuzz" >&2
	exit 2
fi
for target in $($CARGO +nightly fuzz list); do
	printf '\n== %s, %s s\n' "$target" "$SECONDS_EACH"
	$CARGO +nightly fuzz run "$target" -- -max_total_time="$SECONDS_EACH" -print_final_stats=1
done
