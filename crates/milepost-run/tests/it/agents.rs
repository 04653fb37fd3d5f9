//! Agents: a model and tools in a loop, every turn and every call a step of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::model::{Block, Content, Message, Role};
use milepost::{NewSession, Resume, Usage};
use milepost_run::run::{End, Error, Settle, Status, answer};
use serde_json::{Value, json};

use crate::support::{Scene, completed, graph};

const SCRIPT: &str = "
replies:
  - text: I will look.
    calls: [{name: search, input: {q: rust's best}}, {name: pay, input: {amount: 3}}]
    usage: {input_tokens: 100, output_tokens: 10}
    cost_usd: 0.25
  - calls: [{name: search, input: {q: more}}]
    usage: {input_tokens: 200, output_tokens: 20}
    cost_usd: 0.5
  - {text: Three papers., usage: {input_tokens: 300, output_tokens: 30}, cost_usd: 1}
";

const AGENT: &str = "
nodes:
  a:
    action: agent
    with:
      prompt: 'Find papers about {{ memory.topic }}.'
      tools:
        - {name: search, action: keyed, description: looks, with: {q: '{{ memory.topic }}: {{ input.q }}'}, input: {q: what}}
        - {name: pay, action: effect, with: {amount: '{{ input.amount }}'}, input: {amount: {type: integer}}}
  last: {action: keyed, with: {text: '{{ outputs.a.text }}'}, needs: [a]}
memory: {topic: rust}
outputs: {text: outputs.a.text, turns: outputs.a.turns, usage: outputs.a.usage}
";

fn calls_and_results(messages: &[Message]) -> (Vec<String>, Vec<(String, bool, String)>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for message in messages {
        let Content::Blocks(blocks) = &message.content else { continue };
        for block in blocks {
            match block {
                Block::ToolCall { id, .. } => calls.push(id.clone()),
                Block::ToolResult { call_id, is_error, content, .. } => {
                    results.push((call_id.clone(), *is_error, content.as_str().unwrap_or_default().to_owned()));
                }
                _ => {}
            }
        }
    }
    (calls, results)
}

/// Every call has one result, after it.
fn assert_pairs(messages: &[Message]) {
    let (calls, results) = calls_and_results(messages);
    let answered: Vec<String> = results.into_iter().map(|(id, ..)| id).collect();
    assert_eq!(calls, answered);
}

#[tokio::test]
async fn an_agent_calls_tools_until_it_is_done() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let (id, end) = scene.scripted(&engine, SCRIPT).start(&graph(AGENT), NewSession::default()).await.unwrap();
    let outputs = completed(&end);
    assert_eq!(
        Value::Object(outputs.clone()),
        json!({"text": "Three papers.", "turns": 3, "usage": {"input_tokens": 600, "output_tokens": 60, "cost_usd": 1.75}})
    );
    assert_eq!(scene.effects.nodes(), ["a/turn_1.1.search", "a/turn_1.2.pay", "a/turn_2.1.search", "last"]);

    let said = scene.said(id, "a").await;
    let roles: Vec<&str> = said.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]);
    assert_eq!(said[0].text(), "Find papers about rust.");
    let (_, results) = calls_and_results(&said);
    assert!(results[0].2.contains("rust: rust's best"), "{results:?}");
    assert_pairs(&said);

    let steps = scene.steps(id).await;
    let names: Vec<&str> = steps.iter().map(|(name, _)| name.as_str()).collect();
    let turns = ["a/turn_1", "a/turn_1.1.search", "a/turn_1.2.pay", "a/turn_2", "a/turn_2.1.search", "a/turn_3"];
    assert_eq!(names, [&["a", "last"], turns.as_slice()].concat());
    assert!(steps.iter().all(|(_, status)| *status == Status::Completed), "{steps:?}");

    // What it cost is where the statistics look, and where the budget does.
    let usage: Usage = said.iter().map(Usage::of).sum();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.cost_usd), (600, 60, 1.75));
    let counted = engine.analytics(id).await.unwrap();
    assert_eq!((counted.usage.tokens(), counted.tool_calls_count), (660, 3));
    let execution = scene.section(id, "execution").await;
    assert_eq!(execution["spent"]["cost_usd"], 1.75);
    assert_eq!(execution["usage"]["a"]["answers"], 3);
}

