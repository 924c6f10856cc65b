// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds to a timeline all that is beside the calls. In: the moments of a run. Out: packets of Perfetto's trace, while the run is read.

use std::io::Write;

use anyhow::{Context, Result};
use kprism_report::perfetto::{Beside, Timeline, What};
use kprism_session::Progress;
use kprism_session::moments::{self, Kind, Moment, Phase, Wanted};
use kprism_store::Run;

/// Interval by which TLB misses are counted, ns.
const TLB_NS: u64 = 100_000;

/// Adds all that the run holds beside its calls. System calls and calls are slices of tasks already, events of packets are
/// points already.
pub(crate) fn beside<W: Write>(
    run: &Run,
    pids: &[u32],
    mut timeline: Timeline<'_, W>,
    progress: &Progress,
) -> Result<()> {
    let kinds = [
        Kind::Mark,
        Kind::Switch,
        Kind::Window,
        Kind::Coverage,
        Kind::Irqs,
        Kind::Event,
        Kind::Lost,
        Kind::Probe,
        Kind::Tlb,
        Kind::Console,
    ];
    let wanted = Wanted { kinds: kinds.to_vec(), pids: pids.to_vec(), tlb_ns: TLB_NS, ..Wanted::default() };
    let mut failed = None;
    let summary = moments::each(run, &wanted, progress, &mut |moment| {
        let result = timeline.add(&of(moment));
        failed = result.err();
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error).context("timeline");
    }
    summary.notes.iter().for_each(|note| progress.note(note));
    timeline.finish().context("timeline")
}

fn of(moment: &Moment) -> Beside<'_> {
    let what = match moment.kind {
        Kind::Event => What::Event,
        Kind::Lost => What::Lost,
        Kind::Switch => What::Switch,
        Kind::Irqs => What::Irqs,
        Kind::Window if moment.phase == Phase::Begin => What::Begins,
        Kind::Window => What::Ends,
        Kind::Coverage => What::Coverage,
        Kind::Probe => What::Probe,
        Kind::Tlb => What::Misses,
        Kind::Console => What::Console,
        Kind::Mark | Kind::Syscall | Kind::Call | Kind::Packet => What::Mark,
    };
    Beside {
        what,
        ns: moment.ns,
        length: moment.length_ns().unwrap_or(0),
        cpu: moment.cpu,
        pid: moment.pid,
        name: &moment.name,
        args: &moment.args,
    }
}
