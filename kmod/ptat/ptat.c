// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ptat: puts the last-level page tables of a process, and of those that it forks, into one NUMA node, whose memory a bus
 * monitor watches, and says on that same bus which table maps what (PTAT: Zhang et al., ACM TECS 17(3), 2018; there a patch
 * of the kernel, here a module for an unmodified one).
 *
 * In: the node (parameter `node`), the process (`pid`, written by the process itself before it calls execve).
 * Out: page tables in the node, and records: three words written to the mailbox, a page of the node. What the bus shows
 * is then in order with what it shows of the tables; no clock needs to be compared.
 *
 *   word 0: type, process << 32      word 1, word 2
 *   HELLO (its own magic)            physical address of the mailbox itself, 0
 *   REGION                           first and last + 1 physical address of the node
 *   TABLE, DIRECTORY                 first virtual address it maps, physical address of the table
 *   SCAN                             1: on the CPU that writes this, the kernel reads tables from here on, 0: no more
 *   NAMED                            the number that tables had of a process that had none when they were made, 0
 *   COMM                             16 bytes of the process's name
 *   VMA, VMA_FILE, VMA_NAME          start, end; offset in the file, executable; 16 bytes of the path
 *   COUNTS                           tables placed, tables that escaped for want of memory in the node
 *   MISSED                           brackets that were missed: what the kernel read there looks like walks; address spaces
 *                                    that are not followed, as too many are at once
 *
 * How: pte_alloc_one is replaced through ftrace for the followed address spaces alone. The tables are ordinary pages of
 * their node, so freeing and accounting them is the kernel's own business. pmd_install says where a table comes to be.
 * Functions that read tables on the kernel's behalf are bracketed, so that their reads are not taken for walks. A bracket is
 * a thread's: other threads of the process walk meanwhile, on other CPUs, or on its own while it sleeps. So a switch of
 * tasks is told too, where it begins or ends such reads on a CPU.
 */
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <asm/io.h>
#include <asm/pgalloc.h>

#ifndef MAX_PAGE_ORDER /* before 6.8 */
#define MAX_PAGE_ORDER (MAX_ORDER - (LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)))
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0) /* tables had no type of their own */
#define page_ptdesc(page) (page)
#define pagetable_pte_ctor(page) pgtable_pte_page_ctor(page)
#define pagetable_pmd_ctor(page) pgtable_pmd_page_ctor(page)
#endif

#define HELLO 0x3130305441545048ULL /* "HPTAT001" */
enum { TABLE = 5, SCAN = 6, REGION = 16, VMA = 17, VMA_FILE = 18, VMA_NAME = 19, COUNTS = 20, DIRECTORY = 21, MISSED = 22, NAMED = 23, COMM = 24 };

static int node = NUMA_NO_NODE;
module_param(node, int, 0444);
MODULE_PARM_DESC(node, "NUMA node whose memory the monitor watches");

static bool pmd;
module_param(pmd, bool, 0444);
MODULE_PARM_DESC(pmd, "place page middle directories too, which map huge pages");

static unsigned int room;
module_param(room, uint, 0444);
MODULE_PARM_DESC(room, "pages of the node that are left for tables; 0: all");

static unsigned long placed, escaped;
module_param(placed, ulong, 0444);
MODULE_PARM_DESC(placed, "tables in the node");
module_param(escaped, ulong, 0444);
MODULE_PARM_DESC(escaped, "tables elsewhere, the node being full");

static u64 *mailbox;
static DEFINE_RAW_SPINLOCK(mailbox_lock);
static char path_buffer[1024];

static pid_t target;
/* The target's address space before execve, which is not followed. */
static struct mm_struct *before_exec;
/* Followed address spaces: of each process one, and two while an execve is under way. */
static struct {
	struct mm_struct *mm;
	u32 pid; /* With UNNAMED: of a fork, whose process has no number yet. */
} followed[256];
static unsigned int followed_end; /* Behind the last one in use. */
static DEFINE_RAW_SPINLOCK(followed_lock);
#define UNNAMED 0x80000000u
static u32 forks;
static atomic_t unnamed;
static atomic_long_t overlooked;
static atomic_t in_flight;