#[tokio::test]
async fn one_question_to_a_model_is_in_the_session_with_what_it_cost() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script =
        "replies: [{text: not json, usage: {input_tokens: 5, output_tokens: 7}, cost_usd: 0.5}]\nafter_last: repeat\n";
    let text =
        "nodes: {a: {action: model, with: {prompt: Rate it., json: true}, retry: {attempts: 2, backoff: 1ms}}}\n";
    let (id, end) = scene.scripted(&engine, script).start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why == "the answer is not JSON"), "{end:?}");
    let said = scene.said(id, "a").await;
    assert_eq!(
        said.iter().map(|message| message.role.clone()).collect::<Vec<_>>(),
        [Role::User, Role::Assistant, Role::User, Role::Assistant]
    );
    assert_eq!(
        engine.analytics(id).await.unwrap().usage.cost_usd,
        1.0,
        "answers that were of no use cost all the same"
    );
}

/// Every turn whose calls are done is a checkpoint, or every so many, as the node says: each can be gone on from.
#[tokio::test]
async fn an_agents_turns_are_checkpoints_as_often_as_the_node_says() {
    let call = "  - calls: [{name: search, input: {q: more}}]\n".repeat(5);
    let script = format!("replies:\n{call}  - {{text: done}}\n");
    for (every, wanted) in [(1, vec![1, 2, 3, 4, 5]), (2, vec![2, 4]), (9, vec![])] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let with = json!({
            "prompt": "go", "checkpoint_every": every,
            "tools": [{"name": "search", "action": "keyed", "with": {"q": "{{ input.q }}"}, "input": {"q": "what"}}],
        });
        let text = json!({"nodes": {"a": {"action": "agent", "with": with}}}).to_string();
        let (id, end) = scene.scripted(&engine, &script).start(&graph(&text), NewSession::default()).await.unwrap();
        completed(&end);
        let query = milepost::MarkQuery { oldest_first: true, ..Default::default() };
        let marks = engine.store().marks(id, &query).await.unwrap();
        let turns = marks.iter().filter_map(|mark| mark.checkpoint.description.as_deref()?.strip_prefix("a: turn "));
        assert_eq!(turns.map(|turn| turn.parse::<u32>().unwrap()).collect::<Vec<_>>(), wanted, "every {every}");
    }
}

/// Runs the agent to its end with a kill at a boundary; none when there is no such boundary.
async fn killed_at(stop: u64) -> Option<usize> {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, SCRIPT).at_boundary(Arc::new(move |n| n == stop));
    let first = runner.start(&graph(AGENT), NewSession::default()).await;
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let was_stopped = matches!(first, Err(Error::Stopped { .. }));
    drop((runner, engine));
    let (mut settle, mut asked) = (BTreeMap::new(), 0);
    for _ in 0..5 {
        let engine = scene.engine().await;
        let how = Resume { take_over: true, reopen: true, ..Resume::latest() };
        match scene.scripted(&engine, SCRIPT).resume(id, how, None, &settle).await.unwrap().0 {
            End::Completed { outputs } => {
                assert_eq!(
                    (&outputs["text"], &outputs["turns"]),
                    (&json!("Three papers."), &json!(3)),
                    "killed at {stop}"
                );
                let counts = scene.effects.counts();
                assert_eq!(counts["a/turn_1.2.pay"], (1, 1), "killed at {stop}: {counts:?}");
                for name in ["a/turn_1.1.search", "a/turn_2.1.search", "last"] {
                    assert_eq!(counts[name].1, 1, "{name} killed at {stop}: {counts:?}");
                }
                let said = scene.said(id, "a").await;
                assert_eq!(said.len(), 7, "killed at {stop}");
                assert_pairs(&said);
                return was_stopped.then_some(asked);
            }
            End::Uncertain { steps } => {
                assert_eq!(steps[0].0, "a/turn_1.2.pay", "killed at {stop}");
                asked += 1;
                let happened = scene.effects.counts().contains_key("a/turn_1.2.pay");
                let found = if happened { Settle::Happened(json!({"paid": 3})) } else { Settle::RunAgain };
                settle.insert("a/turn_1.2.pay".to_owned(), found);
            }
            other => panic!("killed at {stop}: {other:?}"),
        }
    }
    panic!("killed at {stop}: the run does not end");
}

