/* What leaves a function otherwise: setjmp, longjmp, exit, noreturn, computed goto, nested ifs in macros. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
static jmp_buf place;
static volatile int depth;
__attribute__((noreturn, noinline)) static void leave(int code) { longjmp(place, code); }
static void dive(int n) { depth++; if (n == 0) leave(7); dive(n - 1); depth--; }
static int interpret(const unsigned char *code)
{
	static const void *const table[] = { &&add, &&sub, &&twice, &&stop };
	int value = 0;
#define NEXT goto *table[*code++]
	NEXT;
add:	value++; NEXT;
sub:	value--; NEXT;
twice:	value *= 2; NEXT;
stop:	return value;
}
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "no " #x "\n"); if ((x) + 1 > 5) exit(4); } } while (0)
static inline __attribute__((always_inline)) int twist(int a) { return a > 2 ? a - 1 : a < -2 ? a + 1 : 0; }
static int far(int a) { int b = twist(a); b += twist(b); return b ? twist(b) : 9; }
static int last(int a)
{
	if (__builtin_expect(a == 99, 0))
		__builtin_unreachable();
	while (a > 0 && a != 5 || a == -3)
		a -= a > 6 ? 2 : 1;
	return a;
}
static void bye(void) { printf("bye %d\n", depth); }
int main(void)
{
	atexit(bye);
	switch (setjmp(place)) { case 0: dive(4); break; case 7: depth += 100; break; default: abort(); }
	int s = interpret((const unsigned char *)"\0\0\2\1\2\3");
	CHECK(s == 6);
	CHECK(s == 7);
	for (int i = -6; i < 9; i++) s += far(i) + last(i);
	printf("%d\n", s);
	exit(s > 100000 ? 1 : 0);
}
