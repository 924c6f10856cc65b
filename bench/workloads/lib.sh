# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Sourced by the scripts of this folder: a fresh ext4 disk, and commands shown beside their output, as the pages have them.
#
#   KPRISM=PROGRAM  the command line (default: target/release/kprism)
#   OUT=DIR         where disk, programs and runs go (default: target/workloads)

KPRISM=$(realpath "${KPRISM:-target/release/kprism}")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${OUT:=target/workloads}"
OUT=$(realpath "$OUT")
export KPRISM OUT

# The same disk each time: no identifier is random.
if [ ! -e "$OUT/disk.ext4" ]; then
	id=2b0f4a52-7d52-4c54-9b3e-6d3f0a7e1c11
	truncate -s 256M "$OUT/disk.new"
	mkfs.ext4 -q -F -U $id -E hash_seed=$id,lazy_itable_init=0 "$OUT/disk.new"
	mv "$OUT/disk.new" "$OUT/disk.ext4"
fi

# What each guest with the disk does first, unrecorded.
mount='mkdir -p /mnt && busybox mount -t ext4 /dev/disk0 /mnt'

# show ARGUMENT...: a command line of kprism, and what it prints; without the account, which all reports end in.
show() {
	printf '$ kprism'
	for word in "$@"; do
		case $word in
		*[!A-Za-z0-9_./:=,%+-]*) printf " '%s'" "$word" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
	echo
	(cd "$OUT" && "$KPRISM" "$@" >"$OUT/shown" 2>&1) || exit 1
	sed '/^account$/,$d' "$OUT/shown" | sed '${/^$/d}'
	echo
}

# show_call ARGUMENT...: the same for the tree of one system call, without the way to it.
show_call() {
	show "$@" | awk '
		/  all tasks$/ { way = 1 }
		/ \(syscall\)$/ { if (way) print "…"; way = 0 }
		!way'
}

# record RUN ARGUMENT...: a recording, whose last words are shown.
record() {
	run=$1
	shift
	printf '== %s\n' "$run"
	(cd "$OUT" && "$KPRISM" lab run -o "$run" "$@") 2>"$OUT/$run.err" >"$OUT/$run.out" || {
		cat "$OUT/$run.err" >&2
		exit 1
	}
	grep ' instructions on ' "$OUT/$run.err" || true
}

# kept RUN FIELD: a number of the run's manifest.
kept() {
	python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$OUT/$1/manifest.json" "$2"
}

# calls RUN COMM SYSCALL [FIELD]: how often it was called; or another field of its row.
calls() {
	"$KPRISM" report syscalls -q --json --limit 0 --comm "$2" -i "$OUT/$1" |
		python3 -c 'import json, sys
rows = {row["syscall"]: row for row in json.load(sys.stdin)["rows"]}
print(rows.get(sys.argv[1], {}).get(sys.argv[2], 0))' "$3" "${4:-count}"
}

# same WHAT A B: two counts by different hands.
same() {
	if [ "$2" = "$3" ]; then
		echo "the same: $1: $2"
	else
		echo "DIFFERENT: $1: $2 and $3"
		exit 1
	fi
}
