// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views of the cost of traces, from hand-made measurements.

use kprism_flow::cost::Cost;
use kprism_flow::cost::{Setting, Sweep};
use kprism_pt::Packet;
use kprism_pt::mix::Mix;
use kprism_report::Style;
use kprism_report::cost;
use kprism_report::cost::page::{self, About};
use kprism_store::Account;

/// A recording of 1000 instructions with `tnts` packets of one byte, and `points` timed points.
fn cost(name: &str, tnts: usize, points: u64, median: u64) -> Cost {
    let mut bytes = Vec::new();
    (0..tnts).for_each(|_| Packet::Tnt { bits: 1, len: 6 }.encode(&mut bytes));
    let median = (points > 0).then_some(median);
    Cost {
        name: name.into(),
        instructions: 1000,
        decode_errors: 0,
        duration_ns: 2000,
        mix: Mix::of(&bytes),
        points,
        median_ns: median,
        p99_ns: median,
        median_insns: median,
        product: median.map(|m| (m * m) as f64),
    }
}

fn sweeps() -> Vec<Sweep> {
    let psb = vec![(Some(2048), cost("2048", 120, 3, 20)), (Some(4096), cost("4096", 100, 0, 0))];
    let cyc = vec![(Some(0), cost("0", 300, 9, 1)), (None, cost("off", 100, 1, 30))];
    vec![Sweep { setting: Setting::Cyc, steps: cyc }, Sweep { setting: Setting::Psb, steps: psb }]
}

#[test]
fn factors_are_over_all_sweeps() {
    let trf = cost::resolutions(&sweeps());
    assert_eq!(trf, [vec![Some(0.0), Some(100.0)], vec![Some(100.0 * 399.0 / 899.0), None]]);
}

#[test]
fn a_sweep_is_a_table() {
    let sweeps = sweeps();
    let text = cost::sweep_table(&sweeps[1], &cost::resolutions(&sweeps)[1]).to_text(Style::default());
    let expected = "\
psb   bytes    MB/s  bits/insn  flow  time  PSB+  points  median ΔT  p99 ΔT  median ΔIc     TRF
2048    120  60.000      0.960   120     0     0       3      20 ns   20 ns          20  44.383
4096    100  50.000      0.800   100     0     0       0          –       –           –       –
";
    assert_eq!(text, expected);
}

#[test]
fn programs_get_everything() {
    let sweeps = sweeps();
    let table = cost::sweeps_for_programs(&sweeps);
    let json = table.to_json();
    assert_eq!(
        (&json[0]["sweep"], &json[0]["value"], &json[1]["value"]),
        (&"cyc".into(), &0.into(), &().into())
    );
    assert_eq!((&json[0]["tnt_bytes"], &json[0]["tnt_branches"]), (&300.into(), &1800.into()));
    assert_eq!((&json[2]["bits_per_insn"], &json[3]["trf"]), (&0.96.into(), &().into()));
    let csv = table.to_csv();
    let widths: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(widths, [widths[0]; 5]);
    assert_eq!(
        cost::runs_for_programs(&[cost("a,b", 1, 0, 0)]).to_csv().lines().nth(1).unwrap().find("\"a,b\""),
        Some(0)
    );
}

#[test]
fn the_page_is_one_file_and_names_are_only_text() {
    let about = About {
        command: "<script>alert(1)</script>".into(),
        kernel: "6.12".into(),
        user_only: true,
        account: Account::new(),
    };
    let page = page::render(&about, &sweeps()).unwrap();
    assert!(!page.contains("<script") && page.contains("script"), "the command is shown, escaped");
    assert!(!page.contains("://"), "nothing is loaded");
    assert_eq!((page.matches("<svg").count(), page.matches("<figure>").count()), (2, 2));
    assert!(page.contains("<title>2K: TRF 44.383</title>"), "points say their values");
    assert!(!page.contains("NaN") && !page.contains("inf"), "every coordinate is a number");
}

#[test]
fn a_sweep_of_nothing_or_of_one_is_drawn() {
    let about =
        About { command: String::new(), kernel: String::new(), user_only: false, account: Account::new() };
    for steps in [vec![], vec![(Some(1), cost("1", 0, 0, 0))], vec![(None, cost("off", 5, 1, 1))]] {
        let page = page::render(&about, &[Sweep { setting: Setting::Cyc, steps }]).unwrap();
        assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("inf"), "{page}");
    }
}
