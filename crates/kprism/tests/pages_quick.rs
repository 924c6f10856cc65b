// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every page is interactive within a second of its main thread's work: its first chart is on the screen, and a key pressed
//! then is answered on the screen.
//!
//! Two figures, both from the start of the navigation until the key is answered (and, for the second, half a second of rest, so
//! that work put off until after the first picture counts too):
//!
//! - by the clock of the wall, as a user waits. Other work on the machine counts, so the bound is wide;
//! - CPU time of the page's main thread, which Chromium's own protocol gives (`Performance.getMetrics`, `TaskDuration` in
//!   `threadTicks`): all that it does for the page, and what other programs do is no part of it. This is held to a second.
//!
//! Parsing, scripts, styles, layout and painting are on that thread. Reading the file and filling pixels are on others.
//! `bench/pages/run.sh` prints the table of `docs/measurements/pages.md` from here.

#[path = "view/served.rs"]
mod served;
#[allow(dead_code)] // Shared with tests that use the mouse.
#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kprism_test::{APT, BPF, BROWSER, GCOV_KERNEL, QEMU, ROOT, UPROBES, needs, skip, test, turn};
use serde_json::{Value, json};
use served::{View, stored};
use webdriver::Browser;

/// Most CPU time of the main thread until a page is interactive, ms.
const CPU_MS: f64 = 1000.0;
/// Longest time until then by the clock of the wall, ms: a machine that does much else gets it, too.
const WALL_MS: f64 = 10_000.0;
/// Loads that a page has: the quickest counts, as other work may hold up any one of them.
const LOADS: usize = 3;

const DEMO: &str = "for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done >/dev/null";
/// The log of a boot with `initcall_debug`.
const LOG: &str = include_str!("boot_texts/initcalls.log");

