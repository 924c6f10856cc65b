// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every page can be used by everybody: no rule of WCAG A and AA is broken (axe-core judges), every text has a contrast of 4.5
//! or more in light and dark, the keyboard's place is seen, and each picture has its numbers in a table that is equal to it.

mod guest;
#[path = "view/served.rs"]
mod served;
#[allow(dead_code)] // Shared with tests that use the mouse and the keyboard.
#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, ok, text};
use kprism_test::{APT, AXE, BPF, BROWSER, QEMU, ROOT, UPROBES, axe, needs, test};
use serde_json::{Value, json};
use served::{View, stored, visit};
use webdriver::Browser;

/// Rules of WCAG 2.0 to 2.2, levels A and AA.
const RULES: &str = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']";
/// The rules among them that judge colours: the other theme can break no others, and all of them take axe-core half a minute on
/// a page of ten thousand elements.
const COLOURS: &str = "['color-contrast', 'link-in-text-block']";
/// What axe-core does not look at: of a table, the rows after the first forty. One line of the page's program makes them all, and ten
/// thousand take axe-core a minute. Their contrast is judged without it.
const LEFT_OUT: &str = "tbody tr:nth-child(n + 41)";
const JUDGE: &str = include_str!("pages/access.js");

/// The log of a boot with `initcall_debug`.
const LOG: &str = include_str!("boot_texts/initcalls.log");

/// Judges the page on show, in both themes, with everything open that can be opened.
fn judge(browser: &Browser, name: &str) {
    browser.wait("return document.readyState === 'complete'");
    browser.run("document.querySelectorAll('details').forEach((d) => (d.open = true))");
    browser.run(&std::fs::read_to_string(axe()).expect("axe-core"));
    // Focus is drawn for the keyboard, so that is what is used last.
    browser.keys("\u{e004}");
    let focus = browser.run(&format!("{JUDGE}; return unseenFocus()"));
    assert_eq!(focus["unseen"], json!([]), "{name}: focus that is not seen, of {}", focus["reached"]);
    let pictures = browser.run(&format!("{JUDGE}; return pictures()"));
    assert_eq!(pictures["without"], json!([]), "{name}: pictures without a name or a table");
    for (theme, rules, least) in [("light", RULES, 4), ("dark", COLOURS, 1)] {
        browser.run(&format!(
            "document.documentElement.dataset.theme = {theme:?}; dispatchEvent(new Event('themechange')); document.activeElement.blur();
             window.axe_found = null; requestAnimationFrame(() => requestAnimationFrame(() =>
               axe.run({{exclude: [[{LEFT_OUT:?}]]}}, {{runOnly: {rules}, resultTypes: ['violations']}}).then((found) => (window.axe_found =
                 [found.passes.length, found.violations.map((v) => [v.id, v.nodes.length, v.nodes.slice(0, 5).map((n) => n.target.join(' '))])]),
                 (error) => (window.axe_found = [0, String(error)]))))"
        ));
        let found = browser.wait("return window.axe_found");
        assert!(found[0].as_u64() >= Some(least), "{name}, {theme}: {found}");
        assert_eq!(found[1], json!([]), "{name}, {theme}");
        let texts = browser.run(&format!("{JUDGE}; return lowContrast()"));
        assert_eq!(
            texts["low"],
            json!([]),
            "{name}, {theme}: contrast below 4.5, of {} texts",
            texts["seen"]
        );
        println!(
            "{name}, {theme}: {} rules kept, {} texts, {} stops of the keyboard, {} pictures",
            found[0], texts["seen"], focus["reached"], pictures["seen"]
        );
    }
}

fn judge_file(browser: &Browser, page: &Path) {
    browser.open(page);
    browser.wait("return document.documentElement.dataset.painted");
    judge(browser, &page.file_name().unwrap().to_string_lossy());
}

/// Numbers in a column of a table behind a picture.
fn column(browser: &Browser, within: &str, n: usize) -> Vec<String> {
    let cells = browser.run(&format!(
        "return [...document.querySelectorAll({within:?} + ' .behind tbody td:nth-child({n})')].map((c) => c.textContent)"
    ));
    serde_json::from_value(cells).unwrap()
}

fn sum(cells: &[String]) -> u64 {
    cells.iter().map(|cell| cell.replace(',', "").parse::<u64>().unwrap_or_else(|_| panic!("{cell}"))).sum()
}

fn number(browser: &Browser, script: &str) -> u64 {
    browser.run(&format!("return {script}")).as_u64().unwrap_or_else(|| panic!("no number: {script}"))
}

