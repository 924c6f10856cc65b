// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a slow call to its instructions: the lists of longest calls, the chart's panel, the longest intervals and the lanes
//! lead to the moment on the timeline. Its instructions there are those that `kprism script` prints by the command on the page.

mod guest;
#[path = "view/served.rs"]
mod served;
#[allow(dead_code)] // Shared with tests that use the mouse and the keyboard.
#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use guest::{alone, ok, text};
use kprism_test::{APT, BROWSER, QEMU, needs, test};
use serde_json::{Value, json};
use served::{View, is_inert, visit};
use webdriver::Browser;

/// Lines of an answer at most.
const MOST: usize = 2000;

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// The command of the moment on show.
fn command(browser: &Browser) -> String {
    string(&browser.run("return document.querySelector('.moment .command code')?.textContent"))
}

/// The moment's lines on the page are those of its command, and what is left out is counted.
fn lines_are_those_of_script(browser: &Browser) -> Vec<String> {
    let shown = string(&browser.wait("return document.querySelector('.moment .flow-lines')?.textContent"));
    let typed = command(browser);
    let words: Vec<&str> = typed.split(' ').skip(1).collect();
    let printed = String::from_utf8(ok(&words)).unwrap();
    let printed: Vec<String> = printed.lines().map(str::to_owned).collect();
    assert!(!printed.is_empty(), "{typed}");
    let first: Vec<&str> = printed.iter().take(MOST).map(String::as_str).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), first, "{typed}");
    let said = string(&browser.run("return document.querySelector('.moment .lines-said').textContent"));
    match printed.len().checked_sub(MOST) {
        None | Some(0) => assert!(!said.contains("more"), "{said}"),
        Some(_) => assert!(said.contains("First 2,000") || said.contains("first 2,000"), "{said}"),
    }
    printed
}

/// The view of the timeline, ns since its start.
fn on_show(browser: &Browser) -> [f64; 2] {
    let view = browser.wait("return document.querySelector('canvas.lanes').dataset.view");
    let numbers: Vec<f64> = string(&view).split(',').map(|n| n.parse().unwrap()).collect();
    [numbers[0], numbers[1]]
}

/// The address names the chosen item.
fn item(browser: &Browser) -> String {
    string(&browser.run("return new URLSearchParams(location.hash.slice(1)).get('item') ?? ''"))
}

