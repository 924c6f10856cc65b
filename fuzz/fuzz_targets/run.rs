// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as the files of a run: it is opened, decoded and shown, or refused; what was decoded is kept, and is the
//! same when it is opened again. Input: see `src/pieces.rs`.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use kprism_profile::{Filter, Profile};
use kprism_report::header::Header;
use kprism_report::html::{self, Budget};
use kprism_report::{Style, calltree, deltas, folded, perfetto, tables, tree};
use kprism_session::{Progress, flow, open_profile};
use kprism_store::{Manifest, Run};
use libfuzzer_sys::fuzz_target;

#[path = "../src/pieces.rs"]
#[allow(dead_code)]
mod pieces;

/// One for each process, below what `cargo clean` removes.
static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("target/scratch/run-{}", std::process::id());
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
});

fuzz_target!(|bytes: &[u8]| {
    let _ = fs::remove_dir_all(&*DIR);
    for folder in ["streams", "symbols/root/bin", "tables"] {
        fs::create_dir_all(DIR.join(folder)).expect("a folder to write to");
    }
    for (name, bytes) in pieces::read(bytes) {
        fs::write(DIR.join(name), bytes).expect("a folder to write to");
    }
    let progress = Progress::silent();
    let Ok((run, profile, manifest)) = open_profile(&DIR, &progress) else { return };
    show(&manifest, &profile);
    if run.code_dict().exists()
        && let Ok((profile, manifest)) = flow::decode(&run, &progress)
    {
        let instructions = profile.totals.instructions();
        assert_eq!(profile.nodes.iter().map(|n| n.insns).sum::<u64>(), instructions);
        assert_eq!(manifest.instructions, Some(instructions));
        let (_, again, written) = open_profile(&DIR, &progress).expect("what was decoded can be opened");
        assert!(again == profile && written == manifest);
        show(&manifest, &profile);
    }
    let _ = Run::open(&DIR).and_then(|run| run.manifest());
});

/// Every view that is made of a profile alone.
fn show(manifest: &Manifest, profile: &Profile) {
    let (filter, style) = (Filter::default(), Style { color: false, detail: true });
    let header = Header::new(manifest, profile);
    let _ = (header.to_text(profile, style), header.account_text(style), header.to_json());
    let all = [
        tables::functions(profile, &filter),
        tables::syscalls(profile, &filter),
        tables::syscall_parts(profile, &filter),
        tables::tasks(profile, &filter),
        tables::errors(profile),
        deltas::summary(profile),
        deltas::counts(profile),
    ];
    for table in all {
        let _ = (table.to_text(style), table.to_csv(), table.to_json());
    }
    for delta in &profile.deltas {
        let _ = (deltas::to_text(profile, delta, 12, style), deltas::to_json(profile, delta, 12));
    }
    let by_comm = tree::by_comm(profile, &filter);
    for weight in [calltree::Weight::Instructions, calltree::Weight::Time] {
        let options = calltree::Options { weight, min_percent: 0.0, max_depth: 40 };
        let _ = calltree::to_text(profile, &by_comm, &options, style);
    }
    folded::write(profile, &filter, calltree::Weight::Instructions, &mut std::io::sink()).expect("a sink");
    perfetto::write(profile, &[], &[], &mut std::io::sink()).expect("a sink");
    let _ = html::render(manifest, profile, &Budget::default());
}
