// SPDX-License-Identifier: MIT OR Apache-2.0
//! A browser for tests: the WebDriver (W3C) commands that they need, over HTTP to chromedriver.

use kprism_test::{BROWSER, chromium, needs};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time that a script may run, and a page may stay as it is, before the test fails. The driver's own 30 seconds are too few for
/// axe-core on a large page where a guest runs on the same CPUs.
const PATIENCE: Duration = Duration::from_secs(100);

/// A headless Chromium with one page.
pub struct Browser {
    driver: Child,
    session: String,
    agent: ureq::Agent,
}

impl Browser {
    /// Starts Chromium; without it or its driver the test is ignored.
    pub fn start(profile: &Path, width: u32, height: u32) -> Browser {
        needs(&[BROWSER]);
        let chromium = chromium().expect("a browser");
        let driver =
            Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut driver = driver.expect("chromedriver runs");
        let stdout = driver.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(stdout).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            line.strip_suffix('.')?.rsplit_once("on port ")?.1.parse::<u16>().ok()
        });
        // The driver stops when its output is closed, so it must be read continuously.
        std::thread::spawn(move || lines.for_each(drop));
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE + Duration::from_secs(20)))
            .build();
        let port = port.expect("chromedriver says its port");
        let mut browser =
            Browser { driver, session: format!("http://127.0.0.1:{port}/session"), agent: config.into() };
        let arguments = [
            "--headless=new".to_string(),
            "--no-sandbox".to_string(), // the tests may run as root
            "--disable-gpu".to_string(),
            "--disable-dev-shm-usage".to_string(),
            "--force-prefers-reduced-motion".to_string(),
            format!("--window-size={width},{height}"),
            format!("--user-data-dir={}", profile.display()),
        ];
        let reply = browser.post(
            "",
            json!({"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": {"binary": chromium, "args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
                "timeouts": {"script": PATIENCE.as_millis() as u64},
            }}}),
        );
        let id = reply["sessionId"].as_str().expect("a session").to_string();
        browser.session = format!("{}/{id}", browser.session);
        browser
    }

    fn post(&self, path: &str, body: Value) -> Value {
        let request = self.agent.post(format!("{}{path}", self.session)).content_type("application/json");
        value(path, request.send(body.to_string()))
    }

    /// Opens a file.
    pub fn open(&self, path: &Path) {
        self.post("/url", json!({"url": format!("file://{}", path.display())}));
    }

    /// Goes to an address, and waits until it is loaded.
    #[allow(dead_code, reason = "not every test that includes this file does")]
    pub fn go(&self, url: &str) {
        self.post("/url", json!({"url": url}));
    }

    /// A command of Chromium's own protocol, which WebDriver hands on.
    #[allow(dead_code, reason = "not every test that includes this file does")]
    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters}))
    }

    /// Runs JavaScript and returns what it returns.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": []}))
    }

    /// Runs JavaScript until it returns something true.
    pub fn wait(&self, script: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.run(script);
            let nothing = value.is_null() || value == json!(false) || value == json!("");
            if !nothing {
                return value;
            }
            if start.elapsed() >= PATIENCE {
                let state = self.run(STATE);
                panic!(
                    "waited in vain for: {script}\nthe page: {state:#}\nthe console: {:?}",
                    self.console()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks with the mouse, where the element is really on top. Between the driver's question where it is and its click the
    /// page may move it, as under a person's hand: then it is clicked again.
    pub fn click(&self, css: &str) {
        for _ in 0..3 {
            self.click_once(css);
            // Nothing, if the click led to another page.
            if self.run("return window.clickMissed") != json!(true) {
                return;
            }
        }
        panic!("three clicks on {css} went elsewhere: {:#}", self.run(STATE));
    }

    fn click_once(&self, css: &str) {
        // To the middle: at the top it would lie under the page's navigation.
        self.run(&format!(
            "const element = document.querySelector({css:?}); if (!element) return;
             element.scrollIntoView({{block: 'center'}});
             window.clickMissed = true;
             addEventListener('click', (event) => {{ window.clickMissed = !element.contains(event.target); }}, {{capture: true, once: true}});"
        ));
        let element = self.post("/element", json!({"using": "css selector", "value": css}));
        let id = element.as_object().and_then(|e| e.values().next()).and_then(Value::as_str);
        let id = id.unwrap_or_else(|| panic!("no element {css}: {element}"));
        self.post(&format!("/element/{id}/click"), json!({}));
    }

    /// Clicks with the mouse at a point of the window.
    #[allow(dead_code, reason = "not every test that includes this file does")]
    pub fn click_at(&self, x: f64, y: f64) {
        let (x, y) = (x.round() as i64, y.round() as i64);
        self.post(
            "/actions",
            json!({"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [
                {"type": "pointerMove", "duration": 0, "x": x, "y": y, "origin": "viewport"},
                {"type": "pointerDown", "button": 0},
                {"type": "pointerUp", "button": 0},
            ]}]}),
        );
    }

    /// Presses the mouse at a point of the window, moves it to another, and lets it go there.
    #[allow(dead_code, reason = "not every test that includes this file does")]
    pub fn drag(&self, from: (f64, f64), to: (f64, f64)) {
        let at = |(x, y): (f64, f64)| json!({"type": "pointerMove", "duration": 20, "x": x.round() as i64, "y": y.round() as i64, "origin": "viewport"});
        self.post(
            "/actions",
            json!({"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [
                at(from),
                {"type": "pointerDown", "button": 0},
                at(to),
                {"type": "pointerUp", "button": 0},
            ]}]}),
        );
    }

    /// Presses and releases keys; see the table of key values of WebDriver for special ones.
    pub fn keys(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| {
                [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
            })
            .collect();
        self.post("/actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
    }

    /// The page's console output, and the browser's messages about it.
    pub fn console(&self) -> Vec<Value> {
        let log = self.post("/se/log", json!({"type": "browser"}));
        log.as_array().cloned().unwrap_or_default()
    }

    /// Saves a screenshot, if `KPRISM_SCREENSHOTS` names a folder: for people who work on the page.
    pub fn screenshot(&self, name: &str) {
        let Some(folder) = std::env::var_os("KPRISM_SCREENSHOTS") else { return };
        let reply = value("/screenshot", self.agent.get(format!("{}/screenshot", self.session)).call());
        let file = Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(file, base64(reply.as_str().expect("a picture"))).expect("the folder can be written");
    }
}

/// What a page is at, for whoever reads why a test waited in vain.
const STATE: &str = "\
const texts = (css) => [...document.querySelectorAll(css)].slice(0, 20).map((e) => e.textContent.slice(0, 300));
return {address: location.href, loaded: document.readyState, marks: {...document.documentElement.dataset}, scrolled: scrollY,
  focus: document.activeElement?.outerHTML.slice(0, 300), busy: texts('[aria-busy=true]'), warnings: texts('.warning'),
  status: texts('[role=status]'), source: texts('#source-body'),
  requests: performance.getEntriesByType('resource').map((e) => [e.name.slice(-200), Math.round(e.startTime), Math.round(e.duration)])};";

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.agent.delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn value(what: &str, reply: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Value {
    let mut reply = reply.unwrap_or_else(|e| panic!("{what}: {e}"));
    let status = reply.status();
    let text = reply.body_mut().with_config().limit(1 << 28).read_to_string().expect("a reply");
    assert!(status.is_success(), "{what}: {status} {}", &text[..text.len().min(800)]);
    let mut json: Value = serde_json::from_str(&text).expect("a reply in JSON");
    json["value"].take()
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).map(u32::from).collect();
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, d| bits << 6 | d) << (6 * (4 - group.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    out
}
