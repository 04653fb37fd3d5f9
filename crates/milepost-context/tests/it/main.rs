//! The crate through its public face.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod compact;
mod history;
mod history_laws;
mod redact;
mod request;
mod tokens;

#[test]
fn no_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for file in std::fs::read_dir(here).unwrap() {
        let name = file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        assert!(name == "main" || main.contains(&format!("mod {name};")), "{name}.rs is in no module");
    }
}