#[tokio::test]
async fn a_kill_in_the_middle_of_the_loop_goes_on_in_the_middle_of_the_loop() {
    let (mut stop, mut asked) = (1, 0);
    while let Some(questions) = Box::pin(killed_at(stop)).await {
        (stop, asked) = (stop + 1, asked + questions);
    }
    assert!(stop > 30, "{stop}");
    // Between intent and outcome of the one effect that has no key: after the one and before the other.
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn a_run_set_back_into_the_middle_of_the_loop_goes_on_from_there_under_new_keys() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, SCRIPT);
    let (id, end) = runner.start(&graph(AGENT), NewSession::default()).await.unwrap();
    completed(&end);
    let marks = engine.store().marks(id, &Default::default()).await.unwrap();
    let turn = marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some("a: turn 1")).unwrap();
    let how = Resume { reopen: true, ..Resume::from(milepost::Point::Checkpoint(turn.checkpoint.id)) };
    // It needs no yes: what comes after is a call that may be repeated, which was noted when it was made.
    let end = runner.resume(id, how, None, &EMPTY).await.unwrap().0;
    assert_eq!(completed(&end)["turns"], 3);
    let counts = scene.effects.counts();
    assert_eq!((counts["a/turn_1.1.search"], counts["a/turn_1.2.pay"]), ((1, 1), (1, 1)), "done is done");
    assert_eq!(counts["a/turn_2.1.search"], (2, 2), "what comes after runs again, under another key");
    let said = scene.said(id, "a").await;
    assert_eq!(said.len(), 7);
    assert_pairs(&said);
}

#[tokio::test]
async fn an_agent_asks_a_person_and_waits() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script =
        "replies:\n  - calls: [{name: ask, input: {question: 'Which?', choices: [left, right]}}]\n  - {text: done}\n";
    let text = "nodes: {a: {action: agent, with: {prompt: go, tools: [ask]}}}\noutputs: {text: outputs.a.text}\n";
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    let End::Waiting { until: None, what } = &end else { panic!("{end:?}") };
    assert_eq!(what[0], ("a/turn_1.1.ask".to_owned(), "an answer: Which? (left, right)".to_owned()));
    assert_eq!(scene.status(id).await, "waiting");
    let again = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0;
    assert!(matches!(again, End::Waiting { .. }), "{again:?}");
    answer(&engine, id, "a/turn_1.1.ask", 0, "right", "kim").await.unwrap();
    let end = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0;
    assert_eq!(completed(&end)["text"], "done");
    let (_, results) = calls_and_results(&scene.said(id, "a").await);
    assert_eq!(results.len(), 1);
    assert!(results[0].2.contains("right"), "{results:?}");
}

#[tokio::test]
async fn calls_that_make_no_sense_are_told_to_the_model() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "
replies:
  - calls:
      - {name: fly, input: {}}
      - {name: search, input: {}}
      - {name: search, input: [1]}
      - {name: broken, input: {q: x}}
  - {text: sorry}
";
    let text = AGENT.replace(
        "        - {name: pay",
        "        - {name: broken, action: shell, with: {command: 'echo {{ input.q }} >&2; exit 3'}, input: {q: x}}\n        - {name: pay",
    );
    let (id, end) = scene.scripted(&engine, script).start(&graph(&text), NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["text"], "sorry");
    let said = scene.said(id, "a").await;
    let (_, results) = calls_and_results(&said);
    let expected = [
        "there is no tool \"fly\"; there are search, broken, pay",
        "the argument \"q\" is missing",
        "the arguments are not a JSON object",
        r#"{"code":3,"stderr":"x\n","stdout":"","truncated":false}"#,
    ];
    for ((_, is_error, told), expected) in results.iter().zip(expected) {
        assert!(*is_error && told.contains(expected), "{told}");
    }
    assert_eq!(results.len(), 4);
    assert!(scene.effects.nodes().iter().all(|node| node == "last"));
}

