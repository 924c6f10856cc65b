// SPDX-License-Identifier: MIT OR Apache-2.0
// What C++ has beyond C: references, bases, methods, namespaces, templates.
#include <cstdio>
#include <string>
#include <vector>
#include <memory>
namespace ns { int counter = 7; enum class Color { Red = 1, Green = 5 }; enum Plain { P0, P9 = 9 };
 namespace deep { int counter = 70; __attribute__((noinline)) int f(int x) { asm volatile(""); counter += x; return x + counter; } }
 struct Base { int b0; long b1; virtual ~Base() {} };
 struct Other { short o0; int b0; };
 struct Der : Base, Other { int d; std::vector<int> v; std::string s; Color c; static int total;
   __attribute__((noinline)) int method(int k, const Base &r) { asm volatile("");
   return d + k + (int)r.b1; /* LINE_METHOD */ }
   __attribute__((noinline)) int method(double k) { asm volatile(""); return d + (int)k; }
   static __attribute__((noinline)) int stat(int z) { asm volatile(""); return z*2; } };
 int Der::total = 123;
 struct VB { int vb; }; struct VD : virtual VB { int own; };
 template <class T> struct Box { T val; __attribute__((noinline)) T get(T add) { asm volatile(""); return val + add; } };
}
namespace { int hidden = 55; __attribute__((noinline)) int anon(int q) { asm volatile(""); return q + hidden; } }
template <class T> __attribute__((noinline)) T most(T a, T b) { asm volatile(""); return a > b ? a : b; }
__attribute__((noinline)) int byref(int &r, const int &cr, int &&rr, ns::Der &d, const char *s) { asm volatile("");
 return r + cr + rr + d.d + s[0]; /* LINE_BYREF */ }
__attribute__((noinline)) int byval(std::string s, std::vector<int> v, int n) { asm volatile(""); return s.size() + v.size() + n; }
__attribute__((noinline)) ns::Der make(int n) { ns::Der d{}; d.d = n; asm volatile(""); return d; }
class Priv { int x; char name[8]; public: Priv(int a) : x(a), name("priv") { asm volatile(""); } __attribute__((noinline)) int getx() const { asm volatile(""); return x; } bool operator<(const Priv &o) const; };
__attribute__((noinline)) bool Priv::operator<(const Priv &o) const { asm volatile(""); return x < o.x; }
extern "C" __attribute__((noinline)) int cfun(ns::Plain p, ns::Color c, ns::VD *vd) { asm volatile(""); return p + (int)c + vd->own; }
int main() { for (int i = 0; i < 3; i++) { int a = 10 + i; int b = 20; ns::Der d{}; d.b1 = 1000 + i; d.Base::b0 = 4; d.Other::b0=6; d.o0=3; d.d = 77 + i; d.v = {1,2,3}; d.s = "hello"; d.c = ns::Color::Green;
  printf("%d\n", byref(a, b, 30 + i, d, "txt")); printf("%d\n", byval("abc", {4,5}, i)); printf("%d %d %d\n", d.method(i, d), d.method(2.5), ns::Der::stat(i));
  printf("%d %ld %d\n", most(i, 2), most(5L, (long)i), ns::deep::f(i)); ns::Box<int> bx{i}; ns::Box<short> bs{(short)i}; printf("%d %d\n", bx.get(1), bs.get(2));
  Priv p(i); Priv q(1); printf("%d %d %d %d\n", p.getx(), p < q, anon(i), make(i).d); ns::VD vd; vd.vb = 1; vd.own = 8+i; printf("%d\n", cfun(ns::P9, ns::Color::Red, &vd)); auto lam = [&](int w) { asm volatile(""); return w + a; }; printf("%d\n", lam(i)); ns::counter++; } }
