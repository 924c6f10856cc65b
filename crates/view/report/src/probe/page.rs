// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a run of probes: the hits with their values to filter, sort and plot; counts by keys and histograms that
//! were made in the kernel; the account.
//!
//! Input: a run's [`Description`], and its records one by one ([`Rows`]). Output: one HTML file of bounded size: at most
//! [`MOST_ROWS`] records, [`MOST_CELLS`] values, [`MOST_TEXT`] bytes of text, [`MOST_KEYS`] combinations of keys. If there
//! are more records, every n-th is in the page, and the page says so; sums over all records stand beside.

use std::collections::{HashMap, HashSet};

use kprism_probe::stream::{Description, Hit, Item};
use kprism_probe::view::summary;
use kprism_profile::units::printable;
use kprism_store::{Account, Condition};
use serde::Serialize;
use serde_json::Value;

use super::{Named, Values, counts};
use crate::html::{self, HtmlError};

/// Most records in a page.
pub const MOST_ROWS: usize = 20_000;
/// Most values in a page.
pub const MOST_CELLS: usize = 400_000;
/// Most bytes of different texts in a page.
pub const MOST_TEXT: usize = 4 << 20;
/// Most combinations of keys of a probe in a page.
pub const MOST_KEYS: usize = 500;
/// Most slots of histograms of a probe in a page.
const MOST_SLOTS: usize = 50_000;
/// Longest text of a value, in characters.
const LONGEST: usize = 200;
/// Most columns, members of structures included.
const MOST_COLUMNS: usize = 128;
/// JavaScript's numbers are exact up to here.
const EXACT: u64 = 1 << 53;

/// Facts on a run that its records do not have.
pub struct Input<'a> {
    /// Text above the page: the command, or the probes.
    pub title: &'a str,
    /// The probes and their counts.
    pub description: &'a Description,
    /// Number of records that were kept, if the recorder kept the last ones only.
    pub last: Option<u64>,
    /// Hits seen, records kept and lost.
    pub account: &'a Account,
    /// Names the addresses of stacks.
    pub named: Named<'a>,
    /// Properties in which the guest differs from a machine.
    pub guest: &'a [Condition],
}

/// A value in the page: an exact number, text, or nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
enum Shown {
    Int(i64),
    Real(f64),
    /// A number that JavaScript has no exact one for, or an address.
    Long(String),
    /// Index in `texts`; an array of one, which tells it from a number.
    Text([u32; 1]),
    Nothing,
}

/// A column of values.
#[derive(Debug, Clone, Serialize)]
struct Column {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    /// True if every value is a number.
    numeric: bool,
    /// True if numbers are addresses.
    address: bool,
    /// The structure that it is a member of, by number.
    of: Option<usize>,
    /// Values by row, up to the last row with one.
    values: Vec<Shown>,
    /// Numbers over all records, not only those in the page.
    count: u64,
    least: f64,
    most: f64,
    sum: f64,
    /// Values that could not be read, by reason, over all records.
    failed: Vec<(String, u64)>,
}

/// Records for a page.
#[derive(Debug, Default, Serialize)]
pub struct Rows {
    /// Records in the run, of the tasks that were asked for.
    total: u64,
    /// Every so many-th of them is in the page.
    every: u64,
    begin_ns: u64,
    /// Time after `begin_ns`, ns.
    time_ns: Vec<u64>,
    cpu: Vec<u16>,
    pid: Vec<u32>,
    tid: Vec<u32>,
    probe: Vec<u16>,
    columns: Vec<Column>,
    texts: Vec<String>,
    /// Texts that were cut, and that found no room.
    cut: u64,
    without_room: u64,
    /// Members of structures without a column.
    without_column: u64,
    #[serde(skip)]
    seen: u64,
    #[serde(skip)]
    text_bytes: usize,
    #[serde(skip)]
    numbers: HashMap<String, u32>,
    #[serde(skip)]
    places: HashMap<String, usize>,
    #[serde(skip)]
    unplaced: HashSet<String>,
}

impl Rows {
    /// None yet, of `total` records.
    pub fn new(description: &Description, total: u64) -> Self {
        let mut rows = Rows { total, ..Rows::default() };
        for item in description.probes.iter().flat_map(|probe| &probe.items) {
            rows.column(&item.name, &item.ty, None);
        }
        let most = MOST_ROWS.min(MOST_CELLS / (rows.columns.len() + 5).max(1)).max(1) as u64;
        rows.every = total.div_ceil(most).max(1);
        rows
    }

