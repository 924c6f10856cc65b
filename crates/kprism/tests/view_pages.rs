// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every page through `kprism view`, in a browser: from the list to the page, its numbers are those of the tables, and nothing in
//! a name is obeyed. A page that takes long says how far it is.

mod guest;
#[path = "view/served.rs"]
mod served;
#[allow(dead_code)] // Shared with tests that use the mouse and the keyboard.
#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, ok, text};
use kprism_test::{APT, BPF, BROWSER, QEMU, ROOT, UPROBES, needs, test};
use serde_json::{Value, json};
use served::{View, is_inert, stored, visit};
use webdriver::Browser;

/// The log of a boot with `initcall_debug`.
const LOG: &str = include_str!("boot_texts/initcalls.log");

/// Follows the link of a run in the list, and waits until its page can be used.
fn follow(browser: &Browser, view: &View, run: usize, word: &str, named: &str) {
    visit(browser, &view.url);
    let link = format!("#runs a[href='run/{run}/{word}']");
    assert_eq!(browser.run(&format!("return document.querySelector(\"{link}\")?.textContent")), named);
    browser.click(&link);
    browser.wait("return document.documentElement.dataset.painted");
    let facts = browser.run("return document.querySelector('#kprism-view') !== null");
    assert_eq!(facts, true);
}

/// A message has no program and no picture.
fn is_inert_message(browser: &Browser) {
    assert_eq!(browser.run("return [document.images.length, document.scripts.length]"), json!([0, 0]));
    // The browser logs that the reply was no success, and nothing else.
    let log = browser.console();
    assert!(
        log.iter().all(|entry| entry["message"].as_str().is_some_and(|text| text.contains("422"))),
        "{log:?}"
    );
}