#[tokio::test]
async fn what_a_tool_gives_is_cut_for_the_model() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "replies:\n  - calls: [{name: shell, input: {command: 'head -c 100000000 /dev/zero | tr \"\\\\0\" x'}}]\n  - {text: much}\n";
    let text = "nodes: {a: {action: agent, with: {prompt: go, tools: [shell], max_result_bytes: 1000}}}\n";
    let (id, end) = scene.scripted(&engine, script).start(&graph(text), NewSession::default()).await.unwrap();
    completed(&end);
    let (_, results) = calls_and_results(&scene.said(id, "a").await);
    assert!(results[0].2.len() < 1100 && results[0].2.contains("(cut: "), "{}", results[0].2.len());
}

#[tokio::test]
async fn an_agent_at_its_limit_pauses_and_a_resume_gives_it_as_many_turns_again() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, SCRIPT);
    let text = AGENT.replace("    with:\n      prompt", "    with:\n      max_turns: 1\n      prompt");
    let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    let End::Paused { node: Some(node), why } = &end else { panic!("{end:?}") };
    assert_eq!((node.as_str(), why.as_str()), ("a", "the agent took 1 turns, its limit max_turns, and is not done"));
    assert_eq!(scene.status(id).await, "paused");
    assert_eq!(scene.effects.counts().len(), 2, "what it called has run");
    let resume = || runner.resume(id, Resume::latest(), None, &EMPTY);
    assert!(matches!(resume().await.unwrap().0, End::Paused { .. }));
    assert_eq!(completed(&resume().await.unwrap().0)["turns"], 3);
    assert_eq!(scene.effects.counts()["a/turn_1.2.pay"], (1, 1));
}

static EMPTY: BTreeMap<String, Settle> = BTreeMap::new();

#[tokio::test]
async fn a_limit_in_the_middle_of_the_loop_is_waited_for() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = SCRIPT.replace(
        "  - {text: Three",
        "  - limited: {after_ms: 3600000, why: too many}\n  - error: {kind: unavailable, why: busy}\n  - {text: Three",
    );
    let runner = scene.scripted(&engine, &script);
    let (id, end) = runner.start(&graph(AGENT), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Waiting { until: Some(_), what } if what[0].1 == "a limit: too many"), "{end:?}");
    scene.clock.advance_ms(3_600_001);
    // The failure after it is a retry of the step, which goes on where it was.
    let end = runner.resume(id, Resume::latest(), None, &EMPTY).await.unwrap().0;
    assert_eq!(completed(&end)["turns"], 3);
    assert_eq!(scene.effects.counts()["a/turn_1.2.pay"], (1, 1));
    assert_eq!(scene.said(id, "a").await.len(), 7);
}

#[tokio::test]
async fn an_answer_that_has_to_be_json_is_asked_for_again() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "replies:\n  - {text: 'Sure!'}\n  - {when: JSON only, text: unused}\n  - {text: '{\"score\": 4}'}\n";
    let text =
        "nodes: {a: {action: agent, with: {prompt: rate, json: true}}}\noutputs: {score: outputs.a.json.score}\n";
    let (_, end) = scene.scripted(&engine, script).start(&graph(text), NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["score"], 4);
}

#[tokio::test]
async fn each_round_of_a_loop_is_a_conversation_of_its_own() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "replies:\n  - calls: [{name: pay, input: {}}]\n  - {text: done}\n";
    let text = "
memory: {n: 0}
nodes:
  a: {action: agent, with: {prompt: 'round {{ iteration }}', tools: [{name: pay, action: effect}]}}
  count: {action: set, with: {n: {cel: memory.n + 1}}}
edges:
  - {from: a, to: count}
  - {from: count, to: a, when: memory.n < 2, limit: 5}
";
    let (id, end) = scene.scripted(&engine, script).start(&graph(text), NewSession::default()).await.unwrap();
    completed(&end);
    assert_eq!(scene.effects.counts()["a/turn_1.1.pay"], (1, 1));
    assert_eq!(scene.effects.counts()["a#1/turn_1.1.pay"], (1, 1), "another key for another round");
    // In one channel, so that a thousand rounds are not a thousand channels; the second did not see the first.
    let said = scene.said(id, "a").await;
    assert_eq!(said.len(), 8);
    assert_eq!((said[4].text(), said[7].text()), ("round 1".into(), "done".into()));
}

