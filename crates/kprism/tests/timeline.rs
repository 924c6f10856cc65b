// SPDX-License-Identifier: MIT OR Apache-2.0
//! The timeline of a flow's page, of a real run, in a browser: its sums are those of the tables, whatever is on show; keys,
//! drags, clicks, the search and the address do what they say.

#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::path::Path;
use std::process::Command;

use kprism_test::{APT, BROWSER, QEMU, needs, test};
use serde_json::{Value, json};
use webdriver::Browser;

/// The demo, with a program whose name is markup.
const COMMAND: &str = "cp /bin/true '/tmp/<b>x'; for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; '/tmp/<b>x'; done >/dev/null";

/// Measures where the functions begin, when the page says that it is painted and later.
const STANDS: &str = "new MutationObserver((_, own) => {
  if (!document.documentElement.dataset.painted) return;
  own.disconnect();
  const top = () => document.querySelector('#functions').getBoundingClientRect().top + scrollY;
  const first = top();
  setTimeout(() => (window.stood = [first, top()]), 700);
}).observe(document, {attributes: true, subtree: true, attributeFilter: ['data-painted']});";

fn ok(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Waits until the picture stands still, and returns the time on show in ns.
fn view(browser: &Browser) -> (f64, f64) {
    browser.run("document.querySelector('canvas.lanes').dataset.drawn = ''");
    // The tables are renewed when the picture has stood still for a moment.
    browser.run("window.settled = false; setTimeout(() => (window.settled = true), 400)");
    browser.wait("return window.settled");
    let shown = browser.run("return document.querySelector('canvas.lanes').dataset.view");
    let (from, to) = shown.as_str().unwrap().split_once(',').unwrap();
    (from.parse().unwrap(), to.parse().unwrap())
}

/// A table of sums: name, then numbers as they are shown.
fn sums(browser: &Browser, what: &str) -> Vec<Vec<String>> {
    let rows = browser.run(&format!(
        "return [...document.querySelectorAll('#sums-{what} tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    ));
    serde_json::from_value(rows).unwrap()
}

fn number(text: &str) -> u64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text}"))
}

fn hash(browser: &Browser) -> String {
    browser.run("return decodeURIComponent(location.hash)").as_str().unwrap().to_owned()
}

#[test]
fn timeline_of_a_run() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let (run, page) = (dir.path().join("run"), dir.path().join("page.html"));
    ok(&["-q", "lab", "run", "-o", text(&run), "--", "sh", "-c", COMMAND]);
    ok(&["report", "-i", text(&run), "--html", text(&page)]);
    assert!(std::fs::metadata(&page).unwrap().len() < 5 << 20);
    let told: Value =
        serde_json::from_str(&ok(&["report", "syscalls", "-i", text(&run), "--json", "--limit", "0"]))
            .unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    browser.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": STANDS}));
    browser.open(&page);
    // Once the page says that it is painted, nothing moves by itself: what is told below the lanes is there already.
    let stood = browser.wait("return window.stood");
    let stood: Vec<f64> = serde_json::from_value(stood).unwrap();
    assert!(stood[0] > 0.0 && stood[0] == stood[1], "the functions moved from {} to {}", stood[0], stood[1]);
    browser.wait("return document.querySelector('canvas.lanes')?.dataset.drawn");
    browser.run("document.querySelector('#timeline').scrollIntoView()");
    let whole = view(&browser);

    // All system calls begin within the whole run, and the CPU has a task at any time.
    let count = |row: &Value| row["count"].as_u64().unwrap();
    let all: u64 = told["rows"].as_array().unwrap().iter().map(count).sum();
    let shown = sums(&browser, "syscalls");
    assert_eq!(shown.iter().map(|row| number(&row[1])).sum::<u64>(), all, "{shown:?}");
    let of = |name: &str| {
        let rows = told["rows"].as_array().unwrap().iter();
        rows.filter(|row| row["syscall"] == name).map(count).sum::<u64>()
    };
    let mmap = shown.iter().find(|row| row[0] == "mmap").expect("mmap is among the longest");
    assert_eq!(number(&mmap[1]), of("mmap"));
    let share = |row: &Vec<String>| row[2].trim_end_matches('%').parse::<f64>().unwrap();
    let covered: f64 = sums(&browser, "tasks").iter().map(share).sum();
    assert!((99.0..100.2).contains(&covered), "{covered}");
    let caption = browser.run("return document.querySelector('#timeline .caption').textContent");
    assert!(caption.as_str().unwrap().contains(" system calls shorter than 1 px"), "{caption}");
    browser.screenshot("timeline");

    // Keys: nearer, along, and the whole again. The address keeps what is on show.
    browser.run("document.querySelector('canvas.lanes').focus()");
    browser.keys("+++++");
    let near = view(&browser);
    assert!((near.1 - near.0) < (whole.1 - whole.0) / 30.0, "{near:?} of {whole:?}");
    let part: u64 = sums(&browser, "syscalls").iter().map(|row| number(&row[1])).sum();
    assert!(part < all, "{part} {all}");
    browser.keys("\u{e014}"); // ArrowRight
    let along = view(&browser);
    assert!(along.0 > near.0 && ((along.1 - along.0) - (near.1 - near.0)).abs() < 2.0);
    assert!(hash(&browser).contains("time="), "{}", hash(&browser));
    browser.run("document.documentElement.dataset.ready = ''; location.reload()");
    browser.wait("return document.readyState === 'complete' && document.documentElement.dataset.ready");
    browser.wait("return document.querySelector('canvas.lanes')?.dataset.drawn");
    let again = view(&browser);
    assert!((again.0 - along.0).abs() < 2.0 && (again.1 - along.1).abs() < 2.0, "{again:?} {along:?}");
    browser.run("document.querySelector('#timeline').scrollIntoView()");
    browser.screenshot("timeline-near");

    // Down to a few instructions, at which each has a time of its own.
    browser.run("document.querySelector('canvas.lanes').focus()");
    browser.keys(&"+".repeat(40));
    let nearest = view(&browser);
    assert!(nearest.1 - nearest.0 <= 4.5, "{nearest:?}");
    browser.keys("0");
    assert_eq!(view(&browser), whole);

    // A range on the axis: its sums are those of the range, and the address has it.
    let area = browser.run("const b = document.querySelector('canvas.lanes').getBoundingClientRect(); return [b.x, b.y, b.width]");
    let area: Vec<f64> = serde_json::from_value(area).unwrap();
    let at = |part: f64| area[0] + 190.0 + part * (area[2] - 190.0);
    browser.drag((at(0.25), area[1] + 10.0), (at(0.5), area[1] + 10.0));
    view(&browser);
    let range = browser.run("return new URLSearchParams(location.hash.slice(1)).get('range')");
    let (from, to) = range.as_str().expect("a range").split_once(',').unwrap();
    let part = (to.parse::<f64>().unwrap() - from.parse::<f64>().unwrap()) / (whole.1 - whole.0);
    assert!((part - 0.25).abs() < 0.01, "{range}");
    assert!(
        browser
            .run("return document.querySelector('.sums h3').textContent")
            .as_str()
            .unwrap()
            .starts_with("Selected: ")
    );
    let selected: u64 = sums(&browser, "syscalls").iter().map(|row| number(&row[1])).sum();
    assert!(selected > 0 && selected < all);
    browser.screenshot("timeline-range");
    browser.keys("\u{e00c}"); // Escape
    view(&browser);
    assert!(!hash(&browser).contains("range="));

    // A click tells, the address keeps it; the item after it is one key away.
    browser.click_at(at(0.5), area[1] + 24.0 + 1.5 * 17.0);
    let details = "return document.querySelector('.details h3')?.textContent";
    let first = browser.wait(details);
    assert!(hash(&browser).contains("item="), "{}", hash(&browser));
    browser.keys(".");
    view(&browser);
    assert_ne!(browser.run(details), first);
    browser.keys("\u{e00c}");

    // The search counts, and names are texts.
    browser.click("#search-lanes");
    browser.keys("<b>x");
    let found = browser.run("return document.querySelector('output[for=search-lanes]').textContent");
    assert!(found.as_str().unwrap().ends_with(" items"), "{found}");
    view(&browser);
    browser.screenshot("timeline-search");
    browser.click("#timeline .behind summary");
    browser.wait("return document.querySelectorAll('#timeline .behind tbody tr').length > 50");
    browser.run("const s = document.querySelector('#search-lanes'); s.value = ''; s.dispatchEvent(new Event('input'))");
    browser.click(".theme");
    browser.run("document.querySelector('#timeline').scrollIntoView()");
    view(&browser);
    browser.screenshot("timeline-dark");
    let odd = "return [document.images.length, document.querySelectorAll('main b:not(.tip b)').length, performance.getEntriesByType('resource').length]";
    assert_eq!(browser.run(odd), json!([0, 0, 0]));
    assert_eq!(browser.console(), Vec::<Value>::new());

    // Redrawing while zooming: 60 frames a second leave 16 ms; a loaded machine gets more.
    let spent =
        frames(&browser, "timeline of the demo, nearer and back", LANES, "key(n % 20 < 10 ? '+' : '-')");
    assert!(spent < 33.0, "{spent} ms");
}

