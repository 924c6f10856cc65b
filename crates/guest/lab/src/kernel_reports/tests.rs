// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts as kernels of several versions write them.

use super::*;

/// Linux 6.1: the exception has a line of its own after the cause.
const OOPS: &str = "\
[    3.102381] sample: loading out-of-tree module taints kernel.\r
[    3.104112] BUG: kernel NULL pointer dereference, address: 0000000000000008\r
[    3.104200] #PF: supervisor write access in kernel mode\r
[    3.104210] #PF: error_code(0x0002) - not-present page\r
[    3.104220] PGD 0 P4D 0 \r
[    3.104230] Oops: 0002 [#1] PREEMPT SMP NOPTI\r
[    3.104240] CPU: 0 PID: 131 Comm: insmod Tainted: G           OE      6.1.0-56-amd64 #1  Debian 6.1.192-2\r
[    3.104250] Hardware name: QEMU Standard PC (Q35 + ICH9, 2009), BIOS 1.16.3-debian-1.16.3-2 04/01/2014\r
[    3.104260] RIP: 0010:sample_init+0x12/0x40 [sample]\r
[    3.104270] Code: 1f 44 00 00 c7 04 25 08 00 00 00 2a 00 00 00 31 c0 c3 cc cc\r
[    3.104280] RSP: 0018:ffffc900001efc20 EFLAGS: 00010246\r
[    3.104290] Call Trace:\r
[    3.104300]  <TASK>\r
[    3.104310]  ? __die_body.cold+0x1a/0x1f\r
[    3.104320]  ? page_fault_oops+0xd2/0x2b0\r
[    3.104330]  do_one_initcall+0x56/0x220\r
[    3.104340]  do_init_module+0x4a/0x1f0\r
[    3.104350]  __do_sys_finit_module+0xac/0x120\r
[    3.104360]  do_syscall_64+0x55/0xb0\r
[    3.104370]  entry_SYSCALL_64_after_hwframe+0x6e/0xd8\r
[    3.104380] RIP: 0033:0x7f2f3a5f0ab9\r
[    3.104390]  </TASK>\r
[    3.104400] ---[ end trace 0000000000000000 ]---\r
[    3.104410] RIP: 0010:sample_init+0x12/0x40 [sample]\r
";

/// Linux 5.10: `BUG()`.
const BUG: &str = "\
[   12.000001] ------------[ cut here ]------------
[   12.000002] kernel BUG at mm/slub.c:306!
[   12.000003] invalid opcode: 0000 [#1] SMP NOPTI
[   12.000004] CPU: 1 PID: 88 Comm: sh Not tainted 5.10.0-30-amd64 #1 Debian 5.10.218-1
[   12.000005] RIP: 0010:__slab_free+0x1b9/0x3a0
[   12.000006] Call Trace:
[   12.000007]  kfree+0x3f0/0x450
[   12.000008]  do_syscall_64+0x33/0x80
[   12.000009] ---[ end trace 5d1b6f0a1b2c3d4e ]---
";

/// Linux 6.12, with the caller in each line: a warning with words before it, and the exception's new form.
const WARN_AND_FAULT: &str = "\
[    4.500000][  T140] ------------[ cut here ]------------
[    4.500001][  T140] refcount_t: underflow; use-after-free.
[    4.500002][  T140] WARNING: CPU: 0 PID: 140 at lib/refcount.c:28 refcount_warn_saturate+0xbe/0x110
[    4.500003][  T140] Modules linked in: sample(OE)
[    4.500004][  T140] RIP: 0010:refcount_warn_saturate+0xbe/0x110
[    4.500005][  T140] Call Trace:
[    4.500006][  T140]  <TASK>
[    4.500007][  T140]  ? __warn.cold+0x93/0xf6
[    4.500008][  T140]  put_sample+0x21/0x30 [sample]
[    4.500009][  T140]  </TASK>
[    4.500010][  T140] ---[ end trace 0000000000000000 ]---
[    4.600000][  T141] Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1] PREEMPT SMP NOPTI
[    4.600001][  T141] RIP: 0010:read_sample+0x5/0x20 [sample]
[    4.600002][  T141] Call Trace:
[    4.600003][  T141]  <TASK>
[    4.600004][  T141]  vfs_read+0xbb/0x370
[    4.700000][  T141] Kernel panic - not syncing: Fatal exception
[    4.700001][  T141] Kernel Offset: disabled
[    4.700002][  T141] ---[ end Kernel panic - not syncing: Fatal exception ]---
";

const KASAN: &str = "\
==================================================================
BUG: KASAN: slab-out-of-bounds in write_sample+0x6e/0x90 [sample]
Write of size 1 at addr ffff888004a5b07b by task insmod/132

CPU: 0 PID: 132 Comm: insmod Not tainted 6.6.0 #1
Call Trace:
 <TASK>
 dump_stack_lvl+0x4a/0x80
 print_report+0xcf/0x670
 kasan_report+0xd8/0x110
 write_sample+0x6e/0x90 [sample]
 do_one_initcall+0xa0/0x380
 </TASK>

Allocated by task 132:
 kasan_save_stack+0x33/0x60
 __kmalloc+0x5f/0x150
==================================================================
";

const HANGS: &str = "\
[  242.7] INFO: task sh:141 blocked for more than 120 seconds.
[  242.7]       Tainted: G           OE      6.1.0-56-amd64 #1 Debian 6.1.192-2
[  242.7] \"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\" disables this message.
[  242.7] task:sh              state:D stack:0     pid:141   ppid:1      flags:0x00004002
[  242.7] Call Trace:
[  242.7]  <TASK>
[  242.7]  __schedule+0x34d/0x9e0
[  242.7]  schedule+0x5a/0xd0
[  242.7]  </TASK>
[  300.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [insmod:150]
[  300.1] RIP: 0010:spin_sample+0x4/0x10 [sample]
[  400.1] rcu: INFO: rcu_preempt self-detected stall on CPU
";

/// Of Linux 4.19, 5.10, 6.1 and 6.12.
const MEMORY_AND_STORAGE: &str = "\
[   12.1] Out of memory: Kill process 131 (tail) score 905 or sacrifice child
[   12.2] Out of memory: Killed process 131 (tail) total-vm:226820kB, anon-rss:222208kB, file-rss:4kB, shmem-rss:0kB, UID:0
[   13.0] Memory cgroup out of memory: Killed process 140 (stress) total-vm:9kB, anon-rss:8kB, file-rss:1kB, shmem-rss:0kB
[   20.1] print_req_error: I/O error, dev sda, sector 2048
[   20.2] blk_update_request: critical medium error, dev nvme0n1, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
[   20.3] critical space allocation error, dev nullb0, sector 4816 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2
[   20.4] Buffer I/O error on dev nullb0, logical block 602, lost async page write
[   20.5] Aborting journal on device nullb0-8.
[   20.6] EXT4-fs error (device nullb0): ext4_journal_check_start:83: comm kworker/u2:1: Detected aborted journal
[   21.0] XFS (sdb1): Metadata corruption detected at xfs_agf_read_verify+0x1/0x2, xfs_agf block 0x1
[   22.0] BTRFS critical (device sdc): corrupt leaf: root=5 block=1 slot=2, invalid key
";

fn find(text: &str) -> Vec<KernelReport> {
    let found = KernelReports::find(text.as_bytes());
    assert_eq!(found.more, 0);
    found.reports
}

#[test]
fn an_oops_has_its_cause_its_place_and_the_functions_that_were_called() {
    let reports = find(OOPS);
    assert_eq!(reports.len(), 1, "{reports:?}");
    let report = &reports[0];
    assert_eq!(report.kind, ReportKind::Oops);
    assert_eq!(report.headline, "BUG: kernel NULL pointer dereference, address: 0000000000000008");
    assert_eq!(report.place.as_deref(), Some("sample_init+0x12/0x40 [sample]"));
    assert_eq!(report.trace[..2], ["do_one_initcall+0x56/0x220", "do_init_module+0x4a/0x1f0"]);
    assert_eq!(report.trace.len(), 5);
    let line = report.to_line();
    assert!(line.contains("0008, at sample_init+0x12/0x40 [sample]; call trace: do_one_initcall"), "{line}");
}

#[test]
fn a_failed_assertion_is_one_report() {
    let reports = find(BUG);
    assert_eq!(reports.len(), 1, "{reports:?}");
    let report = &reports[0];
    assert_eq!((report.kind, report.headline.as_str()), (ReportKind::Bug, "kernel BUG at mm/slub.c:306!"));
    assert_eq!(report.place.as_deref(), Some("__slab_free+0x1b9/0x3a0"));
    assert_eq!(report.trace, ["kfree+0x3f0/0x450", "do_syscall_64+0x33/0x80"]);
}

#[test]
fn a_warning_a_fault_and_the_panic_after_it_are_three() {
    let reports = find(WARN_AND_FAULT);
    let kinds: Vec<ReportKind> = reports.iter().map(|report| report.kind).collect();
    assert_eq!(kinds, [ReportKind::Warning, ReportKind::Oops, ReportKind::Panic]);
    assert_eq!(reports[0].trace, ["put_sample+0x21/0x30 [sample]"]);
    assert_eq!(reports[0].to_line().matches("refcount_warn_saturate").count(), 1);
    assert_eq!(reports[1].place.as_deref(), Some("read_sample+0x5/0x20 [sample]"));
    assert_eq!(reports[2].headline, "Kernel panic - not syncing: Fatal exception");
}

#[test]
fn a_sanitizer_is_told_without_its_own_functions() {
    let reports = find(KASAN);
    assert_eq!(reports.len(), 1, "{reports:?}");
    let report = &reports[0];
    assert_eq!(report.kind, ReportKind::Sanitizer);
    assert_eq!(report.trace, ["write_sample+0x6e/0x90 [sample]", "do_one_initcall+0xa0/0x380"]);
}

#[test]
fn tasks_and_cpus_that_hang_are_told() {
    let reports = find(HANGS);
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(reports.iter().all(|report| report.kind == ReportKind::Hang), "{reports:?}");
    assert_eq!(reports[0].trace, ["__schedule+0x34d/0x9e0", "schedule+0x5a/0xd0"]);
    assert_eq!(reports[1].place.as_deref(), Some("spin_sample+0x4/0x10 [sample]"));
}

#[test]
fn processes_without_memory_and_storage_that_fails_are_told() {
    let reports = find(MEMORY_AND_STORAGE);
    let kinds: Vec<ReportKind> = reports.iter().map(|report| report.kind).collect();
    assert_eq!(kinds, [[ReportKind::OutOfMemory; 3].as_slice(), &[ReportKind::Storage; 8]].concat());
    assert_eq!(
        reports[5].headline,
        "critical space allocation error, dev nullb0, sector 4816 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2"
    );
}

#[test]
fn ordinary_messages_are_no_reports() {
    let text = "\
[    0.000000] Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org)
[    0.100000] WARNING: this is a message of a driver
[    0.200000] rcu: INFO: nothing to see
[    0.300000] traps: sh[12] general protection fault ip:55d0 sp:7ffd error:0 in sh[55d0+1000]
[    0.400000] sh[12]: segfault at 0 ip 000055d0 sp 00007ffd error 4
[    0.500000] DEBUG: BUG: no line begins so
[    0.600000] XFS (sdb1): Mounting V5 Filesystem
[    0.700000] EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro
[    0.800000] systemd[1]: Out of memory handling is on
[    0.900000] operation not supported error, dev loop0, sector 0 op 0x9:(WRITE_ZEROES) flags 0x800 phys_seg 0 prio class 0
";
    assert!(find(text).is_empty(), "{:?}", find(text));
}

#[test]
fn a_kernel_that_warns_in_a_loop_is_counted() {
    let found =
        KernelReports::find("BUG: scheduling while atomic: sh/12/0x00000002\n".repeat(1000).as_bytes());
    assert_eq!((found.reports.len(), found.more), (MOST_REPORTS, 1000 - MOST_REPORTS));
    let notes = found.notes();
    assert_eq!(notes.len(), MOST_REPORTS + 1);
    assert!(notes[MOST_REPORTS].contains("984 more: see the run's console.log"), "{notes:?}");
}

/// Cut off and damaged at any place: a value, in which no character commands a terminal.
#[test]
fn any_bytes_give_a_value() {
    let all = [OOPS, BUG, WARN_AND_FAULT, KASAN, HANGS, MEMORY_AND_STORAGE].concat();
    for end in (0..all.len()).step_by(7) {
        let mut bytes = all.as_bytes()[..end].to_vec();
        if let Some(byte) = bytes.get_mut(end / 2) {
            *byte = [0x1b, 0xff, b'\n', b'['][end % 4];
        }
        let found = KernelReports::find(&bytes);
        assert!(found.notes().iter().all(|note| !note.contains(char::is_control)), "{found:?}");
    }
    let long = [b"BUG: ".as_slice(), vec![0xe4; 1 << 20].as_slice()].concat();
    let found = KernelReports::find(&long);
    assert_eq!(found.reports[0].headline.chars().count(), MOST_CHARACTERS);
}

#[test]
fn a_console_that_cannot_be_read_is_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("console.log");
    let notes = KernelReports::of_file(&file).notes();
    assert!(notes.len() == 1 && notes[0].contains("is not known"), "{notes:?}");
    std::fs::write(&file, BUG).unwrap();
    let notes = KernelReports::of_file(&file).notes();
    let expected = "the guest's kernel reported: kernel BUG at mm/slub.c:306!, at __slab_free+0x1b9/0x3a0; \
                    call trace: kfree+0x3f0/0x450 < do_syscall_64+0x33/0x80";
    assert_eq!(notes, [expected]);
}
