#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Records a command in the guest and holds rules against it: what the GitHub action and the GitLab template run.
#
#   GATE_COMMAND      the command, as a shell reads it
#   GATE_FAIL_IF      rules, a line each
#   GATE_BASELINE     a summary of an earlier run, or empty
#   GATE_LAB_OPTIONS  more options of `kprism lab run`, split at blanks
#   GATE_SAVE         the file for this run's summary
#   GATE_OUTPUT       the folder for gate.md, gate.xml, gate.sarif
#
# Ends with 0, 3 if a rule fired or has no verdict, or 4 if a run is not whole. kprism is $KPRISM, or in PATH.
set -euo pipefail

: "${GATE_COMMAND:?the command}" "${GATE_FAIL_IF:?rules, a line each}"
: "${GATE_BASELINE:=}" "${GATE_LAB_OPTIONS:=}" "${GATE_SAVE:=kprism-baseline.json}" "${GATE_OUTPUT:=kprism-gate}"
kprism=${KPRISM:-kprism}
mkdir -p "$GATE_OUTPUT"

read -r -a lab_options <<<"$GATE_LAB_OPTIONS"
"$kprism" lab run -q -o "$GATE_OUTPUT/run" "${lab_options[@]}" -- sh -c "$GATE_COMMAND"

rules=()
while IFS= read -r rule; do
	[ -z "$rule" ] || rules+=(--fail-if "$rule")
done <<<"$GATE_FAIL_IF"
baseline=()
[ -z "$GATE_BASELINE" ] || baseline=(--baseline "$GATE_BASELINE")

failed=0
"$kprism" gate "$GATE_OUTPUT/run" "${baseline[@]}" "${rules[@]}" --save "$GATE_SAVE" \
	--write "markdown=$GATE_OUTPUT/gate.md" --write "junit=$GATE_OUTPUT/gate.xml" --write "sarif=$GATE_OUTPUT/gate.sarif" ||
	failed=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ -f "$GATE_OUTPUT/gate.md" ]; then
	cat "$GATE_OUTPUT/gate.md" >>"$GITHUB_STEP_SUMMARY"
fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then
	if [ "$failed" -eq 3 ] || [ "$failed" -eq 4 ]; then echo "failed=true"; else echo "failed=false"; fi >>"$GITHUB_OUTPUT"
fi
exit "$failed"
