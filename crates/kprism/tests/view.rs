// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism view`: who gets an answer, and pages in a browser whose sources, counts and lines are those of `annotate` and
//! `script`. A run that changes or goes away under the page is told, and nothing of two recordings is mixed.

mod guest;
#[path = "view/served.rs"]
mod served;
#[allow(dead_code)] // Shared with tests that use the mouse and the keyboard.
#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use guest::{alone, json, ok, text};
use kprism_test::{APT, BROWSER, QEMU, needs, test};
use serde_json::{Value, json};
use served::{View, is_inert, parsed, visit};
use webdriver::Browser;

/// Copies a stored run, since reading may write its tables.
fn stored(to: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/diff.in/plain.data");
    let copied = Command::new("cp").arg("-r").args([&from, to]).status();
    assert!(copied.expect("cp").success());
    to.to_owned()
}

#[test]
fn only_the_token_and_the_own_host_get_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (stored(&dir.path().join("one")), stored(&dir.path().join("two")));
    let mut view = View::start(&[text(&one), text(&two)]);
    let (host, token) = view.parts();

    let (status, head, body) = view.get("/");
    assert_eq!(status, 200);
    assert!(body.contains("run/0/report") && body.contains("run/1/report"), "{body}");
    for header in [
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "default-src 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    let (status, head, page) = view.get("/run/0/report");
    assert!(status == 200 && head.contains("connect-src 'self'") && page.contains("kprism-view"), "{head}");
    let (status, head, body) = view.ask("HEAD", "/run/0/report", "");
    assert!(status == 200 && body.is_empty(), "{head}");
    // There are no parts of a page: a range, however large, is the whole.
    let range = format!("Range: bytes=0-{0},{0}-{0}\r\n", u64::MAX);
    let (status, _, body) = view.ask("GET", "/run/0/report", &range);
    assert!(status == 200 && body.len() == page.len());

    // Nobody without the token, no other name for this machine, nothing but reading.
    let request =
        |target: &str, host: &str| {
            parsed(&view.send(
                format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(),
            ))
        };
    let own = format!("/{token}/");
    let mut wrong = token.to_owned();
    wrong.replace_range(..1, if wrong.starts_with('0') { "1" } else { "0" });
    for target in ["/", "/run/0/report", &format!("/{wrong}/"), &own[..own.len() - 1], &format!("/{}", &own)]
    {
        let (status, head, body) = request(target, host);
        assert!((status, body.is_empty()) == (403, true), "{target}: {head}");
    }
    for other in ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""] {
        assert_eq!(request(&own, other).0, 403, "{other}");
    }
    assert_eq!(request(&format!("http://evil.example{own}"), host).0, 403);
    assert_eq!(request(&own, &host.replace("127.0.0.1", "localhost")).0, 200);
    let twice = format!("{host}\r\nHost: evil.example");
    assert_ne!(request(&own, &twice).0, 200);
    let none = format!("GET {own} HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_ne!(parsed(&view.send(none.as_bytes())).0, 200);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X"] {
        assert_eq!(view.ask(method, "/", "").0, 405, "{method}");
    }

    // No path leads out of the runs.
    for path in [
        "/run/0/../../../etc/passwd",
        "/../etc/passwd",
        "/run/0/%2e%2e/%2e%2e/etc/passwd",
        "/run/0/manifest.json",
        "/run/2/report",
        "/run/-1/report",
        "/run/18446744073709551616/report",
        "/run/0/report/",
        "//run/0/report",
        "/%00",
    ] {
        let (status, _, body) = view.get(path);
        assert!(status == 404 && !body.contains("root:"), "{path}: {status}");
    }
    let unknown = view.get("/run/0/source?id=0&name=x&module=y");
    assert_eq!(unknown.0, 409, "{}", unknown.2);
    assert_eq!(view.get("/run/0/source?name=x&module=y").0, 400);
    assert_eq!(view.get(&format!("/?{}", "a".repeat(20_000))).0, 400);

    // Heads without an end, or that are none.
    let large = format!("X: {}\r\n", "a".repeat(1 << 20));
    assert_ne!(view.ask("GET", "/", &large).0, 200);
    let many = "X: a\r\n".repeat(5000);
    assert_ne!(view.ask("GET", "/", &many).0, 200);
    for bytes in [&b"\0\xff\x16\x03\x01"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n\r\n"]
    {
        let mut closed = bytes.to_vec();
        closed.extend(b"\r\n\r\n");
        let reply = view.send(&closed);
        assert!(!reply.contains("200 OK"), "{reply}");
    }

    // Many at a time: each has its page, or is told to ask again.
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..40)
            .map(|n| {
                scope.spawn({
                    let view = &view;
                    move || view.get(["/", "/run/1/report"][n % 2])
                })
            })
            .collect();
        for reply in asked {
            let (status, head, _) = reply.join().unwrap();
            assert!([200, 503].contains(&status), "{head}");
        }
    });
    let (status, _, body) = view.get("/diff?old=0&new=1");
    assert!(status == 200 && body.contains("kprism-data"));

    // A run that goes away is told: by the page, by the list, by data for a page that is still open.
    fs::rename(&one, dir.path().join("away")).unwrap();
    let (status, _, body) = view.get("/run/0/report");
    assert!(status == 410 && body.contains("removed or renamed"), "{status} {body}");
    assert!(view.get("/").2.contains("removed or renamed"));
    assert_eq!(view.get("/run/0/source?id=0&name=x&module=y").0, 410);
    assert_eq!(view.get("/diff?old=0&new=1").0, 410);

    let pid = view.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(view.child.wait().unwrap().code(), Some(0));
}