static void put(u64 word0, u64 word1, u64 word2)
{
	WRITE_ONCE(mailbox[0], word0);
	WRITE_ONCE(mailbox[1], word1);
	WRITE_ONCE(mailbox[2], word2);
}

static void record(unsigned int type, u32 pid, u64 word1, u64 word2)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&mailbox_lock, flags);
	put(type | (u64)pid << 32, word1, word2);
	raw_spin_unlock_irqrestore(&mailbox_lock, flags);
}

static int find_followed(const struct mm_struct *mm)
{
	int i, end = READ_ONCE(followed_end);

	for (i = 0; mm && i < end; i++)
		if (READ_ONCE(followed[i].mm) == mm)
			return i;
	return -1;
}

static bool is_followed(const struct mm_struct *mm)
{
	return find_followed(mm) >= 0;
}

static u32 pid_of(const struct mm_struct *mm)
{
	int i = find_followed(mm);

	return i < 0 ? 0 : READ_ONCE(followed[i].pid);
}

/* Whether the target owns `mm`. A fork's copy belongs to the child, which has no number yet and no mm. */
static bool is_targets(struct mm_struct *mm)
{
	struct task_struct *owner;
	bool yes = false;

	if (!READ_ONCE(target) || mm == READ_ONCE(before_exec))
		return false;
	rcu_read_lock();
	owner = rcu_dereference(mm->owner);
	if (owner && owner->tgid == READ_ONCE(target))
		yes = owner == current || READ_ONCE(owner->mm) == mm;
	rcu_read_unlock();
	return yes;
}

/* The process whose `mm` is to be followed: the target's, and those that followed processes fork, or get by execve. */
static u32 whose(struct mm_struct *mm)
{
	struct task_struct *owner;
	u32 pid = 0;

	if (is_targets(mm))
		return READ_ONCE(target);
	if (mm == current->mm || !is_followed(current->mm))
		return 0;
	rcu_read_lock();
	owner = rcu_dereference(mm->owner);
	if (owner == current)
		pid = current->tgid;
	else if (owner && READ_ONCE(owner->mm) != mm)
		pid = UNNAMED;
	rcu_read_unlock();
	return pid;
}

static bool follow(struct mm_struct *mm)
{
	unsigned long flags;
	bool yes;
	u32 pid;
	int i;

	if (is_followed(mm))
		return true;
	pid = whose(mm);
	if (!pid)
		return false;
	raw_spin_lock_irqsave(&followed_lock, flags);
	yes = is_followed(mm);
	for (i = 0; !yes && i < ARRAY_SIZE(followed); i++) {
		/* A followed process keeps the module: its records would end otherwise. */
		if (!followed[i].mm && try_module_get(THIS_MODULE)) {
			if (pid == UNNAMED) {
				pid |= ++forks & ~UNNAMED;
				atomic_inc(&unnamed);
			}
			WRITE_ONCE(followed[i].pid, pid);
			WRITE_ONCE(followed[i].mm, mm);
			if (i >= followed_end)
				WRITE_ONCE(followed_end, i + 1);
			yes = true;
		}
	}
	raw_spin_unlock_irqrestore(&followed_lock, flags);
	if (!yes)
		atomic_long_inc(&overlooked);
	return yes;
}

/* Before a forked process runs for the first time: now it has a number. */
static void name(struct task_struct *task)
{
	unsigned long flags;
	u32 was = 0;
	int i;

	raw_spin_lock_irqsave(&followed_lock, flags);
	i = find_followed(task->mm);
	if (i >= 0 && followed[i].pid & UNNAMED) {
		was = followed[i].pid;
		WRITE_ONCE(followed[i].pid, task->tgid);
		atomic_dec(&unnamed);
	}
	raw_spin_unlock_irqrestore(&followed_lock, flags);
	if (was)
		record(NAMED, task->tgid, was, 0);
}

