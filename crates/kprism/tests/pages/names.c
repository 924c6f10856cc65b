// SPDX-License-Identifier: MIT OR Apache-2.0
// names PAGES: touches two arrays and a variable in known order, and calls `visit` 300 times. Its task, its source file and
// its strings have names that command a browser or a terminal. The test renames `table`.
#include "tlb.h"
#include <sys/prctl.h>
char table[8 << 20];
int depth;
#line 7 "<script>document.title=1<script>.c"
__attribute__((noinline)) long visit(long count, const char *text)
{
	depth += text[0];
	return count * 2;
}
int main(int argc, char **argv)
{
	uint64_t pages = argument(argc, argv, 1, 512);
	prctl(PR_SET_NAME, "\033]0;x\a<b>\377");
	volatile char *first = array(pages << 12, 0);
	volatile char *second = array(pages << 13, 0);
	for (int round = 0; round < 3; round++)
		for (uint64_t i = 0; i < pages; i++)
			first[i << 12]++, table[i % 2048 << 12]++;
	for (uint64_t i = 0; i < 2 * pages; i++)
		second[i << 12] = 1;
	const char *texts[] = {"</script><script>document.title=1</script>", "\033[31mred\033[0m\a", "\377\376 not UTF-8",
			       "\xe2\x80\xae turned", "plain"};
	for (long i = 0; i < 300; i++)
		visit(i * i % 977, texts[i % 5]);
	printf("%#lx %#lx\n", (unsigned long)first, (unsigned long)second);
	return 0;
}
