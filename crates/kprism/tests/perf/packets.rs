// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism script packets` against perf's own list of the packets of the exported run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::guest::{ok, text};

/// Every packet is at perf's offset, with perf's name; branches and times are perf's.
pub fn check(run: &Path, data: &Path) {
    let ours = String::from_utf8(ok(&["script", "packets", "--json", "-i", text(run)])).unwrap();
    let mut ours = ours.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut child = super::perf(data, &["-D"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut packets = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        // `.  00000034:  13             CYC 0x2`; the hexadecimal dump of other records has shorter offsets.
        let Some((offset, rest)) = line.strip_prefix(".  ").and_then(|line| line.split_once(":  ")) else {
            continue;
        };
        if offset.len() != 8 {
            continue;
        }
        let is_byte = |word: &&str| word.len() == 2 && u8::from_str_radix(word, 16).is_ok();
        let packet: Vec<&str> = rest.split_whitespace().skip_while(is_byte).collect();
        let own = ours.next().expect("as many packets as perf has");
        let name = own["packet"].as_str().unwrap_or_else(|| panic!("{own}"));
        assert_eq!(u64::from_str_radix(offset, 16).ok(), own["offset"].as_u64(), "{line}\n{own}");
        assert_eq!(packet[0], name, "{line}");
        if ["TNT", "TSC", "TMA", "MTC"].contains(&name) {
            assert_eq!(packet[1..].join(" "), own["payload"].as_str().unwrap(), "{line}");
        }
        packets += 1;
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(ours.next(), None, "perf has as many");
    assert!(packets > 100_000, "{packets}");
}
