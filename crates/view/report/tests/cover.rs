// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of coverage in a browser: levels, search, sorting, sources with counts, runs, dark mode. A large page opens
//! at once. `KPRISM_COVER_PAGE` names a page of a whole kernel to try as well (`make test` and `make test-gcov-kernel`
//! make one).

mod webdriver;

use std::path::Path;
use std::time::Instant;

use kprism_cover::Cover;
use kprism_cover::counters::{Collector, Marks, Object, Runs};
use kprism_cover::cover::{BranchCount, ConditionCount, FunctionTotal, LineCount, Outcomes, Source, Way};
use kprism_gcov::{UnitCounter, data, notes};
use kprism_report::cover::page;
use kprism_store::Account;
use kprism_test::{skip, test};
use webdriver::Browser;

fn open(dir: &Path, page: &str) -> Browser {
    let file = dir.join("page.html");
    std::fs::write(&file, page).unwrap();
    let browser = Browser::start(&dir.join("browser"), 1500, 1000);
    browser.open(&file);
    browser
}

fn text(browser: &Browser, css: &str) -> String {
    let text = browser.run(&format!("return document.querySelector({css:?})?.textContent ?? ''"));
    text.as_str().unwrap().to_owned()
}

/// `samples/t.c` of GCC 16, as of two runs, the second of which executed nothing.
fn sample() -> (Cover, Runs, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../format/gcov/tests/samples");
    let note_bytes = std::fs::read(folder.join("gcc16/t.gcno")).unwrap();
    let counted = data::read(&std::fs::read(folder.join("gcc16/t.gcda")).unwrap()).unwrap();
    let mut nothing = counted.clone();
    nothing.subtract(&counted).unwrap();
    let (collector, marks, mut counter) = (Collector::default(), Marks::default(), UnitCounter::default());
    let notes = notes::read(&note_bytes).unwrap();
    collector.add(&mut counter, Object::default(), &notes, &counted).unwrap();
    for (run, data) in [(0, &counted), (1, &nothing)] {
        marks.mark(run, &notes, &counter.unit(&notes, Some(data)).unwrap());
    }
    let runs = marks.finish(vec!["ls <b>".into(), "true".into()]);
    (collector.finish(), runs, std::fs::read_to_string(folder.join("t.c")).unwrap())
}

#[test]
fn a_real_file_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let (cover, runs, source) = sample();
    let page =
        page::render(&cover, Some(&runs), None, ("a <script>", &Account::new()), &|_| Some(source.clone()))
            .unwrap();
    assert_eq!((page.files, page.without_source), (1, 0));
    let browser = open(dir.path(), &page.html);
    browser.wait("return document.querySelector('table.rows tbody tr')");
    assert_eq!(text(&browser, "h1"), "a <script>");
    let totals = cover.totals();
    let lines = format!("{} of {}", totals.lines.hit, totals.lines.all);
    assert!(text(&browser, ".facts-line").contains(&lines), "{}", text(&browser, ".facts-line"));
    browser.click("table.rows tbody tr .choose");
    browser.wait("return document.querySelector('.source .line')");
    // Counts as in gcov, and the text as in the file.
    let count = |line: u32| text(&browser, &format!("#L{line} .count"));
    assert_eq!([count(1), count(2), count(3), count(4)], ["", "10", "10*", "11"]);
    let third = source.lines().nth(2).unwrap();
    assert_eq!(text(&browser, "#L3 code"), third);
    assert_eq!(text(&browser, "#L4 .branches"), "4/4");
    assert_eq!(text(&browser, "#L4 .by"), "1", "the first run alone executed it");
    assert!(
        browser.run("return document.querySelector('#L3').className").as_str().unwrap().contains("partly")
    );
    browser.screenshot("cover-source");
    browser.click("#L4 .branches");
    let ways = text(&browser, ".ways");
    assert!(ways.contains("taken 10 of 11 (90.9%)"), "{ways}");
    assert!(
        ways.contains("decision 0: 3 of 4 outcomes of conditions seen; condition 2 never true"),
        "{ways}"
    );
    // In the second run alone nothing is executed.
    browser.run(
        "const s = document.querySelector('select'); s.value = '1'; s.dispatchEvent(new Event('change'))",
    );
    browser.wait("return document.querySelector('#L4.other')");
    assert!(text(&browser, ".facts-line").contains(&format!("0 of {}", totals.lines.all)));
    // Dark and back: the background changes.
    let paper = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.run(paper);
    browser.click(".theme");
    assert_ne!(browser.run(paper), light);
    browser.screenshot("cover-dark");
    assert_eq!(browser.console(), Vec::<serde_json::Value>::new());
}

/// As many files, lines and functions as a kernel has.
fn large() -> Cover {
    let sources = (0..1500u32).map(|file| {
        let counts = (1..=250u32).map(|line| (line * 2, i64::from((file * 7 + line * 13) % 5)));
        Source {
            path: format!("/linux/dir{}/sub{}/file{file}.c", file % 20, file % 7),
            lines: counts
                .clone()
                .map(|(line, count)| LineCount { line, unexecuted_block: false, exceptional: false, count })
                .collect(),
            functions: (0..23)
                .map(|n| FunctionTotal {
                    name: format!("function_{file}_{n}"),
                    columns: (0, 0),
                    lines: (n * 20 + 1, n * 20 + 19),
                    called: i64::from((file + n) % 4),
                    returned: 0,
                    blocks: (10, (file + n) % 4),
                    conditions: (0, 0),
                    paths: (0, 0),
                })
                .collect(),
            branches: counts
                .map(|(line, count)| BranchCount {
                    line,
                    function: line / 20,
                    of: 1,
                    place: 0,
                    way: Way::Jump,
                    taken: count,
                    executed: count,
                })
                .collect(),
            conditions: vec![ConditionCount {
                line: 2,
                function: 0,
                place: 0,
                seen: Outcomes { terms: 2, yes: 1, no: 2 },
            }],
        }
    });
    let mut sources: Vec<Source> = sources.collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Cover { sources, objects: 1300, root: Some("/linux".into()), compiler: None }
}