#[test]
fn stored_pages_are_for_everybody() {
    needs(&[BROWSER, AXE]);
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    let page = |name: &str| dir.path().join(name);

    let flow = page("flow.html");
    ok(&["report", "-i", &stored("report.in/true.data"), "--html", text(&flow)]);
    judge_file(&browser, &flow);
    // The chart's table has every frame of the chart, with the same share and as many calls.
    let labels = "[...document.querySelectorAll('#calls [data-frame]')].map((e) => e.getAttribute('aria-label').replace(/^.*: (?=.*, .* of )/s, '')).sort()";
    let rows = "[...document.querySelectorAll('#calls .behind tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))
         .map(([name, , , share, , , calls]) => `${name}, ${share} of instructions, ${calls} ${calls === '1' ? 'call' : 'calls'}`).sort()";
    assert_eq!(browser.run(&format!("return {rows}")), browser.run(&format!("return {labels}")));
    // A histogram's table has as many calls as the row.
    let count = number(
        &browser,
        "Number(document.querySelector('#syscalls tr[aria-selected=true] td:nth-child(2)').textContent.replaceAll(',', ''))",
    );
    assert_eq!(sum(&column(&browser, "#syscalls", 3)), count);
    let of_kind = number(
        &browser,
        "Number(document.querySelector('#intervals tr[aria-selected=true] td:nth-child(2)').textContent.replaceAll(',', ''))",
    );
    assert_eq!(sum(&column(&browser, "#intervals .loghist:first-child", 3)), of_kind);
    assert_eq!(sum(&column(&browser, "#intervals .loghist:last-child", 3)), of_kind);
    // The timeline's table has the items on show, as its own data have them.
    let items = number(
        &browser,
        "JSON.parse(document.querySelector('#kprism-data').textContent).timeline.lanes.reduce((n, l) => n + l.start.length, 0)",
    );
    assert_eq!(column(&browser, "#timeline", 1).len() as u64, items.min(300));

    let diff = page("diff.html");
    ok(&["diff", &stored("diff.in/plain.data"), &stored("diff.in/traced.data"), "--html", text(&diff)]);
    judge_file(&browser, &diff);
    for side in 1..=2 {
        let half = format!(".half:nth-child({side})");
        let frames = number(&browser, &format!("document.querySelectorAll('{half} [data-frame]').length"));
        assert_eq!(column(&browser, &half, 1).len() as u64, frames.min(4000));
    }

    let run = page("durations");
    ok(&["import", &stored("func.in/whole.txt"), "-o", text(&run)]);
    let durations = page("durations.html");
    ok(&["report", "-i", text(&run), "--html", text(&durations)]);
    judge_file(&browser, &durations);
    let calls = number(
        &browser,
        "JSON.parse(document.querySelector('#kprism-data').textContent).durations.slices.task.length",
    );
    assert_eq!(column(&browser, "#timeline", 1).len() as u64, calls.min(300));
    let compared = page("compare.html");
    ok(&["diff", text(&run), text(&run), "--html", text(&compared)]);
    judge_file(&browser, &compared);

    let cover = page("cover.html");
    let build = stored("cover.in/build");
    ok(&[
        "report",
        "cover",
        "-i",
        &stored("cover.in/window.data"),
        "--build-dir",
        &build,
        "--html",
        text(&cover),
    ]);
    judge_file(&browser, &cover);
    let delta = page("delta.html");
    ok(&["report", "delta", "-i", &stored("diff.in/traced.data"), "--html", text(&delta)]);
    judge_file(&browser, &delta);

    // The server's own pages: the list, and a refusal in words.
    let copy = |name: &str| -> PathBuf {
        let to = dir.path().join(name);
        assert!(
            Command::new("cp")
                .arg("-r")
                .args([stored("diff.in/plain.data").as_ref(), to.as_os_str()])
                .status()
                .unwrap()
                .success()
        );
        to
    };
    let (one, two) = (copy("one"), copy("two"));
    let view = View::start(&[text(&one), text(&two)]);
    visit(&browser, &view.url);
    judge(&browser, "the list of runs");
    visit(&browser, &format!("{}run/7/report", view.url));
    judge(&browser, "a message");
    assert_eq!(browser.run("return document.querySelectorAll('script:not([type])').length"), 0);
}

#[test]
fn the_page_of_misses_is_for_everybody() {
    needs(&[QEMU, APT, BROWSER, AXE]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    let tlb = dir.path().join("tlb");
    ok(&["-q", "record", "tlb", "-o", text(&tlb), "--", "ls", "/bin"]);
    let page = dir.path().join("tlb.html");
    ok(&["report", "tlb", "-i", text(&tlb), "--html", text(&page)]);
    judge_file(&browser, &page);
}

#[test]
fn the_page_of_a_boot_is_for_everybody() {
    needs(&[BROWSER, AXE]);
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    let (log, boot, page) =
        (dir.path().join("boot.log"), dir.path().join("boot"), dir.path().join("boot.html"));
    std::fs::write(&log, LOG).unwrap();
    ok(&["import", text(&log), "-o", text(&boot)]);
    ok(&["report", "boot", "-i", text(&boot), "--html", text(&page)]);
    judge_file(&browser, &page);
    // Keys move the chart; the table's buttons as well.
    let shown = "return document.querySelector('canvas').toDataURL().length + ':' + document.querySelector('canvas').toDataURL().slice(-300, -200)";
    let whole = browser.run(shown);
    browser.run("document.querySelector('canvas').focus()");
    browser.keys("++");
    let near = browser.run(shown);
    assert_ne!(whole, near);
    browser.keys("0");
    assert_eq!(browser.run(shown), whole);
    browser.run("document.querySelector('tbody button').focus()");
    browser.keys("\u{e007}");
    assert_ne!(browser.run(shown), whole);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn the_page_of_probes_is_for_everybody() {
    needs(&[ROOT, BPF, UPROBES, BROWSER, AXE]);
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("p.c"), dir.path().join("p"));
    std::fs::write(&source, "__attribute__((noinline)) int visit(int n) { __asm__ volatile(\"\"); return n; }\nint main(void) { int s = 0; for (int i = 0; i < 64; i++) s += visit(i); return s == 0; }\n").unwrap();
    assert!(
        Command::new("gcc").args(["-O1", "-g", "-o"]).args([&program, &source]).status().unwrap().success()
    );
    let (run, page) = (dir.path().join("run"), dir.path().join("probe.html"));
    ok(&[
        "-q",
        "record",
        "probe",
        "-o",
        text(&run),
        "--exec",
        text(&program),
        "visit",
        "--collect",
        "n,$comm",
        "--",
        text(&program),
    ]);
    ok(&["report", "probe", "-i", text(&run), "--html", text(&page)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    judge_file(&browser, &page);
}

kprism_test::main!();
