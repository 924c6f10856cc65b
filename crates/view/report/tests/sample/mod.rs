// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run like those of the lab, built in code: a shell that starts `ls | sed` a few times on two CPUs, with page
//! faults, timer interrupts, a signal, recursion, a decode error, and hostile names.

#![allow(dead_code)] // each test uses its part

use kprism_profile::*;
use kprism_store::{Kernel, Manifest, RunKind};
use std::collections::HashMap;

/// A function whose name tries to break out of the page and to control the terminal.
pub const HOSTILE: &str = "</script><img src=x onerror=alert(1)>&\"'\u{1b}[31m;\u{2028}";

const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
const LD: &str = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/// Collects functions and calling contexts by name.
pub struct Builder {
    pub profile: Profile,
    funcs: HashMap<(String, String), u32>,
    nodes: HashMap<(u32, u32, FrameKind), u32>,
    random: u64,
}

impl Builder {
    pub fn new() -> Self {
        let profile = Profile::default();
        Builder { profile, funcs: HashMap::new(), nodes: HashMap::new(), random: 0x2545_f491_4f6c_dd1d }
    }

    /// The next pseudo-random number below `limit` (xorshift64).
    pub fn random(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    pub fn task(&mut self, pid: u32, comm: &str) -> u32 {
        let root = self.profile.nodes.len() as u32;
        let kind = FrameKind::Root;
        self.profile.nodes.push(Node { parent: NO_PARENT, func: 0, calls: 0, insns: 0, ns: 0, kind });
        self.profile.tasks.push(Task { pid, tgid: pid, comm: comm.into(), root });
        self.profile.tasks.len() as u32 - 1
    }

    pub fn func(&mut self, name: &str, module: &str) -> u32 {
        let kernel = module.starts_with('[') && module != "[vdso]";
        let funcs = &mut self.profile.funcs;
        *self.funcs.entry((name.into(), module.into())).or_insert_with(|| {
            let start =
                if kernel { 0xffff_ffff_8100_0000 } else { 0x5555_5555_0000 } + 0x140 * funcs.len() as u64;
            funcs.push(Func { name: name.into(), module: module.into(), start, kernel });
            funcs.len() as u32 - 1
        })
    }

    pub fn node(&mut self, parent: u32, func: u32, kind: FrameKind) -> u32 {
        let nodes = &mut self.profile.nodes;
        *self.nodes.entry((parent, func, kind)).or_insert_with(|| {
            nodes.push(Node { parent, func, calls: 0, insns: 0, ns: 0, kind });
            nodes.len() as u32 - 1
        })
    }

    /// Adds calls along a path. Frames are separated by spaces; `S:` `I:` `E:` `G:` `T:` before a name give
    /// its kind, `name@module` its module, which else is the kernel's for all after the first kernel entry.
    pub fn path(&mut self, task: u32, path: &str, calls: u64, insns: u64) -> u32 {
        let mut at = self.profile.tasks[task as usize].root;
        let mut module = "/usr/bin/dash".to_string();
        for frame in path.split(' ') {
            let (kind, rest) = match frame.split_at_checked(2) {
                Some(("S:", rest)) => (FrameKind::Syscall, rest),
                Some(("I:", rest)) => (FrameKind::Interrupt, rest),
                Some(("E:", rest)) => (FrameKind::Exception, rest),
                Some(("G:", rest)) => (FrameKind::Signal, rest),
                Some(("T:", rest)) => (FrameKind::Tail, rest),
                _ => (FrameKind::Call, frame),
            };
            if matches!(kind, FrameKind::Syscall | FrameKind::Interrupt | FrameKind::Exception) {
                module = "[kernel]".into();
            }
            let name = match rest.split_once('@') {
                Some((name, new)) => {
                    module = new.replace("libc", LIBC).replace("ld.so", LD);
                    name
                }
                None => rest,
            };
            let func = self.func(name, &module.clone());
            at = self.node(at, func, kind);
        }
        let node = &mut self.profile.nodes[at as usize];
        node.calls += calls;
        node.insns += insns;
        node.ns += insns + insns / 7;
        at
    }
}

/// The calls that every program makes: path, calls, instructions.
const STARTUP: &[(&str, u64, u64)] = &[
    ("_start@ld.so", 1, 12),
    ("_start@ld.so _dl_start", 1, 812),
    ("_start@ld.so _dl_start _dl_sysdep_start", 1, 1_490),
    ("_start@ld.so _dl_start _dl_sysdep_start dl_main", 1, 9_450),
    ("_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object", 3, 31_200),
    ("_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object _dl_lookup_symbol_x", 412, 38_310),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object _dl_lookup_symbol_x do_lookup_x",
        455,
        151_020,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object _dl_lookup_symbol_x do_lookup_x strcmp",
        371,
        20_412,
    ),
    ("_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object E:asm_exc_page_fault", 19, 1_330),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object E:asm_exc_page_fault exc_page_fault",
        19,
        2_012,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object E:asm_exc_page_fault exc_page_fault do_user_addr_fault",
        19,
        5_300,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object E:asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault",
        19,
        8_770,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object E:asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault do_fault filemap_map_pages",
        19,
        27_400,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_relocate_object E:asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault do_anonymous_page clear_page_erms",
        7,
        4_130,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_map_object _dl_map_object_from_fd mmap S:entry_SYSCALL_64 do_syscall_64 __x64_sys_mmap ksys_mmap_pgoff vm_mmap_pgoff do_mmap mmap_region",
        6,
        41_020,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_map_object _dl_map_object_from_fd mmap S:entry_SYSCALL_64 do_syscall_64 __x64_sys_mmap ksys_mmap_pgoff vm_mmap_pgoff do_mmap get_unmapped_area",
        6,
        4_470,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_map_object open_path open64 S:entry_SYSCALL_64 do_syscall_64 __x64_sys_openat do_sys_openat2 do_filp_open path_openat link_path_walk",
        9,
        22_600,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_map_object open_path open64 S:entry_SYSCALL_64 do_syscall_64 __x64_sys_openat do_sys_openat2 getname_flags strncpy_from_user",
        9,
        1_733,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main _dl_map_object open_path open64 S:entry_SYSCALL_64 do_syscall_64 __x64_sys_openat do_sys_openat2 do_filp_open path_openat open_last_lookups lookup_fast",
        9,
        3_120,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main I:asm_sysvec_apic_timer_interrupt sysvec_apic_timer_interrupt hrtimer_interrupt __hrtimer_run_queues tick_nohz_handler update_process_times",
        1,
        2_210,
    ),
    (
        "_start@ld.so _dl_start _dl_sysdep_start dl_main I:asm_sysvec_apic_timer_interrupt sysvec_apic_timer_interrupt hrtimer_interrupt __hrtimer_run_queues tick_nohz_handler update_process_times sched_tick",
        1,
        1_180,
    ),
];