    fn column(&mut self, name: &str, ty: &str, of: Option<usize>) -> Option<usize> {
        if let Some(&at) = self.places.get(name) {
            return Some(at);
        }
        if self.columns.len() >= MOST_COLUMNS {
            // Each record has it again.
            self.unplaced.insert(name.to_owned());
            self.without_column = self.unplaced.len() as u64;
            return None;
        }
        self.places.insert(name.to_owned(), self.columns.len());
        self.columns.push(Column {
            name: printable(name),
            ty: printable(ty),
            numeric: true,
            address: false,
            of,
            values: Vec::new(),
            count: 0,
            least: f64::INFINITY,
            most: f64::NEG_INFINITY,
            sum: 0.0,
            failed: Vec::new(),
        });
        Some(self.columns.len() - 1)
    }

    /// Adds the next record, with its values.
    pub fn add(&mut self, description: &Description, hit: &Hit<'_>, values: &Values<'_>) {
        let row = self.seen.is_multiple_of(self.every).then_some(self.time_ns.len());
        if row.is_some() {
            if self.time_ns.is_empty() {
                self.begin_ns = hit.time_ns;
            }
            self.time_ns.push(hit.time_ns.saturating_sub(self.begin_ns));
            self.cpu.push(hit.cpu);
            self.pid.push(hit.pid);
            self.tid.push(hit.tid);
            self.probe.push(hit.probe);
        }
        self.seen += 1;
        let items = &description.probes[usize::from(hit.probe)].items;
        for (item, (name, value)) in items.iter().zip(values) {
            let Some(at) = self.column(name, &item.ty, None) else { continue };
            match value {
                Ok(value) => self.value(row, at, item, value),
                Err(why) => {
                    let failed = &mut self.columns[at].failed;
                    match failed.iter_mut().find(|(known, _)| known == why) {
                        Some((_, n)) => *n += 1,
                        None => failed.push(((*why).to_owned(), 1)),
                    }
                    let shown = row.map(|_| self.text(&format!("<{why}>")));
                    // What could not be read does not make a column of numbers one of texts.
                    self.put(row, at, shown.unwrap_or(Shown::Nothing), true);
                }
            }
        }
    }

    fn value(&mut self, row: Option<usize>, at: usize, item: &Item, value: &Value) {
        if let Some((number, shown)) = number(value) {
            self.columns[at].address |= value.is_string();
            self.note(at, number);
            return self.put(row, at, shown, true);
        }
        if let Some(row) = row {
            let text = item.shape.as_ref().map_or_else(|| value.to_string(), |shape| shape.line(value));
            let text = match value {
                Value::String(text) => text.clone(),
                _ => text,
            };
            let shown = self.text(&text);
            self.put(Some(row), at, shown, false);
        }
        self.columns[at].numeric = false;
        let mut members = Vec::new();
        collect(&item.name, value, &mut members);
        for (path, number, shown) in members {
            if let Some(column) = self.column(&path, "", Some(at)) {
                self.note(column, number);
                self.put(row, column, shown, true);
            }
        }
    }

    fn note(&mut self, at: usize, number: f64) {
        let column = &mut self.columns[at];
        column.count += 1;
        column.least = column.least.min(number);
        column.most = column.most.max(number);
        column.sum += number;
    }

    fn put(&mut self, row: Option<usize>, at: usize, shown: Shown, numeric: bool) {
        let column = &mut self.columns[at];
        column.numeric &= numeric;
        let Some(row) = row else { return };
        // A name that one record has twice keeps its first value.
        if column.values.len() <= row {
            column.values.resize(row, Shown::Nothing);
            column.values.push(shown);
        }
    }

    /// The number of a text, as it may be shown.
    fn text(&mut self, text: &str) -> Shown {
        let mut short = printable(text);
        if let Some((at, _)) = short.char_indices().nth(LONGEST) {
            short.truncate(at);
            short.push('…');
            self.cut += 1;
        }
        if let Some(&known) = self.numbers.get(&short) {
            return Shown::Text([known]);
        }
        if self.text_bytes + short.len() > MOST_TEXT {
            self.without_room += 1;
            return Shown::Nothing;
        }
        self.text_bytes += short.len();
        let next = self.texts.len() as u32;
        self.numbers.insert(short.clone(), next);
        self.texts.push(short);
        Shown::Text([next])
    }
}

/// A number, or an address in hexadecimal.
fn number(value: &Value) -> Option<(f64, Shown)> {
    match value {
        Value::Number(n) => {
            let number = n.as_f64()?;
            let shown = match n.as_i64().filter(|n| n.unsigned_abs() <= EXACT) {
                Some(n) => Shown::Int(n),
                None if n.is_f64() => Shown::Real(number),
                None => Shown::Long(n.to_string()),
            };
            Some((number, shown))
        }
        Value::String(text) => {
            let n = u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
            Some((n as f64, Shown::Long(text.clone())))
        }
        _ => None,
    }
}

