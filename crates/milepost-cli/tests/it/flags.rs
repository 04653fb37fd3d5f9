//! Flags that change what a command does besides: where it is, what is logged, one checkpoint instead of a session.

use serde_json::Value;

use crate::support::{Place, number, text};

#[test]
fn a_session_begun_here_knows_the_directory_and_its_project() {
    let place = Place::new();
    place.write("shop/CLAUDE.md", "Use tabs.");
    let new = |directory: &str| {
        let mut command = place.command(["sessions", "new", "--here", "--json"]);
        let output = command.current_dir(place.file(directory)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let first = new("shop");
    assert_eq!(text(&first, "/projectName"), "shop");
    let id = text(&first, "/sessionId");
    assert_eq!(place.ok(&["state", "get", id, "context.project.claudeMd"]), "Use tabs.");
    let second = new("shop");
    assert_eq!(text(&second, "/projectId"), text(&first, "/projectId"), "one directory is one project");
    let listed = place.json(&["sessions", "list", "--project", text(&first, "/projectId")]);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2);
}

#[test]
fn every_checkpoint_leaves_a_line_in_the_log() {
    let place = Place::new();
    let id = place.session("Logged", &["one"]);
    place.ok(&["--log", "log.jsonl", "checkpoint", &id]);
    place.ok(&["--log", "log.jsonl", "sessions", "resume", &id]);
    let log = std::fs::read_to_string(place.file("log.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| text(line, "/type")).collect();
    assert_eq!(kinds, ["checkpoint_created", "checkpoint_restored"]);
    assert_eq!(text(&lines[0], "/reason"), "manual");
    assert_eq!((number(&lines[0], "/size"), number(&lines[1], "/messages_restored")), (2, 1));
    assert!(lines[1]["success"].as_bool().unwrap() && lines.iter().all(|line| line["duration_ms"].is_i64()));
}

#[test]
fn one_checkpoint_goes_into_the_trash_and_comes_out_again() {
    let place = Place::new();
    let id = place.session("Kept", &["one"]);
    let mark = place.ok(&["checkpoint", &id]);
    let count =
        |args: &[&str]| number(&place.json(&[&["sessions", "checkpoints", &id], args].concat()), "/total_checkpoints");
    assert_eq!((count(&[]), count(&["--trashed"])), (2, 0));
    place.ok(&["sessions", "trash", &id, "--checkpoint", &mark]);
    assert_eq!((count(&[]), count(&["--trashed"])), (1, 1));
    place.ok(&["sessions", "untrash", &id, "--checkpoint", &mark]);
    assert_eq!((count(&[]), count(&["--trashed"])), (2, 0));
}

#[test]
fn an_archived_session_comes_back_when_it_is_asked_for() {
    let place = Place::new();
    let id = place.session("Old", &["one"]);
    let archive = format!("sqlite:{}", place.file("archive.db").display());
    for command in [&["sessions", "show", &id][..], &["sessions", "resume", &id[id.len() - 8..]]] {
        place.ok(&["sessions", "archive", &id, "--to", &archive]);
        assert!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().is_empty());
        place.ok(command);
        assert_eq!(place.texts(&id), ["one"]);
    }
}

#[test]
fn flags_stand_before_and_after_tags() {
    let place = Place::new();
    let id = place.session("Tagged", &[]);
    let (url, tags) = (place.url(), |told: &str| serde_json::from_str::<Value>(told).unwrap()["tags"].clone());
    assert_eq!(tags(&place.ok(&["sessions", "tag", &id, "+a", "b", "--json"])), serde_json::json!(["a", "b"]));
    assert_eq!(tags(&place.ok(&["session", "tag", "--json", &id, "-a", "+zed"])), serde_json::json!(["b", "zed"]));
    assert_eq!(tags(&place.ok(&["sessions", "tag", &id, "-zed", "--store", &url, "--json"])), serde_json::json!(["b"]));
    assert_eq!(
        tags(&place.ok(&["sessions", "tag", &id, "--json", &format!("--store={url}"), "+c"])),
        serde_json::json!(["b", "c"])
    );
    assert!(place.ok(&["sessions", "tag", &id, "+c", "--help"]).contains("Usage: milepost sessions tag"));
    let wrong = place.run(&["sessions", "tag", &id, "+d", "--jsn"]);
    assert!(wrong.code == 2 && wrong.err.contains("--jsn"), "{wrong:?}");
    assert_eq!(place.json(&["sessions", "show", &id])["tags"], serde_json::json!(["b", "c"]), "nothing of it was done");
}

#[test]
fn the_help_of_sql_names_every_table_with_its_columns() {
    let place = Place::new();
    place.session("Here", &["one"]);
    let sql =
        "select t.name as t, c.name as c from sqlite_schema t, pragma_table_info(t.name) c where t.type = 'table'";
    let there = place.json(&["sql", sql]);
    let mut tables: std::collections::BTreeMap<String, Vec<String>> = Default::default();
    for row in there.as_array().unwrap() {
        tables.entry(text(row, "/t").to_owned()).or_default().push(text(row, "/c").to_owned());
    }
    assert!(tables.len() >= 3, "{tables:?}");
    place.ok(&["man", "pages"]);
    let man =
        std::fs::read_to_string(place.file("pages/milepost-sql.1")).unwrap().replace(r"\*(Aq", "'").replace('\\', "");
    for help in [place.ok(&["sql", "--help"]), place.ok(&["sql", "-h"]), man] {
        let words = |text: &str| -> Vec<String> {
            text.split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let at = help.find("Tables:").unwrap_or_else(|| panic!("{help}"));
        let (named, examples) = help[at..].split_once("Examples:").unwrap_or_else(|| panic!("{help}"));
        // Nothing is missing, nothing is there that is not.
        let mut said = words(named.trim_start_matches("Tables:"));
        said.retain(|word| !["br", "fi", "nf", "PP", "sp"].contains(&word.as_str()));
        let mut all: Vec<String> =
            tables.iter().flat_map(|(table, columns)| columns.iter().chain([table])).cloned().collect();
        said.sort();
        all.sort();
        assert_eq!(said, all, "{help}");
        let statements: Vec<&str> =
            examples.lines().filter_map(|line| line.split_once("milepost sql ")).map(|(_, sql)| sql.trim()).collect();
        assert!(statements.len() >= 2, "{help}");
        for statement in statements {
            place.ok(&["sql", statement.trim_matches('"')]);
        }
    }
}