const LS: &[(&str, u64, u64)] = &[
    ("main@/usr/bin/ls", 1, 2_301),
    ("main@/usr/bin/ls print_dir", 1, 18_870),
    (
        "main@/usr/bin/ls print_dir readdir@libc getdents64 S:entry_SYSCALL_64 do_syscall_64 __x64_sys_getdents64 iterate_dir dcache_readdir filldir64",
        2,
        88_410,
    ),
    ("main@/usr/bin/ls sort_files mpsort", 1, 9_100),
    ("main@/usr/bin/ls sort_files mpsort mpsort_with_tmp", 120, 20_512),
    ("main@/usr/bin/ls sort_files mpsort mpsort_with_tmp mpsort_with_tmp", 240, 19_220),
    ("main@/usr/bin/ls sort_files mpsort mpsort_with_tmp mpsort_with_tmp strcoll@libc", 1_204, 64_600),
    ("main@/usr/bin/ls print_current_files quote_name quotearg_buffer", 311, 70_310),
    (
        "main@/usr/bin/ls close_stdout fflush@libc write S:entry_SYSCALL_64 do_syscall_64 __x64_sys_write ksys_write vfs_write pipe_write copy_page_from_iter",
        1,
        3_280,
    ),
    (
        "main@/usr/bin/ls close_stdout fflush@libc write S:entry_SYSCALL_64 do_syscall_64 __x64_sys_write ksys_write vfs_write pipe_write __wake_up_sync_key autoremove_wake_function try_to_wake_up",
        1,
        4_870,
    ),
];

const SED: &[(&str, u64, u64)] = &[
    ("main@/usr/bin/sed", 1, 3_100),
    ("main@/usr/bin/sed process_files", 1, 30_120),
    ("main@/usr/bin/sed process_files re_search re_search_internal", 311, 121_300),
    (
        "main@/usr/bin/sed process_files re_search re_search_internal re_string_allocate malloc@libc _int_malloc",
        311,
        39_800,
    ),
    (
        "main@/usr/bin/sed process_files read_pattern_space getdelim@libc read S:entry_SYSCALL_64 do_syscall_64 __x64_sys_read ksys_read vfs_read pipe_read",
        2,
        3_940,
    ),
    (
        "main@/usr/bin/sed process_files read_pattern_space getdelim@libc read S:entry_SYSCALL_64 do_syscall_64 __x64_sys_read ksys_read vfs_read pipe_read schedule __schedule",
        2,
        5_460,
    ),
    (
        "main@/usr/bin/sed process_files output_missing_newline fwrite@libc write S:entry_SYSCALL_64 do_syscall_64 __x64_sys_write ksys_write vfs_write tty_write n_tty_write uart_write@[8250] serial8250_start_tx",
        311,
        61_430,
    ),
];

