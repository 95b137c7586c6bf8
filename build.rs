//! Passes a script to the linker, in releases for Linux, which places the functions that the product executes most next to each
//! other: docs/adr/019-function-order.md.

use std::env;
use std::path::Path;

const FUNCTION_ORDER: &str = "packaging/function-order.ld";

fn main() {
    println!("cargo::rerun-if-changed={FUNCTION_ORDER}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        // The linker's working directory is not defined, so the path is absolute.
        let root = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        let script = Path::new(&root).join(FUNCTION_ORDER);
        println!(
            "cargo::rustc-link-arg-bin=unified-proxy=-T{}",
            script.display()
        );
    }
}