/// Numbers among the members of a structure, by their paths.
fn collect(path: &str, value: &Value, into: &mut Vec<(String, f64, Shown)>) {
    let Value::Object(members) = value else { return };
    for (name, member) in members {
        let path = format!("{path}.{name}");
        match number(member).filter(|_| member.is_number()) {
            Some((n, shown)) => into.push((path, n, shown)),
            None => collect(&path, member, into),
        }
    }
}

#[derive(Serialize)]
struct ProbeData {
    place: String,
    found: String,
    file: String,
    hook: String,
    condition: Option<String>,
    records: bool,
    counted: Vec<String>,
}

#[derive(Serialize)]
struct Data<'a> {
    title: String,
    probes: Vec<ProbeData>,
    sums: Vec<String>,
    last: Option<u64>,
    variables: Vec<(String, i64)>,
    rows: Rows,
    /// As `report probe --json` has them, each with the number of its combinations of keys.
    totals: Vec<(Value, usize)>,
    account: &'a Account,
    known: bool,
}

/// Renders the page.
///
/// # Errors
/// [`HtmlError`]; it does not depend on the records.
pub fn render(input: &Input<'_>, rows: Rows) -> Result<String, HtmlError> {
    let (css, js) = (include_str!("../../assets/probe.css"), include_str!("../../assets/probe.js"));
    let description = input.description;
    let probes = description.probes.iter().enumerate().map(|(number, probe)| ProbeData {
        place: printable(&probe.place),
        found: printable(&probe.found),
        file: printable(probe.file.as_deref().unwrap_or("the kernel")),
        hook: probe.hook.clone(),
        condition: probe.condition.as_deref().map(printable),
        records: probe.record_bytes > 0,
        counted: match description.counts.get(number) {
            Some(counts) => summary::counted(probe, counts).iter().map(|line| printable(line)).collect(),
            None => vec!["the recorder did not end properly: nothing is known of what was lost".into()],
        },
    });
    let totals = description.all_tallied().map(|(place, tally, all)| {
        let mut slots = 0;
        let fits = all.rows.iter().take_while(|row| {
            slots += row.histograms.iter().map(counts::width).sum::<usize>();
            slots <= MOST_SLOTS
        });
        // The limit 0 is none.
        let most = fits.count().clamp(1, MOST_KEYS);
        (inert(counts::for_page(place, tally, all, most, input.named)), all.rows.len())
    });
    let data = Data {
        title: printable(input.title),
        probes: probes.collect(),
        sums: summary::sums(&description.probes, &description.counts).iter().map(|s| printable(s)).collect(),
        last: input.last,
        variables: description.variables.clone(),
        rows,
        totals: totals.collect(),
        account: input.account,
        known: !description.counts.is_empty(),
    };
    html::page(&data.title, &[("", Some(input.account))], input.guest, (css, js), &data)
}

