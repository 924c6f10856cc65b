// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads the input of the examples: a recorded run's folder, or a folder with `*.pt` and `xpages.txt`.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use kprism_flow::clock::ClockConfig;
use kprism_image::Image;
use kprism_image::maps::{Dict, image, parse_map};
use kprism_image::resolve::{Change, FuncInfo, FuncRef, Region, Regions, Resolve};
use kprism_image::sideband::{self, Record};
use kprism_image::symbols::Symbols;

/// All inputs of a decode.
pub struct Input {
    pub streams: Vec<(u16, Vec<u8>, Image)>,
    pub sideband: Vec<Record>,
    pub functions: Functions,
    pub clock: ClockConfig,
}

pub enum Functions {
    Symbols(Box<Symbols>),
    Regions(Regions),
}

impl Resolve for Functions {
    fn function_at(&self, asid: u64, va: u64, at_ns: u64) -> FuncRef {
        match self {
            Functions::Symbols(s) => s.function_at(asid, va, at_ns),
            Functions::Regions(r) => r.function_at(asid, va, at_ns),
        }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        match self {
            Functions::Symbols(s) => s.describe(id),
            Functions::Regions(r) => r.describe(id),
        }
    }

    fn changes(&self) -> &[Change] {
        match self {
            Functions::Symbols(s) => s.changes(),
            Functions::Regions(r) => r.changes(),
        }
    }
}

pub fn load(dir: &Path) -> std::io::Result<Input> {
    if dir.join("xpages.txt").exists() { pages(dir) } else { run(dir) }
}

fn files(dir: &Path, suffix: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == suffix) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn pages(dir: &Path) -> std::io::Result<Input> {
    let mut image = Image::flat();
    let mut regions = Vec::new();
    for line in std::fs::read_to_string(dir.join("xpages.txt"))?.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [_, va, _, file] = fields[..]
            && let Ok(va) = u64::from_str_radix(va, 16)
        {
            let code = std::fs::read(dir.join(file))?;
            image.add(0, va, &code);
            regions.push(Region { start: va, end: va + code.len() as u64, module: file.to_owned() });
        }
    }
    let mut streams = Vec::new();
    for path in files(dir, "pt")? {
        streams.push((0, std::fs::read(path)?, image.clone()));
    }
    let functions = Functions::Regions(Regions::new(joined(regions)));
    Ok(Input { streams, sideband: Vec::new(), functions, clock: ClockConfig::default() })
}

/// Joins adjacent regions: a mapping that was dumped page by page becomes one.
fn joined(mut regions: Vec<Region>) -> Vec<Region> {
    regions.sort();
    regions.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
    regions
}

fn run(dir: &Path) -> std::io::Result<Input> {
    let streams_dir = if dir.join("streams").exists() { dir.join("streams") } else { dir.to_owned() };
    let dict = std::fs::read(streams_dir.join("code.dict"))?;
    let (mut dict, _) = Dict::parse(dict);
    let parts = std::fs::read(streams_dir.join("code.files")).unwrap_or_default();
    dict.open_files(&parts, &streams_dir.with_file_name("symbols").join("root"));
    let mut streams = Vec::new();
    for path in files(&streams_dir, "pt")? {
        let map = std::fs::read(path.with_extension("map"))?;
        let (image, _) = image(&dict, &parse_map(&map).0);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let cpu = name.trim_start_matches("cpu").parse().unwrap_or(0);
        streams.push((cpu, std::fs::read(&path)?, image));
    }
    let sideband = std::fs::read(streams_dir.join("sideband.jsonl")).unwrap_or_default();
    let sideband = sideband::parse(&sideband).unwrap_or_default();
    let counts = std::fs::read(streams_dir.join("counts.json"))?;
    let counts: serde_json::Value = serde_json::from_slice(&counts)?;
    let number = |key: &str| counts["clock"][key].as_u64().unwrap_or(0);
    let clock = ClockConfig {
        tsc_hz: number("tsc_hz"),
        perf: None,
        art_num: number("art_num") as u32,
        art_den: number("art_den") as u32,
        mtc_freq: number("mtc_freq") as u8,
        nom_ratio: number("nom_ratio") as u8,
        cyc_threshold: number("cyc_threshold"),
    };
    let symbols = dir.join("symbols");
    let kallsyms = std::fs::read(symbols.join("kallsyms")).unwrap_or_default();
    let functions = match Symbols::load(&kallsyms, &sideband, Some(&symbols.join("root"))) {
        Ok(symbols) => Functions::Symbols(Box::new(symbols)),
        Err(_) => Functions::Regions(Regions::default()),
    };
    Ok(Input { streams, sideband, functions, clock })
}