/// The lanes, and how to press a key on them.
const LANES: &str = "const c = document.querySelector('canvas.lanes'); c.scrollIntoView(); c.focus();
     const key = (k) => c.dispatchEvent(new KeyboardEvent('keydown', {key: k, bubbles: true}));";

/// Draws frames, each after `act` with its number `n`. Says how often they came, and gives the CPU time of the page's main thread
/// for each, ms: other programs are no part of that.
fn frames(browser: &Browser, name: &str, first: &str, act: &str) -> f64 {
    const FRAMES: f64 = 80.0;
    let busy = |browser: &Browser| {
        let reply = browser.devtools("Performance.getMetrics", json!({}));
        let all = reply["metrics"].as_array().unwrap().iter();
        1000.0 * all.filter(|m| m["name"] == "TaskDuration").find_map(|m| m["value"].as_f64()).unwrap()
    };
    browser.devtools("Performance.enable", json!({"timeDomain": "threadTicks"}));
    let start = busy(browser);
    browser.run(&format!(
        "{first} window.frames_ms = []; window.frames_done = false; let n = 0, last = performance.now();
         const step = () => {{ const now = performance.now(); window.frames_ms.push(now - last); last = now; {act};
           if (++n < {FRAMES}) requestAnimationFrame(step); else window.frames_done = true; }};
         requestAnimationFrame(step)"
    ));
    browser.wait("return window.frames_done");
    let spent = (busy(browser) - start) / FRAMES;
    browser.devtools("Performance.disable", json!({}));
    let mut ms: Vec<f64> = serde_json::from_value(browser.run("return window.frames_ms")).unwrap();
    ms.sort_by(f64::total_cmp);
    let (middle, late) = (ms[ms.len() / 2], ms[ms.len() * 95 / 100]);
    println!("| {name} | {spent:.1} | {middle:.1} | {late:.1} |");
    spent
}

