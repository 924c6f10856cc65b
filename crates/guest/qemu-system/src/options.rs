// SPDX-License-Identifier: GPL-2.0-or-later
//! Parses the plugin's options: `-plugin libkprism_observer.so,key=value,...`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::goal::Goal;
use kprism_expr::access::Condition;
use kprism_tlb::objects::allocs::{self, Signature};
use kprism_tlb::{Geometry, bank, presets};

/// The start of tracing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Between the agent's begin and end marks.
    Mark,
    /// From the kernel's first instruction at its own (high) addresses.
    Boot,
    /// At once.
    Now,
}

/// The part of the streams that is kept. Conditions are in the format of [`kprism_expr::watch::Watch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keep {
    All,
    /// The last `bytes` of each stream, each time the condition is met.
    Last {
        bytes: usize,
        when: String,
    },
    /// From one condition (or the start) until the other (or the end), repeatedly.
    Windows {
        from: Option<String>,
        until: Option<String>,
    },
}

/// The observer's options. Defaults suit the deterministic lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Folder for the streams, which must exist. If empty, nothing is traced; see `stops`.
    pub out: PathBuf,
    /// The descriptor of a socket on which the host is notified that the guest is stopped at a stop mark (see
    /// `crate::stops`).
    pub stops: Option<RawFd>,
    /// File with symbol addresses and structure offsets (see `hooks`), if any.
    pub hooks: Option<PathBuf>,
    /// The guest is Linux: its code segments' selectors are known.
    pub linux: bool,
    /// Address of the interrupt table, if it was set before the recording began.
    pub idt: Option<u64>,
    /// The start of tracing.
    pub start: Start,
    /// Compress returns whose target the decoder can derive (SDM: DisRETC clear).
    pub ret_compression: bool,
    /// Bytes between PSB packets (SDM: PSBFreq, 2 KiB << n).
    pub psb_bytes: u64,
    /// MTC period as a power of two of ART ticks (SDM: MTCFreq), off if `None`.
    pub mtc_freq: Option<u8>,
    /// CYC packets before TNT, TIP, MTC and the like, when at least this many cycles passed since the last (SDM: CYCEn,
    /// CycThresh); off if `None`.
    pub cyc: Option<u64>,
    /// Omit the packets of flow in the kernel's half of the addresses, as with a processor's address filter on the
    /// other half (SDM: ADDR0_CFG, FilterEn).
    pub user_only: bool,
    /// Longest TNT packet in branches: 6 (short) or 47 (long).
    pub tnt_max: u8,
    /// The part of the streams that is kept.
    pub keep: Keep,
    /// TLBs to model; their misses go to `tlb/` in `out`.
    pub tlb: Vec<Geometry>,
    /// The misses that are kept, in the format of [`kprism_expr::access::Condition`]; all if `None`.
    pub misses_if: Option<String>,
    /// Allocating functions of programs to follow.
    pub allocs: Vec<Signature>,
    /// The instruction at which a replay stops. Then nothing is written.
    pub goal: Option<Goal>,
    /// Condition of [`Goal::Place`].
    pub at: Option<String>,
    /// The host reads the guest's memory at each place where a window opens or closes: the guest is held there.
    pub holds_windows: bool,
    /// QEMU runs with `-icount shift=0`: one instruction is one nanosecond of guest time.
    pub icount: bool,
}

