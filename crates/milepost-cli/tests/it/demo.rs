//! The demo: the first thing that a person sees.

use serde_json::json;

use crate::support::{Place, text};

#[test]
fn the_demo_is_killed_goes_on_and_counts_every_effect_once() {
    let place = Place::new();
    // Nothing of the person's own plays a part.
    place.write("milepost.yaml", "nonsense: true\n");
    let began = std::time::Instant::now();
    let shown = place.ok(&["demo"]);
    assert!(began.elapsed().as_secs() < 20, "a person waits for it: {:?}", began.elapsed());
    for part in
        ["SIGKILL", "summarise   running", "runs again under its key", "publish     1 time, after it", "none twice"]
    {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    assert!(!place.store().exists(), "it has a store of its own");
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["milepost.yaml"], "nothing is left behind");
}

#[test]
fn the_demo_may_use_a_store_that_is_named() {
    let place = Place::new();
    let told = place.json(&["--store", "sqlite:here.db", "demo"]);
    assert_eq!(told["ranTwice"], json!([]));
    assert_eq!(told["effects"], json!({"search": 1, "read_aries": 1, "read_lfs": 1, "publish": 1}));
    let shown = place.json(&["--store", "sqlite:here.db", "sessions", "show", text(&told, "/sessionId")]);
    assert_eq!(text(&shown, "/status"), "completed");
}