/// Of a long run the timeline has sums of bins beside single items. However near the view is, a frame draws no more than there
/// are pixels.
#[test]
fn timeline_of_a_long_run_is_smooth() {
    needs(&[BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    // A run that is there already, such as the two billion instructions of bench/pages/run.sh, or one of many system calls.
    let (run, page) = (dir.path().join("run"), dir.path().join("page.html"));
    let given = std::env::var("KPRISM_LONG_RUN").ok();
    if given.is_none() {
        needs(&[QEMU, APT]);
        let many = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=40000", "status=none"];
        ok(&[&["-q", "lab", "run", "-o", text(&run), "--"][..], &many].concat());
    }
    ok(&["report", "-i", given.as_deref().unwrap_or(text(&run)), "--html", text(&page)]);
    assert!(std::fs::metadata(&page).unwrap().len() < 5 << 20);
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    browser.open(&page);
    browser.wait("return document.querySelector('canvas.lanes')?.dataset.drawn");
    browser.run("document.querySelector('#timeline').scrollIntoView()");
    view(&browser);
    let caption = browser.run("return document.querySelector('#timeline .caption').textContent");
    println!("{}: {caption}", given.as_deref().unwrap_or("many system calls"));
    let merged = "return JSON.parse(document.querySelector('#kprism-data').textContent).timeline.lanes.filter((l) => l.merged).length";
    assert!(browser.run(merged).as_u64() > Some(0), "the run has no bins");
    // A row of a lane is 17 pixels high.
    let pixels = "const c = document.querySelector('canvas.lanes'); return c.width * c.height / 17";
    let pixels = browser.run(pixels).as_f64().unwrap();
    for nearer in 0..36 {
        browser.run(&format!("{LANES} c.dataset.drawn = ''; key('+')"));
        let drawn = browser.wait("return document.querySelector('canvas.lanes').dataset.drawn");
        let drawn: f64 = drawn.as_str().unwrap().parse().unwrap();
        assert!(drawn < pixels, "{drawn} pieces for {pixels} pixels of lanes, {nearer} steps nearer");
    }
    let (from, to) = view(&browser);
    assert!(to - from < 5.0, "{from} {to}");
    browser.run(&format!("{LANES} key('0')"));
    view(&browser);
    for (name, act) in [
        ("timeline, nearer and back", "key(n % 40 < 20 ? '+' : '-')"),
        ("timeline, along", "key(n % 40 < 20 ? 'ArrowRight' : 'ArrowLeft')"),
    ] {
        let spent = frames(&browser, name, LANES, act);
        assert!(spent < 33.0, "{spent} ms");
    }
    // The chart: into a caller, and out again.
    let chart = "document.querySelector('#calls').scrollIntoView();";
    let click = "document.querySelectorAll('#calls [data-frame]')[n % 2 ? 1 + n % 7 : 0]?.dispatchEvent(new MouseEvent('click', {bubbles: true}))";
    let spent = frames(&browser, "sunburst, into a caller and out", chart, click);
    assert!(spent < 100.0, "{spent} ms");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

kprism_test::main!();