static void unfollow(const struct mm_struct *mm)
{
	unsigned long flags;
	int i;

	raw_spin_lock_irqsave(&followed_lock, flags);
	i = find_followed(mm);
	if (i >= 0) {
		if (followed[i].pid & UNNAMED)
			atomic_dec(&unnamed);
		WRITE_ONCE(followed[i].mm, NULL);
		while (followed_end && !followed[followed_end - 1].mm)
			WRITE_ONCE(followed_end, followed_end - 1);
		module_put(THIS_MODULE);
	}
	raw_spin_unlock_irqrestore(&followed_lock, flags);
}

/* With `room`: the pages that are left for tables, and the rest of the node, which nobody is to have. */
static LIST_HEAD(pool);
static LIST_HEAD(held);
static DEFINE_SPINLOCK(pool_lock);

static void let_go(struct list_head *pages)
{
	struct page *page, *next;

	list_for_each_entry_safe(page, next, pages, lru) {
		unsigned int order = page_private(page);

		list_del(&page->lru);
		set_page_private(page, 0);
		__free_pages(page, order);
	}
}

static void hold(void)
{
	const gfp_t gfp = GFP_KERNEL | __GFP_THISNODE | __GFP_NORETRY | __GFP_NOWARN;
	unsigned int order = MAX_PAGE_ORDER + 1, left;
	struct page *page;

	for (left = room; left && (page = alloc_pages_node(node, gfp, 0)); left--)
		list_add(&page->lru, &pool);
	while (order--) {
		while ((page = alloc_pages_node(node, gfp, order))) {
			set_page_private(page, order);
			list_add(&page->lru, &held);
			cond_resched();
		}
	}
}

static struct page *from_pool(void)
{
	struct page *page;

	spin_lock(&pool_lock);
	page = list_first_entry_or_null(&pool, struct page, lru);
	if (page)
		list_del(&page->lru);
	spin_unlock(&pool_lock);
	if (page)
		clear_highpage(page);
	return page;
}

static struct page *page_in_node(void)
{
	struct page *page = room ? from_pool() : NULL;

	/* A full node is no reason to look for memory that could be taken from others. */
	if (!page)
		page = alloc_pages_node(node, GFP_PGTABLE_USER | __GFP_THISNODE | __GFP_NORETRY | __GFP_NOWARN, 0);
	if (page) {
		placed++;
	} else {
		page = alloc_page(GFP_PGTABLE_USER);
		escaped += !!page;
	}
	return page;
}

/* What pte_alloc_one does (arch/x86/mm/pgtable.c, include/asm-generic/pgalloc.h), in the node. */
static pgtable_t place_table(struct mm_struct *mm)
{
	struct page *page = page_in_node();

	if (page && !pagetable_pte_ctor(page_ptdesc(page))) {
		__free_page(page);
		page = NULL;
	}
	atomic_dec(&in_flight);
	return page;
}

/* What __pmd_alloc does (mm/memory.c), in the node. */
static int place_directory(struct mm_struct *mm, pud_t *pud, unsigned long address)
{
	struct page *page = page_in_node();
	spinlock_t *lock;

	if (page && !pagetable_pmd_ctor(page_ptdesc(page))) {
		__free_page(page);
		page = NULL;
	}
	if (!page) {
		atomic_dec(&in_flight);
		return -ENOMEM;
	}
	lock = pud_lock(mm, pud);
	if (!pud_present(*pud)) {
		if (page_to_nid(page) == node)
			record(DIRECTORY, pid_of(mm), address & PUD_MASK, page_to_phys(page));
		mm_inc_nr_pmds(mm);
		smp_wmb(); /* See the kernel's pmd_install. */
		pud_populate(mm, pud, page_address(page));
		page = NULL;
	}
	spin_unlock(lock);
	if (page)
		pmd_free(mm, page_address(page));
	atomic_dec(&in_flight);
	return 0;
}

