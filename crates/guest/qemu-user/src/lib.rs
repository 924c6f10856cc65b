// SPDX-License-Identifier: GPL-2.0-or-later
//! kprism-user: a plugin of QEMU's user mode (`qemu-x86_64 -plugin`). It runs one program's memory accesses through
//! models of TLBs, without a guest and without its kernel.
//!
//! Input: QEMU's callbacks. Output, in the folder `out=`: `tlb/cpuN.miss` and `tlb/counts.json`, in the observer's
//! format, and `sideband.jsonl`, the mappings that the program requested. Time is the thread's instruction count, one
//! nanosecond each. There are no page tables here: every page is a 4K page.
//!
//! Threads run in parallel. Each has its own TLBs, and a stream named by QEMU's number of the thread. QEMU reuses the
//! number of a thread that has ended; the stream then continues with the next thread. Processes that the program forks,
//! and programs that it becomes by execve, are not followed.
//!
//! However the process ends, all accesses processed until then are in files (`shared`, [`kprism_tlb::stream::live`]). A program
//! that ends regularly also leaves `tlb/counts.json`. Recorded accesses are processed at each system call, so a program
//! that is killed while it waits loses nothing.
//!
//! Callbacks only record. The models process a few hundred accesses at once (`thread`), without those that change
//! nothing (`sift`). A block that certainly accesses memory needs no callback of its own (`block`).

#![allow(missing_docs, reason = "loaded by QEMU, called by nobody else")]

mod abi;
mod block;
mod maps;
mod shared;
mod sift;
mod thread;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kprism_expr::access::Condition;
use kprism_tlb::stream::live;
use kprism_tlb::{Geometry, presets};

use block::{Block, Callback, Entry};
use maps::Maps;
use shared::Words;
use thread::{FORKED, Thread};

/// Version of the plugin interface. The part used here is the same in all, but QEMU 7.2 accepts at most 1, and QEMU 10
/// at least 2. The version of QEMU is detected when it loads the plugin, just before it reads this.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// The loader calls this before QEMU reads the version.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = {
    extern "C" fn on_load() {
        // The function came with version 2.
        // SAFETY: a name that ends in NUL, looked for in what is loaded already; it is not called.
        if !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"qemu_plugin_num_vcpus".as_ptr()) }.is_null() {
            qemu_plugin_version.store(2, Ordering::Relaxed);
        }
    }
    on_load
};

/// `execve` and `execveat`.
const EXECUTES: [u64; 2] = [59, 322];

struct State {
    out: PathBuf,
    geometries: Vec<Geometry>,
    /// True if misses are written, false if they are only counted.
    record: bool,
    /// The misses that are written; all if `None`.
    only: Option<Condition>,
    maps: Mutex<Maps>,
    words: Words,
    process: u32,
}

static STATE: OnceLock<State> = OnceLock::new();
/// Result of [`abi::store_bit`].
static STORE_BIT: AtomicU32 = AtomicU32::new(0);
/// By QEMU's number of the thread.
static THREADS: [AtomicPtr<Thread>; live::SLOTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; live::SLOTS];

/// QEMU's entry point.
///
/// # Safety
/// Called by QEMU with its own arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: abi::PluginId,
    info: *const abi::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid info and `argc` C strings.
    let (target, system, args) = unsafe {
        let args: Vec<String> = (0..argc.max(0) as usize)
            .map(|i| CStr::from_ptr(*argv.add(i)).to_string_lossy().into_owned())
            .collect();
        (CStr::from_ptr((*info).target_name), (*info).system_emulation, args)
    };
    if target != c"x86_64" || system {
        eprintln!("kprism-user: watches programs under qemu-x86_64; kprism-observer watches machines");
        return 1;
    }
    STORE_BIT.store(abi::store_bit(), Ordering::Relaxed);
    if abi::store_bit() == 0 {
        eprintln!("kprism-user: this QEMU tells stores in a way that is not known; QEMU 7.2 is");
        return 1;
    }
    let ready = State::new(&args).and_then(|state| STATE.set(state).map_err(|_| "loaded twice".to_owned()));
    if let Err(e) = ready {
        eprintln!("kprism-user: {e}");
        return 1;
    }
    // SAFETY: both do nothing but atomic stores.
    unsafe { libc::pthread_atfork(None, Some(after_fork), Some(in_child)) };
    // SAFETY: callbacks of the declared types, valid for the process's life.
    unsafe {
        abi::qemu_plugin_register_vcpu_init_cb(id, on_thread);
        abi::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
        abi::qemu_plugin_register_vcpu_syscall_cb(id, on_call);
        abi::qemu_plugin_register_vcpu_syscall_ret_cb(id, on_return);
        abi::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
    0
}

