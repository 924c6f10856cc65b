// SPDX-License-Identifier: GPL-2.0-or-later
/* Writing to /proc/hold switches interrupts off for 200,001 instructions, ten times. */
#include <linux/module.h>
#include <linux/proc_fs.h>

static noinline void hold(void)
{
	/* mov, 99,999 rounds of two instructions, nop, and sti, which belongs to the window. */
	asm volatile("cli\n\tmov $99999, %%ecx\n1:\tdec %%ecx\n\tjnz 1b\n\tnop\n\tsti" ::: "ecx", "memory");
}

static ssize_t hold_write(struct file *file, const char __user *data, size_t size, loff_t *pos)
{
	int i;

	for (i = 0; i < 10; i++)
		hold();
	return size;
}

static const struct proc_ops hold_ops = { .proc_write = hold_write };

static int __init hold_init(void)
{
	return proc_create("hold", 0200, NULL, &hold_ops) ? 0 : -ENOMEM;
}

static void __exit hold_exit(void)
{
	remove_proc_entry("hold", NULL);
}

module_init(hold_init);
module_exit(hold_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Windows without interrupts, longer than a turn");