const SHELL: &[(&str, u64, u64)] = &[
    ("main", 1, 840),
    ("main cmdloop parsecmd", 1, 5_210),
    ("main evaltree evaltree evaltree evalfor", 5, 3_300),
    (
        "main evaltree evaltree evaltree evalfor evalpipe forkshell fork@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_clone kernel_clone copy_process",
        10,
        61_770,
    ),
    (
        "main evaltree evaltree evaltree evalfor evalpipe forkshell fork@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_clone kernel_clone copy_process dup_mm dup_mmap copy_page_range",
        10,
        208_300,
    ),
    (
        "main evaltree evaltree evaltree evalfor evalpipe waitforjob wait3@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_wait4 kernel_wait4 do_wait schedule __schedule",
        10,
        22_080,
    ),
    ("main evaltree evaltree evaltree evalfor evalpipe waitforjob G:onsig", 10, 300),
];

const EXEC: &[(&str, u64, u64)] = &[
    (
        "execve@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_execve do_execveat_common bprm_execve load_elf_binary",
        1,
        17_730,
    ),
    (
        "execve@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_execve do_execveat_common bprm_execve load_elf_binary begin_new_exec exec_mmap",
        1,
        9_230,
    ),
    (
        "execve@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_execve do_execveat_common copy_strings",
        2,
        3_410,
    ),
    (
        "exit@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_exit_group do_group_exit do_exit mmput exit_mmap unmap_vmas",
        1,
        54_610,
    ),
    (
        "exit@libc S:entry_SYSCALL_64 do_syscall_64 __x64_sys_exit_group do_group_exit do_exit exit_files",
        1,
        2_190,
    ),
];

/// The run.
pub fn profile() -> Profile {
    let mut b = Builder::new();
    let shell = b.task(301, "sh");
    program(&mut b, shell, &[STARTUP, SHELL], 40_000);
    for i in 0..3 {
        for (pid, comm, own) in [(302 + 2 * i, "ls", LS), (303 + 2 * i, "sed", SED)] {
            let task = b.task(pid, comm);
            program(
                &mut b,
                task,
                &[EXEC, STARTUP, own],
                1_400_000 * u64::from(i) + 300_000 + u64::from(pid) * 911,
            );
        }
    }
    let idle = b.task(0, "swapper/1");
    b.path(idle, "I:asm_sysvec_reschedule_ipi sysvec_reschedule_ipi", 8, 1_920);
    let node = b.path(shell, "main", 0, 0);
    let hostile = b.func(HOSTILE, "/opt/<b>evil</b>\u{1b}]0;x\u{7}");
    let node = b.node(node, hostile, FrameKind::Call);
    b.profile.nodes[node as usize].calls = 3;
    b.profile.nodes[node as usize].insns = 45_000;
    b.profile.nodes[node as usize].ns = 51_000;
    let mut profile = b.profile;
    profile.syscalls.sort_by_key(|s| (s.start_ns, s.cpu));
    profile.slices.sort_by_key(|s| (s.task, s.start_ns, s.depth));
    profile.errors = vec![FlowError {
        cpu: 1,
        offset: 0x1_2f40,
        ns: 2_717_320,
        ip: 0xffff_ffff_8126_31a7,
        kind: "no code at 0xffffffffc0402000 (page of a module that was unloaded?)".into(),
    }];
    profile.deltas = vec![delta(&profile, "irqs", "openat"), delta(&profile, "preempt", "mmap")];
    let total: u64 = profile.nodes.iter().map(|n| n.insns).sum();
    let cpu = |instructions, errors, lost_bytes, first_ns, last_ns| CpuTotals {
        instructions,
        branches: instructions / 6,
        errors,
        overflows: 0,
        lost_bytes,
        first_ns,
        last_ns,
    };
    profile.totals.per_cpu = vec![
        cpu(total / 3 * 2, 0, 0, 12_000, 5_900_000),
        cpu(total - total / 3 * 2, 1, 208, 13_100, 5_870_000),
    ];
    profile
}

