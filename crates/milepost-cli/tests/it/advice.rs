//! The third part of an error: what to do now. A command that is named works, and is about the store that was meant.

use serde_json::{Value, json};

use crate::lists::damage_message;
use crate::support::{Place, Ran, number, text};

/// The command that an error names behind a word, as arguments.
fn way(ran: &Ran, name: &str) -> Vec<String> {
    let line = ran.err.lines().find(|line| line.trim_start().starts_with(&format!("{name}  ")));
    let line = line.unwrap_or_else(|| panic!("no way {name:?}: {}", ran.err));
    let command = line.split_once("milepost ").unwrap_or_else(|| panic!("{line}")).1;
    command.split_whitespace().map(str::to_owned).collect()
}

fn follow(place: &Place, ran: &Ran, name: &str) -> Ran {
    place.run(&way(ran, name).iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_value_that_a_state_has_not_is_told_with_what_is_there() {
    let place = Place::new();
    let id = place.session("Here", &[]);
    place.ok(&["state", "set", &id, "memory.step=3", "memory.list=[1,2]", "memory.name=Ada"]);
    let checkpoint = place.ok(&["checkpoint", &id]);
    for (path, says) in [
        ("nothing", "the state has memory"),
        ("memory.nothing", "memory has list, name, step"),
        ("/memory/nothing/deep", "memory has list, name, step"),
        ("memory.name.first", "memory.name is a text"),
        ("memory.list.7", "memory.list has 2 items"),
    ] {
        let ran = place.run(&["state", "get", &id, path]);
        assert_eq!(ran.code, 3, "{path}: {ran:?}");
        assert!(ran.err.contains(path) && ran.err.contains(&id) && ran.err.contains(says), "{path}: {}", ran.err);
        assert!(!ran.err.contains("workspace"), "{path}: {}", ran.err);
        let seen = follow(&place, &ran, "all of it");
        assert!(seen.code == 0 && seen.out.contains("\"Ada\""), "{seen:?}");
    }
    let ran = place.run(&["state", "get", &id, "memory.nothing", "--checkpoint", &checkpoint]);
    assert!(way(&ran, "all of it").contains(&checkpoint), "{ran:?}");
    assert_eq!(follow(&place, &ran, "all of it").code, 0);
    let empty = place.session("Empty", &[]);
    let ran = place.run(&["state", "get", &empty, "memory"]);
    assert!(ran.code == 3 && ran.err.contains("the state is empty"), "{ran:?}");
}

#[test]
fn a_name_that_is_too_long_is_told_to_be_shortened() {
    let place = Place::new();
    let id = place.session("Here", &[]);
    let long = "long-".repeat(300);
    for args in [
        &["sessions", "rename", &id, &long][..],
        &["sessions", "new", "--title", &long],
        &["sessions", "tag", &id, &format!("+{long}")],
        &["checkpoint", &id, "--label", &long],
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains(" 1500 bytes") && ran.err.contains("1024"), "{}", ran.err);
        assert!(ran.err.contains("give a shorter one") && !ran.err.contains("split it"), "{}", ran.err);
    }
    let listed = place.json(&["sessions", "list"]);
    assert_eq!((listed["sessions"].as_array().unwrap().len(), text(&listed, "/sessions/0/title")), (1, "Here"));
}

#[test]
fn a_session_that_a_store_has_not_is_looked_for_in_that_store() {
    let place = Place::new();
    place.session("Mine", &[]);
    place.ok(&["--store", "sqlite:other.db", "--workspace", "w", "sessions", "new", "--title", "Theirs"]);
    for given in ["zzzzzzzz", "ses_00000000000000000000000000"] {
        // The store to pull from.
        let ran = place.run(&["pull", given, "sqlite:other.db", "--workspace", "w"]);
        assert!(ran.code == 3 && ran.err.contains(given) && ran.err.contains("sqlite:other.db"), "{ran:?}");
        let seen = follow(&place, &ran, "list");
        assert!(seen.code == 0 && seen.out.contains("Theirs"), "{seen:?}");
        // The store that was named for a command.
        for args in [&["push", given, "sqlite:third.db"][..], &["sessions", "show", given]] {
            let args = [args, &["--store", "sqlite:other.db", "--workspace", "w"]].concat();
            let ran = place.run(&args);
            assert_eq!(ran.code, 3, "{ran:?}");
            let seen = follow(&place, &ran, "list");
            assert!(seen.code == 0 && seen.out.contains("Theirs"), "{args:?}: {seen:?}");
        }
        let ran = place.run(&["push", given, "sqlite:third.db"]);
        let seen = follow(&place, &ran, "list");
        assert!(ran.code == 3 && seen.out.contains("Mine"), "{ran:?}");
    }
    assert!(!place.file("third.db").exists(), "a push that fails made a store");
}

#[test]
fn a_search_in_a_project_that_is_not_there_says_which_are() {
    let place = Place::new();
    place.ok(&["sessions", "new", "--project", "shop", "--title", "Otters"]);
    let ran = place.run(&["sessions", "search", "otters", "--project", "nosuch"]);
    assert!(ran.code == 3 && ran.err.contains("no project nosuch"), "{ran:?}");
    let seen = follow(&place, &ran, "list");
    assert!(seen.code == 0 && seen.out.contains("shop"), "{seen:?}");
    assert_eq!(place.run(&["sessions", "search", "otters", "--project", "shop"]).code, 0);
}

/// Overwrites the first page of a table of a store that nobody has open.
fn damage_table(place: &Place, table: &str) {
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let number = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() as usize;
    number("PRAGMA wal_checkpoint(TRUNCATE)");
    let root = number(&format!("SELECT rootpage FROM sqlite_schema WHERE name = '{table}'"));
    let size = number("PRAGMA page_size");
    drop(database);
    let mut bytes = std::fs::read(place.store()).unwrap();
    bytes[(root - 1) * size..root * size].fill(0xff);
    std::fs::write(place.store(), bytes).unwrap();
}

#[test]
fn damage_of_the_file_names_the_rescue_whichever_command_meets_it() {
    for table in ["sessions", "entries"] {
        let place = Place::new();
        let id = place.session("Precious", &["one"]);
        damage_table(&place, table);
        let mut met = 0;
        for args in [
            &["sessions", "list"][..],
            &["sessions", "show", &id],
            &["sessions", "checkpoints", &id],
            &["messages", "list", &id],
            &["messages", "add", &id, "two"],
            &["state", "get", &id],
            &["checkpoint", &id],
            &["sessions", "export", &id, "--format", "markdown"],
            &["push", &id, "sqlite:other.db"],
            &["stats"],
        ] {
            let ran = place.run(args);
            if ran.code == 0 {
                continue;
            }
            assert_eq!(ran.code, 5, "{table} {args:?}: {ran:?}");
            let command = way(&ran, "rescue");
            assert_eq!(command[0], "salvage", "{table} {args:?}: {ran:?}");
            met += 1;
        }
        assert!(met >= 5, "{table}: {met}");
        if table == "sessions" {
            let ran = place.run(&["sessions", "list"]);
            let done = follow(&place, &ran, "rescue");
            assert!(done.code == 0 && done.out.starts_with("rescued 1 session"), "{done:?}");
        }
        let ran = place.run(&["pull", &id, &place.url(), "--store", "sqlite:mine.db"]);
        assert!(ran.code == 5 && way(&ran, "rescue other")[0] == "salvage", "{table}: {ran:?}");
    }
}

#[test]
fn a_migration_that_meets_damage_names_what_finds_it_and_what_brings_the_rest_over() {
    let place = Place::new();
    let lines: String =
        (0..1200).map(|n| format!("{}\n", json!({ "role": "user", "content": format!("m {n}") }))).collect();
    let ill = place.session("Ill", &[]);
    assert_eq!(place.run_with(&["messages", "add", &ill, "--from-json", "-"], lines.as_bytes()).code, 0);
    let well = place.session("Well", &["hello"]);
    // Some of it is copied before the damage is met.
    damage_message(&place, 1000);
    let (from, to) = (place.url(), format!("sqlite:{}", place.file("new.db").display()));
    let ran = place.run(&["migrate", &from, &to]);
    assert!(ran.code == 5 && ran.err.contains("#1002 is damaged") && ran.err.contains(&to), "{ran:?}");
    let told = follow(&place, &ran, "find");
    assert!(told.code == 5 && told.out.contains(&ill[ill.len() - 8..]) && told.out.contains("1002"), "{told:?}");
    let rescued = follow(&place, &ran, "rescue");
    assert!(rescued.code == 0 && rescued.out.starts_with("rescued 2 sessions"), "{rescued:?}");
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(place.file(&format!("new.db{end}")));
    }
    place.ok(&["migrate", &format!("{from}.rescued"), &to]);
    let count = |id: &str| number(&place.json(&["sessions", "show", id, "--store", &to]), "/messageCount");
    assert_eq!((count(&ill), count(&well)), (1000, 1));
    let told = place.run(&["--json", "migrate", &from, "sqlite:other.db"]);
    let told: Value = serde_json::from_str(&told.err).unwrap();
    assert_eq!(text(&told, "/error/kind"), "damaged");
    assert!(text(&told, "/error/try/rescue").starts_with("milepost salvage "), "{told:#}");
    // A bucket is rescued session by session.
    let bucket = format!("file://{}", place.file("bucket").display());
    std::fs::create_dir(place.file("bucket")).unwrap();
    place.ok(&["push", &well, &bucket]);
    damage_objects(&place.file("bucket"));
    let ran = place.run(&["migrate", &bucket, "sqlite:third.db"]);
    assert!(ran.code == 5 && ran.err.contains("one by one  milepost push SESSION STORE --store file://"), "{ran:?}");
}

