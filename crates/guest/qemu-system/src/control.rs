// SPDX-License-Identifier: GPL-2.0-or-later
//! Lets the host begin a recording in a guest that already runs: `-plugin libkprism_observer.so,control=N`, where N is the
//! descriptor of a socket. With `own=A:B` further descriptors are named that only QEMU itself is to have.
//!
//! The host writes one JSON object a line and reads one line back, `{}` or `{"error": TEXT}`:
//!
//! | request | effect |
//! |---|---|
//! | `{"begin": ["out=…", …]}` | a recording begins; the strings are the plugin's options |
//! | `{"trace": false}`, `{"trace": true}` | it pauses, it goes on |
//!
//! Until it begins, each block only compares a number with zero. To begin, that number is set. The next block that runs asks
//! QEMU to forget all translations, and the recording's own callbacks are registered instead.

use std::ffi::{c_uint, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::abi::{self, CbFlags, VcpuNumber};
use crate::options::Options;
use crate::state::{IS_CONTROLLED, STATE};
use crate::sync::lock;

/// Longest time until a block runs: an idle guest wakes for its timers.
const PATIENCE: Duration = Duration::from_secs(60);

static CONTROL: OnceLock<Control> = OnceLock::new();
/// Number of vCPUs that have been started.
static VCPUS: AtomicU32 = AtomicU32::new(0);

struct Control {
    id: abi::PluginId,
    smp: usize,
    /// Not 0 once a recording is to begin.
    wanted: VcpuNumber,
    /// True once a vCPU has asked QEMU for the change.
    asked: AtomicBool,
    begun: Mutex<Sender<()>>,
}

// SAFETY: the pointer is QEMU's scoreboard, which lives as long as the plugin and may be written from any thread.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

/// A request of the host.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Begin(Vec<String>),
    Trace(bool),
}

/// Closes descriptors in programs that QEMU starts, as scripts for its network: they are QEMU's, which had to inherit them.
pub fn keep_from_children(descriptors: &[RawFd]) {
    for &descriptor in descriptors {
        // SAFETY: sets a flag; of a number that is no descriptor it does nothing.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Serves the host on the socket `descriptor`, on a thread of its own.
///
/// # Errors
/// It was connected before, or no thread can be started.
pub fn connect(id: abi::PluginId, descriptor: RawFd, smp: usize) -> Result<(), String> {
    // SAFETY: whoever started QEMU passes a socket for this plugin alone under this number.
    let host = unsafe { UnixStream::from_raw_fd(descriptor) };
    // SAFETY: allocates; called while the plugin is installed.
    let wanted = VcpuNumber { score: unsafe { abi::qemu_plugin_scoreboard_new(8) }, offset: 0 };
    let (begun, beginning) = channel();
    let control = Control { id, smp, wanted, asked: AtomicBool::new(false), begun: Mutex::new(begun) };
    CONTROL.set(control).map_err(|_| "control= was given before".to_owned())?;
    IS_CONTROLLED.store(true, Ordering::Relaxed);
    let serve = move || {
        crate::pump::block_signals();
        serve(&host, &beginning);
    };
    let thread = std::thread::Builder::new().name("kprism/control".into()).spawn(serve);
    thread.map(drop).map_err(|error| error.to_string())
}

/// A vCPU was started.
pub fn vcpu_exists(cpu: c_uint) {
    VCPUS.fetch_max(cpu + 1, Ordering::SeqCst);
}

/// Answers until the host hangs up.
fn serve(host: &UnixStream, beginning: &Receiver<()>) {
    for line in BufReader::new(host).lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line) {
            Ok(Request::Begin(options)) => begin(&options, beginning),
            Ok(Request::Trace(on)) => match STATE.get() {
                Some(state) => not_stopped().inspect(|()| state.set_tracing(on)),
                None => Err("no recording has begun".to_owned()),
            },
            Err(error) => Err(format!("`{line}`: {error}")),
        };
        let answer = match answer {
            Ok(()) => json!({}),
            Err(error) => json!({ "error": error }),
        };
        let mut host = host;
        if writeln!(host, "{answer}").is_err() {
            return;
        }
    }
}

fn begin(options: &[String], beginning: &Receiver<()>) -> Result<(), String> {
    let control = CONTROL.get().ok_or("not connected")?;
    let options = Options::parse(options.iter().map(String::as_str))?;
    if options.out.as_os_str().is_empty() || options.stops.is_some() {
        return Err("expected out=DIR, and not stops=".into());
    }
    // Before anything is made: a second one would overwrite the files of the first.
    let before = || "a recording has begun before".to_owned();
    if STATE.get().is_some() {
        return Err(before());
    }
    let state = crate::begin(options, control.smp)?;
    STATE.set(state).map_err(|_| before())?;
    for cpu in 0..VCPUS.load(Ordering::SeqCst) {
        // SAFETY: the scoreboard lives, and has an element for each vCPU.
        unsafe { abi::qemu_plugin_u64_set(control.wanted, cpu, 1) };
    }
    let begun = beginning.recv_timeout(PATIENCE).map_err(|_| {
        if let Some(state) = STATE.get() {
            state.set_tracing(false);
        }
        format!("no CPU of the guest ran for {} s: start the machine again to record it", PATIENCE.as_secs())
    });
    begun.and_then(|()| not_stopped())
}

/// The reason why the recorder gave up, if it did.
fn not_stopped() -> Result<(), String> {
    let why = STATE.get().and_then(|state| lock(&state.stopped).clone());
    why.map_or(Ok(()), |why| Err(format!("the recorder has stopped: {why}")))
}

/// A block was translated, before a recording has begun.
pub unsafe extern "C" fn on_translate(_: abi::PluginId, tb: *mut abi::Tb) {
    let Some(control) = CONTROL.get() else { return };
    // SAFETY: `tb` is valid during this callback.
    unsafe {
        abi::qemu_plugin_register_vcpu_tb_exec_cond_cb(
            tb,
            on_wanted,
            CbFlags::NoRegs,
            abi::COND_NE,
            control.wanted,
            0,
            std::ptr::null_mut(),
        );
    }
}

/// A block runs, and a recording is to begin.
unsafe extern "C" fn on_wanted(_: c_uint, _: *mut c_void) {
    let Some(control) = CONTROL.get() else { return };
    if !control.asked.swap(true, Ordering::SeqCst) {
        // SAFETY: called on a vCPU's thread, as QEMU requires.
        unsafe { abi::qemu_plugin_reset(control.id, on_reset) };
    }
}

/// All vCPUs have stopped, and no translation is left.
unsafe extern "C" fn on_reset(id: abi::PluginId) {
    let Some(control) = CONTROL.get() else { return };
    (0..VCPUS.load(Ordering::SeqCst)).for_each(crate::start_vcpu);
    crate::register(id);
    lock(&control.begun).send(()).ok();
}