static void notrace on_directory(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
				 struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);

	if (!regs || !follow((struct mm_struct *)regs->di))
		return;
	atomic_inc(&in_flight);
	regs->ip = (unsigned long)place_directory;
}

static struct ftrace_ops directory_ops = {
	.func = on_directory,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RECURSION,
};

static void notrace on_alloc(unsigned long ip, unsigned long parent, struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);

	if (!regs || !follow((struct mm_struct *)regs->di))
		return;
	atomic_inc(&in_flight);
	regs->ip = (unsigned long)place_table;
}

static struct ftrace_ops alloc_ops = {
	.func = on_alloc,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RECURSION,
};

/* The virtual address whose page middle directory entry `pmd` is: upper levels are few, and stay while the lock of the
 * address space is held, as it is here. */
static bool address_of(struct mm_struct *mm, pmd_t *pmd, u64 *va)
{
	unsigned long table = (unsigned long)pmd & PAGE_MASK, address = 0;
	pgd_t *pgd;
	p4d_t *p4d;
	pud_t *pud;

	while (address < TASK_SIZE_MAX) {
		pgd = pgd_offset(mm, address);
		if (pgd_none(*pgd)) {
			address = (address | ~PGDIR_MASK) + 1;
			continue;
		}
		p4d = p4d_offset(pgd, address);
		if (p4d_none(*p4d)) {
			address = (address | ~P4D_MASK) + 1;
			continue;
		}
		pud = pud_offset(p4d, address);
		if (!pud_none(*pud) && !pud_leaf(*pud) && (unsigned long)pud_pgtable(*pud) == table) {
			*va = address + ((unsigned long)pmd & ~PAGE_MASK) / sizeof(pmd_t) * PMD_SIZE;
			return true;
		}
		address = (address | ~PUD_MASK) + 1;
	}
	return false;
}

static void table_at(struct mm_struct *mm, pmd_t *pmd, struct page *page)
{
	u64 va;

	if (page && page_to_nid(page) == node && address_of(mm, pmd, &va))
		record(TABLE, pid_of(mm), va, page_to_phys(page));
}

static void notrace on_install(unsigned long ip, unsigned long parent, struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);
	struct mm_struct *mm;
	pmd_t *pmd;

	if (!regs)
		return;
	mm = (struct mm_struct *)regs->di;
	pmd = (pmd_t *)regs->si;
	if (is_followed(mm) && pmd_none(READ_ONCE(*pmd)))
		table_at(mm, pmd, *(struct page **)regs->dx);
}

static struct ftrace_ops install_ops = {
	.func = on_install,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_RECURSION,
};

/* Threads that are between brackets, and how many deep. */
static struct {
	struct task_struct *task;
	unsigned int depth;
} readers[1024];
static unsigned int readers_end; /* Behind the last one in use. */
static DEFINE_RAW_SPINLOCK(readers_lock);
static atomic_long_t no_room;
static struct tracepoint *switches;

static int find_reader(const struct task_struct *task)
{
	int i;

	for (i = 0; i < readers_end; i++)
		if (readers[i].task == task)
			return i;
	return -1;
}

/* Handlers of probes run without preemption: from here to the record the task stays on its CPU. */
static bool enter(void)
{
	unsigned long flags;
	bool first;
	int i;

	raw_spin_lock_irqsave(&readers_lock, flags);
	i = find_reader(current);
	if (i < 0)
		i = find_reader(NULL);
	if (i < 0 && readers_end < ARRAY_SIZE(readers)) {
		i = readers_end;
		WRITE_ONCE(readers_end, i + 1);
	}
	if (i >= 0) {
		readers[i].task = current;
		first = !readers[i].depth++;
	}
	raw_spin_unlock_irqrestore(&readers_lock, flags);
	if (i < 0)
		atomic_long_inc(&no_room);
	else if (first)
		record(SCAN, READ_ONCE(target), 1, 0);
	return i >= 0;
}

