# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
#
# What check.sh and test.sh share: parts of a run that are counted, timed and said again at its end. Sourced.
#
# Input: check, skip and suite are called one after another, then closing. Output: what each part prints; at the end what was skipped,
# what took longest, what failed and what was unsteady, and one line with the totals. Files beside the user's other caches keep the
# last whole run (last-test), so that it can be told later which commit was tried, and how it ended, and a line of each run (runs).

: "${CARGO:=cargo}"
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
log=$results/log
for part in skipped slow failures unsteady; do : >"$results/$part"; done
passed=0
failed=0
skipped=0
unsteady=0
began=$(date +%s)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism

# took NAME BEGIN: keeps how long a part took, for the table at the end.
took() {
	printf '%6d s  %s\n' "$(($(date +%s) - $2))" "$1" >>"$results/slow"
}

# check NAME COMMAND...: one check that passes or fails as a whole.
check() {
	name=$1
	shift
	printf '\n== %s\n' "$name"
	started=$(date +%s)
	{
		"$@" 2>&1 </dev/null
		echo "check exit $?"
	} | tee "$log" | grep --line-buffered -v '^check exit '
	took "$name" "$started"
	if [ "$(tail -n 1 "$log")" = "check exit 0" ]; then
		passed=$((passed + 1))
	else
		printf '== FAILED: %s\n' "$name"
		failed=$((failed + 1))
		{
			printf '%s\n' "$name"
			tail -n 40 "$log" | cut -c 1-2000
		} >>"$results/failures"
	fi
}

# skip NAME REASON: a check that cannot be made here.
skip() {
	skipped=$((skipped + 1))
	printf '%s: %s\n' "$1" "$2" >>"$results/skipped"
}

# suite NAME COMMAND...: scripts/tests.py, which counts tests one by one and adds its files to the folder of results.
suite() {
	name=$1
	shift
	printf '\n== %s\n' "$name"
	started=$(date +%s)
	rm -f "$results/totals"
	# A pipe would hide the exit code, and POSIX sh has no pipefail: it goes through the file.
	{
		"$@" --results "$results" 2>&1 </dev/null
		echo "suite exit $?"
	} | tee "$log" | grep --line-buffered -v '^suite exit '
	took "$name, and their compilation" "$started"
	p=0 f=0 s=0 u=0
	[ ! -f "$results/totals" ] || read -r p f s u <"$results/totals"
	passed=$((passed + p))
	failed=$((failed + f))
	skipped=$((skipped + s))
	unsteady=$((unsteady + u))
	# Failed without a failing test: it did not compile, or the script itself died.
	if [ "$(tail -n 1 "$log")" != "suite exit 0" ] && [ "$f" -eq 0 ]; then
		printf '== FAILED: %s\n' "$name"
		failed=$((failed + 1))
		{
			printf '%s\n' "$name"
			if grep -a -q '^error' "$log"; then
				grep -a -B 5 -A 20 '^error' "$log"
			else
				tail -n 40 "$log"
			fi | cut -c 1-2000 | head -n 100
		} >>"$results/failures"
	fi
}

# revision: the commit that is tried, and whether what is tried is it.
revision() {
	if commit=$(git rev-parse HEAD 2>/dev/null); then
		if [ -z "$(git status --porcelain 2>/dev/null)" ]; then tree=clean; else tree=dirty; fi
	else
		commit="not known (no git checkout)" tree="not known"
	fi
	printf 'commit    %s\ntree      %s\n' "$commit" "$tree"
}

# closing [FILE]: prints what is to be known of all parts, the totals last; also to FILE, with the commit. Fails if anything failed.
closing() {
	if [ "$skipped" -gt 0 ]; then
		printf '\nskipped:\n'
		sed 's/^/  /' "$results/skipped"
	fi
	printf '\nwhat took longest:\n'
	sort -rn "$results/slow" | head -n 20 | sed 's/^/  /'
	if [ -s "$results/unsteady" ]; then
		printf '\nunsteady (failed, then passed; kept in %s):\n' "$cache/unsteady"
		sed 's/^/  /' "$results/unsteady"
	fi
	if [ -s "$results/failures" ]; then
		printf '\nfailed:\n'
		sed 's/^/  /' "$results/failures"
	fi
	apart=
	[ "$unsteady" -eq 0 ] || apart="; $unsteady unsteady"
	totals=$(printf 'test result: %s. %d passed; %d failed; %d ignored%s' \
		"$([ "$failed" -eq 0 ] && echo ok || echo FAILED)" "$passed" "$failed" "$skipped" "$apart")
	if [ $# -gt 0 ]; then
		mkdir -p "$(dirname "$1")"
		now=$(date -u +%Y-%m-%dT%H:%M:%SZ) took=$(($(date +%s) - began))
		{
			printf '%s\n' "$revised"
			[ "$revised" = "$(revision)" ] || printf 'changed   while the tests ran: %s\n' "$(revision | tr -s ' \n' ' ')"
			printf 'date      %s\ntook      %d s\ntotals    %s\n' "$now" "$took" "$totals"
			for part in failures unsteady; do
				[ ! -s "$results/$part" ] || { printf '\n%s:\n' "$part" && sed 's/^/  /' "$results/$part"; }
			done
			printf '\nwhat took longest:\n' && sort -rn "$results/slow" | head -n 60 | sed 's/^/  /'
		} >"$1.new" && mv "$1.new" "$1"
		printf '%s  %s  %5d s  %s\n' "$now" "$(printf '%s' "$revised" | tr -s ' \n' ' ')" "$took" "$totals" >>"$(dirname "$1")/runs"
	fi
	printf '\n%s\n' "$totals"
	[ "$failed" -eq 0 ]
}
revised=$(revision)
