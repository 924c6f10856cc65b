// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of TLB misses and of probes, of real runs, in a browser: their sums are those of the terminal's tables, clicks,
//! filters and the address do what they say, and names that command a browser or a terminal do nothing.

#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_test::{APT, BPF, BROWSER, QEMU, ROOT, UPROBES, needs, test};
use serde_json::{Value, json};
use webdriver::Browser;

const SYMBOL: &str = "table<img src=x onerror=document.title=1>";

fn ok(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--json", "--limit", "0"]].concat())).expect("JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The program whose names are hostile, in a file whose name is.
fn program(dir: &Path, options: &[&str]) -> PathBuf {
    let (source, made) = ("tests/pages/names.c", dir.join("made"));
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../bench/tlb");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-pthread", include, "-o"]).args([&made]).args(options);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    assert!(compiler.arg(source).status().expect("gcc").success());
    let program = dir.join("na<b>mes");
    let rename = format!("table={SYMBOL}");
    let renamed = Command::new("objcopy").args(["--redefine-sym", &rename]).args([&made, &program]).status();
    assert!(renamed.expect("objcopy").success());
    program
}

/// Opens a page, and waits until it can be used.
fn open(dir: &Path, page: &Path) -> Browser {
    let browser = Browser::start(&dir.join("browser"), 1500, 1100);
    browser.open(page);
    let ready = browser.wait("return document.documentElement.dataset.ready");
    let bytes = std::fs::metadata(page).unwrap().len();
    println!("{}: {bytes} bytes, could be used after {} ms", page.display(), ready.as_str().unwrap());
    browser
}

/// The data in a page.
fn data(page: &Path) -> Value {
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn content(browser: &Browser, css: &str) -> String {
    let text = browser.run(&format!("return document.querySelector({css:?})?.textContent"));
    text.as_str().unwrap_or_else(|| panic!("no {css}")).to_owned()
}

fn hash(browser: &Browser) -> String {
    browser.run("return location.hash").as_str().unwrap().to_owned()
}

/// Returns true if the address narrows the time.
fn has_time(browser: &Browser) -> bool {
    hash(browser).split(['#', '&']).any(|choice| choice.starts_with("t="))
}

/// Nothing in any name was obeyed, and nothing was loaded.
fn is_inert(browser: &Browser) {
    let title = browser.run("return document.title");
    assert!(title.as_str().unwrap().ends_with(" · kprism"), "{title}");
    let odd = "return [document.images.length, document.querySelectorAll('main b:not(.tip b), main script, main img').length,
         performance.getEntriesByType('resource').length,
         [...document.body.textContent].filter((c) => /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u202a-\\u202e]/.test(c)).length]";
    assert_eq!(browser.run(odd), json!([0, 0, 0, 0]));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Loads the page again by its address, and waits.
fn reload(browser: &Browser) {
    browser.run("document.documentElement.dataset.ready = ''; location.reload()");
    browser.wait("return document.readyState === 'complete' && document.documentElement.dataset.ready");
}

