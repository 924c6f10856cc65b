#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Writes the pictures of the guides, docs/pictures/*.png: pages of real runs as the browser tests see them.
#
#   scripts/pictures.sh [NAME...]      all, or those that are named, such as `timeline diff-tlb`
#
# The tests take screenshots into the folder that KPRISM_SCREENSHOTS names, and write screens of the terminal there as pages;
# scripts/shrink-png.py makes them small. Needs what the browser tests need (chromium, chromedriver, the guest; for probes root
# and BPF). A picture that no test took keeps its old file, and the script says so and ends with 1.
set -eu

cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"
most=2000000 # bytes of all pictures together

# Screenshot and the name of its picture.
pictures='timeline timeline-dark timeline-near timeline-range flow-demo delta boot durations diff diff-durations
diff-tlb diff-probe diff-cover tlb tlb-curves probe probe-counts cover view view-index moment tui top'
[ $# -eq 0 ] || pictures=$*

shots=$(mktemp -d)
trap 'rm -rf "$shots"' EXIT
failed=0
# A test that fails after its pictures were taken is no reason to throw them away.
tests='timeline pages_quick pages pages_compare view view_moments terminal'
# shellcheck disable=SC2046 # Names without blanks.
KPRISM_SCREENSHOTS=$shots "$CARGO" test --profile checked -p kprism --no-fail-fast $(printf -- '--test %s ' $tests) \
	-- --nocapture || failed=1

# Screens of the terminal are pages of text.
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
for page in "$shots"/*.html; do
	[ -f "$page" ] || continue
	"${browser:?no chromium}" --headless --no-sandbox --disable-gpu --user-data-dir="$shots/browser" --window-size=760,510 \
		--hide-scrollbars --screenshot="${page%.html}.png" "file://$page" >/dev/null 2>&1 || failed=1
done

mkdir -p docs/pictures
for name in $pictures; do
	if [ ! -f "$shots/$name.png" ]; then
		echo "pictures: no test took $name: see the skipped tests above" >&2
		failed=1
		continue
	fi
	python3 scripts/shrink-png.py "$shots/$name.png" "docs/pictures/$name.png" || failed=1
done
sum=$(cat docs/pictures/*.png | wc -c)
echo "docs/pictures: $sum bytes"
if [ "$sum" -gt "$most" ]; then
	echo "pictures: more than $most bytes together" >&2
	failed=1
fi
exit $failed