impl State {
    fn new(args: &[String]) -> Result<Self, String> {
        let (mut out, mut geometries, mut record, mut only) = (None, Vec::new(), true, None);
        for arg in args {
            match arg.split_once('=') {
                Some(("out", folder)) => out = Some(PathBuf::from(folder)),
                Some(("tlb", names)) => {
                    for name in names.split('+') {
                        geometries.push(match presets::preset(name) {
                            Some(geometry) => geometry,
                            None => {
                                let text =
                                    std::fs::read_to_string(name).map_err(|e| format!("{name}: {e}"))?;
                                Geometry::parse(&text).map_err(|e| format!("{name}: {e}"))?
                            }
                        });
                    }
                }
                Some(("record", "no")) => record = false,
                Some(("misses-if", condition)) => {
                    let condition = Condition::from_json(condition);
                    only = Some(condition.map_err(|e| format!("{arg}: {e}"))?);
                }
                _ => {
                    let expected = "out=FOLDER, tlb=NAME+NAME, misses-if=CONDITION or record=no";
                    return Err(format!("'{arg}': expected {expected}"));
                }
            }
        }
        let out = out.ok_or("expected out=FOLDER")?;
        std::fs::create_dir_all(out.join("tlb")).map_err(|e| format!("{}: {e}", out.display()))?;
        let path = out.join("tlb/live");
        let words = Words::new(path.clone()).map_err(|e| format!("{}: {e}", path.display()))?;
        words.head(0).store(live::MAGIC, Ordering::Relaxed);
        let maps = Mutex::new(Maps::new());
        Ok(State { out, geometries, record, only, maps, words, process: std::process::id() })
    }

    fn count(&self, word: usize) {
        self.words.head(word).fetch_add(1, Ordering::Relaxed);
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends new mappings to the file, which is open only during this call: see `shared`.
    fn append_mappings(&self, maps: &mut Maps) {
        let lines = maps.take_lines(self.process);
        if lines.is_empty() {
            return;
        }
        let path = self.out.join("sideband.jsonl");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        if let Err(e) = file.and_then(|mut file| file.write_all(lines.as_bytes())) {
            let untold =
                self.words.head(live::UNTOLD).fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
            if untold == 0 {
                eprintln!("kprism-user: {}: what is mapped from here on has no name: {e}", path.display());
            }
        }
    }
}

extern "C" fn after_fork() {
    if let Some(state) = STATE.get() {
        state.count(live::FORKS);
    }
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The calling thread. QEMU calls callbacks for code and system calls on the thread that they concern.
#[inline(always)]
fn thread(cpu: c_uint) -> Option<&'static mut Thread> {
    // SAFETY: set at the thread's start, taken at the end of all; used by its own thread alone.
    unsafe { THREADS.get(cpu as usize)?.load(Ordering::Relaxed).as_mut() }
}

unsafe extern "C" fn on_thread(_: abi::PluginId, cpu: c_uint) {
    let Some(state) = STATE.get() else { return };
    if FORKED.load(Ordering::Relaxed) {
        return;
    }
    state.count(live::THREADS);
    // QEMU reuses a number once its thread is off the list of CPUs, after the thread's last callback.
    if let Some(ended) = thread(cpu) {
        ended.begin_again(&state.geometries);
        return;
    }
    let Some(slot) = THREADS.get(cpu as usize) else { return state.count(live::NOT_FOLLOWED) };
    let folder = state.out.join("tlb");
    let folder = state.record.then_some(folder.as_path());
    let words = state.words.slot(cpu as usize);
    match words.and_then(|words| Thread::new(cpu, state, folder, words)) {
        Ok(thread) => slot.store(Box::into_raw(Box::new(thread)), Ordering::Release),
        Err(e) => {
            state.count(live::NOT_FOLLOWED);
            eprintln!("kprism-user: {}: a thread is not followed: {e}", state.out.display());
        }
    }
}

unsafe extern "C" fn on_translate(_: abi::PluginId, tb: *mut abi::Tb) {
    if let Some(state) = STATE.get().filter(|_| !FORKED.load(Ordering::Relaxed)) {
        let mut maps = state.maps();
        maps.see_program();
        state.append_mappings(&mut maps);
    }
    // SAFETY: `tb` and its instructions are valid during this callback.
    unsafe {
        let block = Block::read(tb);
        for (i, (callback, word)) in block.words().enumerate() {
            let insn = abi::qemu_plugin_tb_get_insn(tb, i);
            let callback: abi::OnMemory = match callback {
                Callback::Data => on_data,
                Callback::Update => on_update,
                Callback::Any => on_any,
                Callback::Last => on_last::<DATA>,
                Callback::LastUpdate => on_last::<UPDATE>,
                Callback::LastJump => on_last::<JUMP>,
                Callback::None => continue,
            };
            let udata = std::ptr::without_provenance_mut(word as usize);
            abi::qemu_plugin_register_vcpu_mem_cb(insn, callback, abi::NO_REGS, abi::MEM_RW, udata);
        }
        if let Some(word) = block.own_word() {
            let udata = std::ptr::without_provenance_mut(word as usize);
            abi::qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, abi::NO_REGS, udata);
        }
    }
}

