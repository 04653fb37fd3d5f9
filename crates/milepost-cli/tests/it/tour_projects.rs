//! Projects, and what they and their sessions have made.

use serde_json::json;

use crate::support::{Place, Ran, number, text};
use crate::tour::Tour;

pub fn projects(tour: &mut Tour<'_>) {
    tour.place.write("shop/milepost.yaml", "templates:\n  readme:\n    content: \"# {{title}}\\n\"\n");
    let in_shop = |args: &[&str]| {
        let ran = Ran::of(tour.place.command(args).current_dir(tour.place.file("shop")).output().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.out.trim_end().to_owned()
    };
    let id = in_shop(&["sessions", "new", "--here", "--title", "Sell more"]);
    // Without a name it is the project of the working directory; its templates may stand in the configuration.
    in_shop(&["artifacts", "make", "README.md", "readme", "--set", "title=Shop"]);
    assert_eq!(in_shop(&["artifacts", "show", "README.md"]), "# Shop");
    tour.place.ok(&["sessions", "new", "--project", "campaign"]);

    tour.person(&["projects", "list"]);
    let all = tour.program(&["projects", "list"]);
    assert_eq!(all["projects"].as_array().unwrap().len(), 2);
    tour.person(&["projects", "show", "shop"]);
    let shown = tour.program(&["projects", "show", "shop"]);
    assert_eq!((text(&shown, "/sessions/0/sessionId"), text(&shown, "/artifacts/0/name")), (id.as_str(), "README.md"));
    tour.program(&["projects", "show", "campaign"]);
    // A directory that was moved keeps its project when one says so.
    std::fs::rename(tour.place.file("shop"), tour.place.file("market")).unwrap();
    tour.person(&["projects", "link", "shop", "market"]);
    let linked = tour.program(&["projects", "link", "shop", "market"]);
    assert_eq!(linked["projectId"], shown["projectId"]);
    let again =
        tour.place.command(["--json", "sessions", "new", "--here"]).current_dir(tour.place.file("market")).output();
    let again: serde_json::Value = serde_json::from_str(&Ran::of(again.unwrap()).out).unwrap();
    assert_eq!(again["projectId"], shown["projectId"]);

    tour.person_with(&["artifacts", "put", "foundation.md", "--of", &id], "All of it.\n");
    tour.place.write("new.md", "All of it, and more.\n");
    let put = tour.program(&["artifacts", "put", "foundation.md", "new.md", "--of", &id]);
    assert_eq!(number(&put, "/version"), 2);
    tour.person_with(&["artifacts", "put", "page.html", "--template", "--project", "shop"], "<h1>{{title}}</h1>\n");
    // A session makes its own of the templates of its project.
    tour.person(&["artifacts", "make", "index.html", "page.html", "--set", "title=Shop", "--of", &id]);
    let made = tour.program(&["artifacts", "make", "about.html", "page.html", "--set", "title=Us", "--of", &id]);
    assert_eq!(number(&made, "/version"), 1);
    tour.person(&["artifacts", "list", "--of", &id]);
    let all = tour.program(&["artifacts", "list", "--of", &id]);
    assert_eq!(text(&all, "/artifacts/0/versions/0/template"), "page.html");
    assert_eq!(tour.person(&["artifacts", "show", "index.html", "--of", &id]), "<h1>Shop</h1>");
    tour.person(&["artifacts", "show", "foundation.md", "--version", "1", "--of", &id]);
    let shown = tour.program(&["artifacts", "show", "foundation.md", "--of", &id]);
    assert_eq!(text(&shown, "/content"), "All of it, and more.\n");
    assert_eq!(number(&tour.place.json(&["stats", "--usage", &id]), "/artifactsGenerated"), 3);
    tour.person(&["artifacts", "delete", "index.html", "--of", &id, "--dry-run"]);
    tour.person(&["artifacts", "delete", "index.html", "--of", &id, "--yes"]);
    let gone = tour.program(&["artifacts", "delete", "about.html", "--of", &id, "--yes"]);
    assert_eq!(gone, json!({ "deleted": "about.html", "versions": 1, "dryRun": false }));
}

#[test]
fn a_feature_brings_its_spec_and_tasks() {
    let place = Place::new();
    place.write("work/SPEC.md", "# Login\n\nPeople log in.\n");
    place.write("work/TASKS.md", "- [ ] t1: Draw the form\n- [ ] t2: Check the password\n");
    let new = ["sessions", "new", "--here", "--feature", "feat1", "--task", "t1"];
    let made = Ran::of(place.command(new).current_dir(place.file("work")).output().unwrap());
    assert_eq!(made.code, 0, "{made:?}");
    let context = place.json(&["state", "get", made.out.trim(), "context"]);
    let feature = context.pointer("/feature").or_else(|| context.pointer("/value/feature")).unwrap_or(&context);
    assert_eq!(feature["name"], "feat1", "{context:#}");
    assert!(feature["spec"].as_str().is_some_and(|spec| spec.contains("People log in")), "{context:#}");
    assert_eq!(feature["tasks"].as_array().map(Vec::len), Some(2), "{context:#}");
}

#[test]
fn a_moved_directory_is_found_by_the_sessions_that_began_before() {
    let place = Place::new();
    let git = |dir: &str, args: &[&str]| {
        let done = std::process::Command::new("git").args(args).current_dir(place.file(dir)).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    place.write("one/CLAUDE.md", "old rules");
    git("one", &["init", "-q"]);
    git("one", &["add", "."]);
    git("one", &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]);
    let new = |dir: &str| {
        let made = place.command(["sessions", "new", "--here"]).current_dir(place.file(dir)).output().unwrap();
        Ran::of(made).out.trim().to_owned()
    };
    let first = new("one");
    std::fs::rename(place.file("one"), place.file("moved")).unwrap();
    let lost = place.run(&["sessions", "resume", &first]);
    assert!(lost.code == 0 && lost.err.contains("is gone"), "{lost:?}");
    new("moved");
    place.write("moved/CLAUDE.md", "new rules");
    let found = place.run(&["sessions", "resume", &first]);
    assert!(found.code == 0 && !found.err.contains("is gone"), "{found:?}");
    let context = place.ok(&["state", "get", &first, "context"]);
    assert!(context.contains("new rules") && !context.contains("old rules"), "{context}");
    assert!(context.contains("/moved"), "{context}");
}
