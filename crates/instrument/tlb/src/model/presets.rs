// SPDX-License-Identifier: MIT OR Apache-2.0
//! Geometries of processors, by name.
//!
//! Numbers are those of one thread. Vendors publish sizes and ways, but neither indexing nor replacement. Here sets are
//! indexed by the low bits of the page number and replaced by LRU; your own description can change that.

use crate::model::geometry::{Access, Array, Geometry, PageSize, Policy, WalkCaches};

use Access::{Fetch, Load, Store};
use PageSize::{G1, K4, M2};

const DATA: &[Access] = &[Load, Store];
const CODE: &[Access] = &[Fetch];
const ALL: &[Access] = &[Load, Store, Fetch];

fn array(entries: u32, ways: u32, pages: &[PageSize], serves: &[Access]) -> Array {
    Array { entries, ways, pages: pages.to_vec(), serves: serves.to_vec(), policy: Policy::Lru }
}

/// A processor by name.
struct Preset {
    name: &'static str,
    /// Source of the numbers.
    source: &'static str,
    levels: fn() -> Vec<Vec<Array>>,
}

/// All presets; the first is the default.
const PRESETS: [Preset; 5] = [
    // The paper's Xeon E5-2620 v2.
    Preset {
        name: "ivybridge-ep",
        source: "Intel 64 and IA-32 Optimization Manual, Ivy Bridge TLBs; CPUID leaf 2 of the E5-2620 v2: \
             0x63 0x03 0x55 0x76 0xb2 0xca",
        levels: || {
            vec![
                vec![
                    array(64, 4, &[K4], DATA),
                    array(32, 4, &[M2], DATA),
                    array(4, 4, &[G1], DATA),
                    array(64, 4, &[K4], CODE),
                    array(8, 0, &[M2], CODE),
                ],
                vec![array(512, 4, &[K4], ALL)],
            ]
        },
    },
    Preset {
        name: "skylake-sp",
        source: "Intel 64 and IA-32 Optimization Manual, Skylake Server TLBs (instruction TLB halved: one of two threads); \
             CPUID leaf 2: 0x63 0x03 0xb5 0x76 0xc3",
        levels: || {
            vec![
                vec![
                    array(64, 4, &[K4], DATA),
                    array(32, 4, &[M2], DATA),
                    array(4, 4, &[G1], DATA),
                    array(64, 8, &[K4], CODE),
                    array(8, 0, &[M2], CODE),
                ],
                vec![array(1536, 12, &[K4, M2], ALL), array(16, 4, &[G1], ALL)],
            ]
        },
    },
    Preset {
        name: "sapphire-rapids",
        source: "CPUID leaf 0x18 of Sapphire Rapids; Golden Cove TLBs in the Intel 64 and IA-32 Optimization Manual",
        levels: || {
            vec![
                vec![
                    array(64, 4, &[K4], &[Load]),
                    array(32, 4, &[M2], &[Load]),
                    array(8, 0, &[G1], &[Load]),
                    array(16, 0, &[K4, M2, G1], &[Store]),
                    array(256, 8, &[K4], CODE),
                    array(32, 8, &[M2], CODE),
                ],
                vec![array(1024, 8, &[K4, M2], ALL), array(1024, 8, &[K4, G1], ALL)],
            ]
        },
    },
    Preset {
        name: "zen4",
        source: "Software Optimization Guide for AMD Zen 4 (57647), 2.8; CPUID 0x80000005, 0x80000006 and 0x80000019",
        levels: || {
            vec![
                vec![array(72, 0, &[K4, M2, G1], DATA), array(64, 0, &[K4, M2, G1], CODE)],
                vec![
                    array(3072, 8, &[K4], DATA),
                    array(3072, 6, &[M2], DATA),
                    array(64, 0, &[G1], DATA),
                    array(512, 4, &[K4, M2], CODE),
                ],
            ]
        },
    },
    Preset {
        name: "zen5",
        source: "Software Optimization Guide for AMD Zen 5 (58455), 2.8; CPUID 0x80000005, 0x80000006 and 0x80000019",
        levels: || {
            vec![
                vec![array(96, 0, &[K4, M2, G1], DATA), array(64, 0, &[K4, M2, G1], CODE)],
                vec![
                    array(4096, 8, &[K4], DATA),
                    array(4096, 4, &[M2], DATA),
                    array(1024, 4, &[G1], DATA),
                    array(2048, 8, &[K4, M2], CODE),
                ],
            ]
        },
    },
];

/// Names of the presets.
pub const NAMES: [&str; PRESETS.len()] = {
    let mut names = [""; PRESETS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = PRESETS[i].name;
        i += 1;
    }
    names
};

/// The default preset: the processor of the PTAT paper.
pub const DEFAULT: &str = NAMES[0];

/// Returns the preset of this name.
pub fn preset(name: &str) -> Option<Geometry> {
    let preset = PRESETS.iter().find(|preset| preset.name == name)?;
    Some(Geometry {
        name: preset.name.into(),
        source: preset.source.into(),
        levels: (preset.levels)(),
        walk_caches: WalkCaches::default(),
        pcid: false,
    })
}
