// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions and the clock with which the `flow` corpus is decoded, by the fuzzer and by the tests.

use kprism_flow::clock::ClockConfig;
use kprism_image::resolve::{FuncInfo, FuncRef, Resolve};

use crate::input::BASES;

/// Clock facts for streams of the corpus.
pub const CLOCK: ClockConfig = ClockConfig {
    tsc_hz: 3_000_000_000,
    perf: None,
    art_num: 40,
    art_den: 1,
    mtc_freq: 3,
    nom_ratio: 10,
    cyc_threshold: 0,
};

/// Eight bytes make a function; some are system calls, some exception entries, some unknown. Numbers are dense,
/// as the decoder expects: outside the places where code lies, nothing is a function.
pub struct Cells;

impl Resolve for Cells {
    fn function_at(&self, _asid: u64, va: u64, _at_ns: u64) -> FuncRef {
        let place = BASES.iter().position(|&(_, base)| va.wrapping_sub(base) < 0x1000);
        let Some(place) = place else {
            return FuncRef { id: 0, entry: va, known: false, start: va, end: va.saturating_add(1) };
        };
        let id = 1 + ((place as u32) << 9 | (va as u32 & 0xfff) >> 3);
        FuncRef {
            id,
            entry: va & !7,
            known: !id.is_multiple_of(5),
            start: va & !7,
            end: (va & !7).saturating_add(8),
        }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        let name = ["plain", "__x64_sys_x", "asm_exc_x", "asm_sysvec_x"][id as usize % 4].to_owned();
        FuncInfo { name, module: String::new(), start: u64::from(id) << 3, kernel: id > 0x200 && id <= 0x400 }
    }
}