#[test]
fn what_a_bucket_cannot_do_is_told_with_what_works() {
    let place = Place::new();
    let bucket = format!("file://{}", place.file("bucket").display());
    std::fs::create_dir(place.file("bucket")).unwrap();
    let id = place.ok(&["sessions", "new", "--store", &bucket]);
    place.ok(&["messages", "add", &id, "hello", "--store", &bucket]);
    let ran = place.run(&["backup", "copy.db", "--store", &bucket]);
    assert!(ran.code == 1 && !place.file("copy.db").exists(), "{ran:?}");
    // The store is named twice by the command itself, not by a flag.
    let command: Vec<String> = way(&ran, "migrate").into_iter().take(3).collect();
    place.ok(&command.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(number(&place.json(&["sessions", "show", &id, "--store", "sqlite:copy.db"]), "/messageCount"), 1);
    // Nothing found is said, though everything was read.
    let ran = place.run(&["sessions", "search", "nowhere", "--store", &bucket]);
    assert!(ran.code == 0 && ran.err.contains("nothing was found") && ran.err.contains("1 message read"), "{ran:?}");
    let told = place.ok(&["stats", "--store", &bucket]);
    assert!(!told.contains("0 B are free") && told.starts_with("sessions"), "{told}");
}

/// Changes a byte in the middle of every object that holds a part of a log.
fn damage_objects(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            damage_objects(&entry.path());
            continue;
        }
        let mut bytes = std::fs::read(entry.path()).unwrap();
        if bytes.len() > 200 {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
            std::fs::write(entry.path(), bytes).unwrap();
        }
    }
}

