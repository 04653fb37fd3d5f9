//! What a person means: where it can be known it is done, else what to write instead is said.

use serde_json::{Value, json};

use crate::support::{Place, Ran, number, text};

#[test]
fn more_messages_than_fit_into_one_append_are_added() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new"]);
    let lines: String =
        (0..20_001).map(|number| format!("{{\"role\":\"user\",\"content\":\"m{number}\"}}\n")).collect();
    let added = place.run_with(&["--json", "messages", "add", &id, "--from-json"], lines.as_bytes());
    assert_eq!(added.code, 0, "{}", added.err);
    let added: Value = serde_json::from_str(&added.out).unwrap();
    assert_eq!(number(&added, "/messageCount"), 20_001);
    let last = place.json(&["messages", "list", &id, "--last", "1"]);
    assert_eq!(text(&last, "/messages/0/content"), "m20000");
}

#[test]
fn an_artifact_is_the_file_of_its_name_where_nothing_comes_in() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new"]);
    place.write("art.md", "what is in the file");
    let put = place.run(&["artifacts", "put", "art.md", "--of", &id]);
    assert!(put.code == 0 && put.err.contains("art.md"), "{put:?}");
    assert_eq!(place.ok(&["artifacts", "show", "art.md", "--of", &id]), "what is in the file");
    // What comes in is meant where something does.
    place.run_with(&["artifacts", "put", "art.md", "--of", &id], b"what came in");
    assert_eq!(place.ok(&["artifacts", "show", "art.md", "--of", &id]), "what came in");
    let nothing = place.run(&["artifacts", "put", "none.md", "--of", &id]);
    assert!(nothing.code == 2 && nothing.err.contains("the input is empty"), "{nothing:?}");
    place.ok(&["artifacts", "put", "none.md", "-", "--of", &id]);
    assert_eq!(place.ok(&["artifacts", "show", "none.md", "--of", &id]), "");
}

#[test]
fn a_store_named_by_its_path_alone_is_told_how_to_write_it() {
    let place = Place::new();
    for path in ["/srv/x.db", "x.db", "./dir/x"] {
        let ran = place.run(&["--store", path, "sessions", "list"]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains(&format!("sqlite:{path}")), "{ran:?}");
    }
    let ran = place.run(&["--store", "mysql://x", "sessions", "list"]);
    assert!(ran.code == 2 && !ran.err.contains("sqlite:mysql"), "{ran:?}");
}

#[test]
fn settings_are_pointed_to_by_what_one_would_call_them() {
    let place = Place::new();
    for key in ["keys", "exclude", "exclude_keys"] {
        place.write("milepost.yaml", format!("redaction:\n  {key}: [password]\n"));
        let ran = place.run(&["config", "check"]);
        assert!(ran.code == 2 && ran.out.contains("policy.exclude_memory_keys"), "{ran:?}");
    }
}

fn with(place: &Place, name: &str, value: &str, args: &[&str]) -> Ran {
    Ran::of(place.command(args).env(name, value).output().unwrap())
}

#[test]
fn a_variable_that_is_nearly_one_of_ours_is_a_mistake() {
    let place = Place::new();
    let near = with(&place, "MILEPOST_STOER", "memory:", &["config", "check"]);
    assert!(near.code == 2 && near.out.contains("did you mean MILEPOST_STORE?"), "{near:?}");
    // Others may have variables of their own.
    let own = with(&place, "MILEPOST_OUR_NIGHTLY_BUILD_NUMBER", "7", &["config", "check"]);
    assert!(own.code == 0 && own.out.contains("warning:"), "{own:?}");
}

#[test]
fn a_file_is_checked_also_where_a_variable_takes_its_place() {
    let place = Place::new();
    place.write("milepost.yaml", "store: mysql://x\n");
    let checked = with(&place, "MILEPOST_STORE", "memory:", &["config", "check"]);
    assert!(checked.code == 2 && checked.out.contains("milepost.yaml:1"), "{checked:?}");
    // What is not used keeps nobody from working.
    assert_eq!(with(&place, "MILEPOST_STORE", "memory:", &["sessions", "new"]).code, 0);
}

#[test]
fn a_summary_has_the_same_fields_whatever_the_session_has() {
    let place = Place::new();
    place.ok(&["sessions", "new"]);
    let full = place.ok(&["sessions", "new", "--title", "Full", "--tag", "a", "--project", "p", "--agent", "dev"]);
    place.ok(&["sessions", "branch", &full]);
    let listed = place.json(&["sessions", "list"]);
    let fields = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let rows = listed["sessions"].as_array().unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|row| fields(row) == fields(&rows[0])), "{listed:#}");
    assert!(rows[2]["title"].is_null() && rows[2]["tags"] == json!([]), "{listed:#}");
}

#[test]
fn reuse_finds_the_session_of_a_task_whoever_works_on_it() {
    let place = Place::new();
    let made = place.ok(&["sessions", "new", "--project", "p", "--task", "t1", "--agent", "dev"]);
    assert_eq!(place.ok(&["sessions", "new", "--reuse", "--project", "p", "--task", "t1"]), made);
    // An agent that was named is meant.
    let qa = place.ok(&["sessions", "new", "--reuse", "--project", "p", "--task", "t1", "--agent", "qa"]);
    assert_ne!(qa, made);
    // One of nobody in particular comes before those of others.
    let nobody = place.ok(&["sessions", "new", "--project", "p", "--task", "t1"]);
    assert_eq!(place.ok(&["sessions", "new", "--reuse", "--project", "p", "--task", "t1"]), nobody);
    assert_ne!(place.ok(&["sessions", "new", "--reuse", "--project", "p", "--task", "t1", "--stage", "in_qa"]), made);
}

#[test]
fn an_agent_reads_the_summary_of_another_where_the_policy_allows_it() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new", "--agent", "dev"]);
    let none = place.run(&["sessions", "summary", &id]);
    assert!(none.code == 0 && none.err.contains("sessions compact"), "{none:?}");
    assert_eq!(place.json(&["sessions", "summary", &id])["summary"], Value::Null);
    let lines: String = (0..40)
        .map(|number| {
            let (role, text) = if number % 2 == 0 { ("user", "Please") } else { ("assistant", "I decided to") };
            format!("{{\"role\":\"{role}\",\"content\":\"{text} look into part {number} of it and write down what is there.\"}}\n")
        })
        .collect();
    place.run_with(&["messages", "add", &id, "--from-json"], lines.as_bytes());
    place.ok(&["sessions", "compact", &id, "--pin", "tabs, not spaces"]);
    let own = place.json(&["sessions", "summary", &id]);
    assert_eq!((text(&own, "/sessionId"), own["summary"]["version"].as_u64()), (id.as_str(), Some(1)), "{own:#}");
    for part in ["completedItems", "pendingItems", "decisions", "blockers"] {
        assert!(own["summary"][part].is_array(), "{own:#}");
    }
    assert_eq!(place.json(&["sessions", "summary", &id, "--as", "qa"]), own);
    assert!(place.ok(&["sessions", "summary", &id, "--as", "qa"]).contains("tabs, not spaces"));
    let refused = place.run(&["sessions", "summary", &id, "--as", "harness"]);
    assert!(refused.code == 1 && refused.err.contains("summaries.readers"), "{refused:?}");
}