#[tokio::test]
async fn mistakes_in_tools_are_found_before_the_run() {
    let found = |tools: &str| {
        let text = format!("nodes:\n  a:\n    action: agent\n    with:\n      prompt: go\n      tools: {tools}\n");
        let checked = milepost_run::graph::check("g.yaml".as_ref(), &text, &[]);
        checked.found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(found("[shell, {name: a, action: http, with: {url: '{{ input.u }}'}}]"), "");
    for (tools, expected) in [
        ("[shel]", "g.yaml:6:15: tools: there is no tool \"shel\"; did you mean shell?"),
        ("[{name: a, action: http, with: {url: '{{ inptu.u }}'}}]", "inptu"),
        ("[{name: a, action: http}]", "http needs url"),
        ("[{name: a, action: model}]", "a tool cannot be \"model\""),
        ("[{action: ask, with: {question: x}}]", "it has no name"),
        ("[{mcp: {}}]", "mcp needs one of argv, url"),
        ("[ask, ask]", "two tools are called \"ask\""),
    ] {
        assert!(found(tools).contains(expected), "{tools}: {}", found(tools));
    }
}

/// What the model gives beside what a tool offers never reaches the action: it would see secrets, or answer for a person.
#[tokio::test]
async fn a_model_cannot_give_a_plain_tool_more_than_it_is_offered() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = r#"
replies:
  - calls:
      - {name: shell, input: {command: "echo got:$CARGO_MANIFEST_DIR", env: [CARGO_MANIFEST_DIR], max_output_bytes: 9}}
      - {name: ask, input: {question: "May I?", timeout: 1s, default: "yes, do it"}}
      - {name: http, input: {url: "http://127.0.0.1:9/", ok: [500]}}
      - {name: shell, input: {command: "echo fine"}}
  - {text: Done.}
"#;
    let text = "nodes: {a: {action: agent, with: {prompt: go, tools: [shell, ask, http]}}}\n";
    let (id, end) = scene.scripted(&engine, script).start(&graph(text), NewSession::default()).await.unwrap();
    completed(&end);
    let (_, results) = calls_and_results(&scene.said(id, "a").await);
    let told: Vec<(bool, &str)> = results.iter().map(|(_, is_error, content)| (*is_error, content.as_str())).collect();
    assert_eq!(
        told[..3],
        [
            (true, "the tool shell takes command and cwd, not env and max_output_bytes; call it again without them"),
            (true, "the tool ask takes choices and question, not default and timeout; call it again without them"),
            (true, "the tool http takes body, headers, method and url, not ok; call it again without it"),
        ]
    );
    assert!(!told[3].0 && told[3].1.contains("fine"), "{told:?}");
}

/// What a command says of its failure is what the model has to mend.
#[tokio::test]
async fn a_model_sees_what_a_command_that_fails_said() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let failing = "echo 'FAILED test_login'; echo 'line1 err' >&2; echo 'make: *** Error 1' >&2; exit 2";
    let script = json!({"replies": [
        {"calls": [{"name": "shell", "input": {"command": failing}}, {"name": "make", "input": {}}]},
        {"text": "Done."},
    ]});
    let make = json!({"name": "make", "action": "shell", "with": {"command": "echo of make; exit 3", "ok": [0, 3]}});
    let file = json!({"nodes": {"a": {"action": "agent", "with": {"prompt": "go", "tools": ["shell", make]}}}});
    let runner = scene.scripted(&engine, &script.to_string());
    let (id, end) = runner.start(&graph(&file.to_string()), NewSession::default()).await.unwrap();
    completed(&end);
    let (_, results) = calls_and_results(&scene.said(id, "a").await);
    let given: Value = serde_json::from_str(&results[0].2).unwrap_or_else(|_| panic!("{results:?}"));
    assert!(results[0].1, "{results:?}");
    assert_eq!(
        (&given["code"], &given["stdout"], &given["stderr"]),
        (&json!(2), &json!("FAILED test_login\n"), &json!("line1 err\nmake: *** Error 1\n"))
    );
    assert!(!results[1].1 && results[1].2.contains("of make"), "{results:?}");
    let statuses: Vec<(String, Status)> =
        scene.steps(id).await.into_iter().filter(|(name, _)| name.contains(".1.") || name.contains(".2.")).collect();
    let wanted = [("a/turn_1.1.shell".to_owned(), Status::Failed), ("a/turn_1.2.make".to_owned(), Status::Completed)];
    assert_eq!(statuses, wanted);
}
