// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a run of durations in a browser: the table, a function's histogram, the timeline. The calls are those of
//! a function graph of vfs_read on 6.12.

mod sample;
mod webdriver;

use kprism_durations::cost;
use kprism_durations::ftrace::Collector;
use kprism_durations::{Measured, Names, rows};
use kprism_ftrace::text::Text;
use kprism_profile::TracingCost;
use kprism_report::html::{self, Budget};
use kprism_store::{Account, Fate, Instrument};
use kprism_test::test;
use serde_json::{Value, json};
use webdriver::Browser;

fn measured() -> Measured {
    let mut reader = Text::new(include_bytes!("data/vfs_read.txt"));
    let mut collector = Collector::new(Names::default(), reader.timed());
    reader.by_ref().for_each(|event| collector.event(&event));
    collector.finish(|_| None)
}

fn page(measured: &Measured) -> String {
    let (profile, times) = (&measured.profile, &measured.times);
    let mut manifest = sample::manifest();
    let account = Account::new().with(Fate::Kept, "calls", 28).with(Fate::Lost, "events", 3);
    manifest.accounts.insert(Instrument::Durations, account);
    html::render_durations(&manifest, profile, times, &Budget::default()).unwrap()
}

#[test]
fn the_data_are_those_of_the_tables() {
    let measured = measured();
    let page = page(&measured);
    let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let own = &data["durations"];
    assert_eq!(own["calls"], measured.times.counts.calls);
    let functions = own["functions"].as_array().unwrap();
    let counted: u64 = functions.iter().map(|f| f["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, measured.times.counts.calls);
    for function in functions {
        let bins = function["ns"]["bins"].as_array().unwrap();
        let in_bins: u64 = bins.chunks(3).map(|bin| bin[2].as_u64().unwrap()).sum();
        assert_eq!(in_bins, function["count"].as_u64().unwrap(), "{function}");
    }
    let slices = &own["slices"];
    assert_eq!(slices["ns"].as_array().unwrap().len(), measured.profile.slices.len());
    assert_eq!(own["slices_omitted"], 0);
}

/// More calls than the page's timeline has room for: the longest are there, the others counted.
#[test]
fn calls_that_the_timeline_has_no_room_for_are_counted() {
    const ROOM: usize = 20_000;
    let mut measured = measured();
    let slice = measured.profile.slices[0].clone();
    measured.profile.slices = vec![slice; ROOM + 5];
    measured.times.counts.calls = ROOM as u64 + 7;
    let page = page(&measured);
    let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["durations"]["slices"]["ns"].as_array().unwrap().len(), ROOM);
    assert_eq!(data["durations"]["slices_omitted"], 7);
}

/// The page must show the tracer's share of the times, as the terminal does.
#[test]
fn the_page_says_what_tracing_cost() {
    let measured = measured();
    let (profile, times) = (&measured.profile, &measured.times);
    let data = |cost: &TracingCost| -> Value {
        let mut manifest = sample::manifest();
        manifest.durations.tracing_cost = Some(*cost);
        let page = html::render_durations(&manifest, profile, times, &Budget::default()).unwrap();
        let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    };
    let rows = rows::functions(profile, times, &vec![true; profile.tasks.len()]);
    let known = TracingCost { call_ns: 1400, inside_ns: Some(300), slowdown: Some(10.0), dropped: false };
    let dropped = TracingCost { dropped: true, ..known };
    for cost in [known, dropped] {
        let own = &data(&cost)["durations"];
        assert_eq!(own["cost"], kprism_report::durations::cost_line(&cost));
        let mut marks = 0;
        for function in own["functions"].as_array().unwrap() {
            let func = function["func"].as_u64().unwrap() as usize;
            let name = data(&cost)["funcs"]["name"][func].as_str().unwrap().to_owned();
            let named = |row: &&rows::Row| profile.funcs[row.func as usize].name == name;
            let row = rows.iter().find(named).unwrap();
            assert_eq!(function["mark"], cost::mark(&cost, row).text(), "{name}");
            let rounded = |percent: Option<f64>| percent.map(|percent| (percent * 1e6).round());
            assert_eq!(
                rounded(function["tracing"].as_f64()),
                rounded(cost::known_percent(&cost, row)),
                "{name}"
            );
            marks += usize::from(function["mark"] != "");
        }
        assert!(marks > 0, "{cost:?}");
    }
}

#[test]
fn a_browser_shows_histograms_and_the_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, page(&measured())).unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1440, 1000);
    browser.open(&file);
    browser.wait("return document.querySelectorAll('path.arc').length > 20");
    let sections =
        browser.run("return [...document.querySelectorAll('nav.sections a')].map((a) => a.textContent)");
    assert_eq!(sections, json!(["Calls", "Durations", "Timeline", "Tasks", "Account"]));
    // A run of durations in a guest was traced by the guest's kernel.
    let about = browser.run("return document.querySelector('header .about').textContent");
    assert!(about.as_str().unwrap().contains("traced by the guest's own kernel"), "{about}");
    let account =
        browser.run("return [...document.querySelectorAll('#losses dl dd')].map((d) => d.textContent)");
    assert_eq!(account, json!(["28 calls", "3 events"]));
    let column = |n: u32| {
        let table = "document.querySelector('#durations table')";
        browser.run(&format!(
            "return [...{table}.querySelectorAll('tbody td:nth-child({n})')].map((c) => c.textContent)"
        ))
    };
    // Longest total first: the traced function.
    assert_eq!(column(12)[0], "vfs_read");
    // By count.
    browser.click("#durations th:nth-child(1) button");
    assert_eq!(column(12)[0], "__rcu_read_unlock");
    let count = column(1)[0].as_str().unwrap().replace(',', "");
    browser.click("#durations tbody tr:nth-child(1) .choose");
    assert_eq!(
        browser.run("return document.querySelector('#durations h3').firstChild.textContent"),
        "__rcu_read_unlock"
    );
    let label =
        browser.run("return document.querySelector('#durations .loghist svg').getAttribute('aria-label')");
    assert!(
        label.as_str().unwrap().starts_with(&format!("Durations of __rcu_read_unlock, {count} calls")),
        "{label}"
    );
    browser.screenshot("durations");

    // A call that was chosen is brought into view in the timeline, and is what is under the pointer there.
    browser.click("#durations .filter");
    browser.keys("vfs_read");
    browser.click("#durations table tbody tr:nth-child(1) .choose");
    browser.click("#durations .histograms table tbody tr:nth-child(1) .choose");
    let drawn = "const c = document.querySelector('canvas.calls');
        const pixels = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const colors = new Set(); for (let i = 0; i < pixels.length; i += 4) colors.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
        return [c.clientWidth > 600, c.clientHeight > 100, colors.size > 20]";
    assert_eq!(browser.run(drawn), json!([true, true, true]));
    let point = "const box = document.querySelector('canvas.calls').getBoundingClientRect(); return [box.left, box.top, box.width]";
    let at: Vec<f64> = serde_json::from_value(browser.run(point)).unwrap();
    browser.click_at(at[0] + 150.0 + (at[2] - 150.0) / 2.0, at[1] + 30.0);
    let tip = browser.run("return [...document.querySelectorAll('.tip')].filter((t) => !t.hidden).map((t) => t.querySelector('strong').textContent)");
    assert_eq!(tip, json!(["vfs_read"]));
    browser.screenshot("timeline");
    // The keyboard zooms: the picture changes, and the button undoes it.
    let picture = "return document.querySelector('canvas.calls').toDataURL().length";
    let before = browser.run(picture);
    browser.keys("+++");
    assert_ne!(browser.run(picture), before);
    browser.click("#timeline .more");
    assert_eq!(browser.run("return document.images.length"), 0);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

kprism_test::main!();