#[test]
fn a_large_tree_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let cover = large();
    let source = |source: &Source| {
        let line = format!("\tif (x[{}] > 1) /* {} */ return 1;\n", source.lines.len(), source.path);
        (!source.path.ends_with("file3.c")).then(|| line.repeat(500))
    };
    let page = page::render(&cover, None, None, ("large", &Account::new()), &source).unwrap();
    assert_eq!((page.files, page.without_source), (1500, 1));
    let browser = open(dir.path(), &page.html);
    browser.wait("return document.querySelectorAll('table.rows tbody tr').length === 20");
    let first =
        |column: u32| text(&browser, &format!("table.rows tbody tr:first-child td:nth-child({column})"));
    // By number of lines executed, from large to small, and round.
    let hits = |names: &dyn Fn(u32) -> bool| -> u64 {
        let all = cover.sources.iter().filter(|source| {
            names(source.path.strip_prefix("/linux/dir").unwrap().split('/').next().unwrap().parse().unwrap())
        });
        all.map(|source| source.totals().lines.hit).sum()
    };
    let most = (0..20).map(|dir| hits(&|found| found == dir)).max().unwrap();
    browser.click("table.rows thead th:nth-child(3) button");
    assert_eq!(first(3).replace(',', ""), most.to_string());
    browser.click("table.rows thead th:nth-child(3) button");
    let least = (0..20).map(|dir| hits(&|found| found == dir)).min().unwrap();
    assert_eq!(first(3).replace(',', ""), least.to_string());
    browser.click("table.rows tbody tr:first-child .choose");
    browser.wait("return document.querySelector('.crumbs [aria-current]')?.textContent.startsWith('dir')");
    browser.click("label[for=level-functions]");
    browser.wait("return document.querySelector('table.rows caption')?.textContent === 'functions'");
    let folder = cover.sources.iter().filter(|s| s.path.starts_with("/linux/dir0/")).count();
    assert_eq!(folder, 75);
    // A function of the whole tree by its name, from there to its source.
    browser.run("location.hash = ''");
    browser.click("input[aria-label='Search files and functions']");
    browser.keys("function_1234_7");
    browser.wait("return document.querySelector('section.functions tbody tr')");
    browser.click("section.functions tbody tr:first-child .choose");
    browser.wait("return document.querySelector('#L141.aim')");
    assert!(text(&browser, ".crumbs").ends_with("file1234.c"));
    let seen = "const r = document.querySelector('.aim').getBoundingClientRect(); return r.top > 0 && r.bottom < innerHeight";
    browser.wait(seen);
    // From one stretch of lines that were not executed to the next.
    let point: Vec<f64> = serde_json::from_value(browser.run(
        "const b = document.querySelector('.next'); b.scrollIntoView({block: 'center'});
         const r = b.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]",
    ))
    .unwrap();
    browser.click_at(point[0], point[1]);
    let at = "return +document.querySelector('.aim').id.slice(1)";
    let next = browser.run(at).as_u64().unwrap();
    let file = cover.sources.iter().find(|source| source.path.ends_with("file1234.c")).unwrap();
    let expected = file.lines.iter().find(|line| line.line > 141 && line.count == 0).unwrap();
    assert_eq!(next, u64::from(expected.line));
    // The address follows, also with keys.
    let address = "return location.hash";
    assert!(browser.run(address).as_str().unwrap().ends_with(&format!("file1234.c:{next}")));
    browser.keys("p");
    let before = browser.run(at).as_u64().unwrap();
    assert!(before < next, "{before}");
    assert!(browser.run(address).as_str().unwrap().ends_with(&format!("file1234.c:{before}")));
    // A file without text has its lines nevertheless.
    browser.run("location.hash = 'dir3/sub3/file3.c'");
    browser.wait("return document.querySelectorAll('.source .line').length === 250");
    browser.screenshot("cover-large");
    assert_eq!(browser.console(), Vec::<serde_json::Value>::new());
}

#[test]
fn a_whole_kernel_opens_at_once() {
    let Some(page) = std::env::var_os("KPRISM_COVER_PAGE") else {
        skip("no KPRISM_COVER_PAGE: make test makes one");
    };
    let dir = tempfile::tempdir().unwrap();
    let browser = Browser::start(&dir.path().join("browser"), 1500, 1000);
    let start = Instant::now();
    browser.open(Path::new(&page));
    browser.wait("return document.querySelector('table.rows tbody tr')");
    let opened = start.elapsed();
    browser.screenshot("cover-kernel");
    let click = Instant::now();
    browser.run("location.hash = 'kernel/sched/fair.c'");
    browser.wait("return document.querySelector('.source .line')");
    let shown = click.elapsed();
    browser.screenshot("cover-fair");
    println!("the page opens in {opened:.2?}, kernel/sched/fair.c in {shown:.2?}");
    assert!(text(&browser, ".source").contains("pick_next_task_fair"));
    assert_eq!(browser.console(), Vec::<serde_json::Value>::new());
}

kprism_test::main!();
