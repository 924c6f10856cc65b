// SPDX-License-Identifier: GPL-2.0-or-later
//! Short turns of vCPUs that share one thread (deterministic mode with several vCPUs).
//!
//! QEMU divides the time until the machine's next timer among the vCPUs (`icount_percpu_budget` in
//! `accel/tcg/tcg-accel-ops-icount.c`): up to milliseconds for each, and a vCPU that is woken waits as long for its turn. So this
//! adds a timer of the guest's time that does nothing but come early. While no vCPU has work there are no turns, and it comes with
//! the next timer of another, to which an idle guest's time jumps: so it does not come early in a guest that something else wakes, as
//! a network does.
//!
//! Input: the argument `turns=NS`. QEMU's executable exports the functions, but they are not part of the plugin interface.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use crate::abi::CLOCK_VIRTUAL;

/// `QEMU_TIMER_ATTR_ALL`.
const ALL_TIMERS: c_int = -1;
/// `SCALE_NS`.
const NANOSECONDS: c_int = 1;
/// More than a `QEMUTimer` takes.
const TIMER_WORDS: usize = 32;

type TimerInit = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    unsafe extern "C" fn(*mut c_void),
    *mut c_void,
);

/// QEMU's functions and the timer.
#[derive(Debug)]
struct Turns {
    ns: i64,
    timer: *mut c_void,
    init: TimerInit,
    set: unsafe extern "C" fn(*mut c_void, i64),
    now: unsafe extern "C" fn(c_int) -> i64,
    next: unsafe extern "C" fn(c_int, c_int) -> i64,
    is_idle: unsafe extern "C" fn() -> bool,
}

// SAFETY: QEMU runs its timers under one lock, and the functions are its own.
unsafe impl Send for Turns {}
// SAFETY: as above.
unsafe impl Sync for Turns {}

static TURNS: OnceLock<Turns> = OnceLock::new();

/// Prepares turns of `ns` of the guest's time for all vCPUs together.
///
/// # Errors
/// This QEMU does not export the functions.
pub fn prepare(ns: i64) -> Result<(), String> {
    let lookup = |name: &CStr| {
        // SAFETY: a symbol lookup in the running process.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let missing =
            || format!("this QEMU has no short turns (no symbol {}): use one vCPU", name.to_string_lossy());
        if found.is_null() { Err(missing()) } else { Ok(found) }
    };
    let timer = Box::leak(Box::new([0u64; TIMER_WORDS])).as_mut_ptr().cast();
    // SAFETY: the types are QEMU's (include/qemu/timer.h, include/system/cpus.h).
    let turns = unsafe {
        Turns {
            ns,
            timer,
            init: std::mem::transmute::<*mut c_void, TimerInit>(lookup(c"timer_init_full")?),
            set: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, i64)>(lookup(
                c"timer_mod_ns",
            )?),
            now: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> i64>(lookup(
                c"qemu_clock_get_ns",
            )?),
            next: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> i64>(lookup(
                c"qemu_clock_deadline_ns_all",
            )?),
            is_idle: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> bool>(lookup(
                c"all_cpu_threads_idle",
            )?),
        }
    };
    TURNS.set(turns).map_err(|_| "turns= was given twice".to_owned())
}

/// Starts the timer with the first vCPU.
pub unsafe extern "C" fn vcpu_exists(_: crate::abi::PluginId, vcpu: std::ffi::c_uint) {
    begin(vcpu);
}

/// Starts the timer if this is the first vCPU and turns are asked for.
pub fn begin(vcpu: std::ffi::c_uint) {
    if let Some(turns) = TURNS.get().filter(|_| vcpu == 0) {
        // SAFETY: the timer's memory is large enough and lives as long as QEMU; the list of timers is the main loop's.
        unsafe {
            (turns.init)(
                turns.timer,
                std::ptr::null_mut(),
                CLOCK_VIRTUAL,
                NANOSECONDS,
                0,
                over,
                std::ptr::null_mut(),
            );
            (turns.set)(turns.timer, (turns.now)(CLOCK_VIRTUAL) + turns.ns);
        }
    }
}

/// The timer came.
unsafe extern "C" fn over(_: *mut c_void) {
    let Some(turns) = TURNS.get() else { return };
    // SAFETY: QEMU calls its timers under the lock that these functions need.
    unsafe {
        let rest = if (turns.is_idle)() { (turns.next)(CLOCK_VIRTUAL, ALL_TIMERS) } else { turns.ns };
        // Negative: there is none, and an idle guest's time stands still. Never now: QEMU would call it again at once, and so on.
        if rest >= 0 {
            (turns.set)(turns.timer, (turns.now)(CLOCK_VIRTUAL) + rest.max(1));
        }
    }
}
