//! Conversations through the real binary: on a pipe, in a terminal, interrupted, killed, limited.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Place, Ran, text};
use crate::terminal::Terminal;
use crate::transcript::{Transcript, assert_seen};

const SCRIPT: &str = "name: talker
after_last: repeat
replies:
  - {text: Hello., usage: {input_tokens: 10, output_tokens: 3}, cost_usd: 0.5}
  - {text: Again., usage: {input_tokens: 20, output_tokens: 4}, cost_usd: 0.25}
  - {text: A third time.}
";

/// A model that takes its time.
const SLOW: &str = "replies:
  - {pieces: ['one ', 'two ', 'three ', 'four ', 'five ', 'six ', 'seven ', 'eight ', 'nine ', 'ten'], delay_ms: 200}
  - {text: Yes.}
";

fn place(script: &str) -> Place {
    let place = Place::new();
    place.write("model.yaml", script);
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    place
}

fn last(place: &Place) -> String {
    text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned()
}

fn messages(place: &Place, id: &str) -> Vec<Value> {
    place.json(&["messages", "list", id, "--all"])["messages"].as_array().unwrap().clone()
}

#[test]
fn every_line_of_a_pipe_is_a_message_and_everything_is_kept_and_counted() {
    let place = place(SCRIPT);
    let ran = place.run_with(&["chat"], b"hi there\n\nand you?\n/undo\n");
    assert_eq!((ran.out.as_str(), ran.code), ("Hello.\nAgain.\nA third time.\n", 0), "{}", ran.err);
    let id = last(&place);
    let said = ["hi there", "Hello.", "and you?", "Again.", "/undo", "A third time."];
    assert_eq!(place.texts(&id), said, "on a pipe nothing is a command");
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/status"), "paused");
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/title"), "hi there");
    let usage = place.json(&["stats", "--usage", &id]);
    assert!(usage.to_string().contains("0.75"), "{usage:#}");
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    let place = place(SCRIPT);
    let mut seen = Transcript::new(&place);
    seen.run(&["chat", "hi there", "--title", "A talk"]);
    seen.run(&["chat", "--session", "last", "and you?"]);
    seen.run(&["chat", "--session", "last", "--json", "third"]);
    seen.run(&["messages", "list", "last"]);
    assert_seen!("chat", seen.end());
}

#[test]
fn nothing_is_left_of_a_conversation_in_which_nothing_was_said() {
    let place = place(SCRIPT);
    assert_eq!(place.run_with(&["chat"], b"").code, 0);
    assert_eq!(place.json(&["sessions", "list", "--all"])["sessions"], json!([]));
    place.write("milepost.yaml", "workspace: lab\n");
    let ran = place.run(&["chat", "hi"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("MILEPOST_MODEL"), "{}", ran.err);
}

/// Begins to hear an answer until something was said.
fn hear(place: &Place, until: &str) -> (Child, String) {
    let mut child = place.command(["chat", "count"]).stdin(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&heard).contains(until) {
        out.read_exact(&mut byte).unwrap();
        heard.push(byte[0]);
    }
    child.stdout = Some(out.into_inner());
    (child, String::from_utf8(heard).unwrap())
}

#[test]
fn what_had_arrived_when_the_process_was_killed_is_kept() {
    let place = place(SLOW);
    let (mut child, _) = hear(&place, "seven");
    child.kill().unwrap();
    child.wait().unwrap();
    let id = last(&place);
    assert_eq!(place.texts(&id), ["count"], "what was said is there");
    let ran = place.run(&["chat", "--session", &id, "and?"]);
    assert_eq!(ran.out, "Yes.\n", "{}", ran.err);
    assert!(ran.err.contains("was cut off"), "{}", ran.err);
    let all = messages(&place, &id);
    let cut = text(&all[1], "/content");
    assert!(cut.starts_with("one two") && "one two three four five six seven eight".starts_with(cut), "{cut}");
    assert!(all[1].to_string().contains("the process ended"), "{:#}", all[1]);
    assert_eq!(all.len(), 4);
    assert_eq!(place.run(&["doctor", &id]).code, 0, "the history is valid");
}

#[test]
fn who_stops_an_answer_keeps_what_was_heard() {
    let place = place(SLOW);
    let (child, heard) = hear(&place, "three");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130, "{}", ran.err);
    let heard = format!("{heard}{}", ran.out);
    let id = last(&place);
    let all = messages(&place, &id);
    assert_eq!(text(&all[1], "/content").trim(), heard.trim());
    assert!(all[1].to_string().contains("cancelled"), "{:#}", all[1]);
    assert_eq!(place.run(&["chat", "--session", &id, "and?"]).out, "Yes.\n");
}

