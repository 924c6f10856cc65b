// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errata of processors: places where their Intel PT differs from the manual, and where the decoder therefore reads a
//! stream differently.
//!
//! In: the processor's family and model (CPUID leaf 1). Out: [`Errata`], for [`Setup`](crate::Setup). The numbers are those
//! of Intel's specification updates, and the models those to which Intel's own decoder applies them.
//!
//! Five of them need to be known, because their bytes mean something else on another processor. The others are worked around
//! in every stream: their bytes mean nothing else anywhere.

use kprism_pt::ByteErrata;

/// An erratum of Intel PT, by its number in the specification update in which it came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Erratum {
    /// A PSB+ may state an address right before a TIP.PGE switches tracing on.
    Bdm70,
    /// The last branch before a transaction's abort may have the wrong direction.
    Bdm64,
    /// An OVF may overwrite the end of a CYC.
    Skd007,
    /// A VM entry that switches tracing off may send a FUP before its TIP.PGD.
    Skd022,
    /// An OVF's FUP or TIP.PGE may be missing.
    Skd010,
    /// A TIP.PGD may lack its address, if a direct jump left the filtered addresses.
    Skl014,
    /// An OVF while tracing is off may be followed by a FUP.
    Apl12,
    /// An OVF may be followed by a TIP.PGD.
    Apl11,
    /// A CYC, and an MTC with it, may be missing before a PSB.
    Skl168,
    /// A TMA may be wrong, and followed by a byte that is none of a packet.
    Skz84,
}

use Erratum::{Apl11, Apl12, Bdm64, Bdm70, Skd007, Skd010, Skd022, Skl014, Skl168, Skz84};

impl Erratum {
    /// All of them, with their names.
    pub const ALL: &[(Erratum, &str)] = &[
        (Bdm70, "BDM70"),
        (Bdm64, "BDM64"),
        (Skd007, "SKD007"),
        (Skd022, "SKD022"),
        (Skd010, "SKD010"),
        (Skl014, "SKL014"),
        (Apl12, "APL12"),
        (Apl11, "APL11"),
        (Skl168, "SKL168"),
        (Skz84, "SKZ84"),
    ];

    /// Its number in the specification update.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|named| named.0 == self).map_or("", |named| named.1)
    }
}

/// The errata of a processor of Intel's, by family and model; `None` for one that is not known.
pub fn of_processor(family: u16, model: u8) -> Option<&'static [Erratum]> {
    Some(match (family, model) {
        // Broadwell.
        (6, 0x3d | 0x47 | 0x4f | 0x56) => &[Bdm70, Bdm64],
        // Skylake, Kaby Lake and Comet Lake of clients.
        (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => &[Bdm70, Skd007, Skd022, Skd010, Skl014, Skl168],
        // Skylake and Ice Lake of servers.
        (6, 0x55 | 0x6a | 0x6c) => &[Bdm70, Skd022, Skl014, Skz84],
        // Sapphire Rapids and later ones of servers.
        (6, 0x8f | 0xcf | 0xad | 0xae) | (0x13, 0x01) => &[Bdm70, Skd022, Skz84],
        // Cannon Lake, Ice Lake, Tiger Lake and Rocket Lake of clients.
        (6, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8) => &[Bdm70, Skd022, Skl014],
        // Alder Lake and later ones of clients.
        (6, 0x97 | 0x9a | 0xba | 0xb7 | 0xbf | 0xc5 | 0xc6 | 0xb5 | 0xaa | 0xac | 0xbd | 0xcc) => {
            &[Bdm70, Skd022, Apl11]
        }
        // Apollo Lake and Denverton.
        (6, 0x5c | 0x5f) => &[Apl12, Apl11],
        // Later Atoms.
        (6, 0x7a | 0x86 | 0x96 | 0x9c | 0xb6 | 0xaf | 0xdd) => &[Apl11],
        _ => return None,
    })
}

/// Address ranges that a processor's filter let through; tracing was off elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter {
    /// First and last address of each range; both are 0 of an unused one. Processors have four at most.
    pub ranges: [(u64, u64); 4],
}

impl Filter {
    /// Returns true if there is a filter, and this address is outside of it.
    fn is_outside(&self, ip: u64) -> bool {
        let mut used = self.ranges.iter().filter(|range| **range != (0, 0)).peekable();
        used.peek().is_some() && !used.any(|&(first, last)| (first..=last).contains(&ip))
    }
}

/// The errata that the decoder has to know of a stream's processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errata {
    /// Those that change the bytes of packets: SKD007, SKZ84.
    pub bytes: ByteErrata,
    /// SKD022.
    pub skd022: bool,
    /// SKL014. It needs the filter, without which the place where tracing went off cannot be told.
    pub skl014: bool,
    /// The recording's address filter.
    pub filter: Filter,
}

impl Errata {
    /// A processor without errata, or one that is not known.
    pub const NONE: Self = Self {
        bytes: ByteErrata { skd007: false, skz84: false },
        skd022: false,
        skl014: false,
        filter: Filter { ranges: [(0, 0); 4] },
    };

    /// Those of a list.
    pub fn of(list: &[Erratum], filter: Filter) -> Self {
        let has = |erratum| list.contains(&erratum);
        Self {
            bytes: ByteErrata { skd007: has(Skd007), skz84: has(Skz84) },
            skd022: has(Skd022),
            skl014: has(Skl014),
            filter,
        }
    }

    /// SKL014: returns true if a direct jump to this address switched tracing off.
    pub(crate) fn leaves_filter(&self, target: u64) -> bool {
        self.skl014 && self.filter.is_outside(target)
    }
}
