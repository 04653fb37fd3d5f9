//! The command line's tests: the real binary, run in scratch places, and what a person or a program gets to see of it. One
//! binary; a test below checks that no file is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::large_futures)]
#![allow(clippy::disallowed_methods, reason = "the tests watch real processes and real time")]

mod bad_input;
mod bad_stores;
mod crash;
mod flags;
mod rules;
mod safe_files;
mod support;
mod terminal;
mod tour;
mod tour_sessions;
mod tour_store;
mod tour_transfer;
mod transcript;

#[test]
fn no_test_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        let is_known = ["main", "snapshots"].contains(&module) || main.contains(&format!("mod {module};"));
        assert!(is_known, "{name} is not part of main.rs");
    }
}
