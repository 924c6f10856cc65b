// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals in the report, and the page that compares two runs, in a browser.

mod sample;
mod webdriver;

use kprism_profile::Filter;
use kprism_profile::Profile;
use kprism_report::diff::{Diff, Scale, Within};
use kprism_report::header::Header;
use kprism_report::html::{self, Budget};
use kprism_test::test;
use serde_json::{Value, json};
use std::path::Path;
use webdriver::Browser;

/// Opens a page in its own browser.
fn open(dir: &Path, page: &str) -> Browser {
    let file = dir.join("page.html");
    std::fs::write(&file, page).unwrap();
    let browser = Browser::start(&dir.join("browser"), 1500, 1000);
    browser.open(&file);
    browser
}

fn number(browser: &Browser, script: &str) -> f64 {
    browser.run(&format!("return {script}")).as_f64().unwrap_or_else(|| panic!("no number: {script}"))
}

fn text(browser: &Browser, css: &str) -> String {
    let text = browser.run(&format!("return document.querySelector({css:?}).textContent"));
    text.as_str().unwrap().to_owned()
}

#[test]
fn intervals_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let page = html::render(&sample::manifest(), &sample::profile(), &Budget::default()).unwrap();
    let browser = open(dir.path(), &page);
    browser.wait("return document.querySelectorAll('#intervals .bin').length > 10");
    let profile = sample::profile();
    let delta = &profile.deltas[1];
    assert!(text(&browser, ".interval-name").starts_with("irqs "));
    browser.run("[...document.querySelectorAll('#intervals .choose')].find((b) => b.textContent === 'preempt').id = 'choose'");
    browser.click("#choose");
    let chosen = text(&browser, ".interval-name");
    assert!(chosen.starts_with("preempt from preempt-off to preempt-on"), "{chosen}");
    // A bar for each of a few exact values, left to right, none without height.
    let bars = "[...document.querySelectorAll('.loghist:first-child .bin')]";
    let n = number(&browser, &format!("{bars}.length"));
    assert!(n > 1.0 && n <= delta.ns.bins.len() as f64, "{n} bars");
    assert_eq!(number(&browser, &format!("{bars}.filter((b) => +b.getAttribute('height') < 3).length")), 0.0);
    let label = browser.run("return document.querySelector('.loghist svg').getAttribute('aria-label')");
    let count = delta.ns.count;
    assert!(
        label.as_str().unwrap().starts_with(&format!("Time of preempt, {count} intervals: p50 ")),
        "{label}"
    );
    assert!(number(&browser, "document.querySelectorAll('.loghist:first-child .percentile').length") >= 4.0);
    browser.run("document.querySelector('#intervals').scrollIntoView()");
    browser.screenshot("intervals");

    // Linear counts: one of the tallest bars is as tall as before, smaller ones are lower.
    let heights = format!("return {bars}.map((b) => +b.getAttribute('height'))");
    let log: Vec<f64> = serde_json::from_value(browser.run(&heights)).unwrap();
    browser.click("label[for=count-axis-linear]");
    let linear: Vec<f64> = serde_json::from_value(browser.run(&heights)).unwrap();
    assert_ne!(log, linear);
    browser.click("label[for=count-axis-log]");
    assert_eq!(serde_json::from_value::<Vec<f64>>(browser.run(&heights)).unwrap(), log);

    // The bin under the mouse in words.
    let point: Vec<f64> = serde_json::from_value(browser.run(
        "const b = document.querySelector('.loghist .target').getBoundingClientRect();
         return [b.x + b.width / 2, b.y + b.height / 2]",
    ))
    .unwrap();
    browser.click_at(point[0], point[1]);
    let tip =
        browser.run("return [...document.querySelectorAll('.tip')].find((t) => !t.hidden)?.textContent");
    let tip = tip.as_str().unwrap();
    assert!(tip.starts_with("56 ns – 64 ns") && tip.contains("intervals"), "{tip}");

    // The slowest one: stacks and the way to its instructions.
    let slowest = &delta.longest[0];
    let table = "#intervals .sorted-table:nth-of-type(n)";
    browser.run(&format!(
        "[...document.querySelectorAll({table:?})].find((t) => t.querySelector('caption').textContent === 'the longest intervals').id = 'longest'"
    ));
    browser.click("#longest tbody tr:first-child .choose");
    let command = format!(
        "kprism script insns --cpu 1 --from {}ns --to {}ns",
        slowest.start_ns,
        slowest.start_ns + slowest.ns
    );
    assert_eq!(text(&browser, "#longest .command code"), command);
    let frames = number(&browser, "document.querySelectorAll('#longest .frames:first-child li').length");
    assert!(frames > 3.0, "the whole stack: {frames} frames");
    let first = text(&browser, "#longest .frames:first-child li:first-child");
    let from = profile.nodes[slowest.from_node as usize].func;
    assert_eq!(first, profile.funcs[from as usize].name);
    browser.click("#longest .copy");
    browser.wait("return document.querySelector('#longest .command .note').textContent");
    browser.run("document.querySelector('#longest').scrollIntoView()");
    browser.screenshot("interval-slowest");
    browser.click("#longest tbody tr:first-child .choose");
    assert_eq!(number(&browser, "document.querySelectorAll('#longest .detail').length"), 0.0);

    // System calls: where their time went adds up.
    browser.click("label[for=system-call-view-parts]");
    let sums = browser.run(
        "return [...document.querySelectorAll('.parts-bar')].map((bar) =>
           Math.round([...bar.children].reduce((sum, p) => sum + parseFloat(p.style.width), 0)))",
    );
    let sums: Vec<u64> = serde_json::from_value(sums).unwrap();
    assert!(sums.len() > 5 && sums.iter().all(|&s| s == 100), "{sums:?}");
    browser.run("document.querySelector('#syscalls').scrollIntoView()");
    browser.screenshot("syscall-parts");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

