// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Rust has beyond C: enumerations with data, slices, generics, traits.
use std::collections::HashMap;
pub mod shape { pub struct Point { pub x: i32, pub y: i64 } 
 pub enum Shape { Circle(f64), Rect { w: u32, h: u32 }, Empty }
 impl Point { #[inline(never)] pub fn sum(&self, k: i32) -> i64 {
  std::hint::black_box(self.x as i64 + self.y + k as i64) } // LINE_SUM
 }
 #[inline(never)] pub fn area(s: &Shape, scale: u32) -> u32 {
  std::hint::black_box(match s { Shape::Circle(r) => (*r * 3.0) as u32 * scale, Shape::Rect { w, h } => w * h * scale, Shape::Empty => 0 }) } } // LINE_AREA
pub trait Speak { fn speak(&self, n: u64) -> u64; }
struct Dog { age: u64 }
impl Speak for Dog { #[inline(never)] fn speak(&self, n: u64) -> u64 { std::hint::black_box(self.age + n) } }
#[inline(never)] fn generic<T: Copy + Into<i64>>(a: T, b: i64) -> i64 { std::hint::black_box(a.into() + b) }
#[inline(never)] fn texts(s: &str, v: &[i32], o: Option<u32>, n: Option<&u64>, name: String) -> usize {
  std::hint::black_box(s.len() + v.len() + o.unwrap_or(0) as usize + n.copied().unwrap_or(0) as usize + name.len()) } // LINE_TEXTS
#[inline(never)] fn chars(c: char, b: bool, w: i128, u: u8, t: (i32, u8)) -> u32 { std::hint::black_box((c as u32).wrapping_add(b as u32).wrapping_add(w as u32).wrapping_add(u as u32).wrapping_add(t.0 as u32)) }
static COUNTER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(5);
fn main() { let mut m: HashMap<u32, u32> = HashMap::new(); for i in 0..3u32 { let p = shape::Point { x: i as i32 - 1, y: 100 + i as i64 };
  println!("{}", p.sum(7)); let ss = [shape::Shape::Circle(1.5), shape::Shape::Rect { w: i, h: 4 }, shape::Shape::Empty];
  for s in &ss { println!("{}", shape::area(s, 2)); } let d = Dog { age: 3 + i as u64 }; println!("{}", d.speak(9)); println!("{} {}", generic(i as i32, 5), generic(7i64, 6));
  let n = 8u64; println!("{}", texts("héllo", &[1, 2, 3], if i > 0 { Some(i) } else { None }, if i > 1 { Some(&n) } else { None }, format!("n{}", i))); println!("{}", chars('ß', i == 1, -3, 200, (i as i32, 9))); m.insert(i, i); COUNTER.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
  let add = |z: u32| -> u32 { std::hint::black_box(z + i) }; println!("{}", add(4)); } }
