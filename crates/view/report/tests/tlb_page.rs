// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of TLB misses stays small, however many misses and objects there are.

use std::collections::HashMap;

use kprism_image::sideband::parse;
use kprism_report::tlb::page::{Input, ROWS, render};
use kprism_store::{Account, Manifest, RunKind};
use kprism_tlb::counts::Counts;
use kprism_tlb::map::{CELLS, Map, Touched};
use kprism_tlb::objects::Objects;
use kprism_tlb::profile::Profile;
use kprism_tlb::stream::{Event, Miss, Reader, Writer};
use kprism_tlb::{Access, PageSize, presets};
use serde_json::{Value, json};

/// Mappings of so many pages each, apart from each other.
const OBJECTS: u64 = 3000;
const PAGES: u64 = 24;

/// The data of a page of so many misses, all over the place.
fn data(misses: u64) -> (usize, Value) {
    let start = |object: u64| 0x7000_0000_0000 + object * (PAGES + 8) * 4096;
    let line = |object: u64| {
        let (start, end) = (start(object), start(object) + PAGES * 4096);
        format!(
            r#"{{"k":"mmap","t":0,"cpu":0,"pid":7,"tgid":7,"asid":4096,"start":{start},"end":{end},"pgoff":0,"exec":false,"path":"/lib/<b>{object}"}}"#
        )
    };
    let records = (0..OBJECTS).map(line).collect::<Vec<_>>().join("\n");
    let mut objects = Objects::new(&parse(records.as_bytes()).unwrap(), |_| None);
    let geometries = [presets::preset("zen4").unwrap()];
    let mut writer = Writer::new(&geometries);
    writer.event(&Event::Task { pid: 7, tgid: 7 });
    let mut state = 1u64;
    for n in 0..misses {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Half of the misses are of few objects, as in real programs.
        let object = (state >> 33) % if n % 2 == 0 { 40 } else { OBJECTS };
        let va = start(object) + (state >> 20) % PAGES * 4096;
        let miss =
            Miss { ns: 100 * n, va, ip: 0, access: Access::Load, size: PageSize::K4, first: 1, last: 1 };
        writer.event(&Event::Miss(miss));
    }
    let reader = || Reader::new(&writer.bytes).unwrap();
    let mut profile = Profile::default();
    profile.add(reader(), &mut objects).unwrap();
    let mut touched = Touched::default();
    touched.add(reader(), &mut objects).unwrap();
    let mut map = Map::new(&touched, &objects, profile.span.unwrap());
    map.add(reader(), &mut objects).unwrap();
    map.fit(CELLS);
    assert!(map.filled() <= CELLS, "{}", map.filled());
    let page = render(&Input {
        manifest: &Manifest::new(RunKind::Lab, 1),
        geometries: &geometries,
        counts: &Counts::default(),
        account: &Account::new(),
        notes: &[],
        profile: &profile,
        objects: &objects,
        map: &map,
        touched: &touched,
        comms: &HashMap::from([(7, "\u{1b}[2J</script><img src=x>".to_owned())]),
        tables: Vec::new(),
        advice: Err("not asked".into()),
    });
    let page = page.unwrap();
    assert!(!page.contains("<img") && !page.contains("<b>") && !page.contains('\u{1b}'));
    assert_eq!(page.matches("</script").count(), 2);
    let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
    let data = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    (page.len(), data)
}

#[test]
fn a_page_of_many_misses_is_small_and_has_all_of_them() {
    let (few, _) = data(50_000);
    let (many, data) = data(1_500_000);
    println!("{few} bytes of 50,000 misses, {many} bytes of 1,500,000");
    assert!(many < 4 << 20, "{many} bytes");
    let rows = data["map"]["rows"].as_array().unwrap();
    let cells = rows.iter().flat_map(|row| row["cells"].as_array().unwrap().chunks(2));
    assert_eq!(cells.map(|cell| cell[1].as_u64().unwrap()).sum::<u64>(), 1_500_000);
    // Objects beyond the table's rows are counted, with their misses.
    let objects = data["objects"].as_array().unwrap();
    let shown: u64 = objects.iter().map(|o| o["misses"][0].as_u64().unwrap()).sum();
    assert_eq!((objects.len(), &data["omitted"][0]), (ROWS, &json!(OBJECTS - ROWS as u64)));
    assert_eq!(shown + data["omitted"][1].as_u64().unwrap(), 1_500_000);
    assert_eq!(data["map"]["others"], json!(OBJECTS - kprism_tlb::map::OBJECTS as u64));
}
