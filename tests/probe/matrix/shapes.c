/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Values of all kinds, at places that compilers treat in all ways. */
#include <stdio.h>
#include <string.h>

struct __attribute__((packed)) pk { unsigned char c; int a : 31; int b : 31; unsigned u : 20; long l : 60; unsigned char t : 3; long z : 61; };
struct __attribute__((packed)) p2 { char x : 4; int y : 30; short s : 15; long w : 63; };
struct plain { int a : 3; int b : 7; unsigned c : 12; long d : 40; unsigned char e : 5; _Bool f : 1; };
enum color { RED = 1, GREEN = 5, BLUE = -2 };
union either { int i; float f; unsigned char raw[4]; };
struct small { int x, y; };
struct mid { long a, b; };
struct big { long n[5]; enum color c; union either e; struct small s[2]; char name[8]; };
struct node { struct node *next; int id; const char *label; };

struct pk k;
struct p2 q;
struct plain p;
struct big b;
char full[4] = {'a', 'b', 'c', 'd'}, after[8] = "abc", utf[12] = "gr\xc3\xbc\xc3\x9f";
unsigned char data[8] = {1, 0, 2, 200, 0, 'x', 0, 0};
static int calls;
volatile int sink;

static inline __attribute__((always_inline)) int inlined(int v, const struct small *s)
{
	int twice = v * 2;
	sink = twice + s->x; /* LINE_INLINE */
	return twice + s->y;
}

__attribute__((noinline)) int leaf(struct small s, struct mid m, int n)
{
	sink = n;
	return s.x + (int)m.b + n + inlined(n, &s);
}

__attribute__((noinline)) long many(int a, long b2, short c, char d, unsigned e, void *f, int g, struct mid h, long i)
{
	sink = g;
	return a + b2 + c + d + e + g + h.a + i + (f != 0);
}

__attribute__((noinline)) int fields(struct pk *pp, struct p2 *qq, struct plain *pl)
{
	sink = pp->a;
	return pp->b + qq->y + pl->b;
}

__attribute__((noinline)) double floats(double d, float f, int n)
{
	sink = n;
	return d * f + n;
}

__attribute__((noinline)) int work(int n, struct big *big, struct node *list, const char *text)
{
	struct small local = {n, n * 2};
	long sum = 0;
	calls++;
	for (int i = 0; i < n; i++) {
		int square = i * i;
		sum += square + inlined(i, &local); /* LINE_WORK */
	}
	for (struct node *at = list; at; at = at->next)
		sum += at->id;
	local.x += sum;
	sink = local.x;
	return (int)sum + (int)big->n[1] + text[0] + inlined(n, &local);
}

int main(void)
{
	struct node last = {0, 30, "last"}, first = {&last, 20, "first"};
	k.c = 9; k.a = -77777777; k.b = 99999999; k.u = 777777; k.l = -12345678901234; k.t = 5; k.z = -99999999999999;
	q.x = -3; q.y = -55555555; q.s = -777; q.w = -9876543210987;
	p.a = -2; p.b = 33; p.c = 1234; p.d = -99999999; p.e = 17; p.f = 1;
	for (int i = 1; i < 5; i++) {
		struct small s = {i, -i};
		struct mid m = {i * 1000000007L, -i};
		b.n[1] = i * 11; b.c = i == 2 ? BLUE : GREEN; b.e.f = 1.5f * i; b.s[1].y = -i; b.s[0].x = 7;
		strcpy(b.name, i == 3 ? "three" : "n");
		first.id += i;
		printf("%d\n", work(i, &b, &first, i == 2 ? "two" : "other"));
		printf("%d\n", leaf(s, m, i));
		printf("%d\n", fields(&k, &q, &p));
		printf("%f\n", floats(i * 0.25, i * 1.5f, i));
		printf("%ld\n", many(i, -i, (short)(i * 300), (char)-i, 4000000000u, &k, i + 3, m, 1L << 40));
		k.a++; q.w--; p.b--;
	}
	return 0;
}