static void leave(void)
{
	unsigned long flags;
	bool last;
	int i;

	raw_spin_lock_irqsave(&readers_lock, flags);
	i = find_reader(current);
	last = i >= 0 && !--readers[i].depth;
	if (last)
		readers[i].task = NULL;
	while (readers_end && !readers[readers_end - 1].task)
		WRITE_ONCE(readers_end, readers_end - 1);
	raw_spin_unlock_irqrestore(&readers_lock, flags);
	if (last)
		record(SCAN, READ_ONCE(target), 0, 0);
}

/* On the CPU that switches, before it does. */
static void on_switch(void *data, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	unsigned long flags;
	bool before, after;

	if (atomic_read(&unnamed) && next->mm)
		name(next);
	if (!READ_ONCE(readers_end))
		return;
	raw_spin_lock_irqsave(&readers_lock, flags);
	before = find_reader(prev) >= 0;
	after = find_reader(next) >= 0;
	raw_spin_unlock_irqrestore(&readers_lock, flags);
	if (before != after)
		record(SCAN, READ_ONCE(target), after, 0);
}

static void find_switches(struct tracepoint *tracepoint, void *data)
{
	if (!strcmp(tracepoint->name, "sched_switch"))
		switches = tracepoint;
}

/* Brackets around what reads tables on the kernel's behalf. */
struct bracket {
	struct mm_struct *mm;
	pmd_t *pmd;
};

static int begin(struct kretprobe_instance *instance, struct mm_struct *mm)
{
	struct bracket *b = (struct bracket *)instance->data;

	if (!is_followed(mm))
		return 1;
	b->mm = mm;
	return enter() ? 0 : 1;
}

static int end(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	leave();
	return 0;
}

static int of_vma_1(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	return begin(instance, ((struct vm_area_struct *)regs->di)->vm_mm);
}

static int of_vma_2(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	return begin(instance, ((struct vm_area_struct *)regs->si)->vm_mm);
}

static int of_mm_1(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	return begin(instance, (struct mm_struct *)regs->di);
}

static int of_current(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	return begin(instance, current->mm);
}

static int of_gather(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	/* struct mmu_gather is not for modules; the address space is its first member. */
	return begin(instance, *(struct mm_struct **)regs->di);
}

static void record_vma(struct vm_area_struct *vma, u64 pid)
{
	u64 words[2];
	char *path;
	size_t length, at;

	put(VMA | pid << 32, vma->vm_start, vma->vm_end);
	put(VMA_FILE | pid << 32, (u64)vma->vm_pgoff << PAGE_SHIFT, !!(vma->vm_flags & VM_EXEC));
	if (!vma->vm_file) {
		if (vma->vm_start <= vma->vm_mm->brk && vma->vm_end >= vma->vm_mm->start_brk)
			path = "[heap]";
		else if (vma->vm_start <= vma->vm_mm->start_stack && vma->vm_end >= vma->vm_mm->start_stack)
			path = "[stack]";
		else
			return;
	} else {
		path = d_path(&vma->vm_file->f_path, path_buffer, sizeof(path_buffer));
		if (IS_ERR(path))
			return;
	}
	length = strlen(path);
	for (at = 0; at < length; at += sizeof(words)) {
		words[0] = words[1] = 0;
		memcpy(words, path + at, min(length - at, sizeof(words)));
		put(VMA_NAME | pid << 32, words[0], words[1]);
	}
}

static u64 missed(void);

