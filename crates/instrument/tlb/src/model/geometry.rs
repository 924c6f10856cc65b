// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptions of a processor's TLBs: arrays on levels, each with its size, page sizes and the accesses it serves.
//!
//! Input: JSON, or the name of a preset (see [`crate::model::presets`]). Output: a checked [`Geometry`].

use serde::{Deserialize, Serialize};

/// Sizes of pages that x86-64 maps (SDM volume 3, table 4-14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB.
    #[serde(rename = "4K")]
    K4 = 0,
    /// 2 MiB.
    #[serde(rename = "2M")]
    M2 = 1,
    /// 1 GiB.
    #[serde(rename = "1G")]
    G1 = 2,
}

impl PageSize {
    /// All of them, from small to large.
    pub const ALL: [PageSize; 3] = [PageSize::K4, PageSize::M2, PageSize::G1];

    /// Bits of an address within a page.
    pub const fn shift(self) -> u32 {
        12 + 9 * self as u32
    }

    /// Size, bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The name shown to users.
    pub const fn name(self) -> &'static str {
        ["4K", "2M", "1G"][self as usize]
    }

    /// The inverse of `as u8`.
    pub fn from_number(number: u8) -> Option<PageSize> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Kind of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Data is read.
    Load = 0,
    /// Data is written.
    Store = 1,
    /// Instructions are fetched.
    Fetch = 2,
}

impl Access {
    /// All of them.
    pub const ALL: [Access; 3] = [Access::Load, Access::Store, Access::Fetch];

    /// The name shown to users.
    pub const fn name(self) -> &'static str {
        ["load", "store", "fetch"][self as usize]
    }

    /// The inverse of `as u8`.
    pub fn from_number(number: u8) -> Option<Access> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Replacement policy of a full set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The least recently used.
    #[default]
    Lru,
    /// Pseudo-LRU: a binary tree of bits where the ways are a power of two, else a used bit for each way.
    Plru,
    /// A random entry, by a generator with the same start in every run.
    Random,
}

/// One array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// Number of entries.
    pub entries: u32,
    /// Ways of a set; 0 for fully associative. The number of sets need not be a power of two: a page belongs to set
    /// `page number mod sets`.
    #[serde(default)]
    pub ways: u32,
    /// Page sizes that it holds.
    pub pages: Vec<PageSize>,
    /// Accesses that it serves; all if omitted.
    #[serde(default = "every_access")]
    pub serves: Vec<Access>,
    /// Replacement policy.
    #[serde(default)]
    pub policy: Policy,
}

impl Array {
    /// Ways of a set.
    pub fn ways(&self) -> u32 {
        if self.ways == 0 { self.entries } else { self.ways }
    }

    /// Number of sets.
    pub fn sets(&self) -> u32 {
        self.entries / self.ways().max(1)
    }
}

fn every_access() -> Vec<Access> {
    Access::ALL.to_vec()
}

/// Caches of the upper levels of the page tables, fully associative, LRU; 0 entries means none. No reliable source
/// publishes their sizes, so no preset has any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCaches {
    /// PML4 entries (SDM: PML4 cache).
    #[serde(default)]
    pub pml4e: u32,
    /// Entries that point to page directories (SDM: PDPTE cache).
    #[serde(default)]
    pub pdpte: u32,
    /// Entries that point to page tables (SDM: PDE cache).
    #[serde(default)]
    pub pde: u32,
}

/// All TLBs of a processor, as one thread sees them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Its name.
    pub name: String,
    /// Source of the numbers.
    #[serde(default)]
    pub source: String,
    /// Levels, the one nearest to the core first; each a list of arrays that are looked up together.
    pub levels: Vec<Vec<Array>>,
    /// Caches of the page walk.
    #[serde(default)]
    pub walk_caches: WalkCaches,
    /// Entries belong to an address space and survive a switch to another (SDM volume 3, 4.10.1: CR4.PCIDE), for as many spaces as
    /// Linux gives PCIDs. Otherwise a load of CR3 drops all but global entries.
    #[serde(default)]
    pub pcid: bool,
}

/// Errors in a description.
#[derive(Debug, thiserror::Error)]
pub enum GeometryError {
    /// The JSON is not valid.
    #[error("geometry: {0}")]
    Json(#[from] serde_json::Error),
    /// An array is not possible.
    #[error("geometry {name:?}: level {level}, array {array}: {what}")]
    Array {
        /// The geometry's name.
        name: String,
        /// Level, from 1.
        level: usize,
        /// Array of the level, from 1.
        array: usize,
        /// The error and the expected value.
        what: &'static str,
    },
    /// The geometry as a whole is not possible.
    #[error("geometry {name:?}: {what}")]
    Whole {
        /// The geometry's name.
        name: String,
        /// The error and the expected value.
        what: &'static str,
    },
}

fn twice<T: PartialEq>(all: &[T]) -> bool {
    all.iter().enumerate().any(|(i, one)| all[..i].contains(one))
}

/// Maximum of entries in an array.
const MAX_ENTRIES: u32 = 1 << 16;
/// Maximum of ways in a set, unless it is the whole array.
const MAX_WAYS: u32 = 64;
/// Maximum of arrays per level.
pub(crate) const MAX_ARRAYS: usize = 8;

impl Geometry {
    /// Reads a description.
    ///
    /// # Errors
    /// The text is not JSON of this form, or describes an impossible geometry.
    pub fn parse(json: &str) -> Result<Self, GeometryError> {
        let geometry: Geometry = serde_json::from_str(json)?;
        geometry.check()?;
        Ok(geometry)
    }

    /// Checks that the geometry is possible.
    ///
    /// # Errors
    /// Names the first impossible array, or a missing part.
    pub fn check(&self) -> Result<(), GeometryError> {
        let whole = |what| Err(GeometryError::Whole { name: self.name.clone(), what });
        if !(1..=3).contains(&self.levels.len()) {
            return whole("expected one to three levels");
        }
        let w = self.walk_caches;
        if w.pml4e.max(w.pdpte).max(w.pde) > MAX_ENTRIES {
            return whole("a walk cache has more than 65536 entries");
        }
        for (level, arrays) in (1..).zip(&self.levels) {
            if arrays.len() > MAX_ARRAYS {
                return whole("expected at most 8 arrays in a level");
            }
            for (array, a) in (1..).zip(arrays) {
                let what = match a {
                    _ if a.entries == 0 || a.entries > MAX_ENTRIES => "expected 1 to 65536 entries",
                    _ if a.ways > a.entries || a.entries % a.ways() != 0 => {
                        "expected entries to be a multiple of ways"
                    }
                    _ if a.ways > MAX_WAYS && a.ways < a.entries => "expected at most 64 ways, or 0 for all",
                    _ if a.pages.is_empty() || twice(&a.pages) => "expected pages, each once",
                    _ if a.serves.is_empty() || twice(&a.serves) => "expected accesses in serves, each once",
                    _ => continue,
                };
                return Err(GeometryError::Array { name: self.name.clone(), level, array, what });
            }
        }
        let first = &self.levels[0];
        let all = Access::ALL
            .iter()
            .all(|access| first.iter().any(|a| a.serves.contains(access) && a.pages.contains(&PageSize::K4)));
        if !all {
            return whole("expected the first level to hold 4K pages of loads, stores and fetches");
        }
        Ok(())
    }
}
