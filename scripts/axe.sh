#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Puts axe-core (MPL-2.0), which judges pages by the rules of WCAG, into kprism's cache for a test. Its version and hash are those
# that ui/package-lock.json locks. Nothing of it goes into a page.
# usage: axe.sh [--have]
set -eu
ui=$(dirname "$0")/../ui
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism
version=$(sed -n 's/.*"axe-core": "\(.*\)".*/\1/p' "$ui/package.json")
file=$cache/tools/axe-core-$version.js
[ ! -f "$file" ] || exit 0
[ "${1:-}" != --have ] || exit 1
command -v npm >/dev/null || {
	echo "axe.sh: there is no npm here (Debian's package: npm)" >&2
	exit 1
}
mkdir -p "$cache/tools"
work=$(mktemp -d "$cache/tools/.axe.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$ui/package.json" "$ui/package-lock.json" "$ui/.npmrc" "$work"
(cd "$work" && npm ci --ignore-scripts --silent >&2)
mv "$work/node_modules/axe-core/axe.min.js" "$file"
