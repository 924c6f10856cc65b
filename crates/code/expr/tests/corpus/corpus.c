/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program of all kinds of variables, at whose stops GDB and kprism must see the same values. */
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

enum color { RED, GREEN = 5, BLUE, DARK = -3 };
typedef enum { LOW = 1, HIGH = 0x80000000u } level_t;

struct bits {
	unsigned a : 3;
	int b : 5;
	unsigned c : 12;
	unsigned long d : 40;
	bool e : 1;
	signed char f : 4;
};

struct packed {
	unsigned char tag;
	unsigned x : 7;
	unsigned y : 13;
	short z;
} __attribute__((packed));

union number {
	int i;
	unsigned u;
	unsigned char bytes[8];
	long l;
};

struct inner {
	int x, y;
	struct {
		short p, q;
	};
	union {
		long deep;
		char shallow[4];
	};
};

struct thing {
	struct thing *next;
	const char *name;
	char label[12];
	struct inner in;
	struct inner many[3];
	struct bits bits;
	struct packed packed;
	union number number;
	enum color color;
	level_t level;
	int grid[2][3];
	double weight;
	void *nothing;
	int (*call)(int);
};

typedef struct thing thing_t;
typedef const volatile unsigned short odd_t;

int8_t g_i8 = -100;
uint8_t g_u8 = 200;
int16_t g_i16 = -30000;
uint16_t g_u16 = 60000;
int32_t g_i32 = -2000000000;
uint32_t g_u32 = 4000000000u;
int64_t g_i64 = -9000000000000000000;
uint64_t g_u64 = 18000000000000000000ull;
char g_char = 'x';
bool g_bool = true;
static long s_long = -5;
odd_t g_odd = 777;
int g_array[5] = { 10, -20, 30, -40, 50 };
const char *g_text = "hello";
struct thing g_thing;
struct thing *g_null;

__attribute__((noinline)) static int twice(int v)
{
	return v * 2;
}

__attribute__((noinline)) long keep(const void *p, long v)
{
	__asm__ volatile("" : : "r"(p), "r"(v) : "memory");
	return v;
}

struct pair {
	int a;
	int b;
	long c;
};

static inline __attribute__((always_inline)) long inlined(const struct thing *t, int factor)
{
	long product = (long)t->in.x * factor;
	keep(t, product); /* STOP inlined */
	return product + t->in.y;
}

__attribute__((noinline)) long work(struct thing *t, int n, unsigned long mask, const char *name,
				    signed char small, unsigned short port, long seventh, int eighth)
{
	int local = n * 3 - 7;
	unsigned long wide = mask >> 4;
	short narrow = (short)(n * 1000);
	static int calls = 41;
	struct pair pair = { n, -n, (long)mask };
	char buffer[16] = "buffer";
	calls++;
	keep(buffer, narrow);
	keep(&pair, (long)wide);
	{
		int local = n + 100;
		keep(name, local);
		keep(t, seventh + eighth + small + port + n + (long)mask + calls + local + pair.b); /* STOP block */
	}
	keep(t, local + narrow); /* STOP main */
	return inlined(t, n) + pair.c + local + (long)wide + small + port + seventh + eighth + buffer[0];
}

int main(void)
{
	g_thing = (struct thing){
		.next = &g_thing,
		.name = "first",
		.label = "label-eleven",
		.in = { .x = 11, .y = -22, .p = 33, .q = -44, .deep = 0x1122334455667788 },
		.many = { { .x = 1 }, { .x = 2, .y = -7 }, { .x = 3, .deep = -1 } },
		.bits = { .a = 5, .b = -9, .c = 0xabc, .d = 0x123456789a, .e = true, .f = -4 },
		.packed = { .tag = 0xee, .x = 100, .y = 5000, .z = -2 },
		.number = { .l = -1234567890123 },
		.color = BLUE,
		.level = HIGH,
		.grid = { { 1, 2, 3 }, { -4, -5, -6 } },
		.weight = 1.5,
		.call = twice,
	};
	return (int)work(&g_thing, 42, 0xdeadbeefcafeul, "argument", -7, 65000, 77, -88) & 1;
}
