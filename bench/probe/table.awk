# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Lines TABLE|TOOL|CASE|NUMBER (maybe several of each: the median counts) as tables; then the ratios that are promised.
function median(key,   n, i, j, v, a) {
	n = split(values[key], a, " ")
	if (!n)
		return ""
	for (i = 1; i <= n; i++)
		for (j = i + 1; j <= n; j++)
			if (a[j] + 0 < a[i] + 0) { v = a[i]; a[i] = a[j]; a[j] = v }
	return a[int((n + 1) / 2)]
}
BEGIN { FS = "|"; split("empty false record both", cases, " ") }
NF == 4 {
	if (!($1 in seen)) { seen[$1] = ++tables; title[tables] = $1 }
	if (!(($1, $2) in tools)) { tools[$1, $2] = 1; order[$1, ++count[$1]] = $2 }
	values[$1, $2, $3] = values[$1, $2, $3] " " $4
}
END {
	for (t = 1; t <= tables; t++) {
		printf "%-42s %9s %9s %9s %9s\n", title[t] ", " unit " a hit", "empty", "false", "record", "both"
		for (i = 1; i <= count[title[t]]; i++) {
			tool = order[title[t], i]
			printf "%-42s", "  " tool
			for (c = 1; c <= 4; c++)
				printf " %9s", median(title[t] SUBSEP tool SUBSEP cases[c])
			printf "\n"
		}
	}
}