#[test]
fn slow_calls_lead_to_their_instructions() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let run = dir.path().join("run.data");
    ok(&[
        "lab",
        "run",
        "-q",
        "-o",
        text(&run),
        "--",
        "sh",
        "-c",
        "for i in 1 2 3; do ls /bin | sed s/a/z/g; done",
    ]);
    let view = View::start(&[text(&run)]);
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    let page = format!("{}run/0/report", view.url);
    visit(&browser, &page);
    browser.wait("return document.documentElement.dataset.painted");

    // The longest calls of the system call that took most.
    browser.wait("return document.querySelector('.slow .single') && true");
    let name = string(&browser.run("return document.querySelector('.histogram strong').textContent"));
    let whole = on_show(&browser);
    let longest = browser
        .run("return [...document.querySelectorAll('.slow .single .value')].map((v) => v.textContent)");
    browser.click(".slow .single");
    let printed = lines_are_those_of_script(&browser);
    // The lines are of that call: its first instruction is the kernel's entry, and the page told how many there are.
    assert!(printed[0].contains("entry_SYSCALL_64"), "{}", printed[0]);
    let told = string(&browser.run("return document.querySelector('.moment > .note').textContent"));
    let insns = told.split("; ").nth(1).and_then(|part| part.split(' ').next()).expect("a number");
    assert_eq!(insns.replace(',', ""), printed.len().to_string(), "{told}");
    if printed.len() > MOST {
        let left = browser
            .run("return document.querySelector('.moment .lines-said').textContent.replaceAll(',', '')");
        assert!(string(&left).contains(&format!("{} more", printed.len() - MOST)), "{left}");
    }
    assert!(
        string(&browser.run("return document.querySelector('.moment h3').textContent")).starts_with(&name)
    );
    let took = browser.run("return document.querySelector('.details .facts td').textContent");
    assert_eq!(took, longest[0]);
    let near = on_show(&browser);
    assert!(near[1] - near[0] < whole[1] - whole[0], "{near:?}");
    // The timeline is on the screen and has the keyboard; the address keeps the call.
    let there = "const b = document.querySelector('canvas.lanes').getBoundingClientRect();
         return [document.activeElement.className, b.top < innerHeight && b.bottom > 0]";
    assert_eq!(browser.run(there), json!(["lanes", true]));
    let kept = item(&browser);
    assert!(!kept.is_empty());
    browser.screenshot("moment");
    let goto =
        string(&browser.run("return document.querySelectorAll('.moment .command code')[1].textContent"));
    assert!(goto.starts_with(&format!("kprism lab goto {} --at ", text(&run))), "{goto}");

    // By the chart: a function's longest single call, and from there its source.
    browser.run("const s = document.querySelector('#functions input'); s.value = 'ksys_read'; s.dispatchEvent(new Event('input'))");
    browser.run(
        "const arc = [...document.querySelectorAll('path.arc')].find((a) => a.getAttribute('aria-label').startsWith('main,'));
         arc.dispatchEvent(new MouseEvent('click', {bubbles: true}))",
    );
    browser.wait("return document.querySelector('.panel .single') && true");
    browser.click(".panel .single");
    browser.wait("return document.querySelector('.moment h3')?.textContent.startsWith('main')");
    lines_are_those_of_script(&browser);
    assert_ne!(item(&browser), kept);
    browser.click(".moment .show-source");
    browser.wait("return document.querySelector('#source-body').dataset.shown === 'main'");

    // An interval; the keyboard presses the buttons.
    browser.run("document.querySelector('#intervals .choose').focus()");
    browser.keys("\u{e007}");
    browser.run(
        "const t = [...document.querySelectorAll('#intervals table')].find((t) => t.caption?.textContent === 'the longest intervals');
         t.id = 'longest'; t.querySelector('.choose').focus()",
    );
    browser.keys("\u{e007}");
    browser.wait("return document.querySelector('#longest .show-at') && true");
    browser.run("document.querySelector('#longest .show-at').focus()");
    browser.keys("\u{e007}");
    browser.wait("return document.querySelector('.moment .flow-lines') && document.querySelector('.moment .note').textContent.startsWith('interval')");
    lines_are_those_of_script(&browser);
    let typed = string(&browser.run("return document.querySelector('#longest .command code').textContent"));
    assert_eq!(command(&browser), typed);

    // An item chosen on the timeline shows the command; its lines only when they are asked for.
    browser.keys(".");
    browser.keys(",");
    let asked = "return [document.querySelectorAll('.moment .flow-lines').length, document.querySelectorAll('.moment .show-lines').length]";
    assert_eq!(browser.run(asked), json!([0, 1]));
    browser.click(".moment .show-lines");
    lines_are_those_of_script(&browser);
    is_inert(&browser);
    assert_eq!(browser.console(), Vec::<Value>::new());

    // In a file: the same jump, and commands instead of a server.
    let file = dir.path().join("page.html");
    ok(&["report", "-q", "-i", text(&run), "--html", text(&file)]);
    browser.open(&file);
    browser
        .wait("return document.querySelector('.slow .single') && document.documentElement.dataset.painted");
    browser.click(".slow .single");
    let typed = command(&browser);
    assert!(typed.starts_with("kprism script insns --task "), "{typed}");
    assert_eq!(browser.run("return document.querySelectorAll('.moment .show-lines').length"), 0);
    assert_eq!(item(&browser), kept);
}

kprism_test::main!();
