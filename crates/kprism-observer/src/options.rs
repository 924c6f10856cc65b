// SPDX-License-Identifier: GPL-2.0-or-later
//! What the user may set: `-plugin libkprism_observer.so,key=value,...` in, [`Options`] out.

use std::path::PathBuf;

/// Where tracing begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Between the agent's begin and end marks.
    Mark,
    /// From the kernel's first instruction at its own (high) addresses.
    Boot,
}

/// The observer's settings. Defaults suit the deterministic lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Folder for the streams; must exist.
    pub out: PathBuf,
    /// File with symbol addresses and structure offsets (see `hooks`), if any.
    pub hooks: Option<PathBuf>,
    /// Where tracing begins.
    pub start: Start,
    /// Compress returns whose target the decoder can know (SDM: DisRETC clear).
    pub ret_compression: bool,
    /// Bytes between PSB packets (SDM: PSBFreq, 2 KiB << n).
    pub psb_bytes: u64,
    /// MTC period as a power of two of ART ticks (SDM: MTCFreq), off if `None`.
    pub mtc_freq: Option<u8>,
    /// Cycle counts before every TNT, TIP and MTC packet (SDM: CYCEn).
    pub cyc: bool,
    /// Longest TNT packet in branches: 6 (short) or 47 (long).
    pub tnt_max: u8,
    /// QEMU runs with `-icount shift=0`: one instruction is one nanosecond of guest time.
    pub icount: bool,
}

impl Options {
    /// Parses the plugin's `key=value` arguments.
    ///
    /// # Errors
    /// A message naming the argument and what was expected.
    pub fn parse<'a>(args: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut o = Options {
            out: PathBuf::new(),
            hooks: None,
            start: Start::Mark,
            ret_compression: true,
            psb_bytes: 4096,
            mtc_freq: Some(3),
            cyc: true,
            tnt_max: 6,
            icount: true,
        };
        for arg in args {
            let (key, value) = arg.split_once('=').ok_or_else(|| format!("'{arg}': expected key=value"))?;
            match key {
                "out" => o.out = value.into(),
                "hooks" => o.hooks = Some(value.into()),
                "start" => {
                    o.start = match value {
                        "mark" => Start::Mark,
                        "boot" => Start::Boot,
                        _ => return Err(format!("start={value}: expected mark or boot")),
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
                "cyc" => o.cyc = on_off(key, value)?,
                "tnt" => {
                    o.tnt_max = match value {
                        "short" => 6,
                        "long" => 47,
                        _ => return Err(format!("tnt={value}: expected short or long")),
                    }
                }
                "icount" => o.icount = on_off(key, value)?,
                _ => return Err(format!("'{key}': no such option")),
            }
        }
        if o.out.as_os_str().is_empty() {
            return Err("out=DIR is missing".into());
        }
        Ok(o)
    }
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
        for bad in ["", "out", "out=/x,psb=1", "out=/x,mtc=99", "out=/x,cyc=maybe", "out=/x,what=1"] {
            assert!(Options::parse(bad.split(',')).is_err(), "{bad}");
        }
    }
}
