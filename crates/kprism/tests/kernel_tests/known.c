// SPDX-License-Identifier: MIT OR Apache-2.0
/* KUnit tests of which everything is known: how many instructions more one has than the other, and how each ends. */
#include <kunit/test.h>
#include <linux/delay.h>
#include <linux/module.h>

#define NOPS(n) asm volatile(".rept " #n "\n\tnop\n\t.endr")

/* Only `more` runs these five lines. */
static __attribute__((noipa)) int helper(int n)
{
	int sum = n;

	for (int i = 0; i < n; i++)
		sum += sum << 1 ^ i;
	return sum;
}

static void fewer(struct kunit *test)
{
	NOPS(1000);
	KUNIT_EXPECT_EQ(test, 1, 1);
}

static void many(struct kunit *test)
{
	NOPS(4321);
	KUNIT_EXPECT_EQ(test, 1, 1);
}

static void more(struct kunit *test)
{
	KUNIT_EXPECT_NE(test, helper(3), 0);
}

static void sleeps(struct kunit *test)
{
	msleep(20);
}

static void fails(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, 1, 2);
}

static void gives_up(struct kunit *test)
{
	KUNIT_ASSERT_EQ(test, 3, 4);
	NOPS(1000);
}

static void faults(struct kunit *test)
{
	*(volatile int *)NULL = 1;
}

static void skips(struct kunit *test)
{
	kunit_skip(test, "no <such> device");
}

static bool ran;

static void only_once(struct kunit *test)
{
	KUNIT_EXPECT_FALSE(test, ran);
	ran = true;
}

static const int values[] = {1000, 2000};

static void with_value(struct kunit *test)
{
	const int *value = test->param_value;

	for (int i = 0; i < *value; i++)
		NOPS(10);
}

static void describe(const int *value, char *text)
{
	sprintf(text, "value %d", *value);
}

KUNIT_ARRAY_PARAM(values, values, describe);

static struct kunit_case cases[] = {
	KUNIT_CASE(fewer),
	KUNIT_CASE(many),
	KUNIT_CASE(more),
	KUNIT_CASE(sleeps),
	KUNIT_CASE(fails),
	KUNIT_CASE(gives_up),
	KUNIT_CASE(faults),
	KUNIT_CASE(skips),
	KUNIT_CASE(only_once),
	KUNIT_CASE_PARAM(with_value, values_gen_params),
	{}
};

static struct kunit_suite suite = { .name = "known", .test_cases = cases };
kunit_test_suites(&suite);

MODULE_DESCRIPTION("KUnit tests of which everything is known");
MODULE_LICENSE("Dual MIT/GPL");
