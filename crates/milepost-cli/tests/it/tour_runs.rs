//! Graphs and plans: checked, drawn, run, gone on with.

use serde_json::{Value, json};

use crate::runs::{PLAN, SCRIPT};
use crate::support::text;
use crate::tour::Tour;

pub fn runs(tour: &mut Tour<'_>) {
    tour.place.write("plan.yaml", PLAN);
    tour.place.write("model.yaml", SCRIPT);
    tour.person(&["graph", "check", "plan.yaml"]);
    assert_eq!(tour.program(&["graph", "check", "plan.yaml"])["nodes"], json!(4));
    tour.person(&["graph", "draw", "plan.yaml"]);
    assert!(text(&tour.program(&["graph", "draw", "plan.yaml"]), "/mermaid").starts_with("flowchart"));
    let schema: Value = serde_json::from_str(&tour.person_apart(&["graph", "schema"])).unwrap();
    assert_eq!(schema, tour.program(&["graph", "schema"]));
    assert_eq!(text(&schema, "/title"), "Milepost graph");

    tour.person_to(11, &["run", "plan.yaml", "--model", "scripted/model.yaml", "--input", "topic=trees"]);
    tour.person(&["steps", "last"]);
    tour.person(&["answer", "last", "colour", "blue", "--by", "Ada"]);
    tour.person(&["answer", "last", "colour", "red"]);
    tour.person_to(11, &["resume", "last", "--model", "scripted/model.yaml"]);
    tour.person(&["approve", "last", "publish", "--by", "Ada"]);
    tour.person(&["work", "--once", "--model", "scripted/model.yaml"]);
    tour.person(&["steps", "last"]);
    tour.person(&["steps", "last", "--all"]);
    tour.person(&["resume", "last", "--model", "scripted/model.yaml"]);

    tour.person(&["verify-replay", "plan.yaml", "last"]);
    assert_eq!(tour.program(&["verify-replay", "plan.yaml"])["broken"], json!(0));
    let run_again = ["run-again", "last", "find", "--input", "command=echo more", "--model", "scripted/model.yaml"];
    tour.person_to(11, &run_again);
    tour.person(&["merge-back", "last", "--output", "find"]);
    let end = tour.program_lines(&run_again).pop().unwrap();
    assert_eq!((text(&end, "/end"), text(&end, "/what/0/node")), ("waiting", "colour"));
    let branch = text(&end, "/sessionId").to_owned();
    assert_eq!(tour.program(&["merge-back", &branch, "--summary", "More"])["wasDone"], json!(false));

    let lines = tour.program_lines(&["run", "plan.yaml", "--model", "scripted/model.yaml"]);
    assert_eq!((text(&lines[0], "/event"), text(&lines[1], "/event")), ("run", "step_intent"));
    let end = lines.last().unwrap();
    assert_eq!((text(end, "/end"), text(end, "/what/0/node")), ("waiting", "colour"));
    let id = text(end, "/sessionId").to_owned();
    assert_eq!(tour.program(&["answer", &id, "colour", "red"])["accepted"], json!(true));
    assert_eq!(tour.program(&["answer", &id, "colour", "blue"])["answer"], json!("red"));
    assert_eq!(tour.program(&["approve", &id, "publish"])["answer"], json!("yes"));
    let lines = tour.program_lines(&["work", "--until-idle", "--model", "scripted/model.yaml"]);
    assert_eq!(text(lines.last().unwrap(), "/end"), "completed");
    let lines = tour.program_lines(&["resume", &id, "--model", "scripted/model.yaml"]);
    assert_eq!(text(&lines[0], "/outputs/colour"), "red");
    tour.person(&["chat", "Hello", "--model", "scripted/model.yaml"]);
    let lines = tour.program_lines(&["chat", "Hello", "--model", "scripted/model.yaml"]);
    assert_eq!(text(&lines[0], "/text"), "I read it.");
    tour.person_apart(&["demo"]);
    assert_eq!(tour.program(&["demo"])["ranTwice"], json!([]));
    assert_eq!(tour.program(&["steps", &id])["steps"].as_array().unwrap().len(), 4);
}