#[test]
fn a_line_that_goes_dead_keeps_what_came_and_a_limit_says_until_when() {
    let place = place(
        "replies:
  - {when: story, text: Once upon, cut: the line went dead}
  - {when: much, limited: {after_ms: 60000, why: too many requests}}
  - {when: broken, error: {kind: refused, why: no such model}}
",
    );
    let ran = place.run(&["chat", "a story"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, "Once upon\n"));
    assert!(ran.err.contains("the line went dead"), "{}", ran.err);
    let id = last(&place);
    assert_eq!(place.texts(&id), ["a story", "Once upon"]);
    let ran = place.run(&["chat", "too much"]);
    assert_eq!((ran.code, ran.out.as_str()), (11, ""));
    assert!(ran.err.contains("too many requests"), "{}", ran.err);
    let id = last(&place);
    let marks = place.json(&["sessions", "checkpoints", &id]);
    assert!(marks.to_string().contains("rate_limit"), "{marks:#}");
    let ran = place.run(&["chat", "broken"]);
    assert_eq!(ran.code, 1);
    let id = last(&place);
    assert_eq!(place.texts(&id), ["broken"], "what was said is kept");
    assert!(place.json(&["sessions", "checkpoints", &id]).to_string().contains("error"));
}

/// The person need not wait for it: whoever works when the limit is over asks again, once.
#[test]
fn what_a_limit_stood_in_the_way_of_is_answered_when_it_is_over() {
    let place = place("replies:\n  - {limited: {after_ms: 1500, why: too many requests}}\n");
    let ran = place.run(&["chat", "too much"]);
    assert_eq!(ran.code, 11, "{}", ran.err);
    assert!(ran.err.contains("`milepost work` asks it again then"), "{}", ran.err);
    let id = last(&place);
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/status"), "waiting");
    place.write("model.yaml", "replies: [{text: Enough.}]\n");
    // It waits for what is due later, and ends when nothing is.
    let ran = place.run(&["work", "--until-idle"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("answered"), "{}", ran.err);
    assert_eq!(place.texts(&id), ["too much", "Enough."]);
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/status"), "paused");
    let ran = place.run(&["work", "--until-idle"]);
    assert_eq!((ran.code, place.texts(&id).len()), (0, 2), "nothing is due any more: {}", ran.err);
}

/// Nobody is there to ask again: the worker does, later.
#[test]
fn a_conversation_that_fails_when_it_is_woken_is_tried_again_later() {
    let place = place("replies:\n  - {limited: {after_ms: 1, why: too many requests}}\n");
    assert_eq!(place.run(&["chat", "are you there?"]).code, 11);
    let id = last(&place);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    place.write("model.yaml", "replies: [{error: {kind: unreachable, why: no network}}]\n");
    let ran = place.run(&["work", "--once"]);
    assert!(ran.err.contains("waiting: until 2") && ran.err.contains("no network"), "{}", ran.err);
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/status"), "waiting");
    place.write("model.yaml", "replies: [{text: I am.}]\n");
    assert!(answered_later(&place).contains("answered"));
    assert_eq!(place.texts(&id), ["are you there?", "I am."]);
}

/// By the model that was said when it began, though the settings name none.
#[test]
fn what_a_limit_stood_in_the_way_of_is_asked_of_the_model_that_was_said() {
    let place = Place::new();
    place.write("plan.yaml", "steps:\n  - {id: a, action: model, with: {prompt: hi}}\n");
    place
        .write("model.yaml", "after_last: repeat\nreplies:\n  - {limited: {after_ms: 1500, why: too many requests}}\n");
    let ran = place.run(&["chat", "--model", "scripted/model.yaml", "too much"]);
    assert_eq!(ran.code, 11, "{}", ran.err);
    let chat = last(&place);
    let ran = place.run(&["run", "plan.yaml", "--model", "scripted/model.yaml", "--patience", "0s"]);
    assert_eq!(ran.code, 11, "{}", ran.err);
    assert!(ran.err.contains("limited until 2"), "{}", ran.err);
    let run = last(&place);
    place.write("model.yaml", "after_last: repeat\nreplies: [{text: Enough.}]\n");
    let ran = place.run(&["work", "--until-idle"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(place.texts(&chat), ["too much", "Enough."], "{}", ran.err);
    assert_eq!(text(&place.json(&["sessions", "show", &run]), "/status"), "completed", "{}", ran.err);
}

/// Whoever asks again leaves the message and its wake-up where they are until there is an answer.
#[tokio::test]
async fn a_worker_that_is_killed_while_it_asks_again_loses_nothing() {
    let place = place("replies:\n  - {limited: {after_ms: 1, why: too many requests}}\n");
    assert_eq!(place.run(&["chat", "too much"]).code, 11);
    let id = last(&place);
    place.write("model.yaml", SLOW);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let mut worker = place.command(["work", "--once"]).stderr(Stdio::piped()).spawn().unwrap();
    // It says that the session goes on before it asks.
    let mut told = [0; 1];
    worker.stderr.as_mut().unwrap().read_exact(&mut told).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert_eq!(place.texts(&id)[0], "too much");
    let engine = milepost::Milepost::open(&place.url()).await.unwrap();
    assert!(engine.store().record("wakeup", &id).await.unwrap().is_some(), "it is due again when the claim is over");
}

#[test]
fn a_message_that_was_taken_back_needs_no_answer() {
    let place = place("replies:\n  - {limited: {after_ms: 1, why: too many requests}}\n");
    let mut terminal = Terminal::run(&place, 80, &["chat", "--color", "never"]);
    terminal.type_in("too much\n/undo\n/quit\n");
    terminal.end();
    let id = last(&place);
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/status"), "paused");
    let ran = place.run(&["work", "--until-idle"]);
    assert!(!ran.err.contains("goes on"), "{}", ran.err);
}

#[test]
fn in_a_terminal_one_goes_back_branches_and_is_greeted() {
    let place = place(
        "after_last: repeat
replies:
  - {text: First answer.}
  - {text: Second answer.}
  - {when: is back, text: Welcome back.}
",
    );
    let mut terminal = Terminal::run(&place, 80, &["chat", "--color", "never"]);
    terminal.type_in("/undo\nhi\nhow \\\nare you?\n/undo\n/history\n/save here\n/cost\n/nonsense\n/branch Another way\n//slash\n/help\n/quit\n");
    let (shown, code) = terminal.end();
    assert_eq!(code, 0, "{shown}");
    for part in [
        "nothing was said yet",
        "First answer.",
        "Second answer.",
        "took 2 messages back; you had said: how  are you?",
        "(here)",
        "there is no /nonsense",
        "stays as it was",
        "/retry",
        "goes on",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let id = last(&place);
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/title"), "Another way");
    assert_eq!(place.texts(&id), ["hi", "First answer.", "/slash", "Second answer."]);
    // The one before is offered, and the model greets.
    let mut terminal = Terminal::run(&place, 80, &["chat", "--session", &id, "--color", "never"]);
    terminal.type_in("/quit\n");
    let (shown, _) = terminal.end();
    assert!(shown.contains("Welcome back.") && shown.contains("4 messages"), "{shown}");
    let mut terminal = Terminal::run(&place, 80, &["chat", "--color", "never", "--no-greeting"]);
    terminal.type_in("y\n/session\n/quit\n");
    let (shown, _) = terminal.end();
    assert!(shown.contains("go on with it?") && shown.matches(&id).count() >= 2, "{shown}");
}

/// A server that speaks as OpenAI does, and what it was sent.
fn server() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut part = [0; 4096];
            let is_whole = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).to_lowercase();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                body.len() >= length.unwrap_or(0usize)
            };
            while !is_whole(&request) {
                let count = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..count]);
            }
            tell.send(String::from_utf8(request).unwrap()).unwrap();
            let body = json!({
                "id": "1", "model": "small", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000},
            })
            .to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    (url, told)
}