impl Options {
    /// Parses the plugin's `key=value` arguments.
    ///
    /// # Errors
    /// The text names the argument and the expected value.
    pub fn parse<'a>(args: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut o = Options {
            out: PathBuf::new(),
            stops: None,
            hooks: None,
            linux: true,
            idt: None,
            start: Start::Mark,
            ret_compression: true,
            psb_bytes: 4096,
            mtc_freq: Some(3),
            cyc: Some(0),
            user_only: false,
            tnt_max: 6,
            keep: Keep::All,
            tlb: Vec::new(),
            misses_if: None,
            allocs: Vec::new(),
            goal: None,
            at: None,
            holds_windows: false,
            icount: true,
        };
        let (mut keep, mut when, mut from, mut until) = (4 << 20, None, None, None);
        for arg in args {
            let (key, value) = arg.split_once('=').ok_or_else(|| format!("'{arg}': expected key=value"))?;
            match key {
                "out" => o.out = value.into(),
                "hooks" => o.hooks = Some(value.into()),
                "stops" => {
                    let number = value.parse().ok().filter(|n| *n > 2);
                    o.stops = Some(number.ok_or_else(|| format!("stops={value}: expected a descriptor"))?);
                }
                "guest" => {
                    o.linux = match value {
                        "linux" => true,
                        "other" => false,
                        _ => return Err(format!("guest={value}: expected linux or other")),
                    }
                }
                "idt" => {
                    let digits = value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
                    o.idt = Some(digits.ok_or_else(|| format!("idt={value}: expected 0x and an address"))?);
                }
                "start" => {
                    o.start = match value {
                        "mark" => Start::Mark,
                        "boot" => Start::Boot,
                        "now" => Start::Now,
                        _ => return Err(format!("start={value}: expected mark, boot or now")),
                    }
                }
                "retc" => o.ret_compression = on_off(key, value)?,
                "psb" => {
                    o.psb_bytes = value
                        .parse()
                        .ok()
                        .filter(|n| (256..=1 << 30).contains(n))
                        .ok_or_else(|| format!("psb={value}: expected bytes between 256 and 1 GiB"))?;
                }
                "mtc" if value == "off" => o.mtc_freq = None,
                "mtc" => {
                    let n = value.parse().ok().filter(|n| *n <= 15);
                    o.mtc_freq = Some(n.ok_or_else(|| format!("mtc={value}: expected 0 to 15 or off"))?);
                }
                "cyc" => o.cyc = threshold(value)?,
                "filter" => {
                    o.user_only = match value {
                        "user" => true,
                        "none" => false,
                        _ => return Err(format!("filter={value}: expected user or none")),
                    }
                }
                "tnt" => {
                    o.tnt_max = match value {
                        "short" => 6,
                        "long" => 47,
                        _ => return Err(format!("tnt={value}: expected short or long")),
                    }
                }
                "allocs" => {
                    let text = std::fs::read_to_string(value).map_err(|e| format!("allocs={value}: {e}"))?;
                    o.allocs = allocs::from_text(&text).map_err(|e| format!("allocs={value}: {e}"))?;
                }
                "keep" => {
                    keep = value
                        .parse()
                        .ok()
                        .filter(|n| (4096..=1 << 34).contains(n))
                        .ok_or_else(|| format!("keep={value}: expected bytes between 4096 and 16 GiB"))?;
                }
                "tlb" => o.tlb = geometries(value)?,
                "misses-if" => {
                    Condition::from_json(value).map_err(|e| format!("misses-if={value}: {e}"))?;
                    o.misses_if = Some(value.to_owned());
                }
                "goal" => o.goal = Some(Goal::parse(value)?),
                "at" => o.at = Some(value.to_owned()),
                "nth" => {
                    let nth = value.parse().ok().filter(|nth| *nth > 0);
                    let nth = nth.ok_or_else(|| format!("nth={value}: expected a number from 1"))?;
                    o.goal = Some(Goal::Place { nth });
                }
                "when" => when = Some(value.to_owned()),
                "from" => from = Some(value.to_owned()),
                "until" => until = Some(value.to_owned()),
                "hold" => match value {
                    "windows" => o.holds_windows = true,
                    _ => return Err(format!("hold={value}: expected windows")),
                },
                "icount" => o.icount = on_off(key, value)?,
                _ => return Err(format!("'{key}': no such option")),
            }
        }
        o.keep = match (when, from, until) {
            (None, None, None) => Keep::All,
            (Some(when), None, None) => Keep::Last { bytes: keep, when },
            (None, from, until) => Keep::Windows { from, until },
            _ => return Err("when= does not go with from= and until=".into()),
        };
        if o.out.as_os_str().is_empty() && o.stops.is_none() {
            return Err("out=DIR is missing".into());
        }
        if o.misses_if.is_some() && o.tlb.is_empty() {
            return Err("misses-if= needs tlb=".into());
        }
        if o.at.is_some() != matches!(o.goal, Some(Goal::Place { .. })) {
            return Err("at= and nth= go together".into());
        }
        if o.goal.is_some() && (!o.icount || o.stops.is_none()) {
            return Err("a replay to a goal needs icount=on and stops=".into());
        }
        if o.holds_windows && (!matches!(o.keep, Keep::Windows { .. }) || !o.icount || o.stops.is_none()) {
            return Err("hold=windows needs from= or until=, icount=on and stops=".into());
        }
        if o.user_only && !o.icount {
            return Err("filter=user needs icount=on: real time is told from instructions everywhere".into());
        }
        Ok(o)
    }
}