fn ok(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// What is told of one load, ms.
struct Figures {
    document: f64,
    painted: f64,
    interactive: f64,
    cpu: f64,
    script: f64,
}

/// The keys of a page: what is pressed, and what is true when it is answered.
#[derive(Clone, Copy)]
struct Key(&'static str, &'static str);

/// All pages of runs have it.
const SEARCH: Key = Key("/", "document.activeElement.type === 'search'");
/// Pages without a script: the browser itself goes to the first link.
const TAB: Key = Key("\u{e004}", "document.activeElement !== document.body");

/// Goes to a page and measures. `before` is a small page of the same origin, so that the same process shows both.
fn load(browser: &Browser, before: &str, page: &str, drawn: &str, key: Key) -> Figures {
    browser.go(before);
    browser.devtools("Performance.disable", json!({}));
    browser.devtools("Performance.enable", json!({"timeDomain": "threadTicks"}));
    let start = Metrics::of(browser);
    browser.go(page);
    // What `kprism view` shows while it makes a page is a page of its own.
    browser.wait(&format!(
        "return document.readyState === 'complete' && document.querySelector({drawn:?}) !== null"
    ));
    // Two frames after the last thing was set up, where the page says so; and when anything was on the screen.
    let painted = browser.wait(
        "const own = document.documentElement.dataset, first = performance.getEntriesByName('first-contentful-paint')[0];
         return first && (own.painted || !document.querySelector('#kprism-data')) ? Math.max(Number(own.painted ?? 0), first.startTime) : null",
    );
    let painted = painted.as_f64().expect("a time");
    // A key pressed in a long task that began after the first picture would wait for its end. From the key, as the browser
    // dates it, to the second frame after: in the first the answer is drawn, at the second it is on the screen.
    browser.run(&format!(
        "window.busy_until = 0;
         new PerformanceObserver((l) => l.getEntries().forEach((e) => (window.busy_until = Math.max(window.busy_until, e.startTime + e.duration)))).observe({{type: 'longtask', buffered: true}});
         addEventListener('keydown', (e) => requestAnimationFrame(() => requestAnimationFrame(() => {{
           window.key_ms = performance.now() - e.timeStamp; window.free_at = Math.max({painted}, window.busy_until < e.timeStamp ? window.busy_until : 0); window.answered = {};
         }})), {{once: true, capture: true}})",
        key.1
    ));
    browser.keys(key.0);
    let key_ms = browser.wait("return window.key_ms").as_f64().expect("a time");
    assert_eq!(browser.run("return window.answered"), true, "{page}: the key is answered");
    std::thread::sleep(Duration::from_millis(500));
    let spent = Metrics::of(browser);
    let document = "return performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd";
    Figures {
        document: browser.run(document).as_f64().expect("a time"),
        painted,
        interactive: browser.run("return window.free_at").as_f64().expect("a time") + key_ms,
        cpu: spent.task - start.task,
        script: spent.script - start.script,
    }
}

/// CPU time of the main thread, ms.
struct Metrics {
    task: f64,
    /// The part of it in scripts.
    script: f64,
}

impl Metrics {
    fn of(browser: &Browser) -> Metrics {
        let reply = browser.devtools("Performance.getMetrics", json!({}));
        let all = reply["metrics"].as_array().expect("metrics");
        let of = |name: &str| {
            let found = all.iter().find(|metric| metric["name"] == name);
            1000.0 * found.and_then(|metric| metric["value"].as_f64()).unwrap_or_else(|| panic!("no {name}"))
        };
        Metrics { task: of("TaskDuration"), script: of("ScriptDuration") }
    }
}

impl Figures {
    fn all(&self) -> [f64; 5] {
        [self.cpu, self.script, self.document, self.painted, self.interactive]
    }
}

/// Measures a page of a few loads and says what was found, the least of each figure: a row of a table.
fn judge(name: &str, bytes: u64, load: impl Fn() -> Figures) {
    let mut least = [f64::INFINITY; 5];
    for _ in 0..LOADS {
        let own = load().all();
        assert!(own[0] > 0.0, "{name}: another process was measured: {own:?}");
        least = std::array::from_fn(|i| least[i].min(own[i]));
    }
    let [cpu, script, document, painted, interactive] = least;
    println!(
        "| {name} | {bytes} | {cpu:.0} | {script:.0} | {document:.0} | {painted:.0} | {interactive:.0} |"
    );
    assert!(cpu < CPU_MS, "{name}: {cpu:.0} ms of CPU time until it is interactive");
    assert!(interactive < WALL_MS, "{name}: {interactive:.0} ms until it is interactive");
}

/// The page of a file, with a chart, whose search answers. Leaves it open.
fn measure(browser: &Browser, page: &Path, drawn: &str) {
    let empty = page.with_file_name("empty.html");
    std::fs::write(&empty, "<!doctype html><title>empty</title>").unwrap();
    let bytes = std::fs::metadata(page).unwrap().len();
    let url = |path: &Path| format!("file://{}", text(path));
    let name = page.file_stem().unwrap().to_str().unwrap();
    judge(name, bytes, || load(browser, &url(&empty), &url(page), drawn, SEARCH));
    browser.run("document.activeElement.blur()");
    browser.screenshot(name);
}

/// The page of `kprism view` at a path, made once before: how long the server decodes is no matter of the page.
fn measure_served(browser: &Browser, view: &View, name: &str, path: &str, drawn: &str, key: Key) {
    let (_, _, body) = view.get(&format!("/{path}"));
    let page = format!("{}{path}", view.url);
    // Not the list of runs: newer browsers load a page that is there already in a new process, whose time begins at 0.
    let before = format!("{}nothing", view.url);
    judge(name, body.len() as u64, || load(browser, &before, &page, drawn, key));
    browser.run("document.activeElement.blur()");
    browser.screenshot(name);
}

/// What is measured is what a page does: work before its first picture and after it, and no waiting.
#[test]
fn work_is_measured_and_waiting_is_not() {
    needs(&[BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let page = |name: &str, script: &str| {
        let path = dir.path().join(name);
        let text = format!(
            "<!doctype html><title>x</title><p>text</p><input type=search><script>
             // At least so long, and at least so much work: on a busy machine time passes without any.
             const burn = (ms) => {{
               const end = performance.now() + ms;
               let x = 1;
               for (let millions = 0; millions < 500 || performance.now() < end; millions++)
                 for (let i = 0; i < 1e6; i++) x = Math.imul(x, 1664525) + 1013904223 | 0;
               document.title = x;
             }};
             addEventListener('keydown', (e) => {{ e.preventDefault(); document.querySelector('input').focus(); }});
             {script}</script>"
        );
        std::fs::write(&path, text).unwrap();
        format!("file://{}", self::text(&path))
    };
    let browser = Browser::start(&dir.path().join("browser"), 800, 600);
    let empty = page("empty.html", "");
    let load = |page: &str| {
        let all = (0..LOADS).map(|_| load(&browser, &empty, page, "p", SEARCH));
        all.min_by(|a, b| a.cpu.total_cmp(&b.cpu)).unwrap()
    };
    let works = load(&page("works.html", "burn(900); setTimeout(() => burn(900), 150)"));
    let waits = load(&page("waits.html", "setTimeout(() => document.body.append('more'), 800)"));
    let text = |f: &Figures| {
        format!("CPU {:.0}, script {:.0}, interactive {:.0} ms", f.cpu, f.script, f.interactive)
    };
    println!("works: {}; waits: {}", text(&works), text(&waits));
    assert!(works.cpu > 250.0 && works.script > 250.0, "{}", text(&works));
    assert!(works.interactive > 900.0, "{}", text(&works));
    assert!(waits.cpu < 250.0, "{}", text(&waits));
}

#[test]
fn pages_are_quick() {
    needs(&[BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    let page = |name: &str| dir.path().join(name);
    let cover = stored("cover.in");
    let (window, build) = (format!("{cover}/window.data"), format!("{cover}/build"));

    let flow = page("flow.html");
    ok(&["report", "-i", &stored("report.in/true.data"), "--html", text(&flow)]);
    measure(&browser, &flow, "path.arc");

    let diff = page("diff.html");
    // The page shows names as they were typed: those of a picture for the guides have no folder.
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.current_dir(stored("diff.in")).args(["diff", "plain.data", "traced.data", "--html"]).arg(&diff);
    assert!(command.output().expect("kprism runs").status.success());
    measure(&browser, &diff, ".half .arc");

    let run = page("durations");
    ok(&["import", &stored("func.in/whole.txt"), "-o", text(&run)]);
    let durations = page("durations.html");
    ok(&["report", "-i", text(&run), "--html", text(&durations)]);
    measure(&browser, &durations, ".loghist svg");
    let compared = page("durations-diff.html");
    ok(&["diff", text(&run), text(&run), "--html", text(&compared)]);
    measure(&browser, &compared, ".compare-figure svg");

    let covered = page("cover.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.current_dir(&cover).args([
        "report",
        "cover",
        "-i",
        "window.data",
        "--build-dir",
        "build",
        "--html",
    ]);
    assert!(command.arg(&covered).output().expect("kprism runs").status.success());
    measure(&browser, &covered, "table tr");
    let compared = page("cover-diff.html");
    // A window that ends as it begins executed nothing: of the other all lines are gained.
    let nothing = page("nothing");
    assert!(
        Command::new("cp").arg("-r").args([window.as_ref(), nothing.as_os_str()]).status().unwrap().success()
    );
    let gcov = nothing.join("streams/gcov");
    std::fs::copy(gcov.join("counters.cpio"), gcov.join("before.cpio")).unwrap();
    ok(&["diff", text(&nothing), &window, "--build-dir", &build, "--html", text(&compared)]);
    measure(&browser, &compared, "table tr");

    let (log, boot, boot_page) = (page("boot.log"), page("boot"), page("boot-log.html"));
    std::fs::write(&log, LOG).unwrap();
    ok(&["import", text(&log), "-o", text(&boot)]);
    ok(&["report", "boot", "-i", text(&boot), "--html", text(&boot_page)]);
    measure(&browser, &boot_page, "canvas");
}

#[test]
fn pages_of_the_demo_are_quick() {
    needs(&[QEMU, APT, BROWSER]);
    turn(2, 1);
    let dir = tempfile::tempdir().unwrap();
    let page = |name: &str| dir.path().join(name);
    let run = page("run");
    ok(&["-q", "lab", "run", "-o", text(&run), "--", "sh", "-c", DEMO]);
    let flow = page("flow-demo.html");
    ok(&["report", "-i", text(&run), "--html", text(&flow)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    measure(&browser, &flow, "path.arc");
    // The timeline is there as well, not only the first chart.
    browser.wait("return document.querySelector('canvas.lanes')?.dataset.drawn");
    browser.run("document.querySelector('#intervals').scrollIntoView()");
    browser.screenshot("delta");

    let delta = page("delta-demo.html");
    ok(&["report", "delta", "-i", text(&run), "--html", text(&delta)]);
    measure(&browser, &delta, "#intervals svg");
    let compared = page("diff-demo.html");
    ok(&["diff", text(&run), text(&run), "--html", text(&compared)]);
    measure(&browser, &compared, ".half .arc");

    // The same in `kprism view`, which also lists runs. Its messages have nothing to press.
    let view = View::start(&[text(&run), &stored("diff.in/plain.data")]);
    measure_served(&browser, &view, "view-list", "", "#runs", TAB);
    // Numbers and times stay on one line.
    let lines = "return [...document.querySelectorAll('#runs th, #runs .number, #runs .time')].map((c) => { const r = document.createRange(); r.selectNodeContents(c); return new Set([...r.getClientRects()].map((b) => b.top)).size; }).every((n) => n <= 1)";
    assert_eq!(browser.run(lines), true);
    measure_served(&browser, &view, "view-flow", "run/0/report", "path.arc", SEARCH);
    browser.run("document.querySelector('#functions .show-source').id = 'first-source'");
    browser.click("#first-source");
    browser.wait("return document.querySelector('#source-body').dataset.shown");
    browser.screenshot("view");
    // The page before each that is measured is one that the server does not have.
    let asked = |message: &Value| {
        message["message"].as_str().is_some_and(|text| text.starts_with(&format!("{}nothing ", view.url)))
    };
    let mut console = browser.console();
    console.retain(|message| !asked(message));
    assert_eq!(console, Vec::<Value>::new());
}

#[test]
fn pages_of_other_instruments_in_the_guest_are_quick() {
    needs(&[QEMU, APT, BROWSER]);
    turn(2, 0);
    let dir = tempfile::tempdir().unwrap();
    let page = |name: &str| dir.path().join(name);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    let (boot, boot_page) = (page("boot-run"), page("boot.html"));
    ok(&["-q", "lab", "boot", "-o", text(&boot)]);
    ok(&["report", "-i", text(&boot), "--html", text(&boot_page)]);
    measure(&browser, &boot_page, "canvas, svg");

    let (durations, durations_page) = (page("durations-run"), page("durations-demo.html"));
    ok(&["-q", "record", "durations", "--guest", "-o", text(&durations), "--", "sh", "-c", DEMO]);
    ok(&["report", "-i", text(&durations), "--html", text(&durations_page)]);
    measure(&browser, &durations_page, ".loghist svg");

    let (tlb, tlb_page, compared) = (page("tlb-run"), page("tlb-demo.html"), page("tlb-diff-demo.html"));
    ok(&["-q", "record", "tlb", "-o", text(&tlb), "--", "sh", "-c", DEMO]);
    ok(&["report", "tlb", "-i", text(&tlb), "--html", text(&tlb_page)]);
    measure(&browser, &tlb_page, "canvas.heat");
    ok(&["diff", text(&tlb), text(&tlb), "--html", text(&compared)]);
    measure(&browser, &compared, "table tr");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn pages_of_probes_are_quick() {
    needs(&[ROOT, BPF, UPROBES, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let page = |name: &str| dir.path().join(name);
    let (source, program, run) = (page("p.c"), page("p"), page("run"));
    let code = "__attribute__((noinline)) int visit(int n) { __asm__ volatile(\"\"); return n; }\n\
                int main(void) { int s = 0; for (int i = 0; i < 20000; i++) s += visit(i * 7919 % 1009); return s == 0; }\n";
    std::fs::write(&source, code).unwrap();
    let built = Command::new("gcc").args(["-O1", "-g", "-o"]).args([&program, &source]).status();
    assert!(built.expect("gcc").success());
    let record = ["-q", "record", "probe", "-o", text(&run), "--exec", text(&program), "visit"];
    ok(&[&record[..], &["--collect", "n,$comm", "--", text(&program)]].concat());
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    let (hits, compared) = (page("probe-20000.html"), page("probe-diff-20000.html"));
    ok(&["report", "probe", "-i", text(&run), "--html", text(&hits)]);
    measure(&browser, &hits, "#plots .bin");
    ok(&["diff", text(&run), text(&run), "--html", text(&compared)]);
    measure(&browser, &compared, "table tr");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// The page has no more bytes than the aim for a run of 10 billion instructions.
#[test]
fn the_page_of_a_long_run_is_quick() {
    needs(&[BROWSER]);
    let Ok(run) = std::env::var("KPRISM_LONG_RUN") else {
        skip("a measurement: bench/pages/run.sh RUN");
    };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("flow-long.html");
    ok(&["report", "-q", "-i", &run, "--html", text(&page)]);
    let bytes = std::fs::metadata(&page).unwrap().len();
    assert!(bytes < 5_000_000, "{bytes} bytes");
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    measure(&browser, &page, "path.arc");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Coverage of a kernel: the largest page of coverage that there is. The kernel is the one that is built already, which `KPRISM_GCOV_ARGS` tells
/// as for the other tests of coverage: without them another would be built here, the whole one, for eleven minutes. That one's page is
/// measured by `make test-gcov-kernel`.
#[test]
fn the_page_of_a_kernels_coverage_is_quick() {
    needs(&[QEMU, GCOV_KERNEL, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let (run, page) = (dir.path().join("run"), dir.path().join("cover-kernel.html"));
    let which = std::env::var("KPRISM_GCOV_ARGS").unwrap_or_default();
    let which: Vec<&str> = which.split_whitespace().collect();
    let record = ["-q", "lab", "gcov-kernel", "-o", text(&run)];
    ok(&[&record[..], &which[..], &["--", "sh", "-c", DEMO]].concat());
    ok(&["report", "cover", "-i", text(&run), "--html", text(&page)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    measure(&browser, &page, "table tr");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

kprism_test::main!();
