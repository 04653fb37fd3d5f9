//! Tables fit every terminal from 40 columns on.

use unicode_width::UnicodeWidthStr;

use crate::runs::{PLAN, SCRIPT};
use crate::support::{Place, Ran};

#[test]
fn every_table_fits_the_terminal() {
    let place = Place::new();
    let long = "A title that says a good deal more than it would have to, and goes on";
    let mut titled = String::new();
    for number in 0..3 {
        let title = format!("{long} {number} 日本語日本語");
        let id = place.ok(&[
            "sessions",
            "new",
            "--title",
            &title,
            "--project",
            "a-project-with-a-name",
            "--agent",
            "an-agent-with-a-name",
        ]);
        place.ok(&["messages", "add", &id, long]);
        place.ok(&["checkpoint", &id, "--label", long]);
        place.ok(&["sessions", if number == 0 { "complete" } else { "pause" }, &id]);
        place.write("note.md", "text");
        let name = format!("an-artifact-with-a-name-{number}.md");
        place.ok(&["artifacts", "put", &name, "note.md", "--of", &id]);
        titled = id;
    }
    let archived = place.session(long, &["away"]);
    place.ok(&["sessions", "archive", &archived, "--to", "sqlite:an-archive-with-a-name.db"]);
    place.write(
        "plan.yaml",
        PLAN.replace("id: find", "id: a_step_with_a_long_name")
            .replace("dependencies: find", "dependencies: a_step_with_a_long_name")
            .replace("outputs.find", "outputs.a_step_with_a_long_name"),
    );
    place.write("model.yaml", SCRIPT);
    let ran = place.run(&["run", "plan.yaml", "--model", "scripted/model.yaml"]);
    assert_eq!(ran.code, 11, "{ran:?}");
    let commands = vec![
        vec!["sessions", "list"],
        vec!["sessions", "list", "--exact"],
        vec!["sessions", "list", "--archived"],
        vec!["sessions", "checkpoints", &titled],
        vec!["sessions", "checkpoints", &titled, "--exact"],
        vec!["sessions", "show", &titled],
        vec!["projects", "list"],
        vec!["artifacts", "list", "--of", &titled],
        vec!["stats"],
        vec!["stats", "--usage"],
        vec!["stats", &titled],
        vec!["steps", "last"],
        vec!["steps", "last", "--all"],
        vec!["config", "show"],
        vec!["sql", "SELECT * FROM sessions"],
    ];
    let mut wide = Vec::new();
    for args in commands {
        for columns in [40usize, 60, 80, 200] {
            let mut command = place.command(&args);
            let ran = Ran::of(command.env("COLUMNS", columns.to_string()).output().unwrap());
            assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
            assert!(!ran.out.is_empty(), "{args:?}");
            let too_wide = ran.out.lines().filter(|line| line.width() > columns);
            wide.extend(too_wide.map(|line| format!("{args:?} at {columns}: {} {line}", line.width())));
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn forty_columns_still_show_which_session_is_which() {
    let place = Place::new();
    let id = place.session("A title that is long enough to be cut", &[]);
    let ran = Ran::of(place.command(["sessions", "list"]).env("COLUMNS", "40").output().unwrap());
    assert!(ran.out.contains(&id[id.len() - 8..]) && ran.out.contains("A title"), "{}", ran.out);
}