#[test]
fn it_ends_by_itself_when_nobody_asks() {
    let dir = tempfile::tempdir().unwrap();
    let run = stored(&dir.path().join("run"));
    let begun = Instant::now();
    let mut view = View::start(&["--idle", "1s", text(&run)]);
    // A list of one run with one page is that page.
    let (status, head, _) = view.get("/");
    assert!(status == 303 && head.contains("location: run/0/report"), "{head}");
    assert_eq!(view.child.wait().unwrap().code(), Some(0));
    assert!(begun.elapsed() >= Duration::from_secs(1));

    let refused = |args: &[&str], why: &str| {
        let output = guest::kprism(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(why), "{args:?}: {said}");
    };
    refused(&["view", "--no-open", text(&dir.path().join("none"))], "none");
    fs::create_dir(dir.path().join("empty")).unwrap();
    refused(&["view", "--no-open", text(&dir.path().join("empty"))], "neither a run nor a folder with runs");
    refused(&["view", "--no-open", "--source-dir", "/nowhere", text(&run)], "--source-dir /nowhere");
    refused(&["view", "--idle", "30x", text(&run)], "30m");
    let taken = View::start(&[text(&run)]);
    let port = taken.parts().0.split_once(':').unwrap().1.to_owned();
    refused(&["view", "--no-open", "--port", &port, text(&run)], "cannot listen");
}

/// Records the program of `view/source.c`.
fn recorded(dir: &Path) -> PathBuf {
    let share = dir.join("share");
    fs::create_dir(&share).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/view/source.c");
    fs::copy(source, share.join("source.c")).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-g", "-static", "-o", "program", "source.c"])
        .current_dir(&share)
        .status();
    assert!(built.expect("a C compiler is installed").success());
    let run = dir.join("run.data");
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "/share/program"]);
    run
}

/// Shows a function's source by the table of functions.
fn choose(browser: &Browser, name: &str) {
    let row = format!(
        "const box = document.querySelector('#functions input'); box.value = {name:?}; box.dispatchEvent(new Event('input'));
         const row = [...document.querySelectorAll('#functions tbody tr')].find((r) => r.querySelector('.choose').textContent === {name:?});
         document.querySelectorAll('#chosen-row').forEach((e) => e.removeAttribute('id'));
         if (row) row.querySelector('.show-source').id = 'chosen-row'; return !!row"
    );
    assert_eq!(browser.run(&row), json!(true), "{name}");
    browser.click("#chosen-row");
}

/// Instructions of the panel: offset and count.
const INSNS: &str = "return [...document.querySelectorAll('#source .insn')].map((r) => [Number(r.dataset.offset), Number(r.dataset.count)])";
/// Source lines of the panel with a count.
const LINES: &str = "return [...document.querySelectorAll('#source .line[data-count]')].map((r) => [Number(r.dataset.line), Number(r.dataset.count)])";

/// The panel shows the counts of `kprism annotate`.
fn is_annotated(browser: &Browser, told: &Value) {
    let lines = told["lines"].as_array().unwrap();
    let insns: Vec<Value> = lines.iter().map(|line| json!([line["offset"], line["count"]])).collect();
    assert_eq!(browser.run(INSNS), Value::from(insns));
    let mut most: BTreeMap<u64, u64> = BTreeMap::new();
    for line in lines {
        let Some(own) = line["source"][0]["line"].as_u64() else { continue };
        let count = line["count"].as_u64().unwrap();
        let entry = most.entry(own).or_default();
        *entry = (*entry).max(count);
    }
    // Lines that hold only inlined calls have no instruction of their own.
    let shown: Vec<(u64, u64)> = serde_json::from_value(browser.run(LINES)).unwrap();
    for (line, count) in &most {
        assert!(shown.contains(&(*line, *count)), "line {line}: {count} in {shown:?}");
    }
}