#[test]
fn a_wrong_command_line_has_three_parts_in_json_too() {
    let place = Place::new();
    for (args, says, help) in [
        (&["sesions", "list"][..], "'sesions'", "milepost --help"),
        (&["sessions", "lsit"], "'list'", "milepost sessions --help"),
        (&["sessions", "list", "--bogus"], "'--bogus'", "milepost sessions list --help"),
        (&["--store", "sqlite:x.db", "session", "list", "--limit", "0"], "1 on", "milepost sessions list --help"),
        (&["state", "set", "last"], "KEY=VALUE", "milepost state set --help"),
        (&["sessions", "list", "--status", "done"], "possible values: active", "milepost sessions list --help"),
        (&["sessions"], "subcommand", "milepost sessions --help"),
    ] {
        let ran = place.run(&[args, &["--json"]].concat());
        assert!(ran.code == 2 && ran.out.is_empty(), "{args:?}: {ran:?}");
        let value: Value = serde_json::from_str(&ran.err).unwrap_or_else(|_| panic!("{}", ran.err));
        assert_eq!((text(&value, "/error/kind"), text(&value, "/error/try/help")), ("usage", help), "{args:?}");
        let message = text(&value, "/error/message");
        let command = help.strip_suffix(" --help").unwrap();
        assert!(message.starts_with(&format!("`{command}` cannot be read: ")), "{message}");
        assert!(message.contains(says) && message.ends_with(&format!("; see `{help}`")), "{message}");
        assert!(!message.contains("For more information") && !message.contains("Usage:"), "{message}");
    }
}

