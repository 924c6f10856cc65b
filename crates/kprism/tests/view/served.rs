// SPDX-License-Identifier: MIT OR Apache-2.0
//! A `kprism view` for tests: started, asked, ended; and its pages in a browser.
#![allow(dead_code)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::webdriver::Browser;

/// A recording that is kept with the transcripts.
pub fn stored(name: &str) -> String {
    format!("{}/tests/cmd/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A running `kprism view`; ended when it is dropped.
pub struct View {
    /// Its process.
    pub child: Child,
    /// Address of the first page.
    pub url: String,
}

impl View {
    /// Starts it with these arguments, and waits for its address.
    pub fn start(args: &[&str]) -> View {
        Self::start_in(".", args)
    }

    /// The same in this folder: runs named from there are shown by those names.
    pub fn start_in(folder: impl AsRef<std::path::Path>, args: &[&str]) -> View {
        let mut view = Command::new(env!("CARGO_BIN_EXE_kprism"));
        view.current_dir(folder).args(["view", "-q", "--no-open"]).args(args).stdout(Stdio::piped());
        let mut child = view.spawn().expect("kprism runs");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        assert!(url.starts_with("http://127.0.0.1:") && url.ends_with('/'), "{url:?}");
        View { child, url }
    }

    /// Host with port, and the token.
    pub fn parts(&self) -> (&str, &str) {
        self.url.strip_prefix("http://").unwrap().trim_end_matches('/').split_once('/').unwrap()
    }

    /// Sends bytes, and gives what comes back before the connection ends.
    pub fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.parts().0).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A server that refuses early does not read the rest.
        let _ = stream.write_all(bytes);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Asks for a path behind the token, with these lines of header.
    pub fn ask(&self, method: &str, path: &str, headers: &str) -> (u16, String, String) {
        let (host, token) = self.parts();
        let reply = self.send(
            format!("{method} /{token}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")
                .as_bytes(),
        );
        parsed(&reply)
    }

    /// The reply to a GET of a path behind the token.
    pub fn get(&self, path: &str) -> (u16, String, String) {
        self.ask("GET", path, "")
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status, head and body.
pub fn parsed(reply: &str) -> (u16, String, String) {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((reply, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, head.to_lowercase(), body.to_owned())
}

/// Goes to an address, and waits until it is loaded.
pub fn visit(browser: &Browser, url: &str) {
    browser.run(&format!("location.href = {url:?}"));
    browser.wait(&format!("return location.href === {url:?} && document.readyState === 'complete'"));
}

/// Nothing in any name was obeyed, and no control character is on the page.
pub fn is_inert(browser: &Browser) {
    let odd = "return [document.images.length, document.querySelectorAll('main script, main img').length,
         [...document.body.textContent].filter((c) => /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u202a-\\u202e]/.test(c)).length]";
    assert_eq!(browser.run(odd), json!([0, 0, 0]));
    assert!(browser.run("return document.title").as_str().unwrap().ends_with(" · kprism"));
}