#[test]
fn misses_on_a_page() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    program(&shared, &["-static"]);
    let (run, page) = (dir.path().join("run"), dir.path().join("page.html"));
    let share = format!("{}:/bench", text(&shared));
    let words = ["/bench/na<b>mes", "512"];
    ok(&[&["-q", "record", "tlb", "-o", text(&run), "--share", &share, "--"][..], &words].concat());
    ok(&["report", "tlb", "-i", text(&run), "--html", text(&page)]);
    let browser = open(dir.path(), &page);
    let data = data(&page);

    // The sums of the page are those of the tables.
    let told = json(&["report", "tlb", "objects", "-i", text(&run)]);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    let mut listed: Vec<(u64, String)> = told["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| (number(&o["misses"]), format!("{:#x}", number(&o["start"]))))
        .collect();
    let of_page = data["objects"].as_array().unwrap().iter();
    let mut shown: Vec<(u64, String)> =
        of_page.map(|o| (number(&o["misses"][0]), o["start"].as_str().unwrap().into())).collect();
    listed.sort();
    shown.sort();
    assert_eq!(listed, shown);
    let all: u64 = listed.iter().map(|(n, _)| n).sum();
    assert!(all > 5000, "{all}");
    let cells =
        |row: &Value| row["cells"].as_array().unwrap().chunks(2).map(|cell| number(&cell[1])).sum::<u64>();
    let rows = data["map"]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(cells).sum::<u64>(), all);
    let drawn = "return Number(document.querySelector('canvas.heat').dataset.shown)";
    assert_eq!(browser.run(drawn), json!(all));
    for (at, object) in data["objects"].as_array().unwrap().iter().enumerate() {
        let own: u64 = rows.iter().filter(|row| row["object"] == json!(at)).map(cells).sum();
        assert_eq!(own, number(&object["misses"][0]), "{object}");
    }
    let told = json(&["report", "tlb", "distribution", "-i", text(&run)]);
    for row in told["rows"].as_array().unwrap() {
        for together in [1, 4, 8] {
            let curves = data["curves"].as_array().unwrap().iter();
            let curve = curves
                .filter(|c| c["process"] == "all processes" && c["size"] == row["page_size"])
                .find(|c| c["together"] == json!(together));
            let curve = curve.unwrap_or_else(|| panic!("no curve of {row}"));
            let percent = number(&row["pages_percent"]) as usize;
            assert_eq!(curve["average"][percent - 1], row[format!("average_{together}")], "{row}");
            assert_eq!(curve["cdf"][percent], row[format!("cdf_{together}_percent")], "{row}");
        }
    }
    let told = json(&["report", "tlb", "advice", "-i", text(&run)]);
    let keys = data["advice"]["keys"].as_array().unwrap();
    let of_page: Vec<Value> = data["advice"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            keys.iter()
                .zip(row.as_array().unwrap())
                .map(|(k, c)| (k.as_str().unwrap(), c[0].clone()))
                .collect()
        })
        .collect();
    assert_eq!(told["rows"], Value::from(of_page));
    assert_eq!(told["run"]["account"], data["account"]);

    // The table has them as the terminal: texts too. A click tells who allocated it, and the address keeps it.
    let first = "#objects tbody tr:nth-child(1)";
    let named =
        "[...document.querySelectorAll('#objects tbody tr')].find((r) => r.textContent.includes('main ('))";
    browser.run(&format!("{named}.id = 'array'"));
    browser.click("#array .choose");
    let places = "return [...document.querySelectorAll('.panel .allocated li')].map((li) => li.textContent)";
    let places = browser.run(places);
    assert_eq!(places[0], "array (tlb.h:25)", "{places}");
    assert!(
        places[1].as_str().unwrap().starts_with("main (<script>document.title=1<script>.c:1"),
        "{places}"
    );
    let panel = content(&browser, ".panel");
    assert!(hash(&browser).contains("object="), "{}", hash(&browser));
    reload(&browser);
    assert_eq!(content(&browser, ".panel"), panel);

    // Sorted by name, the other way round; that is kept too.
    browser.click("#objects th:nth-child(3) button");
    browser.click("#objects th:nth-child(3) button");
    let last = content(&browser, first);
    reload(&browser);
    assert_eq!(content(&browser, first), last);

    // Narrowing the time leaves fewer misses, and 0 shows all again.
    browser.run("document.querySelector('canvas.heat').focus()");
    browser.keys("+++");
    let fewer = browser.run(drawn).as_u64().unwrap();
    assert!(fewer < all && has_time(&browser), "{fewer} {}", hash(&browser));
    reload(&browser);
    assert_eq!(browser.run(drawn), json!(fewer));
    browser.run("document.querySelector('canvas.heat').focus()");
    browser.keys("0");
    assert_eq!(browser.run(drawn), json!(all));
    assert!(!has_time(&browser), "{}", hash(&browser));

    // A click in the map chooses what is there.
    let at = browser.run(
        "const c = document.querySelector('canvas.heat'); c.scrollIntoView({block: 'center'});
         const b = c.getBoundingClientRect(); return [b.x, b.y, b.width]",
    );
    let at: Vec<f64> = serde_json::from_value(at).unwrap();
    browser.run("history.replaceState(null, '', '#'); dispatchEvent(new HashChangeEvent('hashchange'))");
    let middle = rows.len() / 2;
    let y = 22.0 + (middle as f64 + 0.5) / rows.len() as f64 * 560.0;
    browser.click_at(at[0] + 400.0, at[1] + y);
    assert_eq!(hash(&browser), format!("#object={}", rows[middle]["object"]));
    let tip = content(&browser, ".tip strong");
    assert_eq!(tip, data["objects"][number(&rows[middle]["object"]) as usize]["name"]);
    let frame = browser.run("return document.querySelector('.tip').hidden");
    assert_eq!(frame, false);
    browser.screenshot("tlb");

    // The search finds the variable whose name is markup.
    browser.keys("/");
    browser.keys("onerror");
    let found = content(&browser, ".found");
    assert!(found.starts_with("1 object, "), "{found}");
    assert!(content(&browser, first).contains(SYMBOL));
    // The numbers behind the map, and behind the curves.
    browser.click("#map .behind summary");
    browser.wait("return document.querySelector('#map .behind tbody td')?.textContent");
    let behind = content(&browser, "#map .behind tbody");
    assert!(behind.contains(SYMBOL), "{behind}");
    browser.click("#curves .behind summary");
    let rows = "return document.querySelectorAll('#curves .behind tbody tr').length || null";
    assert_eq!(browser.wait(rows), 16);
    browser.run("document.querySelector('#curves').scrollIntoView()");
    browser.screenshot("tlb-curves");
    browser.click("label[for=lines-sizes]");
    assert!(content(&browser, ".legend.lines").contains("all page sizes"));
    browser.click(".theme");
    browser.run("document.querySelector('#map').scrollIntoView()");
    browser.screenshot("tlb-dark");
    is_inert(&browser);
}