/// Nothing was loaded but the page, and the browser complains about nothing.
fn is_quiet(browser: &Browser) {
    is_inert(browser);
    assert_eq!(browser.run("return performance.getEntriesByType('resource').length"), 0);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn pages_of_stored_runs() {
    needs(&[BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let (durations, cover) = (dir.path().join("durations"), dir.path().join("cover"));
    ok(&["import", &stored("func.in/whole.txt"), "-o", text(&durations)]);
    assert!(
        Command::new("cp")
            .arg("-r")
            .args([stored("cover.in"), text(&cover).into()])
            .status()
            .unwrap()
            .success()
    );
    let window = cover.join("window.data");
    let (log, boot) = (dir.path().join("boot.log"), dir.path().join("boot"));
    fs::write(&log, LOG).unwrap();
    ok(&["import", text(&log), "-o", text(&boot)]);
    let view = View::start(&[text(&durations), text(&window), text(&boot)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);

    follow(&browser, &view, 0, "report", "durations");
    let told = json(&["report", "durations", "--json", "--limit", "0", "-i", text(&durations)]);
    let rows = told["rows"].as_array().expect("rows").len();
    let shown = "return document.querySelectorAll('#durations .sorted-table:first-of-type tbody tr.can-choose').length";
    let first = browser.run(shown).as_u64().unwrap();
    assert!(first > 0 && rows > 0, "{first} of {rows}");
    browser.click("#durations .choose");
    assert_eq!(browser.run("return document.querySelectorAll('#durations .loghist svg').length"), 1);
    is_quiet(&browser);

    // The objects of this recording are elsewhere: a page says so, and which.
    visit(&browser, &view.url);
    browser.click("#runs a[href='run/1/cover']");
    let said = browser.wait("return document.querySelector('#message')?.textContent");
    assert!(said.as_str().unwrap().contains("objects could be used; the first: "), "{said}");
    is_inert_message(&browser);

    // With the folder of the build the page is there.
    let build = cover.join("build");
    let with = View::start(&[text(&window), text(&durations), "--build-dir", text(&build)]);
    follow(&browser, &with, 0, "cover", "coverage");
    let lines = json(&["report", "cover", "--json", "-i", text(&window), "--build-dir", text(&build)]);
    let hit = lines["totals"]["lines_hit"].as_u64().expect("a number").to_string();
    let shown = browser.run("return document.querySelector('main').textContent");
    assert!(hit != "0" && shown.as_str().unwrap().contains(&hit), "{hit}: {shown}");
    is_quiet(&browser);
    drop(with);
    for (refused, why) in [
        ([text(&durations), "--build-dir", text(&build)], "no run here has any"),
        ([text(&window), "--build-dir", "/nowhere"], "no such folder"),
    ] {
        let refused = guest::kprism(&[&["view", "--no-open"][..], &refused].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains(why), "{said}");
    }
    visit(&browser, &view.url);

    follow(&browser, &view, 2, "boot", "boot");
    let summary = browser.run("return document.querySelector('summary').textContent");
    let initcalls = browser
        .run("return JSON.parse(document.querySelector('#kprism-data').textContent)[0].initcalls.length");
    assert!(initcalls == 2, "{initcalls}");
    let digits: String = summary.as_str().unwrap().replace(',', "");
    assert!(digits.contains(&format!("{initcalls} initcalls")), "{summary}");
    is_quiet(&browser);
}

#[test]
fn the_page_of_misses() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let tlb = dir.path().join("tlb");
    ok(&["-q", "record", "tlb", "-o", text(&tlb), "--", "ls", "/bin"]);
    let view = View::start(&[text(&tlb), text(&tlb)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    follow(&browser, &view, 0, "tlb", "TLB misses");
    let told = json(&["report", "tlb", "objects", "--json", "--limit", "0", "-i", text(&tlb)]);
    let misses: u64 = told["rows"].as_array().unwrap().iter().map(|o| o["misses"].as_u64().unwrap()).sum();
    assert_eq!(
        browser.run("return Number(document.querySelector('canvas.heat').dataset.shown)"),
        json!(misses)
    );
    is_quiet(&browser);
}

#[test]
fn the_page_of_probes() {
    needs(&[ROOT, BPF, UPROBES, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let (source, program, run) = (dir.path().join("p.c"), dir.path().join("p"), dir.path().join("run"));
    let code = "__attribute__((noinline)) int visit(int n) { __asm__ volatile(\"\"); return n; }\n\
                int main(void) { int s = 0; for (int i = 0; i < 64; i++) s += visit(i); return s == 0; }\n";
    fs::write(&source, code).unwrap();
    assert!(
        Command::new("gcc").args(["-O1", "-g", "-o"]).args([&program, &source]).status().unwrap().success()
    );
    let record =
        ["-q", "record", "probe", "-o", text(&run), "--exec", text(&program), "visit", "--collect", "n"];
    ok(&[&record[..], &["--", text(&program)]].concat());
    let other = dir.path().join("other.data");
    assert!(
        Command::new("cp")
            .arg("-r")
            .args([stored("diff.in/plain.data"), text(&other).into()])
            .status()
            .unwrap()
            .success()
    );
    let view = View::start(&[text(&run), text(&other)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    follow(&browser, &view, 0, "probe", "probes");
    assert_eq!(browser.run("return document.querySelector('#filters .found').textContent"), "64 of 64 hits");
    is_quiet(&browser);
}

/// A program of which the function, the source file and its text have names and words that command a browser or a terminal.
fn hostile(dir: &Path) -> PathBuf {
    let share = dir.join("share");
    fs::create_dir(&share).unwrap();
    let file = "a<img src=x onerror=document.title=1>\u{1b}]0;x\u{7}.c";
    let code = "/* </script><script>document.title=1</script> <img src=x onerror=document.title=2> \u{202e}\u{1b}[2J */\n\
         __attribute__((noinline, noclone)) int leaf(int n) { __asm__ volatile(\"\"); return n + 1; } /* <b>\u{1b}[31m\u{202e} */\n\
         int main(void) { int s = 0; for (int i = 0; i < 50; i++) s += leaf(i); return s == 0; }\n";
    // A line that is not UTF-8, too.
    let bytes = [code.as_bytes(), b"/* \xff\xfe */\n"].concat();
    fs::write(share.join(file), bytes).unwrap();
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-static", "-o", "made", &format!("./{file}")])
        .current_dir(&share)
        .status();
    assert!(built.expect("gcc").success());
    let symbol = format!("leaf={HOSTILE}");
    let renamed = Command::new("objcopy")
        .args(["--redefine-sym", &symbol, "made", "program"])
        .current_dir(&share)
        .status();
    assert!(renamed.expect("objcopy").success());
    let run = dir.join("run.data");
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "/share/program"]);
    run
}

const HOSTILE: &str = "leaf<img src=x onerror=document.title=3>";

#[test]
fn hostile_names_in_the_source_panel() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let run = hostile(dir.path());
    let view = View::start(&[text(&run)]);
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    // A list of one run with one page is that page.
    browser.run(&format!("location.href = {:?}", view.url));
    browser.wait("return document.querySelector('#functions .show-source') && document.documentElement.dataset.painted");
    let row = "const box = document.querySelector('#functions input'); box.value = 'onerror'; box.dispatchEvent(new Event('input'));
         const row = document.querySelector('#functions tbody tr'); row.querySelector('.show-source').id = 'hostile'; return row.querySelector('.choose').textContent";
    assert_eq!(browser.run(row), HOSTILE);
    browser.click("#hostile");
    browser.wait(&format!("return document.querySelector('#source-body').dataset.shown === {HOSTILE:?}"));
    let panel = browser.run("return document.querySelector('#source').textContent");
    let panel = panel.as_str().unwrap();
    assert!(panel.contains("entered 50 times"), "{panel}");
    // Shown as text: the file's name, and its line.
    assert!(panel.contains("<img src=x onerror=document.title=1>"), "{panel}");
    assert!(panel.contains("__attribute__((noinline, noclone)) int leaf(int n)"), "{panel}");
    browser.screenshot("view-hostile");
    is_inert(&browser);
    assert_eq!(browser.console(), Vec::<Value>::new());

    // The same in a file.
    let page = dir.path().join("page.html");
    ok(&["report", "-q", "-i", text(&run), "--html", text(&page), "--annotate", "leaf*@/share/program"]);
    browser.open(&page);
    browser.wait("return document.querySelector('#functions .show-source') && document.documentElement.dataset.painted");
    assert_eq!(browser.run(row), HOSTILE);
    browser.click("#hostile");
    browser.wait(&format!("return document.querySelector('#source-body').dataset.shown === {HOSTILE:?}"));
    is_inert(&browser);
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn a_page_that_takes_long_tells_how_far_it_is() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let run = dir.path().join("run.data");
    let command = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do ls /bin | sed s/a/z/g; done >/dev/null";
    ok(&["lab", "run", "-q", "-o", text(&run), "--", "sh", "-c", command]);
    let view = View::start(&[text(&run)]);
    // A browser is told at once; what it is told has no end but the page.
    let (status, head, first) = view.ask("GET", "/run/0/report", "Accept: text/html,*/*\r\n");
    println!("first reply: {status}, {} bytes", first.len());
    if status == 202 {
        assert!(
            first.contains("<progress")
                && first.contains("id=\"told\"")
                && head.contains("connect-src 'self'"),
            "{first}"
        );
        loop {
            let (status, _, body) = view.get("/run/0/report/progress");
            let now: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(status, 200);
            if now["done"] == true {
                break;
            }
            assert!(now["text"].as_str().is_some_and(|text| !text.is_empty()), "{now}");
            println!("{now}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let (status, _, page) = view.ask("GET", "/run/0/report", "Accept: text/html,*/*\r\n");
        assert!(status == 200 && page.contains("kprism-data"), "{status}");
    } else {
        assert!(status == 200 && first.contains("kprism-data"), "{status}");
    }
    // A program gets the page itself, however long it takes.
    let (status, _, page) = view.get("/run/0/report");
    assert!(status == 200 && page.contains("kprism-data"), "{status}");
    assert_eq!(view.get("/run/1/report/progress").0, 404);
    // In a browser the page appears by itself, with what the address said.
    let again = dir.path().join("again.data");
    ok(&["lab", "run", "-q", "-o", text(&again), "--", "sh", "-c", command]);
    let view = View::start(&[text(&again)]);
    let browser = Browser::start(&dir.path().join("browser"), 1400, 1000);
    browser.run(&format!("location.href = '{}run/0/report#time=0,1000000'", view.url));
    browser.wait("return document.querySelector('#functions .show-source') && document.documentElement.dataset.painted");
    let zoomed = browser.wait("return document.querySelector('canvas.lanes').dataset.view");
    assert_eq!(zoomed, "0,1000000");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

kprism_test::main!();
