// SPDX-License-Identifier: GPL-2.0-or-later
//! kprism-observer: a QEMU plugin that observes a guest kernel from outside and writes its execution as genuine Intel
//! PT.
//!
//! Input: QEMU's callbacks (a block was translated, a block starts). Output, in the folder `out=`: one PT stream per
//! vCPU (`cpuN.pt`), the code as it ran (`code.dict`, `cpuN.map`), task switches and mappings (`cpuN.side.jsonl`), and
//! the observer's own exact instruction count (`counts.json`).
//!
//! It never changes the guest: it reads registers and memory. In deterministic mode (icount) the guest cannot even
//! notice that time passes. Memory is bounded by the amount of distinct code.
//!
//! Data flow, file by file: `translate` (QEMU translated a block, which `state` knows from then on), `callbacks` (it
//! runs), `vcpu` (writes one word to the `tape`). On a thread of its own `pump` gives the tape to the `encoder`, which
//! determines the instructions that ran; `writer` makes packets of them, `codemap` notes the code, and `pump` writes both
//! to files. `hooks` and `side` are the sideband, `modules` those of its names that come and go; `idt` distinguishes interrupts from jumps. On request, `tlb` models TLBs
//! over `ram` and writes `tlb/cpuN.miss`, and `alloc` adds the programs' allocations. `stops` lets the host read the guest's memory at exact
//! places; it also works alone. `goal` stops a replay at one
//! instruction. `control` lets the host begin later, in a guest of which it then knows the kernel.
//! `clock` takes this machine's time out of QEMU's software TLB.

#![allow(missing_docs, reason = "loaded by QEMU, called by nobody else")]

mod abi;
mod alloc;
mod block;
mod callbacks;
mod clock;
mod codemap;
mod control;
mod encoder;
mod filter;
mod finish;
mod goal;
mod guest;
mod hooks;
mod idt;
mod leave;
mod modules;
mod options;
mod pump;
mod ram;
mod records;
mod ring;
mod round_robin;
mod side;
mod state;
mod stops;
mod sync;
mod tape;
mod tlb;
mod translate;
mod trigger;
mod vcpu;
mod vcpus;
mod writer;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use abi::MAX_VCPUS;
use hooks::Hooks;
use options::Options;
use state::{STATE, State};
use sync::lock;
use vcpu::Vcpu;
use vcpus::VCPUS;

/// Version of the plugin interface for which this is written: QEMU 9.2, the first that reads memory, to 11.0.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 4;

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
    let (info, args) = unsafe {
        let args: Vec<String> = (0..argc.max(0) as usize)
            .map(|i| CStr::from_ptr(*argv.add(i)).to_string_lossy().into_owned())
            .collect();
        (&*info, args)
    };
    match install(id, info, &args) {
        Ok(Installed::Clock) => 0,
        Ok(Installed::Control) => {
            // SAFETY: callbacks of the declared types, valid for the process's life.
            unsafe {
                abi::qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
                abi::qemu_plugin_register_vcpu_tb_trans_cb(id, control::on_translate);
            }
            0
        }
        Ok(Installed::Stops) => {
            // SAFETY: callbacks of the declared types, valid for the process's life.
            unsafe {
                abi::qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
                abi::qemu_plugin_register_vcpu_tb_trans_cb(id, stops::on_translate);
            }
            0
        }
        Ok(Installed::Tracing(state)) => {
            if STATE.set(*state).is_err() {
                eprintln!("kprism-observer: loaded twice");
                return 1;
            }
            register(id);
            0
        }
        Err(e) => {
            eprintln!("kprism-observer: {e}");
            1
        }
    }
}

/// Registers the callbacks of a recording.
pub(crate) fn register(id: abi::PluginId) {
    // SAFETY: callbacks of the declared types, valid for the process's life.
    unsafe {
        abi::qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
        abi::qemu_plugin_register_vcpu_tb_trans_cb(id, translate::on_translate);
        abi::qemu_plugin_register_atexit_cb(id, finish::on_exit, std::ptr::null_mut());
    }
}

