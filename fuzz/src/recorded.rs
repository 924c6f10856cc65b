// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seeds of the `run` and `sideband` corpora: what a recorder would have left of the programs of the `flow` corpus.

use std::fs;
use std::path::Path;

use kprism_flow::{Options, Stream, profile};
use kprism_image::maps::{self, Dict};
use kprism_image::sideband;
use kprism_image::symbols::Symbols;
use kprism_pt::Packet;
use kprism_store::{Manifest, Run, RunKind, save_profile};

use crate::input::{BASES, Fragment};
use crate::{pieces, programs};

const KALLSYMS: &str = "ffffffff81000000 T entry_SYSCALL_64\nffffffff81000001 T __x64_sys_read\n\
    ffffffff81000006 T __switch_to\nffffffff81000009 t idle\nffffffffc0000000 t init_module\t[dummy]\n";

/// Each kind of record, on two CPUs.
const LINES: [&str; 2] = [
    r#"{"k":"mark","t":1,"cpu":0,"what":"begin","pid":7}
{"k":"comm","t":2,"cpu":0,"pid":7,"tgid":7,"comm":"sh"}
{"k":"mmap","t":3,"cpu":0,"pid":7,"tgid":7,"asid":4096,"start":4194304,"end":4198400,"pgoff":0,"exec":true,"path":"/bin/program"}
{"k":"switch","t":40,"cpu":0,"ip":18446744071578845190,"prev_pid":7,"prev_tgid":7,"prev_comm":"sh","pid":0,"tgid":0,"comm":"swapper/0"}
{"k":"fork","t":60,"cpu":0,"pid":8,"tgid":8,"ppid":7,"asid":8192,"parent_asid":4096}
{"k":"later","t":61}
{"k":"mark","t":90,"cpu":0,"what":"end","pid":7}
"#,
    r#"{"k":"switch","t":10,"cpu":1,"near":true,"ip":18446744071578845190,"prev_pid":0,"prev_tgid":0,"prev_comm":"","pid":8,"tgid":8,"comm":"ls"}
{"k":"mmap","t":11,"cpu":1,"pid":8,"tgid":8,"asid":8192,"start":4194304,"end":18446744073709551615,"exec":false}
{"k":"switch","t":50,"cpu":1,"offset":80,"asid":8192,"prev_pid":8,"prev_tgid":8,"prev_comm":"ls","pid":9,"tgid":8,"comm":"a\u0007\"\\"}
"#,
];

/// Sidebands of one file and of several; one with a damaged line, one cut short.
pub fn sidebands() -> [(&'static str, Vec<u8>); 4] {
    let [one, two] = LINES.map(str::as_bytes);
    [
        ("merged", [one, two].concat()),
        ("by-cpu", [b"\0", one, b"\0", two].concat()),
        ("damaged", [b"\0", &two[..20], b"\n", one].concat()),
        ("cut", [b"\0", one, b"\0", &two[..two.len() - 30]].concat()),
    ]
}

/// The files of runs: as recorded, decoded, and of two CPUs.
pub fn runs(scratch: &Path) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut seeds = Vec::new();
    for (name, fragments, packets) in programs::all() {
        let files = recorded(&fragments, &[&packets]);
        seeds.push((name.to_owned(), pieces::write(&files)));
        if name == "two-segments" {
            let both = recorded(&fragments, &[&packets, &packets]);
            seeds.push(("two-cpus".to_owned(), pieces::write(&both)));
            seeds.push(("decoded".to_owned(), pieces::write(&decoded(scratch, files)?)));
        }
    }
    Ok(seeds)
}

fn recorded(fragments: &[Fragment], streams: &[&[Packet]]) -> Vec<(String, Vec<u8>)> {
    let (mut dict, mut map) = (b"KPDICT01".to_vec(), b"KPMAP001".to_vec());
    for (id, f) in (0u32..).zip(fragments) {
        let (asid, va) = BASES[usize::from(f.place) % 4];
        dict.extend_from_slice(&id.to_le_bytes());
        dict.extend_from_slice(&(f.code.len() as u32).to_le_bytes());
        dict.extend_from_slice(&va.to_le_bytes());
        dict.extend_from_slice(&f.code);
        let offset = if f.replaces { u64::from(f.offset) } else { 0 };
        for word in [offset, asid, va] {
            map.extend_from_slice(&word.to_le_bytes());
        }
        map.extend_from_slice(&id.to_le_bytes());
        map.extend_from_slice(&u32::from(f.replaces).to_le_bytes());
    }
    let manifest = Manifest::new(RunKind::Lab, streams.len() as u32);
    let cpu = r#"{"cpu":0,"instructions":20,"pt_bytes":99,"unexplained":0}"#;
    let counts = format!(r#"{{"vcpus":[{}],"clock":null}}"#, vec![cpu; streams.len()].join(","));
    let mut files = vec![
        ("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap_or_default()),
        ("streams/counts.json".to_owned(), counts.into_bytes()),
        ("streams/code.dict".to_owned(), dict),
        ("symbols/kallsyms".to_owned(), KALLSYMS.into()),
    ];
    for (cpu, packets) in streams.iter().enumerate() {
        let mut pt = Vec::new();
        packets.iter().for_each(|packet| packet.encode(&mut pt));
        files.push((format!("streams/cpu{cpu}.pt"), pt));
        files.push((format!("streams/cpu{cpu}.map"), map.clone()));
        files.push((format!("streams/cpu{cpu}.side.jsonl"), LINES[cpu].into()));
    }
    files
}

/// The same with its tables.
fn decoded(scratch: &Path, mut files: Vec<(String, Vec<u8>)>) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let other = |why: &dyn std::fmt::Display| std::io::Error::other(why.to_string());
    let find = |name: &str| files.iter().find(|f| f.0 == name).map(|f| f.1.clone()).unwrap_or_default();
    let (dict, map, pt) = (find("streams/code.dict"), find("streams/cpu0.map"), find("streams/cpu0.pt"));
    let (records, _) = sideband::read(LINES[0].as_bytes());
    let symbols = Symbols::load(KALLSYMS.as_bytes(), &records, None).map_err(|why| other(&why))?;
    let (image, _) = maps::image(&Dict::parse(&dict).0, &maps::parse_map(&map).0);
    let streams = [Stream { cpu: 0, bytes: &pt, image: &image }];
    let profile =
        profile(&streams, &symbols, &records, &Options { slice_ns: 1, ..Options::default() }, &|_| {});
    let run = Run::create(scratch).map_err(|why| other(&why))?;
    save_profile(&run, &profile).map_err(|why| other(&why))?;
    for name in pieces::NAMES.iter().filter(|name| name.starts_with("tables/")) {
        files.push(((*name).to_owned(), fs::read(scratch.join(name))?));
    }
    fs::remove_dir_all(scratch)?;
    Ok(files)
}