#[test]
fn keys_come_from_a_variable_or_a_command_and_are_never_stored() {
    let place = Place::new();
    let (url, told) = server();
    let settings = format!(
        "model: small
models:
  small:
    provider: openai
    model: small
    base_url: {url}
    key_command: cat secret-file
    headers: {{x-team: search}}
    prices: {{input: 2, output: 0.5}}
  other: {{provider: openai, model: small, base_url: '{url}', key_variable: MY_KEY}}
"
    );
    place.write("milepost.yaml", settings);
    place.write("secret-file", "key-from-a-command-4711\nmore\n");
    let refused = place.run(&["chat", "hi"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.err.contains("it runs a command"),
        "a file that came with a directory runs nothing: {}",
        refused.err
    );
    let config = place.file("milepost.yaml").display().to_string();
    let ran = place.run(&["--config", &config, "chat", "hi"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "Hi.\n"), "{}", ran.err);
    let request = told.recv().unwrap();
    assert!(request.contains("authorization: Bearer key-from-a-command-4711\r\n"), "{request}");
    assert!(request.contains("x-team: search"), "{request}");
    let usage = place.json(&["--config", &config, "stats", "--usage", "last"]);
    assert!(usage.to_string().contains("2.5"), "the settings' prices count: {usage:#}");
    let mut command = place.command(["--config", &config, "chat", "hi", "--model", "other"]);
    let ran = Ran::of(command.env("MY_KEY", "key-from-a-variable-4711").output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(told.recv().unwrap().contains("authorization: Bearer key-from-a-variable-4711\r\n"));
    for name in ["milepost.db", "milepost.db-wal"] {
        let bytes = std::fs::read(place.file("data/milepost").join(name)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains("4711"), "a key is in {name}");
    }
    place.write("secret-file", "");
    let ran = place.run(&["--config", &config, "chat", "hi"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("models.small.key_command: it wrote nothing"), "{}", ran.err);
}

#[test]
fn settings_of_models_are_checked_and_shown() {
    let place = Place::new();
    let mut seen = Transcript::new(&place);
    place.write(
        "milepost.yaml",
        "model: smal
models:
  small: {provider: opnai, model: qwen, base_ulr: 'http://localhost:1/v1'}
  large: {provider: anthropic, key_variable: A, key_command: cat b, prices: {input: free}}
  own: {provider: openai, model: x, base_url: 'https://evil.example/v1', timeouts: {connect: 5}}
",
    );
    assert_eq!(seen.run(&["config", "check"]).code, 2);
    place.write(
        "milepost.yaml",
        "model: small\nmodels:\n  small: {provider: scripted, model: demo.yaml, prices: {input: 1.5, output: 3}}\n",
    );
    assert_eq!(seen.run(&["config", "check"]).code, 0);
    seen.run(&["config", "show", "model"]);
    assert_eq!(seen.run(&["chat", "hi"]).code, 2);
    assert_eq!(seen.run(&["chat", "hi", "--model", "smal"]).code, 2);
    assert_eq!(seen.run(&["chat", "hi", "--model", "anthropic/claude"]).code, 2);
    assert_seen!("model_settings", seen.end());
}

/// Prices that nobody held against their provider's list are told as such.
#[test]
fn a_cost_by_the_built_in_prices_says_that_they_are_unchecked() {
    let place = Place::new();
    let (url, _told) = server();
    place.write(
        "milepost.yaml",
        format!(
            "model: m\nmodels: {{m: {{provider: openai, model: gpt-5.4-mini, base_url: '{url}', key_variable: K}}}}\n"
        ),
    );
    place.write("g.yaml", "nodes:\n  a: {action: model, with: {prompt: hi}}\n  b: {action: ask, with: {question: Well?}, needs: a}\n  c: {action: model, with: {prompt: hi}, needs: b}\n");
    let ran = Ran::of(place.command(["run", "g.yaml"]).env("K", "key-4711").output().unwrap());
    assert_eq!(ran.code, 11, "{}", ran.err);
    let shown = Ran::of(place.command(["resume", "last", "--dry-run"]).env("K", "key-4711").output().unwrap());
    assert!(shown.out.contains("the built-in prices were not checked"), "{shown:?}");
    for args in [&["stats", "--usage", "last"][..], &["stats", "--usage"]] {
        let ran = place.run(args);
        assert!(ran.err.contains("of the cost: the built-in prices were not checked"), "{ran:?}");
    }
}

#[test]
fn a_model_may_write_the_summary_of_any_session() {
    let place = place(
        "replies:\n  - {when: completedItems, text: '{\"completedItems\": [\"found the byte\"], \"pendingItems\": [], \"decisions\": [], \"blockers\": []}', usage: {input_tokens: 300, output_tokens: 40}, cost_usd: 0.25}\n  - {text: No.}\n",
    );
    let id = place.session("Long", &[]);
    let list: Vec<Value> = (0..20)
        .map(|number| json!({"role": "user", "content": format!("{number}: {}", "a byte is lost, ".repeat(20))}))
        .collect();
    place.ok(&["messages", "add", &id, "--from-json", &json!(list).to_string()]);
    let shown = place.ok(&["sessions", "compact", &id, "--model", "scripted/model.yaml"]);
    for (args, at) in [
        (&["sessions", "list"][..], "/sessions/0/lastMessage/content"),
        (&["sessions", "show", &id], "/lastMessage/content"),
    ] {
        let last = place.json(args);
        assert!(!text(&last, at).contains("completedItems"), "the summary is no message of the conversation: {last:#}");
    }
    assert!(shown.contains("found the byte"), "{shown}");
    // What it cost is told with everything else that was asked, and is no part of the conversation.
    let usage = place.json(&["stats", "--usage", &id]);
    let told = usage.to_string();
    assert!(told.contains("\"inputTokens\":300") && told.contains("\"costUsd\":0.25"), "{told}");
    let main = place.json(&["messages", "list", &id, "--all", "--channel", "main"]);
    assert_eq!(main["messages"].as_array().unwrap().len(), 20);
    place.write("other.yaml", "replies: [{text: I would rather not.}]\n");
    place.ok(&["messages", "add", &id, "--from-json", &json!(list).to_string()]);
    let ran = place.run(&["sessions", "compact", &id, "--model", "scripted/other.yaml"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("the model wrote no summary"), "{}", ran.err);
}

/// What stands in the way before the model is asked counts as a try, too.
#[test]
fn a_conversation_whose_key_is_missing_is_tried_again_later() {
    let place = place("replies:\n  - {limited: {after_ms: 1, why: too many requests}}\n");
    assert_eq!(place.run(&["chat", "are you there?"]).code, 11);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    place.write("milepost.yaml", "model: anthropic/claude-sonnet-5\n");
    let ran = place.run(&["work", "--once"]);
    assert!(ran.err.contains("waiting: until 2") && ran.err.contains("ANTHROPIC_API_KEY"), "{}", ran.err);
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    place.write("model.yaml", "replies: [{text: I am.}]\n");
    // It is due within seconds, not when the claim of a minute is over.
    assert!(answered_later(&place).contains("answered"));
}

/// What a worker says of a session whose next try is due within seconds.
fn answered_later(place: &Place) -> String {
    let mut worker = place.command(["work"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    let lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    for line in lines.map(|line| line.unwrap()) {
        told.push_str(&line);
        if line.contains("answered") || line.contains("waiting: ") || line.contains("paused") {
            break;
        }
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    told
}

/// Whoever asks for an end gets one: what cannot be gone on with is told, with the reason and the time of its next try.
#[test]
fn what_was_tried_in_vain_is_not_waited_for() {
    let place = place("replies:\n  - {limited: {after_ms: 1, why: too many requests}}\n");
    assert_eq!(place.run(&["chat", "are you there?"]).code, 11);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    place.write("milepost.yaml", "model: anthropic/claude-sonnet-5\n");
    for told in ["ANTHROPIC_API_KEY", "to try again after 1 try in vain"] {
        let begun = std::time::Instant::now();
        let ran = place.run(&["work", "--until-idle"]);
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.err.contains("waiting: until 2") && ran.err.contains(told), "{}", ran.err);
        assert!(ran.err.contains("1 session left for later"), "{}", ran.err);
    }
}

#[test]
fn in_a_terminal_a_conversation_is_offered_that_a_dead_process_held() {
    let place = place(SLOW);
    let (mut child, _) = hear(&place, "three");
    child.kill().unwrap();
    child.wait().unwrap();
    let mut terminal = Terminal::run(&place, 80, &["chat", "--color", "never", "--no-greeting"]);
    terminal.type_in("y\nand?\n/quit\n");
    let (shown, code) = terminal.end();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("it is free") && shown.contains("Yes."), "{shown}");
}

#[test]
fn a_conversation_keeps_to_its_budget() {
    let place = place(SCRIPT);
    assert_eq!(place.run(&["chat", "hi", "--budget-tokens", "13"]).code, 0);
    let ran = place.run(&["chat", "--session", "last", "and you?"]);
    assert_eq!((ran.code, ran.out.as_str()), (10, ""), "{}", ran.err);
    assert!(
        ran.err.contains("budget of 13 tokens is used up (13)") && ran.err.contains("--budget-tokens"),
        "{}",
        ran.err
    );
    assert_eq!(text(&place.json(&["sessions", "show", "last"]), "/status"), "paused");
    assert_eq!(
        place.run(&["chat", "--session", "last", "now?", "--budget-usd", "9", "--budget-tokens", "none"]).code,
        0
    );
}