/* An address space ends: what was mapped where, the counts, and from here on the kernel's own reads. */
static int on_exit_begins(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct mm_struct *mm = (struct mm_struct *)regs->di;
	u64 comm[TASK_COMM_LEN / sizeof(u64)], pid;
	struct vm_area_struct *vma;
	unsigned long flags;

	if (mm == READ_ONCE(before_exec))
		WRITE_ONCE(before_exec, NULL);
	pid = pid_of(mm);
	if (!pid)
		return 1;
	memcpy(comm, current->comm, sizeof(comm));
	raw_spin_lock_irqsave(&mailbox_lock, flags);
	put(COMM | pid << 32, comm[0], comm[1]);
	VMA_ITERATOR(vmi, mm, 0);
	rcu_read_lock();
	for_each_vma(vmi, vma)
		record_vma(vma, pid);
	rcu_read_unlock();
	put(COUNTS | pid << 32, placed, escaped);
	put(MISSED | pid << 32, missed(), atomic_long_read(&overlooked));
	raw_spin_unlock_irqrestore(&mailbox_lock, flags);
	return begin(instance, mm);
}

static int on_exit_ends(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	leave();
	unfollow(((struct bracket *)instance->data)->mm);
	return 0;
}

/* Splitting a huge page takes a table that was put by: now it maps. */
static int on_withdraw(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct bracket *b = (struct bracket *)instance->data;

	b->mm = (struct mm_struct *)regs->di;
	b->pmd = (pmd_t *)regs->si;
	return !is_followed(b->mm);
}

static int on_withdrawn(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct bracket *b = (struct bracket *)instance->data;

	table_at(b->mm, b->pmd, (struct page *)regs_return_value(regs));
	return 0;
}

#define PROBE(name, enter, leave) { \
	.kp.symbol_name = name, .entry_handler = enter, .handler = leave, \
	.data_size = sizeof(struct bracket), .maxactive = 512 }

static struct kretprobe probes[] = {
	PROBE("exit_mmap", on_exit_begins, on_exit_ends),
	PROBE("handle_mm_fault", of_vma_1, end),
	PROBE("unmap_vmas", of_gather, end),
	PROBE("change_protection", of_gather, end),
	PROBE("copy_page_range", of_vma_2, end),
	PROBE("move_page_tables", of_vma_1, end),
	PROBE("walk_page_range", of_mm_1, end),
	PROBE("__get_user_pages", of_mm_1, end),
	PROBE("free_pgtables", of_gather, end),
	PROBE("pgtable_trans_huge_withdraw", on_withdraw, on_withdrawn),
	PROBE("zap_page_range_single", of_vma_1, end),
	PROBE("hpage_collapse_scan_pmd", of_mm_1, end),
	PROBE("collapse_huge_page", of_mm_1, end),
	PROBE("gup_fast_fallback", of_current, end),
	PROBE("internal_get_user_pages_fast", of_current, end), /* its name before 6.10 */
	PROBE("zap_page_range", of_vma_1, end), /* before 6.3 */
};

/* Those from here on are not in every kernel, or not for probing; what they read is then taken for walks. */
#define NEEDED 9

/* Brackets that did not come to be: too many at once, or within another probe. */
static u64 missed(void)
{
	u64 all = atomic_long_read(&no_room);
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		all += probes[i].nmissed + probes[i].kp.nmissed;
	return all;
}

static int set_pid(const char *text, const struct kernel_param *param)
{
	struct task_struct *task;
	struct pid *number;
	int pid, error = kstrtoint(text, 0, &pid);

	if (error)
		return error;
	if (pid < 0)
		return -EINVAL;
	if (!mailbox)
		return -ENODEV;
	number = find_get_pid(pid);
	task = get_pid_task(number, PIDTYPE_PID);
	put_pid(number);
	WRITE_ONCE(target, 0);
	WRITE_ONCE(before_exec, task ? READ_ONCE(task->mm) : NULL);
	WRITE_ONCE(target, task ? task->tgid : 0);
	if (task)
		put_task_struct(task);
	return pid && !task ? -ESRCH : 0;
}

