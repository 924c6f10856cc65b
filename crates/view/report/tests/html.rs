// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTML report: the contents of the file, and its behaviour in a browser.

mod sample;
mod webdriver;

use kprism_profile::{Ending, Profile, Slice, Syscall};
use kprism_report::html::{self, Budget};
use kprism_report::lanes::of_flow;
use kprism_store::{Manifest, RunKind};
use kprism_test::test;
use serde_json::{Value, json};
use std::path::Path;
use webdriver::Browser;

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn sum(column: &Value) -> u64 {
    column.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).sum()
}

#[test]
fn the_page_is_one_file_and_names_stay_text() {
    let page = html::render(&sample::manifest(), &sample::profile(), &Budget::default()).unwrap();
    // One end tag for the data, one for the program: no name added another.
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img") && !page.contains("<b>evil"));
    let names = &data(&page)["funcs"]["name"];
    assert!(names.as_array().unwrap().contains(&json!(sample::HOSTILE)));
    for reference in ["src=\"", "href=\"http", "@import", "url(http"] {
        let found = page.matches(reference).count();
        assert_eq!(found, 0, "{reference}: the page loads something");
    }
    let mut manifest = sample::manifest();
    manifest.command = vec!["</title><script>alert(1)</script>".into()];
    let page = html::render(&manifest, &Profile::default(), &Budget::default()).unwrap();
    assert_eq!(page.matches("<script").count(), 2);
}

#[test]
fn pruning_bounds_the_file_and_keeps_sums() {
    let profile = sample::large(40, 30_000);
    let page = html::render(&sample::manifest(), &profile, &Budget::default()).unwrap();
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
    let data = data(&page);
    let whole: u64 = profile.nodes.iter().map(|n| n.insns).sum();
    let tree = &data["trees"][0];
    assert_eq!(sum(&tree["insns"]), whole);
    assert!(tree["folded"]["contexts"].as_u64() > Some(0));
    let tasks = data["trees"].as_array().unwrap().iter().filter(|t| t["scope"] == "task");
    assert_eq!(tasks.map(|t| sum(&t["insns"])).sum::<u64>(), whole);
}

/// As many events as a run of two billion instructions has: the timeline keeps or counts each, and the file stays small.
#[test]
fn a_long_timeline_is_bounded_and_counts_everything() {
    let mut profile = sample::large(40, 30_000);
    let tasks = profile.tasks.len() as u32;
    for i in 0..600_000_u32 {
        let (task, func) = (i % tasks, (i.wrapping_mul(2_654_435_761) >> 8) % profile.funcs.len() as u32);
        let start_ns = u64::from(i) * 3_333;
        profile.syscalls.push(Syscall {
            task,
            func,
            start_ns,
            wall_ns: u64::from(i % 977) * 31,
            insns: u64::from(i % 7_919),
            ..Syscall::default()
        });
        if i % 2 == 0 {
            let end_ns = start_ns + 10_000 + u64::from(i % 613);
            let depth = (i / tasks % 9) as u16;
            profile.slices.push(Slice {
                task,
                func,
                depth,
                start_ns,
                end_ns,
                insns: 9_999,
                ending: Some(Ending::Seen),
                ..Slice::default()
            });
        }
    }
    let page = html::render(&sample::manifest(), &profile, &Budget::default()).unwrap();
    println!("{} bytes", page.len());
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
    let data = data(&page);
    let lanes = data["timeline"]["lanes"].as_array().unwrap();
    let (mut kept, mut merged, mut ns) = (0, 0, 0);
    for lane in lanes.iter().filter(|lane| lane["group"] == "task") {
        kept += lane["start"].as_array().unwrap().len() as u64;
        ns += sum(&lane["length"]) - lane["length"].as_array().unwrap().len() as u64;
        merged += sum(&lane["merged"]["items"]);
        ns += sum(&lane["merged"]["ns"]);
    }
    assert_eq!(kept + merged, 600_000);
    // The rest of this page is as large as it gets, so the timeline has little room.
    assert!(kept > 1_000, "{kept}");
    assert_eq!(ns, profile.syscalls.iter().map(|call| call.wall_ns).sum::<u64>());
}

