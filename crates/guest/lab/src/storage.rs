// SPDX-License-Identifier: MIT OR Apache-2.0
//! Storage of the guest whose requests take time.
//!
//! The guest's files are in memory, so a sync waits for nothing. With a [`StorageDevice`], those of the command are on ext4 on a
//! block device that completes each request by a timer of the guest's clock (the agent's `storage.rs`). It is a model: every
//! request takes the same time, whatever it reads or writes.

use std::fmt;
use std::time::Duration;

use kprism_agent::StoragePlan;
use serde::{Deserialize, Serialize};

/// Medium of the command's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Storage {
    /// In memory, without a device.
    #[default]
    Memory,
    /// On a device.
    Device(StorageDevice),
}

/// A device whose requests take time, as a manifest has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageDevice {
    /// Name of a preset; `None`: the user gave the time.
    pub name: Option<String>,
    /// Time that a request takes, ns.
    pub request_ns: u64,
    /// Number of requests that the device works on at a time.
    pub depth: u32,
    /// True for a disk that turns.
    pub rotates: bool,
}

/// Presets: name, time of a request in ns, requests at a time, whether it turns.
///
/// - `nvme`: 20 µs, a random write of 4 KB to an Intel P4500 (Lenovo's specification of the drive).
/// - `ssd`: 52 µs, the same to an Intel DC S4500, SATA with 32 commands (Intel's product specification).
/// - `hdd`: 12.4 ms, 8.2 ms of an average seek of an HGST Ultrastar 7K4000 (its specification, 4.4.1) and half a turn at 7,200 a
///   minute. One head serves one request at a time.
const PRESETS: [(&str, u64, u32, bool); 3] =
    [("nvme", 20_000, 64, false), ("ssd", 52_000, 32, false), ("hdd", 12_400_000, 1, true)];

/// Shortest and longest time of a request. null_blk gives a request up after 5 s (`tag_set->timeout` in drivers/block/null_blk/main.c).
const TIMES: [Duration; 2] = [Duration::from_micros(1), Duration::from_secs(4)];

/// Requests at a time of a device of which only the time is given: as many as null_blk's default (drivers/block/null_blk/main.c).
const DEPTH: u32 = 64;

impl Storage {
    /// A preset, or `memory`; `None` if there is none of this name.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        if name == "memory" {
            return Some(Self::Memory);
        }
        let &(name, request_ns, depth, rotates) = PRESETS.iter().find(|preset| preset.0 == name)?;
        Some(Self::Device(StorageDevice { name: Some(name.to_owned()), request_ns, depth, rotates }))
    }

    /// A device each of whose requests takes this time.
    ///
    /// # Errors
    /// The time is too short or too long.
    pub fn taking(request: Duration) -> Result<Self, String> {
        if !(TIMES[0]..=TIMES[1]).contains(&request) {
            return Err("a request takes 1us to 4s".to_owned());
        }
        let request_ns = request.as_nanos() as u64;
        Ok(Self::Device(StorageDevice { name: None, request_ns, depth: DEPTH, rotates: false }))
    }

    /// The device, if there is one.
    #[must_use]
    pub fn device(&self) -> Option<&StorageDevice> {
        match self {
            Self::Memory => None,
            Self::Device(device) => Some(device),
        }
    }
}

/// As the user writes it. A recorded preset that is another device today is told by its time.
impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Device(device) = self else { return f.write_str("memory") };
        match &device.name {
            Some(name) if Self::preset(name).as_ref() == Some(self) => f.write_str(name),
            _ => write!(f, "{}ns", device.request_ns),
        }
    }
}

impl StorageDevice {
    /// The agent's plan for it, in a guest of `mem_mib` MiB: up to half of the memory may be written.
    pub(crate) fn plan(&self, mem_mib: u64, modules: Vec<String>) -> StoragePlan {
        let &Self { name: _, request_ns, depth, rotates } = self;
        StoragePlan { request_ns, depth, rotates, mib: mem_mib / 2, modules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_named_and_times_are_given() {
        assert_eq!(Storage::preset("memory"), Some(Storage::Memory));
        assert_eq!(Storage::preset("floppy"), None);
        for (name, request_ns, ..) in PRESETS {
            let preset = Storage::preset(name).unwrap();
            assert_eq!(
                (preset.to_string().as_str(), preset.device().unwrap().request_ns),
                (name, request_ns)
            );
        }
        let own = Storage::taking(Duration::from_micros(1300)).unwrap();
        assert_eq!(own.to_string(), "1300000ns");
        let Some(Storage::Device(ssd)) = Storage::preset("ssd") else { panic!("a preset") };
        assert_eq!(Storage::Device(StorageDevice { request_ns: 7, ..ssd }).to_string(), "7ns");
        for odd in [Duration::ZERO, Duration::from_nanos(999), Duration::from_secs(5)] {
            assert!(Storage::taking(odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn half_of_the_memory_may_be_written() {
        let Some(Storage::Device(device)) = Storage::preset("hdd") else { panic!("a preset") };
        let plan = device.plan(1024, vec!["/ext4.ko".to_owned()]);
        assert_eq!((plan.mib, plan.depth, plan.rotates, plan.modules.len()), (512, 1, true, 1));
    }
}
