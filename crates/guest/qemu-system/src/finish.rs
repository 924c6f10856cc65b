// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of a recording: sends the last buffers, joins the encoders, writes `counts.json`.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use crate::abi;
use crate::encoder::Encoded;
use crate::filter::LeftOut;
use crate::options::Options;
use crate::state::STATE;
use crate::sync::lock;
use crate::vcpus::VCPUS;
use crate::writer::{ART_RATIO, RATIO};

/// Long enough for a callback that is already running on another thread to return: it only stores words.
const GRACE: Duration = Duration::from_millis(20);

pub unsafe extern "C" fn on_exit(_: abi::PluginId, _: *mut c_void) {
    let Some(state) = STATE.get() else { return };
    state.set_tracing(false);
    state.closed.store(true, Ordering::Release);
    std::thread::sleep(GRACE);
    let mut tlb = Vec::new();
    for slot in &VCPUS {
        let vcpu = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !vcpu.is_null() {
            // SAFETY: from `Box::into_raw` at init; the slot is empty now and `closed` keeps callbacks out.
            let mut vcpu = unsafe { Box::from_raw(vcpu) };
            vcpu.note_splits(state);
            vcpu.hand_over();
            tlb.extend(vcpu.tlb.as_ref().map(|t| t.account(vcpu.cpu)));
            // Dropping it closes the tape, which ends the encoder.
        }
    }
    let mut done = Vec::new();
    for (cpu, thread) in std::mem::take(&mut *lock(&state.encoders)) {
        let encoded = thread.join().ok();
        if encoded.is_none() {
            state.stop(format!("the encoder of vCPU {cpu} failed: its stream is not whole"));
        }
        done.push((cpu, encoded));
    }
    done.sort_by_key(|(cpu, _)| *cpu);
    let block_bytes = state.finish();
    let mut tlb_counts = json!({ "method": "model", "vcpus": tlb });
    if state.options.misses_if.is_some() {
        let sum = |of: fn(LeftOut) -> u64| {
            let each = done.iter().map(|(_, encoded)| Some(of(encoded.as_ref()?.left_out?)));
            each.sum::<Option<u64>>()
        };
        tlb_counts["left_out"] =
            json!({ "unmet": sum(|n| n.unmet), "not_computed": sum(|n| n.not_computed) });
    }
    if !tlb.is_empty()
        && let Err(e) = fs::write(state.options.out.join("tlb/counts.json"), format!("{tlb_counts:#}\n"))
    {
        state.stop(format!("tlb/counts.json: {e}"));
    }
    let mut counts = account(&state.options, lock(&state.stopped).as_deref(), &done, block_bytes);
    if state.hooks.modules.is_some() {
        counts["modules"] = lock(&state.modules).account();
    }
    if !state.triggers.is_empty() {
        counts["condition_faults"] = state.triggers.faults().into();
        counts["condition_forgotten"] = state.triggers.forgotten().into();
        counts["windows"] = state.windows().into();
    }
    if let Err(e) = write_account(&state.options, &counts) {
        eprintln!("kprism-observer: {}: {e}", state.options.out.display());
    }
}

/// Writes the account of a recording that does not come to its end: everything but counts.
pub fn begin_account(options: &Options, smp: usize) -> io::Result<()> {
    let vcpus: Vec<_> = (0..smp).map(|cpu| json!({ "cpu": cpu })).collect();
    if !options.tlb.is_empty() {
        fs::create_dir_all(options.out.join("tlb"))?;
    }
    let mut counts = account(options, Some("the recorder has not ended properly"), &[], 0);
    counts["vcpus"] = vcpus.into();
    write_account(options, &counts)
}

/// `done` are all vCPUs by number; one whose encoder failed has no counts.
fn account(o: &Options, stopped: Option<&str>, done: &[(u32, Option<Encoded>)], block_bytes: usize) -> Value {
    let vcpus: Vec<_> = done
        .iter()
        .map(|(cpu, encoded)| {
            let Some(d) = encoded else { return json!({ "cpu": cpu }) };
            json!({
                "cpu": d.cpu, "instructions": d.instructions, "snapshots": d.snapshots,
                "short_snapshots": d.short_snapshots,
                "dropped_records": d.dropped_records, "blocks": d.counts.blocks,
                "cut_blocks": d.counts.partial, "events": d.counts.interrupts, "unexplained": d.counts.unexplained,
                "drift_ns": d.counts.drift_ns, "pt_bytes": d.pt_bytes,
            })
        })
        .collect();
    json!({
        "vcpus": vcpus,
        "clock": {
            "name": "guest-virtual", "tsc_hz": 1_000_000_000u64, "art_num": ART_RATIO, "art_den": 1,
            "mtc_freq": o.mtc_freq.unwrap_or(0), "nom_ratio": RATIO, "cyc_threshold": o.cyc.unwrap_or(0),
        },
        "mtc": o.mtc_freq.is_some(),
        "ret_compression": o.ret_compression, "psb_bytes": o.psb_bytes, "cyc": o.cyc.is_some(), "icount": o.icount,
        "stopped": stopped,
        "peak_bytes": block_bytes + done.iter().flat_map(|(_, d)| d).map(|d| d.footprint).sum::<usize>(),
    })
}

fn write_account(options: &Options, counts: &Value) -> io::Result<()> {
    fs::write(options.out.join("counts.json"), format!("{counts:#}\n"))
}