/// Texts of the timeline are printable, names of functions are as they are: the longest calls of one are found all the same.
#[test]
fn longest_calls_of_a_name_with_control_characters_are_listed() {
    let mut profile = sample::profile();
    let name = format!("{}\n\t\u{202e}\u{9b}", sample::HOSTILE);
    let func = profile.funcs.iter().position(|func| func.name == sample::HOSTILE).unwrap();
    profile.funcs[func].name = name.clone();
    let slice = Slice { task: 0, func: func as u32, start_ns: 100_000, end_ns: 150_000, ..Slice::default() };
    profile.slices.push(slice);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, html::render(&sample::manifest(), &profile, &Budget::default()).unwrap()).unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1440, 1000);
    browser.open(&file);
    browser.wait("return document.documentElement.dataset.painted");
    browser.run(
        "const arc = [...document.querySelectorAll('path.arc')].find((a) => a.getAttribute('aria-label').includes('onerror'));
         arc.dispatchEvent(new MouseEvent('click', {bubbles: true}))",
    );
    let listed = "return [...document.querySelectorAll('.panel .single .value')].map((v) => v.textContent)";
    assert_eq!(browser.run(listed), json!(["50.000 µs"]));
    // From there its source is asked for by the name as it is.
    browser.run("document.querySelector('.panel .single').click()");
    browser.run("document.querySelector('.moment .show-source').click()");
    let shown = browser.run("return document.querySelector('#source-body h3').firstChild.data");
    assert_eq!(shown, json!(name));
}