unsafe extern "C" fn on_block(cpu: c_uint, udata: *mut c_void) {
    if let Some(t) = thread(cpu) {
        t.block(Entry::block(udata.addr() as u64));
    }
}

unsafe extern "C" fn on_data(cpu: c_uint, info: abi::MemInfo, va: u64, udata: *mut c_void) {
    if let Some(t) = thread(cpu) {
        let entry = Entry::data(va, udata.addr() as u64);
        debug_assert_eq!(entry.access(), abi::access(info), "{:#x}", udata.addr());
        t.note(entry);
    }
}

unsafe extern "C" fn on_update(cpu: c_uint, info: abi::MemInfo, va: u64, udata: *mut c_void) {
    if let Some(t) = thread(cpu) {
        let store = info & STORE_BIT.load(Ordering::Relaxed) != 0;
        let entry = Entry::update(va, udata.addr() as u64, store);
        debug_assert_eq!(entry.access(), abi::access(info), "{:#x}", udata.addr());
        t.note(entry);
    }
}

unsafe extern "C" fn on_any(cpu: c_uint, info: abi::MemInfo, va: u64, udata: *mut c_void) {
    if let Some(t) = thread(cpu) {
        let (store, shift) = abi::access(info);
        t.note(Entry::any(va, udata.addr() as u64, store, shift));
    }
}

/// Accesses of a block's last instruction: one access, a load and a store, or a jump's.
const DATA: u8 = 0;
const UPDATE: u8 = 1;
const JUMP: u8 = 2;

/// Callback for a block's last instruction, or for a signal's frame: see [`Block::words`].
unsafe extern "C" fn on_last<const WHAT: u8>(cpu: c_uint, info: abi::MemInfo, va: u64, udata: *mut c_void) {
    let Some(t) = thread(cpu) else { return };
    let (word, (store, shift)) = (udata.addr() as u64, abi::access(info));
    let entry = match WHAT {
        DATA => Entry::data(va, word),
        UPDATE => Entry::update(va, word, store),
        _ => Entry::any(va, word, store, shift),
    };
    let expected = if WHAT == JUMP { (store, 3) } else { entry.access() };
    if !t.is_of_signal(word, (store, shift) == expected) {
        t.note(entry);
    }
}

unsafe extern "C" fn on_call(
    _: abi::PluginId,
    cpu: c_uint,
    number: i64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    _: u64,
    _: u64,
) {
    if let Some(t) = thread(cpu) {
        t.call = [number as u64, a, b, c, d, e, f];
        t.look_up();
        if EXECUTES.contains(&t.call[0])
            && !FORKED.load(Ordering::Relaxed)
            && let Some(state) = STATE.get()
        {
            state.count(live::EXECUTED);
        }
    }
}

unsafe extern "C" fn on_return(_: abi::PluginId, cpu: c_uint, number: i64, result: i64) {
    let (Some(state), Some(t)) = (STATE.get(), thread(cpu)) else { return };
    if FORKED.load(Ordering::Relaxed) || t.call[0] != number as u64 {
        return;
    }
    if EXECUTES.contains(&t.call[0]) {
        // It failed, because the program is still here.
        state.words.head(live::EXECUTED).fetch_sub(1, Ordering::Relaxed);
    }
    let mut maps = state.maps();
    let now = t.now();
    maps.returned(&t.call, result, now);
    state.append_mappings(&mut maps);
}

unsafe extern "C" fn on_exit(_: abi::PluginId, _: *mut c_void) {
    let Some(state) = STATE.get().filter(|_| !FORKED.load(Ordering::Relaxed)) else { return };
    for slot in &THREADS {
        let thread = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !thread.is_null() {
            // SAFETY: from `Box::into_raw`; QEMU has stopped the other threads.
            unsafe { Box::from_raw(thread) }.finish();
        }
    }
    state.words.head(live::ENDED).store(1, Ordering::Relaxed);
    let path = state.out.join("tlb/live");
    let counts = std::fs::read(&path).ok();
    let Some(counts) = counts.as_deref().and_then(live::Live::new) else { return };
    let counts = format!("{:#}\n", counts.counts(&state.geometries));
    let to = state.out.join("tlb/counts.json");
    match std::fs::write(&to, counts) {
        // Without this file, the counters in memory are all that is left.
        Err(e) => eprintln!("kprism-user: {}: {e}", to.display()),
        Ok(()) => drop(std::fs::remove_file(&path)),
    }
}
