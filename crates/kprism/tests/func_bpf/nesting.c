// SPDX-License-Identifier: GPL-2.0-or-later
// Calls of known number, nesting, recursion and sleep: each write to /proc/nesting makes all of them.

#include <linux/delay.h>
#include <linux/module.h>
#include <linux/proc_fs.h>

// N turns of two instructions.
#define SPIN(n)                                                                                                   \
	do {                                                                                                      \
		unsigned int turns = (n);                                                                         \
		asm volatile("1: dec %0\n\tjnz 1b" : "+r"(turns));                                                \
	} while (0)

static noinline void nest_leaf(void)
{
	SPIN(1000);
}

static noinline void nest_middle(void)
{
	int i;

	for (i = 0; i < 3; i++)
		nest_leaf();
	SPIN(500);
}

static noinline void nest_outer(void)
{
	nest_middle();
	nest_middle();
	asm volatile("");
}

static noinline void nest_down(int n)
{
	if (n > 1)
		nest_down(n - 1);
	SPIN(100);
}

static noinline void nest_sleeper(void)
{
	nest_leaf();
	msleep(20);
	nest_leaf();
}

static ssize_t nesting_write(struct file *file, const char __user *text, size_t size, loff_t *at)
{
	int i;

	for (i = 0; i < 10; i++)
		nest_outer();
	for (i = 0; i < 5; i++)
		nest_down(10);
	for (i = 0; i < 2; i++)
		nest_sleeper();
	return size;
}

static const struct proc_ops nesting_ops = { .proc_write = nesting_write };

static int __init nesting_init(void)
{
	return proc_create("nesting", 0200, NULL, &nesting_ops) ? 0 : -ENOMEM;
}

static void __exit nesting_exit(void)
{
	remove_proc_entry("nesting", NULL);
}

module_init(nesting_init);
module_exit(nesting_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Calls of known nesting");