#[test]
fn source_beside_the_flow() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let run = recorded(dir.path());
    let other = dir.path().join("other.data");
    ok(&["lab", "run", "-q", "-o", text(&other), "--", "ls", "/bin"]);
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    let named = View::start_in(dir.path(), &["run.data", "other.data"]);
    visit(&browser, &named.url);
    let names = browser.run("return [...document.querySelectorAll('#runs code')].map((c) => c.textContent)");
    assert!(names.as_array().unwrap().contains(&json!("run.data")), "{names}");
    browser.screenshot("view-index");
    drop(named);
    let view = View::start(&[text(&run), text(&other)]);

    // From the list to the run.
    visit(&browser, &view.url);
    assert_eq!(browser.run("return document.querySelectorAll('#runs tr').length"), 3);
    browser.click("#runs a");
    browser.wait(
        "return document.querySelector('#functions .show-source') && document.readyState === 'complete'",
    );

    // A function with debug information: its lines, its instructions, the ways of its branch.
    let annotate = |name: &str| json(&["annotate", name, "--json", "-i", text(&run)]);
    choose(&browser, "leaf");
    browser.wait("return document.querySelector('#source-body').dataset.shown === 'leaf'");
    let told = annotate("leaf@/share/program");
    assert_eq!(told["entered"], 1000);
    is_annotated(&browser, &told);
    let branch = "return document.querySelector('#source .line .taken[title*=\"of 1,000\"]')?.title";
    let branch = browser.run(branch);
    assert!(branch.as_str().is_some_and(|title| title.contains("taken 750 of 1,000")), "{branch}");
    let code = browser.run("return document.querySelector('#source .sources').textContent");
    assert!(code.as_str().unwrap().contains("sum ^= n; /* <b>bold</b> */"), "{code}");
    browser.screenshot("view-source");

    // A line marks its instructions, an instruction its line.
    browser.run("document.querySelector('#source .line[data-count=\"750\"]').id = 'odd'");
    browser.click("#odd");
    let aimed =
        browser.run("return [...document.querySelectorAll('#source .insn.aim')].map((r) => r.dataset.count)");
    assert_eq!(aimed, json!(["750", "750"]));
    browser.click("#source .insn");
    let aimed = "return document.querySelector('#source .line.aim .taken')?.title";
    assert!(browser.run(aimed).as_str().is_some_and(|title| title.contains("750")));

    // Its caller is one click away, and names it as what it calls.
    browser.click("#source .callers .show-source");
    browser.wait("return document.querySelector('#source-body').dataset.shown === 'work'");
    is_annotated(&browser, &annotate("work@/share/program"));
    let callees = browser.run("return document.querySelector('#source .callees').textContent");
    assert!(callees.as_str().unwrap().contains("leaf 1,000"), "{callees}");
    browser.click("#source .insns .jump");
    browser.wait("return document.querySelector('#source-body').dataset.shown === 'leaf'");

    // The kernel's: instructions, and a word on what is missing.
    choose(&browser, "ksys_write");
    browser.wait("return document.querySelector('#source-body').dataset.shown === 'ksys_write'");
    is_annotated(&browser, &annotate("ksys_write@[kernel]"));
    let told = annotate("ksys_write@[kernel]");
    if told["lines"][0]["source"].is_null() {
        let missing = browser.run("return document.querySelector('#source .missing')?.textContent");
        assert!(missing.as_str().is_some_and(|text| text.contains("--vmlinux FILE")), "{missing}");
    }

    // The instructions of an interval are those of `script`.
    browser.click("#intervals .choose");
    browser.run("[...document.querySelectorAll('#intervals .table-box, #intervals table')].filter((t) => t.querySelector('caption')?.textContent === 'the longest intervals' || t.getAttribute('aria-label') === 'the longest intervals').forEach((t) => { t.id = 'longest'; })");
    browser.click("#longest tbody tr .choose");
    let typed = browser.run("return document.querySelector('#longest .command code').textContent");
    let typed = typed.as_str().unwrap().to_owned();
    assert!(typed.contains(&format!(" -i {}", text(&run))), "{typed}");
    browser.click("#longest .show-lines");
    let lines = browser.wait("return document.querySelector('#longest .flow-lines')?.textContent");
    let words: Vec<&str> = typed.split(' ').skip(1).collect();
    let printed = String::from_utf8(ok(&words)).unwrap();
    let printed: Vec<&str> = printed.lines().take(2000).collect();
    assert_eq!(lines.as_str().unwrap().lines().collect::<Vec<_>>(), printed);
    assert!(!printed.is_empty());
    browser.screenshot("view-lines");
    is_inert(&browser);
    assert_eq!(browser.console(), Vec::<Value>::new());

    // Another recording in the same place: the open page gets nothing of it.
    fs::rename(&run, dir.path().join("old.data")).unwrap();
    fs::rename(&other, &run).unwrap();
    choose(&browser, "main");
    let warning = browser.wait("return document.querySelector('#source .warning')?.textContent");
    assert!(warning.as_str().unwrap().contains("recorded anew"), "{warning}");
    // None at all.
    fs::rename(&run, &other).unwrap();
    choose(&browser, "work");
    let gone = "const w = document.querySelector('#source .warning')?.textContent; return w?.includes('removed') && w";
    browser.wait(gone);
    browser.screenshot("view-gone");
    // The server itself.
    drop(view);
    choose(&browser, "leaf");
    browser
        .wait("return document.querySelector('#source .warning')?.textContent.includes('does not answer')");
}

