#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Builds the pages of docs/ as a book (book.toml) into target/book, after checking their links.
#
#   scripts/book.sh
#
# Needs mdbook (`cargo install --locked mdbook`). The pages read as well without it, as files.
set -eu

cd "$(dirname "$0")/.."
: "${MDBOOK:=mdbook}"

if command -v python3 >/dev/null; then
	python3 tests/docs/links.py
else
	echo "book: no python3, so the links are not checked" >&2
fi
if ! command -v "$MDBOOK" >/dev/null; then
	echo "book: mdbook is not installed: cargo install --locked mdbook (or name it by MDBOOK=)" >&2
	exit 1
fi
"$MDBOOK" build
echo "target/book/index.html"
