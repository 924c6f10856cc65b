// SPDX-License-Identifier: MIT OR Apache-2.0
//! A list of static tracepoints, as text and JSON.

use kprism_probe::place::listed::{Event, Field};
use serde_json::{Value, json};

/// The events by name; with `details`, their fields and places too.
pub fn to_text(events: &[Event], details: bool) -> String {
    let mut out = String::new();
    for event in events {
        out += &format!("{}\n", event.name);
        if !details {
            continue;
        }
        for place in &event.places {
            out += &format!("  in {place}\n");
        }
        for Field { name, kind, place } in &event.fields {
            out += &match place {
                Some((offset, size)) => format!("  {kind} {name}  ({size} bytes at {offset})\n"),
                None => format!("  {name} {kind}\n"),
            };
        }
        if let Some(print) = &event.print {
            out += &format!("  print {print}\n");
        }
    }
    out
}

/// All that is known of the events, as JSON.
pub fn to_json(events: &[Event]) -> Value {
    let field = |Field { name, kind, place }: &Field| {
        let (offset, size) = place.unzip();
        json!({"name": name, "type": kind, "offset": offset, "size": size})
    };
    let event = |event: &Event| {
        json!({
            "name": event.name,
            "fields": event.fields.iter().map(field).collect::<Vec<_>>(),
            "print": event.print,
            "places": event.places,
        })
    };
    events.iter().map(event).collect()
}
