#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What can be told without running the product: format, lints, documentation and its links, the structure of the workspace, lock
# files, fuzz targets, and the scripts of the suite itself. Called by `make check`, and sourced by test.sh, which goes on with the tests.
# Minutes where everything is compiled, so that it is worth running before each commit.
set -u

if [ -z "${revised:-}" ]; then
	alone=yes
	. "$(dirname "$0")/suite.sh"
fi

# locked: of each workspace, that the lock file holds what the manifests ask for. Prints the one that does not.
locked() {
	for lock in $(git ls-files '*Cargo.lock' 2>/dev/null || echo Cargo.lock fuzz/Cargo.lock); do
		$CARGO metadata --locked --format-version 1 --manifest-path "$(dirname "$lock")/Cargo.toml" >/dev/null || {
			echo "$lock is not what its Cargo.toml asks for: cargo update --workspace --manifest-path $(dirname "$lock")/Cargo.toml"
			return 1
		}
	done
}

if $CARGO fmt --version >/dev/null 2>&1; then
	check "format" $CARGO fmt --all --check
else
	skip "format" "this Rust toolchain has no rustfmt: rustup component add rustfmt"
fi
check "lock files" locked
check "links of the documentation" python3 tests/docs/links.py
check "scripts of the suite" python3 -m unittest discover --quiet --start-directory tests/suite
if $CARGO clippy --version >/dev/null 2>&1; then
	# With `linked`, DuckDB's binding is checked, and nothing is linked.
	check "lints" $CARGO clippy --workspace --all-targets --features kprism-sql/linked -- -D warnings
else
	skip "lints" "this Rust toolchain has no clippy: rustup component add clippy"
fi
# Fuzzing wants another compiler, so the targets are a workspace of their own: here they are only type-checked.
check "fuzz targets" $CARGO check --quiet --locked --manifest-path fuzz/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}/fuzz"
check "documentation" env RUSTDOCFLAGS="-D warnings" $CARGO doc --workspace --no-deps --quiet
# The whole workspace is named, as other features would compile other crates.
check "layers, circles, ways, features" $CARGO test --quiet --workspace --profile checked --test layers --test circles --test ways --test features

if [ -n "${alone:-}" ]; then closing; fi