/// Parses SDM, IA32_RTIT_CTL.CycThresh: 0, or 2^(n-1) cycles for n from 1 to 15.
fn threshold(value: &str) -> Result<Option<u64>, String> {
    match (value, value.parse::<u64>()) {
        ("on", _) => Ok(Some(0)),
        ("off", _) => Ok(None),
        (_, Ok(n)) if n == 0 || n <= 1 << 14 && n.is_power_of_two() => Ok(Some(n)),
        _ => Err(format!("cyc={value}: expected on, off, 0, or a power of two up to 16384")),
    }
}

/// Parses names of presets, or paths of descriptions, separated by `+`.
fn geometries(value: &str) -> Result<Vec<Geometry>, String> {
    let one = |name: &str| match presets::preset(name) {
        Some(geometry) => Ok(geometry),
        None => {
            let text = std::fs::read_to_string(name).map_err(|e| {
                format!("tlb={name}: {e}; expected one of {}, or a file", presets::NAMES.join(", "))
            })?;
            Geometry::parse(&text).map_err(|e| format!("{name}: {e}"))
        }
    };
    let all: Vec<Geometry> = value.split('+').map(one).collect::<Result<_, _>>()?;
    if all.len() > bank::MAX_GEOMETRIES {
        return Err(format!("tlb={value}: at most {} geometries", bank::MAX_GEOMETRIES));
    }
    Ok(all)
}

fn on_off(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{key}={value}: expected on or off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_refuses() {
        let o = Options::parse("out=/x,retc=off,mtc=off,psb=2048,start=boot,cyc=off".split(',')).unwrap();
        assert!(!o.ret_compression && o.mtc_freq.is_none() && o.psb_bytes == 2048 && o.start == Start::Boot);
        for bad in [
            "",
            "out",
            "out=/x,psb=1",
            "out=/x,mtc=99",
            "out=/x,cyc=maybe",
            "out=/x,what=1",
            "out=/x,when=a,from=b",
            "out=/x,tlb=haswell-ep,misses-if=x",
            "out=/x,hold=all",
            "out=/x,from=a,hold=windows",
            "out=/x,stops=7,hold=windows",
            "out=/x,stops=7,from=a,icount=off,hold=windows",
        ] {
            assert!(Options::parse(bad.split(',')).is_err(), "{bad}");
        }
        for (word, cyc) in
            [("on", Some(0)), ("0", Some(0)), ("off", None), ("1", Some(1)), ("16384", Some(16384))]
        {
            assert_eq!(Options::parse(["out=/x", &format!("cyc={word}")].into_iter()).unwrap().cyc, cyc);
        }
        assert!(Options::parse("out=/x,stops=7,until=a,hold=windows".split(',')).unwrap().holds_windows);
        for word in ["3", "32768", "-1", ""] {
            assert!(Options::parse(["out=/x", &format!("cyc={word}")].into_iter()).is_err(), "{word}");
        }
    }
}