#[test]
fn exit_codes_are_those_of_the_table() {
    let place = Place::new();
    let id = place.session("Here", &["one"]);
    let other = place.session("Other", &[]);
    let theirs = place.ok(&["checkpoint", &other]);
    // What a file is called says nothing of what is wrong in it.
    place.write("my.keys.yaml", "nonsense: 1\n");
    place.write("encrypted.yaml", "encryption:\n  enabled: true\n");
    for (code, args) in [
        (3, &["sessions", "import", "missing.json"][..]),
        (3, &["sessions", "import", "missing.json", "--dry-run"]),
        (3, &["keys", "sign", &id, "--key", "missing.key"]),
        (3, &["artifacts", "put", "plan.md", "missing.md", "--of", &id]),
        (3, &["sessions", "restore", &id, &theirs]),
        (2, &["sessions", "search", ""]),
        (2, &["sessions", "search", "", "--substring"]),
        (2, &["sessions", "search", "?!"]),
        (2, &["sessions", "show", "zz"]),
        (2, &["checkpoint", &id, "--label", "latest"]),
        (2, &["sessions", "inspect", &id, ""]),
        (2, &["state", "set", &id, "step"]),
        (2, &["sessions", "list", "--config", "my.keys.yaml"]),
        (6, &["sessions", "list", "--config", "encrypted.yaml"]),
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        assert!(ran.err.contains("; ") || ran.err.contains(": "), "{args:?}: {}", ran.err);
    }
    let ran = place.run(&["sessions", "import", "missing.json"]);
    assert!(ran.err.contains("missing.json") && ran.err.contains("check the path"), "{}", ran.err);
}

#[test]
fn an_artifact_that_is_not_there_is_looked_for_where_it_was_meant_to_be() {
    let place = Place::new();
    let id = place.session("Mine", &[]);
    place.write("plan.md", "the plan");
    place.ok(&["artifacts", "put", "plan.md", "plan.md", "--of", &id]);
    place.ok(&["artifacts", "put", "other.md", "plan.md", "--project", "the shop"]);
    for (args, there) in [
        (&["artifacts", "show", "nothing.md", "--of", &id][..], "plan.md"),
        (&["artifacts", "delete", "nothing.md", "--of", &id, "--yes"], "plan.md"),
        (&["artifacts", "make", "a.md", "nothing", "--of", &id], "plan.md"),
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 3, "{args:?}: {ran:?}");
        let seen = follow(&place, &ran, "list");
        assert!(seen.code == 0 && seen.out.contains(there), "{args:?}: {seen:?}");
    }
    let ran = place.run(&["artifacts", "show", "nothing.md", "--project", "the shop"]);
    assert!(ran.code == 3 && ran.err.contains("milepost artifacts list --project 'the shop'"), "{ran:?}");
}
