// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of TLB misses. Misses are of the last level. The first geometry's column is followed by those of the others.

use std::collections::HashMap;

use kprism_image::symbols::Symbols;
use kprism_tlb::bank::MAX_GEOMETRIES;
use kprism_tlb::counters::{BySide, Counter, relative_error};
use kprism_tlb::counts::{Counts, Cpu};
use kprism_tlb::geometry::PageSize;
use kprism_tlb::heat::Heat;
use kprism_tlb::objects::Objects;
use kprism_tlb::profile::{Distribution, Misses, Profile};
use kprism_tlb::stream::Context;
use kprism_tlb::whatif::{Begun, ByObject, Prediction, huge_mebibytes, may_be_huge};
use kprism_tlb::{Access, Geometry};

use crate::poisson;
use crate::table::{Cell, Column, Table};

use kprism_profile::units;

pub mod page;
mod report;

pub use report::Report;

/// References, first-level and last-level misses of each geometry. `counts` is the recorder's account.
pub fn summary(profile: &Profile, geometries: &[Geometry], counts: &Counts) -> Table {
    let sum =
        |of: &dyn Fn(&Cpu) -> Option<u64>| -> Option<u64> { counts.vcpus.as_ref()?.iter().map(of).sum() };
    let mut rows = Vec::new();
    for (g, geometry) in geometries.iter().enumerate() {
        for access in Access::ALL {
            let name = access.name();
            let references = sum(&|cpu| cpu.references?.of(access));
            let first = sum(&|cpu| cpu.first_level_misses(g)?.of(access));
            let missed = profile.totals[access as usize][g];
            rows.push(vec![
                Cell::Text(geometry.name.clone()),
                Cell::Text(name.into()),
                references.map_or(Cell::Nothing, Cell::Count),
                first.map_or(Cell::Nothing, Cell::Count),
                Cell::Count(missed),
                references.map_or(Cell::Nothing, |all| Cell::Real(units::percent(missed, all) * 10.0)),
            ]);
        }
    }
    Table::new(
        &[
            ("geometry", "geometry"),
            ("access", "access"),
            ("references", "references"),
            ("first_level_misses", "L1 misses"),
            ("misses", "misses"),
            ("per_thousand", "per 1000"),
        ],
        rows,
    )
}

/// A table of misses over address and time, one row for each band and bin with misses, for programs.
pub fn heat_cells(heat: &Heat, objects: &Objects) -> Table {
    let mut rows = Vec::new();
    let (begin, end) = heat.span;
    for band in &heat.bands {
        let bins = band.bins.len() as u64;
        let at = |bin: u64| begin + (u128::from(end - begin + 1) * u128::from(bin) / u128::from(bins)) as u64;
        for (bin, &misses) in (0..).zip(&band.bins).filter(|(_, n)| **n > 0) {
            rows.push(vec![
                Cell::Hex(band.start),
                Cell::Hex(band.end),
                Cell::Ns(at(bin)),
                Cell::Ns(at(bin + 1)),
                Cell::Count(misses),
                Cell::Text(objects.all()[band.object as usize].name.clone()),
            ]);
        }
    }
    Table::new(
        &[
            ("start", "start"),
            ("end", "end"),
            ("from_ns", "from"),
            ("to_ns", "to"),
            ("misses", "misses"),
            ("object", "object"),
        ],
        rows,
    )
}

/// The misses over address and time as a picture: a row for each band, time from left to right, ten shades. Each shade
/// is twice as much as the one before, up to the fullest bin.
pub fn heat_picture(heat: &Heat, objects: &Objects) -> Table {
    const SHADES: &[u8; 10] = b".:-=+*oO#@";
    let most = heat.bands.iter().flat_map(|b| &b.bins).copied().max().unwrap_or(0).max(1);
    let shade = |n: u64| match n {
        0 => ' ',
        n => {
            let halvings = (most / n).ilog2() as usize;
            char::from(SHADES[SHADES.len() - 1 - halvings.min(SHADES.len() - 1)])
        }
    };
    let mut rows = Vec::new();
    let mut last = None;
    for band in &heat.bands {
        let name = match last.replace(band.object) {
            Some(object) if object == band.object => String::new(),
            _ => objects.all()[band.object as usize].name.clone(),
        };
        rows.push(vec![
            Cell::Hex(band.start),
            Cell::Count(band.bins.iter().sum()),
            Cell::Text(format!("|{}|", band.bins.iter().map(|&n| shade(n)).collect::<String>())),
            Cell::Text(name),
        ]);
    }
    Table::new(&[("start", "start"), ("misses", "misses"), ("time", "time"), ("object", "object")], rows)
}

