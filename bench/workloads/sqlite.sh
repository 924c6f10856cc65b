#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The figures of docs/workloads/sqlite.md: 100 transactions of sqlite on ext4, with a rollback journal and with a log
# (WAL). See lib.sh for KPRISM and OUT.
set -eu
. "$(dirname "$0")/lib.sh"

mkdir -p "$OUT/sql"
{
	echo 'CREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT);'
	i=0
	while [ $i -lt 100 ]; do
		echo "INSERT INTO t(body) VALUES('row $i');"
		i=$((i + 1))
	done
} >"$OUT/sql/insert.sql"
guest="--package sqlite3 --disk disk.ext4 --share sql"

# shellcheck disable=SC2086 # several words
record delete $guest --before "$mount" -- sqlite3 /mnt/a.db '.read /share/insert.sql'
# shellcheck disable=SC2086
record again $guest --before "$mount" -- sqlite3 /mnt/a.db '.read /share/insert.sql'
# shellcheck disable=SC2086
record wal $guest --before "$mount" -- sqlite3 /mnt/a.db 'PRAGMA journal_mode=WAL' '.read /share/insert.sql'

# shellcheck disable=SC2086
record crc --module crc32c-intel $guest --before "$mount" -- sqlite3 /mnt/a.db '.read /share/insert.sql'

cmp "$OUT/delete/streams/cpu0.pt" "$OUT/again/streams/cpu0.pt"
cmp "$OUT/delete/tables/nodes.parquet" "$OUT/again/tables/nodes.parquet"
echo "two runs: equal packets, equal tables"

show report syscalls -i delete --comm sqlite3 --limit 6
show report syscalls -i wal --comm sqlite3 --limit 6
show_call report tree -i delete --syscall fdatasync --call median --min-percent 6 --limit 40
show_call report tree -i delete --syscall fdatasync --call slowest --min-percent 10 --limit 40
show script insns -i delete --func ext4_inode_table --self --limit 10 --fields sym,insn
show diff delete wal --comm sqlite3 --limit 5
show report delta irqs -i delete --limit 3

# By other hands: sqlite's own count of transactions, in the header of its file; and strace's count of system calls.
# shellcheck disable=SC2086
(cd "$OUT" && "$KPRISM" lab run -q --unobserved -o sqlite-alone $guest --package strace --before "$mount" -- sh -c '
	strace -c -o /tmp/counts sqlite3 /mnt/a.db ".read /share/insert.sql"
	od -A n -t u1 -j 24 -N 4 /mnt/a.db | tr -s " " | sed "s/^/transactions/"
	cat /tmp/counts') >"$OUT/judge.out"
transactions=$(awk '$1 == "transactions" { print (($2 * 256 + $3) * 256 + $4) * 256 + $5 }' "$OUT/judge.out")
same "fdatasync calls, and 4 times the transactions that the file counts" \
	"$(calls delete sqlite3 fdatasync)" "$((4 * transactions))"
for call in fdatasync unlink pwrite64 fcntl; do
	same "$call calls, and strace's" "$(calls delete sqlite3 $call)" \
		"$(awk -v call=$call '$NF == call { print $4 }' "$OUT/judge.out")"
done
python3 - "$KPRISM" "$OUT" "$transactions" <<'END'
import json, subprocess, sys
kprism, out, transactions = sys.argv[1], sys.argv[2], int(sys.argv[3])
print(f"per transaction, {transactions} of them")
for run in ("delete", "wal"):
    text = subprocess.check_output([kprism, "report", "tasks", "-q", "--json", "--limit", "0", "-i", f"{out}/{run}"])
    rows = json.loads(text)["rows"]
    one = lambda key: sum(row[key] for row in rows if row["comm"] == "sqlite3") / transactions
    others = sum(row["kernel_instructions"] for row in rows if row["comm"].startswith(("jbd2", "kworker"))) / transactions
    calls = sum(row["syscalls"] for row in rows if row["comm"] == "sqlite3") / transactions
    print(f"{run:<8}{one('user_instructions'):>10,.0f} user{one('kernel_instructions'):>10,.0f} kernel"
          f"{others:>10,.0f} in jbd2 and workers{calls:>8.1f} system calls")
END
