//! The models, over real connections of this machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod anthropic;
mod bad_days;
mod keys;
mod openai;
mod prices;
mod scripted;
mod server;
mod sse;
mod support;

#[test]
fn no_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name}");
    }
}
