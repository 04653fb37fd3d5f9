//! The engine through its public face. One binary; a test below checks that no file is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::large_futures)]

mod archives;
mod chapters;
mod engine;
mod keep;
mod project;
mod promises;
mod resume;
mod rules;
mod search;
mod servers;
mod support;
mod transfer;

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
