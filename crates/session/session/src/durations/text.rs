// SPDX-License-Identifier: MIT OR Apache-2.0
//! ftrace's text: `trace.txt`.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_durations::ftrace::Collector;
use kprism_durations::{Measured, Names};
use kprism_ftrace::text::Text;
use kprism_ftrace::{Data, Event};

use super::consumer::Consumer;
use super::facts::Facts;
use super::merged::faults;
use crate::pieces::Pieces;

/// Measures it. It is read twice, in pieces, and may be larger than memory.
pub(super) fn measure(path: &Path, facts: &mut Facts, consumer: &mut Consumer<'_>) -> Result<Measured> {
    let named = || path.display().to_string();
    let mut reader = begin(path).with_context(named)?;
    facts.source = "text";
    let columns = reader.columns();
    let mut collector = Collector::new(Names::default(), reader.timed());
    consumer.prepare(&mut collector);
    let describe = |event: &Event<'_>, out: &mut Vec<u8>| match &event.data {
        Data::Text(text) => {
            out.extend_from_slice(text.as_bytes());
            true
        }
        Data::Stack(caller) => {
            out.extend_from_slice(b"=> ");
            out.extend_from_slice(caller.as_bytes());
            true
        }
        _ => false,
    };
    let mut pieces = Pieces::new(File::open(path).with_context(named)?);
    let mut more = true;
    while more && let Some(piece) = pieces.next().with_context(named)? {
        let mut part = reader.go_on(piece);
        while more && let Some(event) = part.next() {
            if collector.comm(event.pid).is_none()
                && let Some(comm) = part.comms.get(&event.pid)
            {
                collector.name_tasks([(event.pid, comm.clone())]);
            }
            more = consumer.event(&mut collector, &event, &describe);
        }
        reader = part.go_on(&[]);
    }
    collector.name_tasks(std::mem::take(&mut reader.comms));
    facts.events = reader.counts.events;
    if let Some((kept, written)) = reader.counts.entries {
        facts.overwritten = Some(written.saturating_sub(kept));
    }
    facts.overruns.0 = reader.counts.overruns;
    if !reader.timed() {
        facts.clock = "of each task".into();
        facts.guess(
            "the text has no times (option funcgraph-abstime): each task's timeline is made of its durations"
                .into(),
        );
    }
    if reader.guessed {
        facts.guess("the text has no header: its columns are told by its lines".into());
    }
    if columns.graph && !columns.duration {
        // With times, calls that call others have a beginning and an end; the others have one line.
        facts.unmeasured =
            Some(if reader.timed() { "durations of calls that call nothing" } else { "durations of calls" });
        facts.notes.push(
            "the text has no durations (option funcgraph-duration): what is shown as 0 is not known".into(),
        );
    }
    if columns.graph && !columns.cpu {
        facts.guess(
            "the text does not tell CPUs apart (option funcgraph-cpu): calls of several may be mixed up"
                .into(),
        );
    }
    faults(&reader.counts.faults, "trace.txt: line", facts);
    Ok(collector.finish(|_| None))
}

/// A reader of the text that knows its columns, and the tasks before the first switches.
fn begin(path: &Path) -> std::io::Result<Text<'static>> {
    let mut pieces = Pieces::new(File::open(path)?);
    let mut reader: Option<Text<'static>> = None;
    while let Some(piece) = pieces.next()? {
        reader.get_or_insert_with(|| Text::of_head(piece)).look(piece);
    }
    Ok(reader.unwrap_or_else(|| Text::of_head(&[])))
}
