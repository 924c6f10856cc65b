// SPDX-License-Identifier: GPL-2.0-or-later
//! The end: last chunks out, encoders joined, sideband merged, `counts.json` written.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use crate::abi;
use crate::pump::{Done, side_name};
use crate::state::{STATE, State, lock};
use crate::writer::{ART_RATIO, RATIO};

/// Long enough for a callback already under way on another thread to return: it only stores words.
const GRACE: Duration = Duration::from_millis(20);

pub unsafe extern "C" fn on_exit(_: abi::PluginId, _: *mut c_void) {
    let Some(state) = STATE.get() else { return };
    state.set_tracing(false);
    state.closed.store(true, Ordering::Release);
    std::thread::sleep(GRACE);
    for slot in &state.vcpus {
        let vcpu = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !vcpu.is_null() {
            // SAFETY: from `Box::into_raw` at init; the slot is empty now and `closed` keeps callbacks out.
            let mut vcpu = unsafe { Box::from_raw(vcpu) };
            vcpu.hand_over();
            // Dropping it closes the tape, which ends the encoder.
        }
    }
    let mut done: Vec<Done> =
        std::mem::take(&mut *lock(&state.encoders)).into_iter().filter_map(|t| t.join().ok()).collect();
    done.sort_by_key(|d| d.cpu);
    let block_bytes = state.finish();
    if let Err(e) = merge_sideband(state, &done).and_then(|()| write_counts(state, &done, block_bytes)) {
        eprintln!("kprism-observer: {}: {e}", state.options.out.display());
    }
}

/// Merges the vCPUs' records in order of time; ties in order of vCPU.
fn merge_sideband(state: &State, done: &[Done]) -> io::Result<()> {
    let dir = &state.options.out;
    let mut lines = Vec::new();
    for d in done {
        for line in fs::read_to_string(dir.join(side_name(d.cpu)))?.lines() {
            let time = serde_json::from_str::<serde_json::Value>(line)?["t"].as_u64().unwrap_or(0);
            lines.push((time, line.to_string()));
        }
    }
    lines.sort_by_key(|(time, _)| *time);
    let text: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
    fs::write(dir.join("sideband.jsonl"), text)?;
    done.iter().try_for_each(|d| fs::remove_file(dir.join(side_name(d.cpu))))
}

fn write_counts(state: &State, done: &[Done], block_bytes: usize) -> io::Result<()> {
    let o = &state.options;
    let vcpus: Vec<_> = done
        .iter()
        .map(|d| {
            json!({
                "cpu": d.cpu, "instructions": d.counts.instructions, "blocks": d.counts.blocks,
                "cut_blocks": d.counts.cut, "events": d.counts.events, "unexplained": d.counts.unexplained,
                "drift_ns": d.counts.drift_ns, "pt_bytes": d.pt_bytes,
            })
        })
        .collect();
    let counts = json!({
        "vcpus": vcpus,
        "clock": {
            "name": "guest-virtual", "tsc_hz": 1_000_000_000u64, "art_num": ART_RATIO, "art_den": 1,
            "mtc_freq": o.mtc_freq.unwrap_or(0), "nom_ratio": RATIO,
        },
        "mtc": o.mtc_freq.is_some(),
        "ret_compression": o.ret_compression, "psb_bytes": o.psb_bytes, "cyc": o.cyc, "icount": o.icount,
        "stopped": *lock(&state.stopped),
        "peak_bytes": block_bytes + done.iter().map(|d| d.footprint).sum::<usize>(),
    });
    fs::write(o.out.join("counts.json"), format!("{counts:#}\n"))
}
