// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest: what ran, where, with which clock, and what was lost.

use crate::{Account, Instrument};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the streams of a run came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// The guest lab, seen by the observer.
    #[default]
    Lab,
    /// Intel PT that was recorded elsewhere.
    Import,
    /// The machine itself, by its kernel's own tracer.
    Host,
}

/// The clock behind every `_ns` in the run, and the ratios needed to read time packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// For people: `guest-virtual`, `host-tsc`, …
    pub name: String,
    /// Ticks of the time stamp counter per second.
    pub tsc_hz: u64,
    /// TSC = ART · `art_num` / `art_den` (CPUID leaf 15H EBX and EAX).
    pub art_num: u32,
    /// See `art_num`.
    pub art_den: u32,
    /// MTC packets come every 2^`mtc_freq` ART ticks (`IA32_RTIT_CTL.MTCFreq`).
    pub mtc_freq: u8,
    /// Maximum non-turbo ratio (`MSR_PLATFORM_INFO` bits 15:8), the reference for CBR packets.
    pub nom_ratio: u8,
    /// Least cycles between two CYC packets (`IA32_RTIT_CTL.CycThresh`), 0 if all were sent or it is unknown.
    #[serde(default)]
    pub cyc_threshold: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            name: "guest-virtual".into(),
            tsc_hz: 1_000_000_000,
            art_num: 40,
            art_den: 1,
            mtc_freq: 3,
            nom_ratio: 10,
            cyc_threshold: 0,
        }
    }
}

/// The kernel that ran.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// GNU build id in hex, empty if unknown.
    #[serde(default)]
    pub build_id: String,
}

/// Contents of `manifest.json`. The only file of a run that holds wall-clock dates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout of the run folder; 1.
    pub version: u32,
    /// Program that made the run, with version.
    #[serde(default)]
    pub tool: String,
    /// Where the streams came from.
    pub kind: RunKind,
    /// The instruments that recorded into the run; see [`Run::instruments`](crate::Run::instruments) for older runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instruments: Vec<Instrument>,
    /// The command that was watched; empty for imports.
    #[serde(default)]
    pub command: Vec<String>,
    /// The kernel it ran on, if known.
    #[serde(default)]
    pub kernel: Option<Kernel>,
    /// When, RFC 3339 in UTC.
    #[serde(default)]
    pub created: String,
    /// The clock of all times.
    #[serde(default)]
    pub clock: Clock,
    /// CPUs with a stream.
    pub vcpus: u32,
    /// Exit code of the command, if it ended.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Instructions decoded, once decoded.
    #[serde(default)]
    pub instructions: Option<u64>,
    /// Instructions by the recorder's own count, where it has one.
    #[serde(default)]
    pub instructions_recorded: Option<u64>,
    /// Places that could not be decoded, once decoded.
    #[serde(default)]
    pub decode_errors: Option<u64>,
    /// Bytes lost by the recorder or skipped by the decoder.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Why recording ended early, if it did.
    #[serde(default)]
    pub stopped: Option<String>,
    /// Everything needed to do the run again (options of the command line, versions of tools).
    #[serde(default)]
    pub options: BTreeMap<String, serde_json::Value>,
    /// What each instrument saw, kept, lost, did not understand and guessed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accounts: BTreeMap<Instrument, Account>,
    /// Fields of later versions, kept when the manifest is written again.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

impl Manifest {
    /// Whether every instrument's account is there and whole: see [`Account::is_whole`].
    pub fn is_whole(&self) -> bool {
        !self.accounts.is_empty() && self.accounts.values().all(Account::is_whole)
    }

    /// A manifest with nothing known but its kind and the number of CPUs.
    pub fn new(kind: RunKind, vcpus: u32) -> Self {
        Manifest {
            version: 1,
            tool: concat!("kprism ", env!("CARGO_PKG_VERSION")).into(),
            kind,
            instruments: Vec::new(),
            command: Vec::new(),
            kernel: None,
            created: String::new(),
            clock: Clock::default(),
            vcpus,
            exit_code: None,
            instructions: None,
            instructions_recorded: None,
            decode_errors: None,
            lost_bytes: 0,
            stopped: None,
            options: BTreeMap::new(),
            accounts: BTreeMap::new(),
            other: BTreeMap::new(),
        }
    }
}