/// A table of names with misses, the largest first. The first geometry's misses come first; each other geometry has its
/// own column.
fn ranked(
    names: &[(&'static str, &'static str)],
    rows: Vec<(Vec<Cell>, Misses)>,
    total: Misses,
    geometries: &[&str],
) -> Table {
    const MORE: [&str; MAX_GEOMETRIES - 1] =
        ["misses_1", "misses_2", "misses_3", "misses_4", "misses_5", "misses_6", "misses_7"];
    let more: Vec<(&'static str, &str)> = MORE.into_iter().zip(geometries.iter().skip(1).copied()).collect();
    let mut columns = vec![("share_percent", "share"), ("misses", "misses")];
    columns.extend(more.iter().map(|&(key, _)| (key, "")));
    columns.extend(names);
    let mut rows: Vec<Vec<Cell>> = rows
        .into_iter()
        .map(|(names, misses)| {
            let mut row = vec![Cell::Percent(units::percent(misses[0], total[0])), Cell::Count(misses[0])];
            row.extend(misses[1..=more.len()].iter().map(|&n| Cell::Count(n)));
            row.extend(names);
            row
        })
        .collect();
    // Names break ties, so that the same run always gives the same table.
    rows.sort_by(|a, b| {
        let key = |row: &[Cell]| row.get(1).and_then(count).unwrap_or(0);
        key(b).cmp(&key(a)).then_with(|| format!("{a:?}").cmp(&format!("{b:?}")))
    });
    let mut table = Table::new(&columns, rows);
    for (column, (_, name)) in table.columns.iter_mut().skip(2).zip(more) {
        column.head = name.to_owned().into();
    }
    table
}

fn count(cell: &Cell) -> Option<u64> {
    if let Cell::Count(n) = cell { Some(*n) } else { None }
}

/// Misses by thread or by process. `comms` are names by thread id.
pub fn tasks(profile: &Profile, geometries: &[&str], comms: &HashMap<u32, String>, threads: bool) -> Table {
    let mut sums: HashMap<(u32, u32), Misses> = HashMap::new();
    for (&(pid, tgid), misses) in &profile.tasks {
        let key = if threads { (pid, tgid) } else { (tgid, tgid) };
        let to = sums.entry(key).or_default();
        to.iter_mut().zip(misses).for_each(|(to, n)| *to += n);
    }
    // A thread without its own name has its process's.
    let name = |pid: u32, tgid: u32| match (pid, comms.get(&pid).or_else(|| comms.get(&tgid))) {
        (0, None) => "[idle, or not known yet]".into(),
        (_, Some(comm)) => comm.clone(),
        (pid, None) => format!("[{pid}]"),
    };
    let rows = sums
        .into_iter()
        .map(|((pid, tgid), misses)| {
            let cells = match threads {
                true => vec![Cell::Int(pid.into()), Cell::Int(tgid.into()), Cell::Text(name(pid, tgid))],
                false => vec![Cell::Int(tgid.into()), Cell::Text(name(tgid, tgid))],
            };
            (cells, misses)
        })
        .collect();
    let names: &[_] = match threads {
        true => &[("pid", "thread"), ("tgid", "process"), ("comm", "name")],
        false => &[("tgid", "process"), ("comm", "name")],
    };
    ranked(names, rows, profile.all(), geometries)
}

/// Misses by function of the instruction.
pub fn functions(profile: &Profile, geometries: &[&str], symbols: &Symbols) -> Table {
    let mut sums: HashMap<(String, String), Misses> = HashMap::new();
    for (&(space, ip), site) in &profile.sites {
        let key = match symbols.locate(space, ip, site.ns) {
            Some(located) => {
                let f = symbols.function(located.func);
                (f.name.clone(), f.module.clone())
            }
            None => ("[unknown]".into(), String::new()),
        };
        let to = sums.entry(key).or_default();
        to.iter_mut().zip(site.misses).for_each(|(to, n)| *to += n);
    }
    let rows = sums
        .into_iter()
        .map(|((name, module), misses)| (vec![Cell::Text(name), Cell::Text(module)], misses))
        .collect();
    ranked(&[("function", "function"), ("module", "module")], rows, profile.all(), geometries)
}

/// Compares a processor's counters with the run's misses, for each geometry, with the PTAT paper's relative error.
pub fn counters(counters: &[Counter], sums: &BySide, geometries: &[Geometry]) -> Table {
    let mut rows = Vec::new();
    for counter in counters {
        let Some((accesses, side)) = counter.accesses() else { continue };
        for g in 0..geometries.len().max(1) {
            let misses = sums.of(accesses, side, g);
            let error = counter.count.and_then(|count| relative_error(misses, count));
            rows.push(vec![
                Cell::Text(counter.event.clone()),
                counter.count.map_or(Cell::Nothing, Cell::Count),
                Cell::Percent(counter.running),
                geometries.get(g).map_or(Cell::Nothing, |g| Cell::Text(g.name.clone())),
                Cell::Count(misses),
                error.map_or(Cell::Nothing, |e| Cell::Percent(e * 100.0)),
            ]);
        }
    }
    Table::new(
        &[
            ("event", "event"),
            ("counted", "counted"),
            ("running_percent", "running"),
            ("geometry", "geometry"),
            ("misses", "misses"),
            ("relative_error_percent", "relative error"),
        ],
        rows,
    )
}

/// Misses by object.
pub fn objects(profile: &Profile, geometries: &[&str], objects: &Objects) -> Table {
    let rows = objects
        .all()
        .iter()
        .zip(&profile.objects)
        .filter(|(_, misses)| misses.iter().any(|&n| n > 0))
        .map(|(o, &misses)| {
            let cells = vec![
                Cell::Int(o.tgid.into()),
                Cell::Text(o.kind.name().into()),
                Cell::Hex(o.start),
                Cell::Int(o.bytes),
                Cell::Text(o.name.clone()),
            ];
            (cells, misses)
        })
        .collect();
    let names =
        [("tgid", "process"), ("kind", "kind"), ("start", "start"), ("bytes", "bytes"), ("object", "object")];
    ranked(&names, rows, profile.all(), geometries)
}

/// Adds to sampled misses the 95 % confidence interval of the true number. `period` is the weighted mean of the number
/// of misses per sample; without it there are no bounds. The number of samples is Poisson distributed; its interval is exact (Garwood 1936).
pub fn add_intervals(table: &mut Table, period: Option<f64>) {
    let Some(at) = table.columns.iter().position(|c| c.key == "misses") else { return };
    table.columns.insert(at + 1, Column { key: "misses_low", head: "at least".into() });
    table.columns.insert(at + 2, Column { key: "misses_high", head: "at most".into() });
    for row in &mut table.rows {
        let (low, high) = match (&row[at], period) {
            (&Cell::Count(misses), Some(period)) => {
                let (low, high) = poisson::interval(misses as f64 / period);
                (Cell::Count((low * period) as u64), Cell::Count((high * period).ceil() as u64))
            }
            _ => (Cell::Nothing, Cell::Nothing),
        };
        row.insert(at + 1, low);
        row.insert(at + 2, high);
    }
}

/// Misses by page, for the first geometry.
pub fn pages(profile: &Profile, objects: &mut Objects) -> Table {
    let ns = profile.span.map_or(0, |(_, end)| end);
    let rows = profile
        .pages
        .iter()
        .map(|(key, n)| {
            let context = Context { tgid: key.owner, ns, ..Context::default() };
            let object = objects.region(&context, key.start) as usize;
            let mut misses = Misses::default();
            misses[0] = n;
            let cells = vec![
                Cell::Int(key.owner.into()),
                Cell::Hex(key.start),
                Cell::Text(key.size.name().into()),
                Cell::Text(objects.all()[object].name.clone()),
            ];
            (cells, misses)
        })
        .collect();
    ranked(
        &[("tgid", "process"), ("page", "page"), ("page_size", "size"), ("object", "object")],
        rows,
        profile.all(),
        &[],
    )
}

/// Entries that count together: a bus that moves 8, 32 or 64 bytes cannot tell them apart.
pub(crate) const TOGETHER: [u64; 3] = [1, 4, 8];

/// Distributions by page size, each for 1, 4 and 8 neighbouring entries, with the size's name. Where pages of several sizes
/// missed, `all` comes last.
pub(crate) fn distributions(profile: &Profile, tgid: Option<u32>) -> Vec<(&'static str, Vec<Distribution>)> {
    let of = |size| -> Vec<Distribution> {
        let all = TOGETHER.iter().map(|&n| profile.distribution(tgid, size, n));
        all.filter(|d| !d.sums.is_empty()).collect()
    };
    let sizes = PageSize::ALL.into_iter().map(|size| (size.name(), of(Some(size))));
    let mut found: Vec<_> = sizes.filter(|(_, all)| !all.is_empty()).collect();
    if found.len() > 1 {
        found.push(("all", of(None)));
    }
    found
}

/// Figures 6, 7 and 9 of the PTAT paper: pages in increasing order of misses. At each share of them: the average misses of
/// an entry, and the part of all misses up to there, for 1, 4 and 8 neighbouring entries together.
pub fn distribution(profile: &Profile, tgid: Option<u32>) -> Table {
    let mut rows = Vec::new();
    for (size, all) in distributions(profile, tgid) {
        for percent in [5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 85, 90, 95, 99, 100] {
            let share = f64::from(percent) / 100.0;
            let mut row = vec![Cell::Text(size.into()), Cell::Int(percent as u64)];
            row.extend(all.iter().map(|d| Cell::Real(d.average_at(share))));
            row.extend(all.iter().map(|d| Cell::Percent(100.0 * d.part_below(share))));
            rows.push(row);
        }
    }
    Table::new(
        &[
            ("page_size", "size"),
            ("pages_percent", "pages %"),
            ("average_1", "average, 1 PTE"),
            ("average_4", "4 PTEs"),
            ("average_8", "8 PTEs"),
            ("cdf_1_percent", "misses, 1 PTE"),
            ("cdf_4_percent", "4 PTEs"),
            ("cdf_8_percent", "8 PTEs"),
        ],
        rows,
    )
}

/// Predictions, ranked by misses saved per MiB of huge pages.
pub fn advice(predictions: &[Prediction], now: &ByObject, objects: &Objects, begun: &Begun) -> Table {
    let total: u64 = now.values().sum();
    let mut rows: Vec<(f64, Vec<Cell>)> = predictions
        .iter()
        .map(|p| {
            let after: u64 = p.misses.values().sum();
            let saved = total.saturating_sub(after);
            let one = p.object.map(|o| (o, &objects.all()[o as usize]));
            let mebibytes = match one {
                Some((_, o)) => huge_mebibytes(o.bytes, p.size),
                None => {
                    let huge = |(number, o): &(usize, &kprism_tlb::objects::Object)| {
                        may_be_huge(o.kind) && now.contains_key(&(*number as u32))
                    };
                    let all = objects.all().iter().enumerate().filter(huge);
                    all.map(|(_, o)| huge_mebibytes(o.bytes, p.size)).sum()
                }
            };
            let rate = saved as f64 / mebibytes.max(1) as f64;
            let own = |m: &ByObject| {
                one.map_or(Cell::Nothing, |(o, _)| Cell::Count(m.get(&o).copied().unwrap_or(0)))
            };
            let name = one.map_or_else(|| "all data of programs".into(), |(_, o)| o.name.clone());
            let start = one.map_or(Cell::Nothing, |(_, o)| Cell::Hex(o.start));
            let ranges = one.and_then(|(o, _)| begun.get(&o));
            let read = ranges.map_or(Cell::Nothing, |r| Cell::Percent(units::percent(r.read, r.all)));
            let cells = vec![
                Cell::Count(rate as u64),
                Cell::Int(mebibytes),
                Cell::Text(p.size.name().into()),
                own(now),
                own(&p.misses),
                Cell::Count(total),
                Cell::Count(after),
                Cell::Percent(units::percent(saved, total)),
                read,
                start,
                Cell::Text(name),
            ];
            (rate, cells)
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| format!("{:?}", a.1).cmp(&format!("{:?}", b.1))));
    Table::new(
        &[
            ("saved_per_mib", "saved/MiB"),
            ("huge_mib", "MiB"),
            ("page_size", "pages"),
            ("object_misses", "object now"),
            ("object_after", "object predicted"),
            ("misses", "all now"),
            ("after", "all predicted"),
            ("saved_percent", "saved"),
            ("read_first_percent", "read first"),
            ("start", "start"),
            ("object", "object"),
        ],
        rows.into_iter().map(|(_, cells)| cells).collect(),
    )
}