/// Intervals that began in all contexts of functions whose name contains `part`, increasing in length.
fn delta(profile: &Profile, name: &str, part: &str) -> Delta {
    let named = |n: &Node| n.parent != NO_PARENT && profile.funcs[n.func as usize].name.contains(part);
    let began = (0u32..).zip(&profile.nodes).filter(|(_, n)| named(n)).map(|(i, _)| i);
    let mut values = Vec::new();
    let mut delta = Delta {
        name: name.into(),
        from: format!("{name}-off"),
        to: format!("{name}-on"),
        ..Delta::default()
    };
    for (i, node) in began.enumerate() {
        let ns = 60 + (i as u64).pow(3);
        values.push(ns);
        delta.sites.push(Site { node, count: 2, ns: 2 * ns, insns: 2 * ns - 2, max_ns: ns });
        let (task, start_ns) = (i as u32 % 5, 20_000 * i as u64 + 7);
        delta.longest.push(Interval {
            task,
            cpu: 1,
            start_ns,
            ns,
            insns: ns - 1,
            from_ip: 0xffff_ffff_8100_0010 + ns,
            to_ip: 0xffff_ffff_8100_0090,
            from_node: node,
            to_node: profile.nodes[node as usize].parent,
        });
    }
    delta.sites.reverse();
    delta.longest.reverse();
    delta.ns = histogram(values.iter().flat_map(|&v| [v, v]));
    delta.insns = histogram(values.iter().flat_map(|&v| [v - 1, v - 1]));
    delta.restarted = 3;
    delta
}

/// Exact bins, as in the decoder for small values.
fn histogram(values: impl Iterator<Item = u64>) -> Histogram {
    let mut counts = std::collections::BTreeMap::new();
    values.for_each(|v| *counts.entry(v).or_insert(0u64) += 1);
    let bin = |(&low, &count): (&u64, &u64)| Bin { low, high: low + 1, count };
    Histogram {
        count: counts.values().sum(),
        sum: counts.iter().map(|(v, n)| v * n).sum(),
        min: counts.keys().next().copied().unwrap_or(0),
        max: counts.keys().next_back().copied().unwrap_or(0),
        bins: counts.iter().map(bin).collect(),
    }
}

/// The tracer's addition to each call of a function: two calls of [`traced`].
pub const TRACED: (u64, u64) = (300, 500);

/// The run again at other addresses: `do_mmap` calls a tracer each time, and nobody sorts in `ls`.
pub fn traced() -> Profile {
    let mut profile = profile();
    profile.funcs.iter_mut().for_each(|f| f.start += 0x20_0000);
    let named = |profile: &Profile, name: &str| {
        profile.funcs.iter().position(|f| f.name == name).expect("the sample has it") as u32
    };
    let (mmap, sort) = (named(&profile, "do_mmap"), named(&profile, "sort_files"));
    let tracer = profile.funcs.len() as u32;
    for name in ["trace_mmap", "ring_buffer_write"] {
        profile.funcs.push(Func {
            name: name.into(),
            module: "[kernel]".into(),
            start: 0xffff_ffff_8200_0000,
            kernel: true,
        });
    }
    for at in 0..profile.nodes.len() as u32 {
        let node = profile.nodes[at as usize].clone();
        if node.parent != NO_PARENT && node.func == mmap {
            let calls = node.calls;
            let next = profile.nodes.len() as u32;
            for (parent, func, each) in [(at, tracer, TRACED.0), (next, tracer + 1, TRACED.1)] {
                let (insns, kind) = (each * calls, FrameKind::Call);
                profile.nodes.push(Node { parent, func, calls, insns, ns: insns, kind });
            }
        }
    }
    // Without the sorting: the nodes below it are removed, and later ones move up.
    let mut place = vec![NO_PARENT; profile.nodes.len()];
    let mut kept: Vec<Node> = Vec::new();
    for (i, mut node) in std::mem::take(&mut profile.nodes).into_iter().enumerate() {
        if node.parent != NO_PARENT {
            if node.func == sort || place[node.parent as usize] == NO_PARENT {
                continue;
            }
            node.parent = place[node.parent as usize];
        }
        place[i] = kept.len() as u32;
        kept.push(node);
    }
    profile.nodes = kept;
    profile.tasks.iter_mut().for_each(|t| t.root = place[t.root as usize]);
    profile.syscalls.iter_mut().for_each(|s| s.node = place[s.node as usize]);
    profile.deltas.clear();
    profile
}