/// A run of probes on the program.
struct Probed {
    dir: tempfile::TempDir,
    run: PathBuf,
    page: PathBuf,
}

impl Probed {
    fn new(options: &[&str]) -> Self {
        needs(&[ROOT, BPF, UPROBES, BROWSER]);
        let dir = tempfile::tempdir().unwrap();
        let program = program(dir.path(), &[]);
        let (run, page) = (dir.path().join("run"), dir.path().join("page.html"));
        let probe = ["-q", "record", "probe", "-o", text(&run), "--exec", text(&program), "visit"];
        ok(&[&probe[..], options, &["--", text(&program), "64"]].concat());
        Probed { dir, run, page }
    }

    fn open(&self) -> Browser {
        ok(&["report", "probe", "-i", text(&self.run), "--html", text(&self.page)]);
        open(self.dir.path(), &self.page)
    }

    fn json(&self) -> Value {
        json(&["report", "probe", "-i", text(&self.run)])
    }
}

/// Sums of the bars of each plot.
const BARS: &str = "return [...document.querySelectorAll('#plots .plot')].map((p) =>
     [...p.querySelectorAll('.bin')].reduce((sum, b) => sum + Number(b.dataset.count), 0))";

#[test]
fn hits_on_a_page() {
    let probed = Probed::new(&["--collect", "count,text,$comm,count * 3"]);
    let told = probed.json();
    let records = told["rows"].as_array().unwrap();
    assert_eq!(records.len(), 300);
    // A recorder that lost some says so.
    let path = probed.run.join("streams/probe/probes.json");
    let mut probes: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    probes["counts"][0]["lost"] = json!(7);
    probes["counts"][0]["passed"] = json!(307);
    std::fs::write(&path, probes.to_string()).unwrap();
    let browser = probed.open();
    assert!(content(&browser, "#hits .beside").contains("7 records for which a ring had no room"));
    assert!(content(&browser, "#hits .beside").contains("This page has all 300 records."));

    // Every value is that of the records; sums too.
    let data = data(&probed.page);
    let column = &data["rows"]["columns"][0];
    for (hit, record) in records.iter().enumerate() {
        assert_eq!(column["values"][hit], record["values"]["count"], "{record}");
    }
    let sum: f64 = records.iter().map(|r| r["values"]["count"].as_f64().unwrap()).sum();
    assert_eq!((column["sum"].as_f64(), column["count"].as_u64()), (Some(sum), Some(300)));

    // All hits are in the bars; a click keeps those of one bar, and the address too.
    assert_eq!(browser.run(BARS), json!([300]));
    let bar = browser
        .run("const b = document.querySelector('#plots .bin'); b.id = 'bar'; return Number(b.dataset.count)");
    browser.click("#bar");
    let found = format!("{bar} of 300 hits");
    assert_eq!(content(&browser, "#filters .found"), found);
    assert_eq!(browser.run(BARS), json!([bar]));
    reload(&browser);
    assert_eq!(content(&browser, "#filters .found"), found);
    let low = records.iter().filter_map(|r| r["values"]["count"].as_u64()).filter(|n| *n < 50).count();
    assert_eq!(bar, json!(low), "{}", content(&browser, ".chips"));
    browser.click(".chips button");
    assert_eq!(content(&browser, "#filters .found"), "300 of 300 hits");

    // One plot for each text; as many hits as the records have.
    browser.run(
        "const s = document.querySelector('#choose-key'); s.value = 'text'; s.dispatchEvent(new Event('change'))",
    );
    assert_eq!(browser.run(BARS), json!([60, 60, 60, 60, 60]));
    browser.screenshot("probe");
    browser.click("label[for=plot-scatter]");
    let dots = "return [...document.querySelectorAll('#plots canvas')].map((c) => Number(c.dataset.dots))";
    assert_eq!(browser.run(dots), json!([60, 60, 60, 60, 60]));
    browser.screenshot("probe-scatter");
    browser.click("label[for=plot-time]");
    assert_eq!(browser.run(BARS), json!([60, 60, 60, 60, 60]));
    browser.click("#plots .behind summary");
    let behind = "return [...document.querySelectorAll('#plots .behind tbody td:nth-child(2)')].reduce((s, c) => s + Number(c.textContent), 0) || null";
    // It is made when it is opened, a moment after the click.
    assert_eq!(browser.wait(behind), 60);

    // A search, and the table in the other order.
    browser.keys("/");
    browser.keys("plain");
    assert_eq!(content(&browser, "#filters .found"), "60 of 300 hits");
    browser.click("#hits th:nth-child(5) button");
    let most = records.iter().filter(|r| r["values"]["text"] == "plain");
    let most = most.filter_map(|r| r["values"]["count"].as_u64()).max().unwrap();
    assert_eq!(content(&browser, "#hits tbody tr td:nth-child(5)"), most.to_string());
    let row = content(&browser, "#hits tbody tr");
    reload(&browser);
    assert_eq!(content(&browser, "#hits tbody tr"), row);
    browser.click(".theme");
    browser.screenshot("probe-dark");
    is_inert(&browser);
}

