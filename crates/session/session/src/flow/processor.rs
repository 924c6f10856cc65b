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

/// The parts of the manifest's processor that [`errata`] cannot take over: another version may have written them.
pub fn not_understood(manifest: &Manifest) -> Option<String> {
    let processor = manifest.processor.as_ref()?;
    let is_unknown = |name: &&String| Erratum::ALL.iter().all(|named| named.1 != name.as_str());
    let mut parts: Vec<String> = processor.errata.iter().flatten().filter(is_unknown).cloned().collect();
    let most = Filter::default().ranges.len();
    if processor.filter.len() > most {
        parts.push(format!("{} ranges of its filter beyond {most}", processor.filter.len() - most));
    }
    let text = format!("of the processor's errata these are not worked around: {}", parts.join(", "));
    (!parts.is_empty()).then_some(text)
}

/// The errata that the decoder has to know of a run's processor. What of them is not known, [`not_understood`] says.
pub fn errata(manifest: &Manifest) -> Errata {
    let Some(processor) = &manifest.processor else { return Errata::NONE };
    let names = processor.errata.iter().flatten();
    let of_name = |name: &String| Erratum::ALL.iter().find(|named| named.1 == name).map(|named| named.0);
    let list: Vec<Erratum> = names.filter_map(of_name).collect();
    let mut filter = Filter::default();
    filter.ranges.iter_mut().zip(&processor.filter).for_each(|(to, range)| *to = *range);
    Errata::of(&list, filter)
}

#[cfg(test)]
mod tests {
    use kprism_store::RunKind;

    use super::*;

    #[test]
    fn what_is_not_known_is_said() {
        let cpu = Cpu { family: 6, model: 0x5e, stepping: 3 };
        let mut manifest = Manifest::new(RunKind::Import, 1);
        assert_eq!(not_understood(&manifest), None);
        manifest.processor = Some(processor(&cpu, &[(1, 2); 4]));
        assert_eq!(not_understood(&manifest), None);
        let of = manifest.processor.as_mut().unwrap();
        of.errata = Some(vec![Erratum::ALL[0].1.to_owned(), "XYZ001".to_owned()]);
        of.filter.push((3, 4));
        let said = not_understood(&manifest).unwrap();
        assert!(said.ends_with("not worked around: XYZ001, 1 ranges of its filter beyond 4"), "{said}");
    }
}