#[test]
fn trees_too_large_for_the_page_are_fetched() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let run = dir.path().join("many.data");
    let command = "for i in $(seq 80); do /bin/true; done";
    ok(&["lab", "run", "-q", "-o", text(&run), "--", "sh", "-c", command]);
    let view = View::start(&[text(&run)]);
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    visit(&browser, &format!("{}run/0/report", view.url));
    browser.wait("return document.querySelector('#scope option[value^=\"task:\"]') && true");
    let tasks = json(&["report", "tasks", "--json", "--limit", "0", "-i", text(&run)]);
    let rows = tasks["rows"].as_array().expect("rows");
    let shown = "return [...document.querySelectorAll('#scope option')].filter((o) => o.value.startsWith('task:') || /\\[\\d+\\]$/.test(o.textContent)).length";
    assert_eq!(browser.run(shown), json!(rows.len()));
    // A task that the page has no tree of, chosen: its instructions are those of the table.
    let chosen = browser.run(
        "const s = document.querySelector('#scope'); const o = s.querySelector('option[value^=\"task:\"]');
         s.value = o.value; s.dispatchEvent(new Event('change')); return o.textContent",
    );
    let chosen = chosen.as_str().unwrap().to_owned();
    let (comm, pid) = chosen.trim_end_matches(']').rsplit_once(" [").unwrap();
    browser.wait(
        "const s = document.querySelector('#scope');
         return document.querySelector('#fetched').textContent === '' && !s.disabled && /^\\d+$/.test(s.value)",
    );
    let one =
        ["report", "functions", "--json", "--limit", "0", "-i", text(&run), "--task", pid, "--comm", comm];
    let functions = json(&one)["rows"].as_array().expect("rows").len();
    assert!(functions > 10, "{functions}");
    let left = "const b = document.querySelector('#functions .more');
         return document.querySelectorAll('#functions tbody tr').length
           + (b ? Number(b.textContent.replace(/[^0-9]/g, '')) : 0)";
    assert_eq!(browser.run(left), json!(functions), "{chosen}");
    assert_eq!(browser.console(), Vec::<Value>::new());
}

#[test]
fn sources_in_one_file() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let _alone = alone();
    let run = recorded(dir.path());
    let page = dir.path().join("page.html");
    let report = ["report", "-q", "-i", text(&run), "--html", text(&page)];
    ok(&[&report[..], &["--source", "2", "--annotate", "leaf@/share/program"]].concat());
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1100);
    browser.open(&page);
    browser.wait("return document.querySelector('#functions .show-source') && true");
    let embedded =
        browser.run("return JSON.parse(document.querySelector('#kprism-data').textContent).sources.length");
    assert_eq!(embedded, 3);
    choose(&browser, "leaf");
    browser.wait("return document.querySelector('#source-body').dataset.shown === 'leaf'");
    is_annotated(&browser, &json(&["annotate", "leaf@/share/program", "--json", "-i", text(&run)]));
    // Not in the file: the commands that show it.
    choose(&browser, "work");
    let told = browser.run("return document.querySelector('#source .command code').textContent");
    assert_eq!(told, "kprism annotate work@/share/program");
    is_inert(&browser);
    let loaded = "return performance.getEntriesByType('resource').length";
    assert_eq!((browser.run(loaded), browser.console()), (json!(0), Vec::<Value>::new()));

    // What would change nothing is refused.
    for refused in [
        &["report", "-i", text(&run), "--source", "2"][..],
        &[&report[..], &["--debug-dir", "/usr"]].concat(),
        &[&report[..], &["--annotate", "no_such_function"]].concat(),
        &["report", "-i", text(&run), "--vmlinux", text(&page)],
    ] {
        assert_eq!(guest::kprism(refused).status.code(), Some(2), "{refused:?}");
    }
}

kprism_test::main!();
