// SPDX-License-Identifier: MIT OR Apache-2.0
//! Abilities of this processor's Intel PT, as the kernel tells them (`caps/` of the PMU, numbers in hex).

use std::path::Path;

use super::settings::Settings;

/// The PMU's folder.
pub const PLACE: &str = "/sys/bus/event_source/devices/intel_pt";

/// CPUID leaf 14H as far as it bears on options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pmu {
    /// CYC packets, and a choice of PSB's period.
    pub psb_cyc: bool,
    /// MTC packets.
    pub mtc: bool,
    /// The periods of MTC packets that are allowed: bit N for N.
    pub mtc_periods: u64,
    /// The same for thresholds of CYC packets.
    pub cycle_thresholds: u64,
    /// The same for periods of PSB packets.
    pub psb_periods: u64,
    /// Address ranges that can be filtered by at once.
    pub filters: u64,
}

impl Pmu {
    /// `None` without Intel PT.
    pub fn of_this_machine() -> Option<Self> {
        let place = Path::new(PLACE);
        let number = |name: &str, radix| {
            let text = std::fs::read_to_string(place.join(name)).unwrap_or_default();
            u64::from_str_radix(text.trim(), radix).unwrap_or(0)
        };
        let cap = |name: &str| number(&format!("caps/{name}"), 16);
        place.is_dir().then(|| Self {
            psb_cyc: cap("psb_cyc") != 0,
            mtc: cap("mtc") != 0,
            mtc_periods: cap("mtc_periods"),
            cycle_thresholds: cap("cycle_thresholds"),
            psb_periods: cap("psb_periods"),
            filters: if cap("ip_filtering") == 0 { 0 } else { number("nr_addr_filters", 10) },
        })
    }

    /// Why the options cannot be had here, if so.
    pub fn refusal(&self, settings: &Settings) -> Option<String> {
        let without = |option: &str, what: &str| {
            Some(format!("{option}: this processor's Intel PT has no {what}; leave the option out"))
        };
        let periods = [
            ("--mtc-period", settings.mtc_period, self.mtc, self.mtc_periods, "MTC packets"),
            (
                "--cyc",
                settings.cyc.map(|n| n.unwrap_or(0)),
                self.psb_cyc,
                self.cycle_thresholds,
                "CYC packets",
            ),
            ("--psb-period", settings.psb_period, self.psb_cyc, self.psb_periods, "choice of PSB's period"),
        ];
        for (option, value, able, allowed, what) in periods {
            let Some(value) = value else { continue };
            if !able {
                return without(option, what);
            }
            // 0 is what the processor does by itself; the set need not name it.
            if value != 0 && allowed >> value & 1 == 0 {
                return Some(format!("{option} {value}: this processor has {}", numbers(allowed)));
            }
        }
        match settings.filter.len() as u64 {
            0 => None,
            _ if self.filters == 0 => without("--filter", "address filters"),
            n if n > self.filters => {
                Some(format!("--filter: {n} of them, and this processor has {}", self.filters))
            }
            _ => None,
        }
    }

    /// In a few words, for `kprism check`.
    pub fn words(&self) -> String {
        let named = [(self.psb_cyc, "cyc"), (self.mtc, "mtc")];
        let mut words: Vec<String> = named.iter().filter(|n| n.0).map(|n| n.1.to_owned()).collect();
        words.push(format!("{} address filters", self.filters));
        words.join(", ")
    }
}

fn numbers(set: u64) -> String {
    let all: Vec<_> = (0..16).filter(|n| set >> n & 1 != 0).map(|n| n.to_string()).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::settings::Filter;
    use super::*;

    /// As Skylake has it.
    const SKYLAKE: Pmu = Pmu {
        psb_cyc: true,
        mtc: true,
        mtc_periods: 0x249,
        cycle_thresholds: 0x1fff,
        psb_periods: 0x3f,
        filters: 2,
    };

    #[test]
    fn what_the_processor_cannot_do_is_refused() {
        let refusal = |pmu: &Pmu, settings: Settings| pmu.refusal(&settings);
        assert_eq!(refusal(&SKYLAKE, Settings::default()), None);
        let settings = || Settings {
            mtc_period: Some(3),
            cyc: Some(Some(12)),
            psb_period: Some(5),
            ..Settings::default()
        };
        assert_eq!(refusal(&SKYLAKE, settings()), None);
        let said = refusal(&SKYLAKE, Settings { mtc_period: Some(4), ..settings() });
        assert_eq!(said.as_deref(), Some("--mtc-period 4: this processor has 0, 3, 6, 9"));
        assert!(refusal(&SKYLAKE, Settings { cyc: Some(Some(13)), ..settings() }).is_some());
        assert!(refusal(&SKYLAKE, Settings { psb_period: Some(6), ..settings() }).is_some());
        // Broadwell has neither.
        let broadwell = Pmu::default();
        assert_eq!(refusal(&broadwell, Settings::default()), None);
        for settings in [
            Settings { cyc: Some(None), ..Settings::default() },
            Settings { mtc_period: Some(0), ..Settings::default() },
            Settings { psb_period: Some(0), ..Settings::default() },
            Settings { filter: vec![Filter::parse("f").unwrap()], ..Settings::default() },
        ] {
            assert!(refusal(&broadwell, settings).is_some_and(|said| said.contains("leave the option out")));
        }
        let three = Settings { filter: vec![Filter::parse("f").unwrap(); 3], ..Settings::default() };
        assert!(refusal(&SKYLAKE, three).is_some_and(|said| said.ends_with("this processor has 2")));
    }
}
