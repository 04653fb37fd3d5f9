//! Graphs and plans, through the public face.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod again;
mod agents;
mod back;
mod budgets;
mod chats;
mod checking;
mod damage;
mod drawing;
mod expressions;
mod files;
mod happened;
mod inside;
mod kills;
mod leases;
mod loops;
mod mcps;
mod mistakes;
mod people;
mod quoting;
mod receiver;
mod repeats;
mod research;
mod retries;
mod roles;
mod runs;
mod shells;
mod support;
mod sweep;
mod triggers;
mod wakes;
mod windows;
mod wires;

#[test]
fn no_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(here).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        let is_code = name.ends_with(".rs") && module != "main";
        assert!(!is_code || main.contains(&format!("mod {module};")), "{name}");
    }
}
