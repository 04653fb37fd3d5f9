//! The store's tests through its public face, against real files and real processes. One binary; a
//! test below checks that no file is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::large_futures)]
#![allow(clippy::disallowed_methods, reason = "the tests watch real processes and real time")]

mod bad_days;
mod blocking;
mod changes;
mod child;
mod conformance;
mod flips;
mod golden;
mod harness;
mod hybrid;
mod import;
mod keep;
mod keys;
mod kills;
mod linear;
mod migrate;
mod model;
mod nodes;
mod object;
mod object_model;
mod postgres;
mod power;
mod processes;
mod redact;
mod search;
mod support;
mod verify;
mod writer;

#[test]
fn no_test_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name} is not part of main.rs");
    }
}