#[test]
fn counts_on_a_page() {
    let probed = Probed::new(&["--by", "text", "--hist", "count", "--sum", "count", "--avg", "count"]);
    let told = probed.json();
    let rows = told["totals"][0]["rows"].as_array().unwrap();
    let browser = probed.open();
    let of_table = browser.run(
        "return [...document.querySelectorAll('#counts-0 tbody tr td:nth-child(1)')].map((c) => Number(c.textContent))",
    );
    let counts: Vec<u64> = rows.iter().map(|row| row["count"].as_u64().unwrap()).collect();
    assert_eq!((counts.iter().sum::<u64>(), of_table), (300, json!(counts)));
    let bars = browser.run(
        "return [...document.querySelectorAll('#counts-0 .plot')].map((p) =>
           [...p.querySelectorAll('.bin')].map((b) => Number(b.dataset.count)))",
    );
    let slots = |row: &Value| {
        let slots = row["histograms"][0]["slots"].as_array().unwrap();
        slots.iter().map(|s| s["count"].clone()).collect::<Value>()
    };
    assert_eq!(bars, rows.iter().map(slots).collect::<Value>());
    let column = |n: u32| {
        browser.run(&format!(
            "return [...document.querySelectorAll('#counts-0 tbody tr td:nth-child({n})')].map((c) => c.textContent.replaceAll(',', ''))"
        ))
    };
    let sums: Value = rows.iter().map(|row| json!(row["aggregates"][0]["value"].to_string())).collect();
    assert_eq!(column(3), sums);
    let heads = browser
        .run("return [...document.querySelectorAll('#counts-0 thead th')].map((c) => c.textContent.trim())");
    assert_eq!((heads[2].as_str(), heads[3].as_str()), (Some("sum(count)"), Some("avg(count)")), "{heads}");
    // A row opens its own histogram below it.
    browser.click("#counts-0 tbody tr .choose");
    assert_eq!(browser.run("return document.querySelectorAll('#counts-0 .detail .plot').length"), 1);
    browser.screenshot("probe-counts");
    is_inert(&browser);
}

kprism_test::main!();
