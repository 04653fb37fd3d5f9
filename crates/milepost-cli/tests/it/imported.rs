//! Sessions that another tool wrote: found by the names that they had there, and shown with all that they said.

use serde_json::json;

use crate::support::{Place, number, text};

const FIRST: &str = "checkpoint_20260101_010203_aa";
const SECOND: &str = "checkpoint_20260101_010204_aa";

/// The directory of a graph's session with two checkpoints, imported; its id.
fn graph(place: &Place) -> String {
    let base = "sessions/session_20260101_010000_ab12";
    for (number, id) in [FIRST, SECOND].into_iter().enumerate() {
        let full = json!({
            "checkpoint_id": id, "session_id": "session_20260101_010000_ab12", "checkpoint_type": "node_complete",
            "created_at": format!("2026-01-01T01:02:0{}+00:00", number + 3), "current_node": "plan", "next_node": "write",
            "execution_path": ["plan"], "shared_memory": { "step": number }, "conversation_states": {},
            "accumulated_outputs": { "plan": "an outline" }, "metrics_snapshot": { "tokens": 12 }, "is_clean": true,
            "can_resume_from": true, "description": "first",
        });
        place.write(&format!("{base}/checkpoints/{id}.json"), full.to_string());
    }
    let index =
        json!({ "session_id": "session_20260101_010000_ab12", "checkpoints": [], "latest_checkpoint_id": SECOND });
    place.write(&format!("{base}/checkpoints/index.json"), index.to_string());
    let about = json!({ "session_id": "session_20260101_010000_ab12", "status": "paused" });
    place.write(&format!("{base}/state.json"), about.to_string());
    text(&place.json(&["sessions", "import", base]), "/sessions/0/sessionId").to_owned()
}

#[test]
fn a_checkpoint_is_found_by_the_name_that_it_had_where_it_came_from() {
    let place = Place::new();
    let id = graph(&place);
    for (number, name) in [(0, FIRST), (1, SECOND)] {
        let shown = place.json(&["sessions", "inspect", &id, name, "--state"]);
        assert_eq!(shown["memory"]["step"], number, "{shown:#}");
        let alias = shown["extra"]["original_id"].as_str();
        assert_eq!(alias, Some(name), "{shown:#}");
    }
    let resumed = place.json(&["sessions", "resume", &id, "--checkpoint", FIRST]);
    assert_eq!(place.json(&["state", "get", &id, "memory.step"]), json!(0), "{resumed:#}");
    // Also what was left behind when the session was set back.
    let ahead = place.json(&["sessions", "inspect", &id, SECOND, "--state"]);
    assert_eq!(number(&ahead, "/memory/step"), 1);
    // A label that somebody gave is meant first.
    let own = place.ok(&["checkpoint", &id, "--label", SECOND]);
    assert_eq!(text(&place.json(&["sessions", "inspect", &id, SECOND]), "/checkpoint_id"), own);
    assert_eq!(place.run(&["sessions", "inspect", &id, "checkpoint_20260101_010209_zz"]).code, 3);
}

#[test]
fn a_checkpoint_of_an_imported_graph_shows_its_path_and_its_outputs() {
    let place = Place::new();
    let id = graph(&place);
    let shown = place.json(&["sessions", "inspect", &id, "latest"]);
    assert_eq!(shown["execution_path"], json!(["plan"]), "{shown:#}");
    assert_eq!(shown["accumulated_outputs"], json!({ "plan": "an outline" }), "{shown:#}");
    assert_eq!((text(&shown, "/current_node"), text(&shown, "/next_node")), ("plan", "write"));
    assert_eq!(shown["metrics_snapshot"], json!({ "tokens": 12 }));
}

#[test]
fn what_stands_below_label_can_be_asked_for() {
    let place = Place::new();
    let id = place.session("Labels", &["one"]);
    place.ok(&["checkpoint", &id, "--description", "first"]);
    place.ok(&["checkpoint", &id, "--label", "second", "--description", "all is well"]);
    let listed = place.ok(&["sessions", "checkpoints", &id]);
    let column = |name: &str| listed.lines().next().unwrap().find(name).unwrap_or_else(|| panic!("{listed}"));
    let (label, description) = (column("LABEL"), column("DESCRIPTION"));
    for line in listed.lines().skip(1) {
        let below = line.get(label..description.min(line.len())).unwrap_or_default().trim();
        assert!(below.is_empty() || place.run(&["sessions", "inspect", &id, below]).code == 0, "{below:?}: {listed}");
    }
    assert!(listed.contains("first") && listed.contains("second") && listed.contains("all is well"), "{listed}");
}