static int get_pid_text(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%d\n", target);
}

static const struct kernel_param_ops pid_ops = { .set = set_pid, .get = get_pid_text };
module_param_cb(pid, &pid_ops, NULL, 0600);
MODULE_PARM_DESC(pid, "process to follow from its next execve on, with those that it forks; 0: none");

static int hook(struct ftrace_ops *ops, char *name)
{
	int error = ftrace_set_filter(ops, (unsigned char *)name, strlen(name), 1);

	if (!error)
		error = register_ftrace_function(ops);
	if (error)
		pr_err("ptat: this kernel lets %s not be traced (%d)\n", name, error);
	return error;
}

static int __init ptat_init(void)
{
	struct page *page;
	int error, probed;

	if (node < 0 || node >= MAX_NUMNODES || !node_state(node, N_MEMORY)) {
		pr_err("ptat: node %d has no memory; give node=N\n", node);
		return -EINVAL;
	}
	page = alloc_pages_node(node, GFP_KERNEL | __GFP_THISNODE | __GFP_ZERO, 0);
	if (!page)
		return -ENOMEM;
	if (room)
		hold();
	mailbox = page_address(page);
	put(HELLO, page_to_phys(page), 0);
	record(REGION, 0, PFN_PHYS(node_start_pfn(node)), PFN_PHYS(node_end_pfn(node)));
	for_each_kernel_tracepoint(find_switches, NULL);
	error = switches ? tracepoint_probe_register(switches, on_switch, NULL) : -ENOENT;
	if (error) {
		pr_err("ptat: no tracepoint sched_switch (%d)\n", error);
		goto switches_off;
	}
	for (probed = 0; probed < ARRAY_SIZE(probes); probed++) {
		error = register_kretprobe(&probes[probed]);
		if (error && probed >= NEEDED) {
			pr_info("ptat: no probe of %s (%d)\n", probes[probed].kp.symbol_name, error);
			probes[probed].kp.addr = NULL;
			error = 0;
		}
		if (error) {
			pr_err("ptat: no probe of %s (%d)\n", probes[probed].kp.symbol_name, error);
			goto probes_off;
		}
	}
	error = hook(&install_ops, "pmd_install");
	if (error)
		goto probes_off;
	error = hook(&alloc_ops, "pte_alloc_one");
	if (error)
		goto install_off;
	if (pmd)
		error = hook(&directory_ops, "__pmd_alloc");
	if (!error)
		return 0;
	unregister_ftrace_function(&alloc_ops);
install_off:
	unregister_ftrace_function(&install_ops);
probes_off:
	while (probed--)
		if (probes[probed].kp.addr)
			unregister_kretprobe(&probes[probed]);
	tracepoint_probe_unregister(switches, on_switch, NULL);
	tracepoint_synchronize_unregister();
switches_off:
	__free_page(page);
	let_go(&pool);
	let_go(&held);
	return error;
}

static void __exit ptat_exit(void)
{
	int i;

	WRITE_ONCE(target, 0);
	unregister_ftrace_function(&alloc_ops);
	if (pmd)
		unregister_ftrace_function(&directory_ops);
	/* Who was sent to place_table or place_directory may sleep in it, then returns through its last instructions. */
	while (atomic_read(&in_flight))
		msleep(1);
	synchronize_rcu_tasks();
	unregister_ftrace_function(&install_ops);
	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (probes[i].kp.addr)
			unregister_kretprobe(&probes[i]);
	tracepoint_probe_unregister(switches, on_switch, NULL);
	tracepoint_synchronize_unregister();
	free_page((unsigned long)mailbox);
	let_go(&pool);
	let_go(&held);
}

module_init(ptat_init);
module_exit(ptat_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Page tables of processes in one NUMA node, for a monitor of its memory bus");
