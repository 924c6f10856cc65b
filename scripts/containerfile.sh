#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Carries out a container recipe in a bare Debian, for machines without a container engine. Knows FROM debian:SUITE[-slim], COPY, RUN,
# USER, WORKDIR, ENTRYPOINT and CMD; anything else is an error. Called by scripts/test-dist.sh, as root.
#
#   scripts/containerfile.sh RECIPE suite                   prints the suite of FROM
#   scripts/containerfile.sh RECIPE build CONTEXT ROOT      COPY and RUN in the file system ROOT
#   scripts/containerfile.sh RECIPE start                   prints USER, WORKDIR and the words of ENTRYPOINT, one a line
set -eu

recipe=$1 what=$2 context=${3:-} root=${4:-}
. "$(dirname "$0")/bare-debian.sh"
user=root folder=/ entry=
unjson() { echo "$1" | tr -d '[]"' | tr ',' ' '; }

while read -r word rest; do
	case $word in
	'' | '#'*) ;;
	FROM)
		suite=$(echo "$rest" | sed -n 's/^debian:\([a-z]*\)\(-slim\)\{0,1\}$/\1/p')
		[ -n "$suite" ] || { echo "containerfile: FROM $rest: expected debian:SUITE" >&2; exit 1; }
		[ "$what" != suite ] || { echo "$suite"; exit 0; }
		;;
	COPY)
		# shellcheck disable=SC2086 # a pattern, as in a recipe
		[ "$what" != build ] || (cd "$context" && cp ${rest% *} "$root${rest##* }")
		;;
	RUN) [ "$what" != build ] || bare_inside "$root" "$user" "$folder" "export DEBIAN_FRONTEND=noninteractive; $rest" ;;
	USER) user=$rest ;;
	WORKDIR) folder=$rest ;;
	ENTRYPOINT) entry=$(unjson "$rest") ;;
	CMD) ;;
	*) echo "containerfile: $word is not known here" >&2; exit 1 ;;
	esac
done <"$recipe"
[ "$what" != start ] || printf '%s\n%s\n%s\n' "$user" "$folder" "$entry"