fn compare(old: &Profile, new: &Profile, within: Within<'_>, name: &str) -> String {
    compare_with([old, new], within, name, [false; 2], [false; 2])
}

/// Like [`compare`], with what is not known of OLD and of NEW; see [`Diff::with_gaps`].
fn compare_with(
    [old, new]: [&Profile; 2],
    within: Within<'_>,
    name: &str,
    unknown: [bool; 2],
    uncounted: [bool; 2],
) -> String {
    let diff = Diff::new(old, new, within, &Filter::default()).unwrap().with_gaps(unknown, uncounted);
    let scale = diff.invocations.map_or(Scale::Sums, Scale::PerCall);
    let headers = [old, new].map(|p| Header::new(&sample::manifest(), p));
    let paths = ["plain".to_owned(), "<b>traced".to_owned()];
    html::render_diff(&diff, scale, [&headers[0], &headers[1]], &paths, name, None).unwrap()
}

#[test]
fn a_comparison_stays_small_and_its_names_text() {
    let page = compare(&sample::large(40, 30_000), &sample::profile(), Within::Everything, "all");
    assert!(page.len() < 8 << 20, "{} bytes", page.len());
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img") && !page.contains("<b>"));
}

#[test]
fn two_runs_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let page = compare(&sample::profile(), &sample::traced(), Within::Syscall("mmap"), "mmap");
    let browser = open(dir.path(), &page);
    browser.wait("return document.querySelectorAll('.half path.arc').length > 8");
    let arcs = |half: u32, name: &str| {
        let arcs = format!("document.querySelectorAll('.half:nth-child({half}) .arc')");
        browser.run(&format!(
            "return [...{arcs}].filter((a) => a.getAttribute('aria-label').startsWith('{name},')).map((a) => a.getAttribute('class').split(' ').find((c) => c.startsWith('change-')))"
        ))
    };
    // The tracer is only in NEW, in stripes; its caller is in both, and grew.
    assert_eq!(arcs(1, "trace_mmap"), json!([]));
    assert_eq!(arcs(2, "trace_mmap"), json!(["change-only-new"]));
    assert_eq!(arcs(1, "do_mmap"), json!(["change-grew"]));
    assert_eq!(arcs(2, "do_mmap"), json!(["change-grew"]));
    assert_eq!(arcs(2, "get_unmapped_area"), json!(["change-same"]));
    let fill = browser.run("return document.querySelector('.change-only-new').getAttribute('fill')");
    assert_eq!(fill, "url(#stripes-only-new)");
    browser.screenshot("diff");

    // A click zooms both; what is pointed at in one is marked in the other.
    let names = "return [...document.querySelectorAll('.half .centre-name')].map((t) => t.textContent)";
    assert_eq!(browser.run(names), json!(["mmap", "mmap"]));
    let middle = |half: u32, name: &str| {
        let point = browser.run(&format!(
            "const arc = [...document.querySelectorAll('.half:nth-child({half}) .arc')].find((a) => a.getAttribute('aria-label').startsWith('{name},'));
             const box = arc.getBBox();
             for (let i = 0; i < 400; i++) {{
               const p = new DOMPoint(box.x + box.width * (0.5 + 0.45 * Math.cos(i)), box.y + box.height * (0.5 + 0.45 * Math.sin(i * 1.7)));
               const s = p.matrixTransform(arc.getScreenCTM());
               if (document.elementFromPoint(s.x, s.y) === arc) return [s.x, s.y];
             }}
             return null;"
        ));
        let point: Vec<f64> = serde_json::from_value(point).unwrap_or_else(|_| panic!("no arc {name}"));
        (point[0], point[1])
    };
    browser.run("document.querySelector('.halves').scrollIntoView()");
    let (x, y) = middle(1, "do_mmap");
    browser.click_at(x, y);
    assert_eq!(browser.run(names), json!(["do_mmap", "do_mmap"]));
    let (x, y) = middle(2, "get_unmapped_area");
    browser.run(&format!(
        "const e = document.elementFromPoint({x}, {y}); e.dispatchEvent(new PointerEvent('pointermove', {{bubbles: true, clientX: {x}, clientY: {y}}}))"
    ));
    let linked = "return [...document.querySelectorAll('.linked')].map((a) => [a.closest('.half').querySelector('.badge').textContent, a.getAttribute('aria-label').split(',')[0]])";
    assert_eq!(browser.run(linked), json!([["OLD", "get_unmapped_area"]]));

    // A function that OLD does not have: OLD stays at the caller and says so.
    let (x, y) = middle(2, "trace_mmap");
    browser.click_at(x, y);
    assert_eq!(browser.run(names), json!(["do_mmap", "trace_mmap"]));
    assert_eq!(
        text(&browser, ".half:nth-child(1) .missing"),
        "trace_mmap is not in OLD: its caller is shown."
    );
    assert_eq!(browser.run("return document.querySelector('.half:nth-child(2) .missing').hidden"), true);
    browser.screenshot("diff-zoomed");
    browser.click(".crumbs li:first-child button");
    assert_eq!(browser.run(names), json!(["mmap", "mmap"]));

    // One search marks both.
    browser.keys("/");
    browser.keys("do_mmap");
    let hits = "return [...document.querySelectorAll('.half .hit')].map((a) => a.closest('.half').querySelector('.badge').textContent)";
    assert_eq!(browser.run(hits), json!(["OLD", "NEW"]));
    assert!(text(&browser, ".found").contains("% of OLD, "), "{}", text(&browser, ".found"));

    // The tables say the same: sums per call.
    let cells = |table: &str| {
        browser.run(&format!(
            "return [...document.querySelectorAll('#{table} tbody tr:first-child td')].map((c) => c.textContent)"
        ))
    };
    let extra = cells("paths");
    assert_eq!((&extra[0], &extra[1]), (&json!("trace_mmap"), &json!("NEW")));
    let each = sample::TRACED.0 + sample::TRACED.1;
    assert_eq!(extra[3], json!(each.to_string()));
    let most = cells("functions");
    assert_eq!((&most[0], &most[1]), (&json!("ring_buffer_write"), &json!("+500")));
    browser.click("label[for=weight-ns]");
    assert_eq!(cells("functions")[1], json!("+500 ns"));
    browser.click("#paths .choose");
    assert_eq!(browser.run(names), json!(["do_mmap", "trace_mmap"]));
    browser.click(".theme");
    browser.click("label[for=view-icicle]");
    browser.wait("return document.querySelectorAll('.half g.row').length > 4");
    browser.screenshot("diff-dark");
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), 0);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// The tracer is only in NEW, and whether OLD had it is not known: no zero stands for it.
#[test]
fn what_is_not_known_of_a_run_is_drawn_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let profiles = [&sample::profile(), &sample::traced()];
    let page = compare_with(profiles, Within::Syscall("mmap"), "mmap", [true, false], [false; 2]);
    assert!(page.contains("What is not known") && !page.contains("0 in the tables"));
    let browser = open(dir.path(), &page);
    browser.wait("return document.querySelectorAll('.half path.arc').length > 8");
    let tracer = "[...document.querySelectorAll('.half:nth-child(2) .arc')].find((a) => a.getAttribute('aria-label').startsWith('trace_mmap,'))";
    assert_eq!(browser.run(&format!("return {tracer}.classList.contains('change-not-known')")), json!(true));
    assert_eq!(browser.run(&format!("return {tracer}.getAttribute('fill')")), "url(#hatch-not-known)");
    assert_eq!(
        browser.run("return document.querySelectorAll('.change-only-new, .change-only-old').length"),
        json!(0)
    );
    assert_eq!(browser.run("return document.querySelectorAll('.legend .key.not-known').length"), json!(1));
    let row = "[...document.querySelectorAll('#functions tbody tr')].find((r) => r.cells[0].textContent === 'ring_buffer_write').cells";
    browser.run("const filter = document.querySelector('#functions .filter'); filter.value = 'ring_buffer_write'; filter.dispatchEvent(new Event('input'))");
    // self difference, self OLD, self NEW; calls OLD; the change.
    let cells = browser.run(&format!("return [1, 2, 3, 7, 9].map((n) => {row}[n].textContent)"));
    assert_eq!(cells, json!(["–", "–", "500", "–", "in NEW; of OLD not known"]));
    let why = browser.run(&format!("return {row}[2].title"));
    assert!(why.as_str().unwrap().starts_with("Not known: not the same was recorded"), "{why}");
    assert_eq!(browser.run(&format!("return {row}[3].title")), json!(""));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// A recorder that counts no instructions: there is a dash for them in all rows, and the page begins with times.
#[test]
fn instructions_that_nobody_counted_are_no_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let profiles = [&sample::profile(), &sample::traced()];
    let page = compare_with(profiles, Within::Syscall("mmap"), "mmap", [false; 2], [true; 2]);
    let browser = open(dir.path(), &page);
    browser.wait("return document.querySelectorAll('.half path.arc').length > 8");
    assert_eq!(browser.run("return document.querySelector('#weight-ns').checked"), json!(true));
    let facts = browser.run("return [...document.querySelectorAll('.fact')].map((f) => f.textContent)");
    assert!(facts.to_string().contains("instructions per callnot known → not known"), "{facts}");
    browser.click("label[for=weight-insns]");
    let own = "document.querySelector('#functions tbody tr').cells[3]";
    assert_eq!(browser.run(&format!("return {own}.textContent")), json!("–"));
    assert_eq!(
        browser.run(&format!("return {own}.title")),
        json!("Not known: this recorder counts no instructions.")
    );
    assert_eq!(browser.console(), Vec::<Value>::new());
}

kprism_test::main!();