/// More annotated functions than a file has room for: the first are kept, the others are named, and the file stays small.
#[test]
fn sources_that_have_no_room_are_named() {
    let lines = |n: u64| (0..n).map(|line| json!({"line": line, "text": "if (a->b < c && d > e) </script>"}));
    let source = |n: u64| {
        let lines: Vec<Value> = lines(if n == 3 { 60_000 } else { 2000 }).collect();
        json!({"function": format!("f{n}"), "module": "m", "asked": {"name": format!("f{n}"), "module": "m"}, "lines": [],
            "notes": [], "missing": null, "sources": [{"file": "a.c", "has_text": true, "lines": lines}]})
    };
    let sources: Vec<Value> = (0..60).map(source).collect();
    let mut profile = sample::large(40, 30_000);
    let calls = (0..2000).map(|i| Syscall { start_ns: i * 3_333, wall_ns: 1_000, ..Syscall::default() });
    profile.syscalls.extend(calls);
    let lanes = of_flow(&profile, Default::default());
    let page = html::render_flow(&sample::manifest(), &profile, lanes, sources, &Budget::default()).unwrap();
    println!("{} bytes", page.html.len());
    assert!(page.html.len() < 5 << 20, "{} bytes", page.html.len());
    let data = data(&page.html);
    let kept: Vec<&str> = data["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|source| source["function"].as_str().unwrap())
        .collect();
    // One that is too large does not keep smaller ones out.
    assert_eq!(kept[..4], ["f0", "f1", "f2", "f4"]);
    assert_eq!(kept.len() + page.sources_omitted.len(), 60);
    assert_eq!(page.sources_omitted[0], "f3");
    assert_eq!(data["sources_omitted"], json!(page.sources_omitted));
    let items = data["timeline"]["lanes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lane| lane["start"].as_array().unwrap().len());
    // What is kept of the sources leaves room for the timeline.
    assert!(items.sum::<usize>() > 1_000);
}

#[test]
fn the_bundle_is_that_of_the_sources() {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../ui");
    let mut files: Vec<String> =
        ["package.json", "package-lock.json", "tsconfig.json", "vite.config.js"].map(String::from).to_vec();
    let mut sources: Vec<String> = std::fs::read_dir(ui.join("src"))
        .unwrap()
        .map(|entry| format!("src/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    sources.sort();
    files.extend(sources);
    // The same FNV-1a as in ui/vite.config.js.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let contents = std::fs::read(ui.join(&file)).unwrap();
        for byte in file.bytes().chain([0]).chain(contents).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    let built = include_str!("../assets/report.sources").trim();
    assert_eq!(format!("{hash:016x}"), built, "ui/ has changed: run `npm ci && npm run build` in it");
}

/// Selects the middle of the chart's arc of a function and clicks there with the mouse.
fn click_arc(browser: &Browser, label: &str) {
    let point = browser.run(&format!(
        "const arc = [...document.querySelectorAll('path.arc')].find((a) => a.getAttribute('aria-label').startsWith({label:?}));
         const length = arc.getTotalLength(), matrix = arc.getScreenCTM();
         arc.scrollIntoView({{block: 'center'}});
         const box = arc.getBBox();
         for (let i = 0; i < 400; i++) {{ // the middle of a bent shape may lie outside: look for a point inside
           const p = new DOMPoint(box.x + box.width * (0.5 + 0.45 * Math.cos(i)), box.y + box.height * (0.5 + 0.45 * Math.sin(i * 1.7)));
           const s = p.matrixTransform(arc.getScreenCTM());
           if (document.elementFromPoint(s.x, s.y) === arc) return [s.x, s.y];
         }}
         return null;"
    ));
    let point: Vec<f64> = serde_json::from_value(point).unwrap_or_else(|_| panic!("no arc {label}"));
    browser.click_at(point[0], point[1]);
}

fn crumbs(browser: &Browser) -> Value {
    browser.run("return [...document.querySelectorAll('.crumbs button')].map((b) => b.textContent)")
}

#[test]
fn a_browser_shows_it_without_a_word_of_complaint() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, html::render(&sample::manifest(), &sample::profile(), &Budget::default()).unwrap())
        .unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1440, 1000);
    browser.open(&file);
    browser.wait("return document.querySelectorAll('path.arc').length > 100");
    assert_eq!(
        browser.run("return document.title"),
        "sh -c 'for i in 1 2 3; do ls /bin | sed s/a/z/g; done' · kprism"
    );
    assert_eq!(crumbs(&browser), json!(["All tasks"]));
    browser.screenshot("sunburst");

    // Click into the sunburst, twice, and back out through a breadcrumb and the middle.
    click_arc(&browser, "sed,");
    assert_eq!(crumbs(&browser), json!(["All tasks", "sed"]));
    click_arc(&browser, "re_search_internal,");
    assert_eq!(
        crumbs(&browser),
        json!(["All tasks", "sed", "main", "process_files", "re_search", "re_search_internal"])
    );
    assert_eq!(browser.run("return document.querySelector('.panel h3').textContent"), "re_search_internal");
    browser.screenshot("zoomed");
    browser.click(".crumbs li:nth-child(3) button");
    assert_eq!(crumbs(&browser), json!(["All tasks", "sed", "main"]));
    browser.click(".middle circle");
    assert_eq!(crumbs(&browser), json!(["All tasks", "sed"]));

    // The keyboard does the same: Escape out, Down and Right to the second child, Enter in.
    browser.run("document.querySelector('.middle').focus()");
    browser.keys("\u{e00c}"); // Escape
    assert_eq!(crumbs(&browser), json!(["All tasks"]));
    browser.keys("\u{e015}\u{e014}\u{e007}"); // ArrowDown, ArrowRight, Enter
    assert_eq!(crumbs(&browser), json!(["All tasks", "ls"]));
    browser.keys("\u{e00c}");

    // Other shapes and weights show the same tree.
    browser.click("label[for=view-icicle]");
    browser.wait("return document.querySelectorAll('svg.flame g.row').length > 100");
    browser.screenshot("icicle");
    browser.click("label[for=view-flame]");
    browser.click("label[for=weight-ns]");
    let root_is_lowest = "const rows = [...document.querySelectorAll('g.row rect')];
        return Number(rows[0].getAttribute('y')) === Math.max(...rows.map((r) => Number(r.getAttribute('y'))))";
    assert_eq!(browser.run(root_is_lowest), true);
    browser.screenshot("flame");

    // The search counts recursion once and marks visible matches.
    browser.click("#search");
    browser.keys("evaltree");
    let found = browser.run("return document.querySelector('.found').textContent");
    assert_eq!(found, "1 function in 3 contexts, 5.06% of time");
    assert_eq!(browser.run("return document.querySelectorAll('.cell.hit').length"), 3);
    browser.screenshot("search");
    browser.run(
        "const s = document.querySelector('#search'); s.value = ''; s.dispatchEvent(new Event('input'))",
    );
    browser.click("label[for=view-sunburst]");

    // One task, one system call.
    let choose = |label: &str| {
        browser.run(&format!(
            "const s = document.querySelector('#scope');
             s.value = [...s.options].find((o) => o.textContent === {label:?}).value;
             s.dispatchEvent(new Event('change'))"
        ));
    };
    choose("ls [302]");
    assert_eq!(crumbs(&browser), json!(["ls [302]"]));
    assert_eq!(
        browser.run("return document.querySelector('#syscalls .scope-name').textContent"),
        "within ls [302]"
    );
    choose("openat");
    assert_eq!(crumbs(&browser), json!(["openat"]));
    let median =
        browser.run("return document.querySelector('.histogram [role=img]').getAttribute('aria-label')");
    assert_eq!(
        median,
        "Latency histogram of openat: p50 532 ns, p90 4.287 µs, p99 122.673 µs, max 188.526 µs"
    );
    browser.screenshot("syscall");
    choose("All tasks");

    // Tables sort, filter and lead back to the chart.
    let column = |n: u32| {
        let cells = format!(
            "[...document.querySelectorAll('#functions tbody td:nth-child({n})')].map((c) => c.textContent)"
        );
        browser.run(&format!("return {cells}.slice(0, 3)"))
    };
    assert_eq!(column(7), json!(["do_lookup_x", "re_search_internal", "unmap_vmas"]));
    browser.click("#functions th:nth-child(6) button");
    assert_eq!(column(6), json!(["3,612", "3,185", "2,884"]));
    browser.click("#functions .filter");
    browser.keys("onerror");
    assert_eq!(column(7), json!([sample::HOSTILE]));
    browser.click("#functions .choose");
    assert_eq!(browser.run("return document.querySelectorAll('.arc.hit').length"), 1);
    browser.run("document.querySelector('#syscalls').scrollIntoView()");
    browser.screenshot("syscalls");
    browser.run("document.querySelector('#losses').scrollIntoView()");
    assert_eq!(browser.run("return document.querySelectorAll('#losses .mark').length"), 1);
    browser.screenshot("losses");
    browser.run("scrollTo(0, 0)");
    browser.click(".theme");
    browser.screenshot("dark");

    // Exactly one stop for Tab in the chart, and no script of a name has run or image loaded.
    assert_eq!(browser.run("return document.querySelectorAll('.chart [tabindex=\"0\"]').length"), 1);
    assert_eq!(browser.run("return document.images.length"), 0);
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), 0);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn a_browser_shows_large_and_empty_runs() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large.html");
    std::fs::write(
        &large,
        html::render(&sample::manifest(), &sample::large(40, 30_000), &Budget::default()).unwrap(),
    )
    .unwrap();
    let empty = dir.path().join("empty.html");
    let manifest = Manifest::new(RunKind::Import, 0);
    std::fs::write(&empty, html::render(&manifest, &Profile::default(), &Budget::default()).unwrap())
        .unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1000, 900);
    browser.open(&large);
    browser.wait("return document.querySelectorAll('path.arc').length > 200");
    let note = browser.run("return document.querySelector('#folded').textContent");
    assert!(note.as_str().unwrap().contains("small contexts with "), "{note}");
    browser.screenshot("large");
    browser.open(&empty);
    // Nobody accounted for what was recorded: it is not known to be whole.
    browser
        .wait("return document.querySelector('#losses .warning')?.textContent.startsWith('It is not known')");
    browser.screenshot("empty");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

kprism_test::main!();
