// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that packets of Intel PT state beside the flow, as points on a track of their CPU; the core's clock as a counter.

use std::io::{self, Write};

use super::proto::{COUNTER, CounterDescriptor, DebugAnnotation, INSTANT, TrackDescriptor, TrackEvent};
use super::{EVENT_CATEGORY, Track, Writer, argument, uuid};

/// An event of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// CPU number.
    pub cpu: u16,
    /// Time, ns.
    pub ns: u64,
    /// Thread that ran.
    pub pid: u32,
    /// Kind of the event.
    pub kind: &'static str,
    /// The packet's values, as text.
    pub text: String,
    /// The instruction that it belongs to, if that is known.
    pub ip: Option<u64>,
    /// The core's clock as a multiple of the bus clock, if the event is a change of it.
    pub ratio: Option<u8>,
}

impl<W: Write> Writer<'_, W> {
    pub(super) fn moments(&mut self, moments: &[Moment]) -> io::Result<()> {
        let mut cpus: Vec<u16> = moments.iter().map(|moment| moment.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        for cpu in cpus {
            let of_cpu = || moments.iter().filter(|moment| moment.cpu == cpu);
            if of_cpu().any(|moment| moment.ratio.is_none()) {
                let (uuid, name) = (Some(uuid(Track::Moments(cpu))), Some(format!("Trace events CPU {cpu}")));
                self.track(TrackDescriptor { uuid, name, ..TrackDescriptor::default() })?;
            }
            if of_cpu().any(|moment| moment.ratio.is_some()) {
                let (uuid, name) = (Some(uuid(Track::Ratio(cpu))), Some(format!("Core clock CPU {cpu}")));
                let counter = Some(CounterDescriptor { unit_name: Some("times bus clock".to_owned()) });
                self.track(TrackDescriptor { uuid, name, counter, ..TrackDescriptor::default() })?;
            }
            of_cpu().try_for_each(|moment| self.moment(moment))?;
        }
        Ok(())
    }

    fn moment(&mut self, moment: &Moment) -> io::Result<()> {
        if let Some(ratio) = moment.ratio {
            let event = TrackEvent {
                r#type: Some(COUNTER),
                track_uuid: Some(uuid(Track::Ratio(moment.cpu))),
                counter_value: Some(ratio.into()),
                ..TrackEvent::default()
            };
            return self.event(moment.ns, None, event);
        }
        let text = DebugAnnotation { string_value: Some(moment.text.clone()), ..argument("says") };
        let pid = DebugAnnotation { uint_value: Some(moment.pid.into()), ..argument("pid") };
        let ip = moment.ip.map(|ip| DebugAnnotation { pointer_value: Some(ip), ..argument("ip") });
        let event = TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(uuid(Track::Moments(moment.cpu))),
            category_iids: vec![EVENT_CATEGORY],
            debug_annotations: [text, pid].into_iter().chain(ip).collect(),
            ..TrackEvent::default()
        };
        self.event(moment.ns, Some(moment.kind), event)
    }
}
