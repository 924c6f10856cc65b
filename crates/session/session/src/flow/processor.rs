// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processor of a recording, and its errata. In: family, model and stepping, as the importer found them. Out: the
//! manifest's [`Processor`], and the errata that the decoder has to know.

use kprism_flow::errata::{Errata, Erratum, Filter, of_processor};
use kprism_store::{Manifest, Processor};
use serde::Deserialize;

/// The processor in `streams/counts.json`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cpu {
    family: u16,
    model: u8,
    stepping: u8,
}

/// The manifest's entry. Errata of a model that is not known are `None`.
pub(super) fn processor(cpu: &Cpu, filter: &[(u64, u64)]) -> Processor {
    let Cpu { family, model, stepping } = *cpu;
    let errata = of_processor(family, model);
    let errata = errata.map(|list| list.iter().map(|erratum| erratum.name().to_owned()).collect());
    Processor { family, model, stepping, errata, filter: filter.to_vec() }
}

/// The errata that the decoder has to know of a run's processor.
pub fn errata(manifest: &Manifest) -> Errata {
    let Some(processor) = &manifest.processor else { return Errata::NONE };
    let names = processor.errata.iter().flatten();
    let of_name = |name: &String| Erratum::ALL.iter().find(|named| named.1 == name).map(|named| named.0);
    let list: Vec<Erratum> = names.filter_map(of_name).collect();
    let mut filter = Filter::default();
    filter.ranges.iter_mut().zip(&processor.filter).for_each(|(to, range)| *to = *range);
    Errata::of(&list, filter)
}
