// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plots one sweep: trace size on the left axis, temporal resolution factor on the right, over the setting.
//!
//! Settings are powers of two and TRF spans many decades, so both axes are logarithmic. Values without a logarithm (no
//! threshold, a TRF of 0) are plotted one step below the smallest other value. The plot is static SVG, which uses the
//! classes of the page around it.

use std::fmt::Write;

use kprism_flow::cost::{Setting, Sweep};
use kprism_profile::units::{grouped, real};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 84.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 58.0;

/// A point of a line: its position on the page, and its tooltip.
type Point = (f64, f64, String);

/// A linear scale onto the page's height.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn y(&self, value: f64) -> f64 {
        let part = (value - self.low) / (self.high - self.low);
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - part)
    }
}

/// The plot of `sweep` as an `svg` element.
pub fn svg(sweep: &Sweep, trf: &[Option<f64>]) -> String {
    let valued: Vec<_> = sweep
        .steps
        .iter()
        .zip(trf)
        .filter_map(|((value, cost), trf)| Some(((*value)?, cost, *trf)))
        .collect();
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Trace size and TRF by {}\">\n",
        sweep.setting.name()
    );
    let places: Vec<f64> = valued.iter().map(|&(value, ..)| place(sweep.setting, value)).collect();
    let (first, last) = (fold(&places, f64::min), fold(&places, f64::max));
    let wide = (last - first).max(1.0);
    let x = |place: f64| LEFT + (WIDTH - LEFT - RIGHT) * (place - first + 0.3) / (wide + 0.6);

    let sizes: Vec<f64> = sweep.steps.iter().map(|(_, c)| c.bytes() as f64).collect();
    let (smallest, largest) = (fold(&sizes, f64::min), fold(&sizes, f64::max));
    // The axis starts at 0, unless the line would then be flat.
    let from = if smallest > 0.75 * largest { smallest - (largest - smallest) } else { 0.0 };
    let step = round_step((largest - from) / 5.0);
    let size = Scale { low: (from / step).floor() * step, high: ((largest / step).floor() + 1.0) * step };
    let mut tick = size.low;
    while tick <= size.high {
        let y = size.y(tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
            WIDTH - RIGHT
        );
        label(&mut out, "size end", LEFT - 8.0, y + 4.0, &grouped(tick as u64));
        tick += step;
    }

    let logs: Vec<f64> = trf.iter().flatten().filter(|&&t| t > 0.0).map(|t| t.log10()).collect();
    let (low, high) = (fold(&logs, f64::min).floor(), fold(&logs, f64::max).ceil());
    let zero = trf.contains(&Some(0.0));
    let decades = Scale { low: low - f64::from(u8::from(zero)), high: high.max(low + 1.0) };
    if !logs.is_empty() {
        let every = ((decades.high - low) / 7.0).ceil().max(1.0);
        let mut decade = low;
        while decade <= decades.high {
            let text = format!("10<tspan dy=\"-5\" font-size=\"9\">{decade:.0}</tspan>");
            label(&mut out, "trf start", WIDTH - RIGHT + 8.0, decades.y(decade) + 4.0, &text);
            decade += every;
        }
        if zero {
            label(&mut out, "trf start", WIDTH - RIGHT + 8.0, decades.y(decades.low) + 4.0, "0");
        }
    }

    for (&(value, ..), &at) in valued.iter().zip(&places) {
        label(&mut out, "axis middle", x(at), HEIGHT - BOTTOM + 20.0, &short(sweep.setting, value));
    }
    label(&mut out, "axis middle", (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0, sweep.setting.name());
    turned(&mut out, "size", 16.0, "trace size, bytes");
    turned(&mut out, "trf", WIDTH - 12.0, "TRF (lower is finer)");

    if let Some((_, off)) = sweep.steps.iter().find(|(value, _)| value.is_none()) {
        let y = size.y(off.bytes() as f64);
        let _ = writeln!(
            out,
            "<line class=\"off\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"><title>off: {} bytes</title></line>",
            WIDTH - RIGHT,
            grouped(off.bytes())
        );
        label(&mut out, "size start", LEFT + 6.0, y + 14.0, "off");
    }
    let sizes = valued.iter().zip(&places).map(|(&(value, cost, _), &at)| {
        (
            x(at),
            size.y(cost.bytes() as f64),
            format!("{}: {} bytes", short(sweep.setting, value), grouped(cost.bytes())),
        )
    });
    line(&mut out, "size", sizes.collect());
    let factors = valued.iter().zip(&places).filter_map(|(&(value, _, trf), &at)| {
        let trf = trf?;
        let y = decades.y(if trf > 0.0 { trf.log10() } else { decades.low });
        Some((x(at), y, format!("{}: TRF {}", short(sweep.setting, value), real(trf))))
    });
    line(&mut out, "trf", factors.collect());
    out.push_str("</svg>\n");
    out
}

fn fold(values: &[f64], f: impl Fn(f64, f64) -> f64) -> f64 {
    values.iter().copied().reduce(f).unwrap_or(0.0)
}

/// The position of a value on the horizontal axis, in powers of two.
fn place(setting: Setting, value: u64) -> f64 {
    match (setting, value) {
        (Setting::Mtc, n) => n as f64,
        (_, 0) => -1.0,
        (_, n) => (n as f64).log2(),
    }
}

/// The label below the axis.
fn short(setting: Setting, value: u64) -> String {
    match setting {
        Setting::Psb if value >= 1 << 20 && value.is_multiple_of(1 << 20) => format!("{}M", value >> 20),
        Setting::Psb | Setting::Cyc if value >= 1 << 10 && value.is_multiple_of(1 << 10) => {
            format!("{}K", value >> 10)
        }
        _ => value.to_string(),
    }
}

/// The smallest of 1, 2, 5 · 10^n that is at least `at_least`.
fn round_step(at_least: f64) -> f64 {
    let ten = 10f64.powf(at_least.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * ten).find(|&s| s >= at_least).unwrap_or(10.0 * ten)
}

/// Writes a label. `text` is markup: numbers and words of this file only.
fn label(out: &mut String, class: &str, x: f64, y: f64, text: &str) {
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}

fn turned(out: &mut String, class: &str, x: f64, text: &str) {
    let y = (TOP + HEIGHT - BOTTOM) / 2.0;
    let _ = writeln!(
        out,
        "<text class=\"{class} middle\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{text}</text>"
    );
}

fn line(out: &mut String, class: &str, points: Vec<Point>) {
    let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{}\"/>", path.join(" "));
    for (x, y, says) in points {
        let _ = writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{says}</title></circle>"
        );
    }
}