/// A value whose texts hold nothing that misleads.
fn inert(value: Value) -> Value {
    match value {
        Value::String(text) => printable(&text).into(),
        Value::Array(all) => all.into_iter().map(inert).collect(),
        Value::Object(all) => {
            Value::Object(all.into_iter().map(|(name, value)| (printable(&name), inert(value))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_probe::stream::Probe;
    use kprism_probe::stream::shape::Shape;
    use kprism_probe::stream::tally::{Filled, Histogram, Row, Scale, Tally, Totals};
    use serde_json::json;

    fn description(items: &[&str]) -> Description {
        let shape = Some(Shape::Int { size: 8, signed: false });
        let item = |name: &&str| Item {
            name: (*name).into(),
            ty: "u64".into(),
            at: 32,
            shape: shape.clone(),
            missing: None,
        };
        let probe = Probe {
            place: "f".into(),
            found: "f".into(),
            condition: None,
            file: None,
            address: None,
            hook: "uprobe".into(),
            record_bytes: 40,
            items: items.iter().map(item).collect(),
            tally: None,
            gdb: None,
            printf: None,
            effect: Default::default(),
        };
        Description { version: 1, probes: vec![probe], ..Description::default() }
    }

    fn input<'a>(description: &'a Description, account: &'a Account) -> Input<'a> {
        Input { title: "t", description, last: None, account, named: &|_, value| value, guest: &[] }
    }

    fn hit(time_ns: u64) -> Hit<'static> {
        Hit { probe: 0, cpu: 0, time_ns, tid: 1, pid: 1, failed: 0, bytes: &[] }
    }

    #[test]
    fn many_records_leave_a_page_of_bounded_size_and_exact_sums() {
        let of = description(&["n", "text"]);
        let mut rows = Rows::new(&of, 100_000);
        for n in 0..100_000u64 {
            let text = format!("\u{1b}[31m<b>{n}{}", "x".repeat(400));
            rows.add(&of, &hit(n), &[("n", Ok(n.into())), ("text", Ok(text.into()))]);
        }
        assert!(rows.time_ns.len() <= MOST_ROWS, "{}", rows.time_ns.len());
        let n = &rows.columns[0];
        assert_eq!((n.numeric, n.count, n.least, n.most), (true, 100_000, 0.0, 99_999.0));
        assert_eq!(n.sum, 4_999_950_000.0);
        assert!(rows.text_bytes <= MOST_TEXT && rows.cut > 0);
        let account = Account::new();
        let page = render(&input(&of, &account), rows).unwrap();
        assert!(page.len() < 12 << 20, "{} bytes", page.len());
        assert!(!page.contains("<b>") && !page.contains('\u{1b}'));
    }

    /// More columns, values and texts than a page has room for: those left out are counted, and the page says so.
    #[test]
    fn what_a_page_has_no_room_for_is_counted() {
        let of = description(&["s", "a", "b"]);
        let mut rows = Rows::new(&of, MOST_ROWS as u64);
        let members =
            |n: usize| (0..n).map(|n| (format!("m{n}"), json!(n))).collect::<serde_json::Map<_, _>>();
        let wide = members(MOST_COLUMNS + 2);
        for n in 0..MOST_ROWS {
            let text = |of: &str| Ok(format!("{of}{n}{}", "x".repeat(150)).into());
            let s = if n < 2 { wide.clone().into() } else { json!({}) };
            rows.add(&of, &hit(n as u64), &[("s", Ok(s)), ("a", text("a")), ("b", text("b"))]);
        }
        assert_eq!((rows.columns.len(), rows.without_column), (MOST_COLUMNS, 5));
        let kept = rows.texts.len() as u64;
        assert!(rows.without_room > 0 && kept < 2 * MOST_ROWS as u64, "{kept}");
        let items: Vec<String> = (0..100).map(|n| format!("i{n}")).collect();
        let names: Vec<&str> = items.iter().map(String::as_str).collect();
        let rows = Rows::new(&description(&names), MOST_ROWS as u64);
        assert!(rows.every > 1 && rows.total == MOST_ROWS as u64, "every {}", rows.every);
    }

    /// More combinations of keys, and wider histograms, than a page has room for: the number of all is in the page.
    #[test]
    fn the_number_of_all_combinations_is_told() {
        let slots = |last: u32| Filled { slots: vec![(0, 1), (last, 1)], ..Filled::default() };
        for (last, shown) in [(0, MOST_KEYS), (999, MOST_SLOTS / 1000)] {
            let mut of = description(&["k"]);
            let key = of.probes[0].items.pop().unwrap();
            let scale = Scale::Linear { min: 0, max: 998, step: 1 };
            let histogram = Histogram { name: "n".into(), ty: "int".into(), signed: true, scale };
            of.probes[0].tally =
                Some(Tally { keys: vec![key], histograms: vec![histogram], aggregates: Vec::new() });
            let row = |n: u64| Row {
                key: vec![n.into()],
                count: 1,
                histograms: vec![slots(last)],
                aggregates: Vec::new(),
            };
            of.totals = vec![Some(Totals { rows: (0..600).map(row).collect() })];
            let account = Account::new();
            let page = render(&input(&of, &account), Rows::new(&of, 0)).unwrap();
            let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
            let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
            let [counts, all] = data["totals"][0].as_array().unwrap().as_slice() else { panic!("{data}") };
            assert_eq!((counts["rows"].as_array().unwrap().len(), all), (shown, &json!(600)));
        }
    }

    #[test]
    fn numbers_stay_exact_and_members_have_columns() {
        let of = description(&["s", "p"]);
        let mut rows = Rows::new(&of, 2);
        let s = json!({"a": 1, "b": {"c": u64::MAX, "d": "x"}});
        rows.add(&of, &hit(5), &[("s", Ok(s)), ("p", Ok("0xffff888000000000".into()))]);
        rows.add(&of, &hit(9), &[("s", Err("could not be read")), ("p", Ok(json!("0x10")))]);
        let names: Vec<_> = rows.columns.iter().map(|c| (c.name.as_str(), c.numeric, c.of)).collect();
        assert_eq!(
            names,
            [("s", false, None), ("p", true, None), ("s.a", true, Some(0)), ("s.b.c", true, Some(0))]
        );
        assert_eq!(rows.columns[3].values, [Shown::Long(u64::MAX.to_string())]);
        assert!(rows.columns[1].address);
        assert_eq!(rows.columns[0].failed, [("could not be read".to_owned(), 1)]);
        assert_eq!(rows.texts[1], "<could not be read>");
    }
}
