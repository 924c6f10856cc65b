// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links kprism statically, at a random address. `--on` copies the program to another machine, whose C library may be older
//! or another one. Nothing in it looks up users or hosts, for which a static C library would still load shared ones.

// Its own `main` is the agent's.
#[allow(dead_code)]
#[path = "../guest/agent/build.rs"]
mod agent;

fn main() {
    agent::link(&["-static-pie"]);
}