/// Work of the plugin.
enum Installed {
    /// The clock of QEMU's software TLB is replaced, and nothing else is to be done.
    Clock,
    /// It traces, at once or from the agent's mark on.
    Tracing(Box<State>),
    /// It only stops the guest at stop marks.
    Stops,
    /// It waits for the host.
    Control,
}

/// Parses the arguments and creates the state.
fn install(id: abi::PluginId, info: &abi::Info, args: &[String]) -> Result<Installed, String> {
    // SAFETY: QEMU's own C string.
    let target = unsafe { CStr::from_ptr(info.target_name) };
    if target != c"x86_64" || !info.system_emulation {
        return Err(format!("watches x86_64 machines, not {}", target.to_string_lossy()));
    }
    let smp = info.smp_vcpus.max(1) as usize;
    if info.max_vcpus as usize > MAX_VCPUS {
        return Err(format!("at most {MAX_VCPUS} vCPUs"));
    }
    // QEMU makes one list of the words of all its `-plugin` with the same file.
    let (clock, args): (Vec<_>, Vec<_>) =
        args.iter().map(String::as_str).partition(|&word| word == "clock=flushes");
    if !clock.is_empty() {
        clock::replace()?;
        if args.is_empty() {
            return Ok(Installed::Clock);
        }
    }
    if let [control, more @ ..] = args.as_slice()
        && let Some(descriptor) = control.strip_prefix("control=")
    {
        let number = |text: &str| text.parse().ok().filter(|n| *n > 2);
        let descriptor =
            number(descriptor).ok_or_else(|| format!("control={descriptor}: expected a descriptor"))?;
        let mut inherited = vec![descriptor];
        for word in more {
            let all = word.strip_prefix("own=").map(|list| list.split(':').map(number).collect());
            let all: Option<Vec<_>> = all.flatten();
            inherited.extend(all.ok_or_else(|| format!("'{word}': expected own= and descriptors"))?);
        }
        control::keep_from_children(&inherited);
        control::connect(id, descriptor, smp)?;
        return Ok(Installed::Control);
    }
    let options = Options::parse(args.into_iter())?;
    options.stops.map(stops::connect).transpose()?;
    if options.out.as_os_str().is_empty() {
        return Ok(Installed::Stops);
    }
    begin(options, smp).map(|state| Installed::Tracing(Box::new(state)))
}

/// Creates the state of a recording, and its first account.
pub(crate) fn begin(options: Options, smp: usize) -> Result<State, String> {
    if options.goal.is_some() {
        leave::check()?;
    }
    let hooks = match &options.hooks {
        None => Hooks::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Hooks::parse(&text)?
        }
    };
    finish::begin_account(&options, smp).map_err(|e| format!("{}: {e}", options.out.display()))?;
    State::new(options, hooks, smp)
}

unsafe extern "C" fn on_vcpu_init(_: abi::PluginId, cpu: c_uint) {
    guest::init();
    control::vcpu_exists(cpu);
    start_vcpu(cpu);
}

/// Starts the encoder of a vCPU, if there is a recording.
pub(crate) fn start_vcpu(cpu: c_uint) {
    let Some(state) = STATE.get() else { return };
    let Some(slot) = VCPUS.get(cpu as usize) else { return };
    if !slot.load(Ordering::Acquire).is_null() {
        return;
    }
    if state.options.goal.is_some() {
        slot.store(Box::into_raw(Box::new(Vcpu::counting(cpu, &state.options))), Ordering::Release);
        return;
    }
    match pump::start(state, cpu) {
        Ok((vcpu, thread)) => {
            slot.store(Box::into_raw(Box::new(vcpu)), Ordering::Release);
            lock(&state.encoders).push((cpu, thread));
        }
        Err(e) => state.stop(format!("vCPU {cpu}: {e}")),
    }
}
