// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions with repeated instructions, whose turns are known, between functions without.
#define OWN __attribute__((noinline))

static char to[1 << 13], from[1 << 13];

OWN void fill(long bytes)
{
	void *at = to;
	__asm__ volatile("rep stosb" : "+D"(at), "+c"(bytes) : "a"(0) : "memory");
}

// As the kernel copies: words, and what is left as bytes.
OWN void copy(long words, long bytes)
{
	void *source = from, *at = to;
	__asm__ volatile("rep movsq; mov %3, %%rcx; rep movsb"
			 : "+D"(at), "+S"(source), "+c"(words) : "r"(bytes) : "memory");
}

OWN int light(int n)
{
	volatile int kept = n;
	return kept + 1;
}

OWN void outer(int n)
{
	light(n);
	fill(1000 + n);
	light(n);
	copy(512, n % 8);
	light(n);
}

int main(void)
{
	for (int n = 0; n < 200; n++)
		outer(n);
	return 0;
}