/// Adds a program's paths, a system call record for each call of its system calls, and slices.
fn program(b: &mut Builder, task: u32, parts: &[&[(&str, u64, u64)]], start: u64) {
    let mut now = start;
    for &(path, calls, insns) in parts.iter().copied().flatten() {
        let jitter = 90 + b.random(21);
        let insns = insns * jitter / 100;
        b.path(task, path, calls, insns);
        let frames: Vec<&str> = path.split(' ').collect();
        // Contexts on the way were entered as well.
        for depth in 1..frames.len() {
            let at = b.path(task, &frames[..depth].join(" "), 0, 0);
            let node = &mut b.profile.nodes[at as usize];
            if node.calls == 0 {
                (node.calls, node.insns, node.ns) = (calls, 17 * calls, 19 * calls);
            }
        }
        let cpu = (task % 2) as u16;
        if let Some(at) = frames.iter().position(|f| f.starts_with("__x64_sys_")) {
            let node = b.path(task, &frames[..=at].join(" "), 0, 0);
            let func = b.profile.nodes[node as usize].func;
            for _ in 0..calls {
                let each = insns / calls;
                let on_cpu_ns = each + b.random(each + 40);
                let waits = path.contains("schedule") || b.random(40) == 0;
                let wall_ns = on_cpu_ns + if waits { 20_000 + b.random(180_000) } else { 0 };
                b.profile.syscalls.push(Syscall {
                    task,
                    cpu,
                    func,
                    start_ns: now,
                    wall_ns,
                    on_cpu_ns,
                    insns: each,
                    node,
                    parts: Parts {
                        entry: Part { ns: each / 20, insns: each / 25 },
                        interrupts: Part { ns: each / 11, insns: each / 12 },
                        exit: Part { ns: each / 10, insns: each / 15 },
                    },
                });
                let kind = FrameKind::Syscall;
                let slice = Slice {
                    task,
                    cpu,
                    func,
                    depth: at as u16,
                    start_ns: now,
                    end_ns: now + wall_ns,
                    insns: each,
                    kind,
                    ending: Some(Ending::Seen),
                };
                b.profile.slices.push(slice);
                now += wall_ns + 300;
            }
        }
    }
    let comm = b.profile.tasks[task as usize].comm.clone();
    let func = b.func("main", &format!("/usr/bin/{}", if comm == "sh" { "dash" } else { &comm }));
    let slice = Slice {
        task,
        cpu: (task % 2) as u16,
        func,
        depth: 0,
        start_ns: start,
        end_ns: now + 10_000,
        insns: 500_000,
        kind: FrameKind::Call,
        ending: Some(Ending::Seen),
    };
    b.profile.slices.push(slice);
}

/// Its manifest.
pub fn manifest() -> Manifest {
    let mut manifest = Manifest::new(RunKind::Lab, 2);
    manifest.command =
        ["sh", "-c", "for i in 1 2 3; do ls /bin | sed s/a/z/g; done"].map(String::from).to_vec();
    manifest.kernel =
        Some(Kernel { release: "6.12.90+deb12-amd64".into(), build_id: "5f7c".into(), ..Kernel::default() });
    manifest.created = "2026-11-21T10:00:00Z".into();
    manifest.exit_code = Some(0);
    manifest.lost_bytes = 208;
    manifest
}

/// A run with many contexts: `tasks` trees of `width` chains each.
pub fn large(tasks: u32, contexts: u32) -> Profile {
    let mut b = Builder::new();
    let funcs: Vec<u32> =
        (0..3_000).map(|i| b.func(&format!("some_kernel_function_name_{i}"), "[kernel]")).collect();
    for task in 0..tasks {
        let task = b.task(1000 + task, if task % 2 == 0 { "worker" } else { "ls" });
        let root = b.profile.tasks[task as usize].root;
        let mut at = root;
        let mut depth = 0;
        for _ in 0..contexts {
            if b.random(3) == 0 || depth > 25 {
                (at, depth) = (root, 0);
            }
            let func = funcs[(b.random(55) * b.random(55)) as usize];
            at = b.node(at, func, FrameKind::Call);
            depth += 1;
            let insns = b.random(5_000) * b.random(100);
            let node = &mut b.profile.nodes[at as usize];
            (node.calls, node.insns, node.ns) = (node.calls + 1, node.insns + insns, node.ns + insns);
        }
    }
    let instructions = b.profile.nodes.iter().map(|n| n.insns).sum();
    b.profile.totals.per_cpu =
        vec![CpuTotals { instructions, last_ns: instructions, ..CpuTotals::default() }];
    b.profile
}
