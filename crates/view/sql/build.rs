// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links DuckDB's own list of extensions and the C++ library, which the binding leaves to its user if it does not compile
//! DuckDB itself.

fn main() {
    println!("cargo:rerun-if-env-changed=DUCKDB_LIB_DIR");
    let has = |feature: &str| std::env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let folder = std::env::var("DUCKDB_LIB_DIR");
    if has("LINKED")
        && !has("BUNDLED")
        && let Ok(folder) = folder
    {
        println!("cargo:rustc-link-search=native={folder}");
        // Nothing refers to it: it enters the extensions when the program starts.
        for argument in
            ["-Wl,--whole-archive", "-lduckdb_static_extension_autoregister", "-Wl,--no-whole-archive"]
        {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
        println!("cargo:rustc-link-arg-bins=-L{folder}");
        println!("cargo:rustc-link-arg-bins=-lduckdb_static");
        println!("cargo:rustc-link-arg-bins=-l:libstdc++.a");
    }
}
