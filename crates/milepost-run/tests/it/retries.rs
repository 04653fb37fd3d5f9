//! Attempts: when they come, that they are the same step, and what is told when they are not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use milepost::model::delta::StatePath;
use milepost::{NewSession, Resume};
use milepost_models::Timer;
use milepost_run::run::{Action, End, Error, Failed, Settle, Step, answer};
use serde_json::{Value, json};

use crate::support::{Scene, completed, graph};

/// An attempt that is due does not wait for a step that happens to run beside it.
#[tokio::test]
async fn a_step_is_tried_again_while_another_one_runs() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    scene.effects.fail.store(1, Ordering::SeqCst);
    let done = scene.dir.path().join("done");
    let text = format!(
        "
parallel: 2
start: [again, long]
nodes:
  again: {{action: effect, retry: {{attempts: 2, backoff: 20ms}}}}
  tell: {{action: shell, with: {{command: 'touch {0}'}}, needs: again}}
  long: {{action: shell, timeout: 60s, with: {{command: 'while ! test -e {0}; do sleep 0.02; done'}}}}
",
        done.display()
    );
    let runner = scene.runner(&engine).timer(Timer::real());
    let tick = tokio::spawn({
        let clock = Arc::clone(&scene.clock);
        async move {
            loop {
                clock.advance_ms(5);
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    });
    let (_, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    completed(&end);
    tick.abort();
}

/// Each wait is between half and all of the doubled one, never above its limit, and another every time: steps that failed
/// together do not come again together.
#[tokio::test]
async fn attempts_come_later_each_time_and_not_all_at_once() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let mut all: Vec<Vec<u64>> = Vec::new();
    for _ in 0..8 {
        scene.effects.fail.store(4, Ordering::SeqCst);
        let text = "nodes: {a: {action: effect, retry: {attempts: 5, backoff: 2s, max_backoff: 5s}}}";
        let (id, end) = scene.start(text).await;
        completed(&end);
        let events = scene.runner(&engine).events(id).await.unwrap();
        all.push(events.iter().filter_map(|(_, event)| event.data.get("retry_in_ms")?.as_u64()).collect());
    }
    for (number, most) in [2000, 4000, 5000, 5000].into_iter().enumerate() {
        let waits: Vec<u64> = all.iter().map(|one| one[number]).collect();
        assert!(waits.iter().all(|wait| (most / 2..=most).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }
    assert!(all.iter().all(|one| one.len() == 4), "{all:?}");
}

#[tokio::test]
async fn no_more_steps_run_at_the_same_time_than_the_limit_allows() {
    let scene = Scene::new();
    let dir = scene.dir.path().display().to_string();
    // Each notes how many run while it does.
    let step = |id: usize| {
        format!(
            "  - {{id: s{id}, action: shell, with: {{command: 'touch {dir}/run.{id}; ls {dir} | grep -c run >> {dir}/counts; sleep 0.1; rm {dir}/run.{id}'}}}}\n"
        )
    };
    let steps: String = (0..7).map(step).collect();
    let (_, end) = scene.start(&format!("parallel: 2\nsteps:\n{steps}")).await;
    completed(&end);
    let counts = std::fs::read_to_string(scene.dir.path().join("counts")).unwrap();
    let most = counts.lines().map(|line| line.parse::<u32>().unwrap()).max().unwrap();
    assert_eq!((counts.lines().count(), most), (7, 2), "{counts}");
}

/// What templates say of the attempt is no other input, and neither is what another step wrote in between.
#[tokio::test]
async fn another_attempt_is_the_same_step() {
    let scene = Scene::new();
    scene.effects.fail.store(1, Ordering::SeqCst);
    let text = "
parallel: 2
memory: {n: 1}
start: [a, nap]
nodes:
  a: {action: effect, retry: {attempts: 3, backoff: 1s}, with: {text: '{{ memory.n }} in attempt {{ attempt }}'}}
  other: {action: set, with: {n: 2}, needs: nap}
  nap: {action: wait, with: {for: 100ms}}
outputs: {text: outputs.a.with.text, n: memory.n}
";
    let (_, end) = scene.start(text).await;
    let outputs = completed(&end);
    assert_eq!((&outputs["text"], &outputs["n"]), (&json!("1 in attempt 2"), &json!(2)));
}

/// A step that was begun, and whose input is another when the run goes on: told with the difference, not guessed.
#[tokio::test]
async fn a_step_whose_input_is_another_now_is_refused_with_the_difference() {
    let scene = Scene::new();
    scene.effects.fail.store(9, Ordering::SeqCst);
    let text = "
memory: {to: kim, same: x}
nodes:
  pay: {action: effect, retry: {attempts: 5, backoff: 1h}, with: {to: '{{ memory.to }}', amount: 3, note: '{{ memory.same }}'}}
";
    let (id, end) = scene.start(text).await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    scene.effects.fail.store(0, Ordering::SeqCst);
    scene.clock.advance_ms(7_200_000);
    let engine = scene.engine().await;
    let path = StatePath::root().key("memory").key("to");
    let how = Resume { take_over: true, ..Resume::latest() }.set(path, "lee");
    let refused = scene.runner(&engine).resume(id, how, None, &BTreeMap::new()).await.unwrap_err();
    let Error::Changed { node, difference } = &refused else { panic!("{refused}") };
    assert_eq!((node.as_str(), difference.as_str()), ("pay", "to was \"kim\" and is \"lee\""));
    assert_eq!(scene.status(id).await, "waiting", "it is as it was");
    assert_eq!(scene.section(id, "memory").await["to"], "kim");
    assert!(scene.effects.nodes().is_empty());
    // It goes on with what it was begun with.
    completed(&scene.resume(id).await);
    assert_eq!(scene.effects.nodes(), ["pay"]);
}

/// What another step changed meanwhile is seen when the step is begun again: the run pauses, and whoever says so lets it run
/// again as it is now, under another key.
#[tokio::test]
async fn a_step_whose_input_became_another_runs_again_when_somebody_says_so() {
    let scene = Scene::new();
    scene.effects.fail.store(9, Ordering::SeqCst);
    let text = "
memory: {to: kim}
start: [pay, who]
nodes:
  pay: {action: effect, idempotent: true, retry: {attempts: 5, backoff: 1h}, with: {to: '{{ memory.to }}'}}
  who: {action: ask, with: {question: Who?}}
  put: {action: set, needs: who, with: {to: '{{ outputs.who.answer }}'}}
outputs: {to: outputs.pay.with.to}
";
    let (id, end) = scene.start(text).await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    let engine = scene.engine().await;
    answer(&engine, id, "who", 0, "lee", "kim").await.unwrap();
    assert!(matches!(scene.resume(id).await, End::Waiting { .. }));
    scene.effects.fail.store(0, Ordering::SeqCst);
    scene.clock.advance_ms(7_200_000);
    let runner = scene.runner(&engine);
    let sam = || Resume { take_over: true, ..Resume::latest() }.set(StatePath::root().key("memory").key("to"), "sam");
    let refused = runner.resume(id, sam(), None, &BTreeMap::new()).await.unwrap_err();
    let Error::Changed { node, difference } = &refused else { panic!("{refused}") };
    // What a step of the run wrote since is no other input; what somebody sets is.
    assert_eq!((node.as_str(), difference.as_str()), ("pay", "to was \"kim\" and is \"sam\""));
    assert_eq!(scene.section(id, "memory").await["to"], "lee", "nothing is changed by a refusal");
    let key = scene.section(id, "execution").await["nodes"]["pay"]["key"].clone();
    let again = BTreeMap::from([("pay".to_owned(), Settle::RunAgain)]);
    let (end, _) = runner.resume(id, sam(), None, &again).await.unwrap();
    assert_eq!(completed(&end)["to"], "sam");
    assert_eq!(scene.effects.nodes(), ["pay"]);
    assert_ne!(scene.section(id, "execution").await["nodes"]["pay"]["key"], key);
}

/// Whoever has seen its key would take the new input for the old one.
#[tokio::test]
async fn a_step_that_may_be_repeated_is_not_repeated_with_another_input() {
    let scene = Scene::new();
    scene.effects.fail.store(9, Ordering::SeqCst);
    let text = "
memory: {to: kim}
nodes:
  pay: {action: effect, idempotent: true, retry: {attempts: 5, backoff: 1h}, with: {to: '{{ memory.to }}'}}
";
    let (id, _) = scene.start(text).await;
    scene.effects.fail.store(0, Ordering::SeqCst);
    scene.clock.advance_ms(7_200_000);
    let engine = scene.engine().await;
    let how = Resume { take_over: true, ..Resume::latest() }.set(StatePath::root().key("memory").key("to"), "lee");
    let refused = scene.runner(&engine).resume(id, how, None, &BTreeMap::new()).await.unwrap_err();
    assert!(matches!(&refused, Error::Changed { node, .. } if node == "pay"), "{refused}");
    assert!(scene.effects.nodes().is_empty());
}

/// Nobody knows whether the first request arrived: under its key, another body is a lie.
#[tokio::test]
async fn a_step_that_was_cut_off_is_not_repeated_with_another_input_under_its_key() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "memory: {to: kim}\nnodes: {pay: {action: keyed, with: {to: '{{ memory.to }}'}}}\n";
    let how =
        |to: &str| Resume { take_over: true, ..Resume::latest() }.set(StatePath::root().key("memory").key("to"), to);
    let cut_off = || async {
        let runner = scene.runner(&engine).at_boundary(Arc::new(|n| n == 2));
        assert!(runner.start(&graph(text), NewSession::default()).await.is_err());
        scene.clock.advance_ms(1);
        engine.sessions(&Default::default()).await.unwrap().sessions[0].id
    };
    let id = cut_off().await;
    let refused = scene.runner(&engine).resume(id, how("lee"), None, &BTreeMap::new()).await.unwrap_err();
    let Error::Changed { node, difference } = &refused else { panic!("{refused}") };
    assert_eq!((node.as_str(), difference.as_str()), ("pay", "to was \"kim\" and is \"lee\""));
    assert!(scene.effects.nodes().is_empty());
    // Whoever says that it runs again means it as it is now: under its key, or with another input under one of its own.
    for (to, is_same) in [("kim", true), ("lee", false)] {
        let id = cut_off().await;
        let key = scene.section(id, "execution").await["nodes"]["pay"]["key"].clone();
        let settle = BTreeMap::from([("pay".to_owned(), Settle::RunAgain)]);
        completed(&scene.runner(&engine).resume(id, how(to), None, &settle).await.unwrap().0);
        let node = scene.section(id, "execution").await["nodes"]["pay"].clone();
        assert_eq!(node["key"] == key, is_same, "{node}");
        assert_eq!(node["key"].as_str().unwrap().len(), 32);
    }
}

/// The same of a call that an agent made, and of a check.
#[tokio::test]
async fn a_part_that_was_cut_off_is_not_repeated_with_another_input_under_its_key() {
    let calls = "{prompt: go, tools: [{name: put, action: keyed, with: {to: '{{ memory.to }}'}}]}";
    let checks = "{prompt: go, checks: {put: 'test {{ memory.to }} = kim'}}";
    for (action, with, part) in [("agent", calls, "a/turn_1.1.put"), ("checks", checks, "a/round_1.put")] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let text = format!("memory: {{to: kim}}\nnodes: {{a: {{action: {action}, with: {with}}}}}\n");
        let script = "replies:\n  - {calls: [{name: put, input: {}}]}\n  - {text: done}\n";
        // Right after the part's intent.
        let told = Arc::new(std::sync::Mutex::new(false));
        let (heard, name) = (Arc::clone(&told), part.to_owned());
        let runner = scene.scripted(&engine, script).watch(Arc::new(move |_, event| {
            let is_it = event.kind == "step_intent" && event.data["node"] == name.as_str();
            *heard.lock().unwrap() |= is_it;
        }));
        let runner = runner.at_boundary(Arc::new(move |_| *told.lock().unwrap()));
        assert!(runner.start(&graph(&text), NewSession::default()).await.is_err());
        let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
        let how = |to: &str| {
            Resume { take_over: true, ..Resume::latest() }.set(StatePath::root().key("memory").key("to"), to)
        };
        let runner = scene.scripted(&engine, script);
        let refused = runner.resume(id, how("lee"), None, &BTreeMap::new()).await.unwrap_err();
        let Error::Changed { node, difference } = &refused else { panic!("{refused}") };
        assert_eq!(node, part);
        assert!(difference.contains("kim") && difference.contains("lee"), "{difference}");
        assert_eq!(scene.status(id).await, "paused");
        assert!(scene.effects.nodes().iter().all(|node| node != part));
        completed(&runner.resume(id, how("kim"), None, &BTreeMap::new()).await.unwrap().0);
    }
}

/// Refuses for good until it is told otherwise, and remembers every key it was given.
struct Refuses {
    keys: Arc<std::sync::Mutex<Vec<String>>>,
}

#[async_trait]
impl Action for Refuses {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let mut keys = self.keys.lock().unwrap();
        keys.push(step.key);
        if keys.len() < 4 { Err(Failed::Fatal("refused".to_owned())) } else { Ok(json!(null)) }
    }
}

/// A receiver that saw the key takes another body under it for a mistake.
#[tokio::test]
async fn a_step_that_failed_for_good_has_another_key_when_its_input_is_another() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let keys: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let runner = scene.runner(&engine).action("effect", Arc::new(Refuses { keys: Arc::clone(&keys) }));
    let text = "memory: {to: kim}\nnodes: {pay: {action: effect, with: {to: '{{ memory.to }}', key: '{{ key }}'}}}\n";
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Paused { .. }), "{end:?}");
    let path = || StatePath::root().key("memory").key("to");
    for how in [Resume::latest(), Resume::latest().set(path(), "lee"), Resume::latest()] {
        runner.resume(id, how, None, &BTreeMap::new()).await.unwrap();
    }
    let keys = keys.lock().unwrap().clone();
    assert_eq!((&keys[0], &keys[2]), (&keys[1], &keys[3]), "the same input has the same key");
    assert_ne!(keys[1], keys[2]);
}

#[tokio::test]
async fn a_step_that_is_another_in_the_graph_is_refused_with_the_difference() {
    let scene = Scene::new();
    scene.effects.fail.store(9, Ordering::SeqCst);
    let text = "steps:\n  - {id: b, action: effect, retry: {attempts: 5, backoff: 1h}, with: {to: kim, amount: 3}}\n";
    let (id, _) = scene.start(text).await;
    let other = graph(&text.replace("action: effect", "action: keyed").replace("amount: 3", "sum: 4"));
    let refused = scene.resume_with(id, &BTreeMap::new(), Some(&other)).await.unwrap_err();
    let Error::Changed { node, difference } = &refused else { panic!("{refused}") };
    assert_eq!(
        (node.as_str(), difference.as_str()),
        ("b", "action was \"effect\" and is \"keyed\"; with.amount was 3 and is gone; with.sum is new: 4")
    );
}

/// Somebody said that it may run again, and means it as it is now.
#[tokio::test]
async fn an_uncertain_step_that_is_settled_runs_with_what_there_is_now() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "memory: {to: kim}\nnodes: {pay: {action: effect, with: {to: '{{ memory.to }}'}}}\noutputs: {to: outputs.pay.with.to}\n";
    let runner = scene.runner(&engine).at_boundary(Arc::new(|n| n == 2));
    assert!(runner.start(&graph(text), NewSession::default()).await.is_err());
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let path = StatePath::root().key("memory").key("to");
    let how = Resume { take_over: true, ..Resume::latest() }.set(path, "lee");
    let settle = BTreeMap::from([("pay".to_owned(), Settle::RunAgain)]);
    let (end, _) = scene.runner(&engine).resume(id, how, None, &settle).await.unwrap();
    assert_eq!(completed(&end)["to"], "lee");
}

struct Panics;

#[async_trait]
impl Action for Panics {
    async fn run(&self, _: Step) -> Result<Value, Failed> {
        panic!("a bug");
    }
}

/// An action that panics is that step's business alone; whether it had its effect, nobody knows.
#[tokio::test]
async fn an_action_that_breaks_off_leaves_the_others_alone() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.runner(&engine).action("panics", Arc::new(Panics));
    let text = "
parallel: 2
start: [bad, good]
nodes:
  bad: {action: panics}
  good: {action: shell, with: {command: 'sleep 0.2; echo fine'}}
";
    let checked = milepost_run::graph::check("g.yaml".as_ref(), text, &["panics"]);
    let (id, end) = runner.start(&checked.graph.unwrap(), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Uncertain { steps } if steps.len() == 1 && steps[0].0 == "bad"), "{end:?}");
    let nodes = scene.section(id, "execution").await["nodes"].clone();
    assert_eq!((&nodes["good"]["status"], &nodes["bad"]["status"]), (&json!("completed"), &json!("uncertain")));
    assert!(nodes["bad"]["error"].as_str().unwrap().contains("a bug"), "{nodes}");
}

/// Also when it runs alone, and before anything else.
#[tokio::test]
async fn an_action_that_breaks_off_at_once_leaves_the_run_alone() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.runner(&engine).action("panics", Arc::new(Panics));
    let text = "{nodes: {bad: {action: panics}, next: {action: effect, needs: bad}}}";
    let checked = milepost_run::graph::check("g.yaml".as_ref(), text, &["panics", "effect"]);
    let (id, end) = runner.start(&checked.graph.unwrap(), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Uncertain { steps } if steps.len() == 1 && steps[0].0 == "bad"), "{end:?}");
    let nodes = scene.section(id, "execution").await["nodes"].clone();
    assert!(nodes["bad"]["error"].as_str().unwrap().contains("a bug"), "{nodes}");
    assert!(nodes.get("next").is_none(), "{nodes}");
}

/// The end of a step is stored with the beginning of the next: one wait for the disk a step.
#[tokio::test]
async fn a_chain_stores_one_batch_a_step() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    for steps in [1, 20] {
        let crossed = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let seen = Arc::clone(&crossed);
        let runner = scene.runner(&engine).at_boundary(Arc::new(move |number| {
            seen.store(number, Ordering::SeqCst);
            false
        }));
        let step = |id: usize| match id {
            0 => "  - {id: s0, action: effect}\n".to_owned(),
            id => format!("  - {{id: s{id}, action: effect, dependencies: s{}}}\n", id - 1),
        };
        let text: String = (0..steps).map(step).collect();
        let (id, end) = runner.start(&graph(&format!("steps:\n{text}")), NewSession::default()).await.unwrap();
        completed(&end);
        // Before the first, between each two, after the last, and the end of the run; each has a boundary on both sides.
        assert_eq!(crossed.load(Ordering::SeqCst), 2 * (steps as u64 + 2));
        // Each has its checkpoint before and after it all the same, in which it stands as it was then.
        let marks = engine.store().marks(id, &Default::default()).await.unwrap();
        for number in 0..steps {
            for (described, status) in [("before", "running"), ("after", "completed")] {
                let wanted = format!("{described} s{number}");
                let mark = marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some(&wanted)).unwrap();
                let state = engine.store().state_at(mark.at).await.unwrap();
                let nodes = state.pointer("/execution/nodes").unwrap();
                assert_eq!(nodes[format!("s{number}")]["status"], status, "{wanted}");
                assert_eq!(nodes.as_object().unwrap().len(), number + 1, "{wanted}");
            }
        }
    }
}

/// Nobody changed anything: what another step of the run wrote meanwhile is no other input.
#[tokio::test]
async fn a_step_that_is_open_goes_on_with_what_it_was_begun_with_in_another_process() {
    let whole = json!({
        "memory": {"n": 1}, "start": ["a", "nap"],
        "nodes": {
            "a": {
                "action": "ACTION", "retry": {"attempts": 3, "backoff": "1h"},
                "with": {"text": "{{ memory.n }} in attempt {{ attempt }}"},
            },
            "nap": {"action": "shell", "with": {"command": "sleep 0.2"}},
            "other": {"action": "set", "with": {"n": 2}, "needs": "nap"},
        },
        "outputs": {"text": "outputs.a.with.text", "n": "memory.n"},
    });
    let inside = json!({
        "nodes": {"sub": {"action": "graph", "with": {"graph": whole}}},
        "outputs": {"text": "outputs.sub.text", "n": "outputs.sub.n"},
    });
    let none = json!({"triggers": {"node_start": false, "node_complete": false, "step": false}});
    for text in [whole.to_string(), inside.to_string()] {
        for (action, policy) in [("effect", None), ("keyed", Some(none.clone()))] {
            let scene = Scene::new();
            let engine = scene.engine().await;
            scene.effects.fail.store(1, Ordering::SeqCst);
            let graph = graph(&text.replace("ACTION", action));
            let new = NewSession { policy, ..NewSession::default() };
            // No time goes by of itself.
            let runner = scene.runner(&engine).timer(Timer::real());
            let (id, end) = runner.start(&graph, new).await.unwrap();
            assert!(matches!(end, End::Waiting { .. }), "{end:?}");
            scene.clock.advance_ms(3_600_001);
            let end = scene.resume(id).await;
            let outputs = completed(&end);
            assert_eq!((&outputs["text"], &outputs["n"]), (&json!("1 in attempt 2"), &json!(2)), "{action}");
            assert_eq!(scene.effects.counts().values().collect::<Vec<_>>(), [&(1, 1)]);
        }
    }
}

/// Killed in the middle, with a step beside it that had written what it reads.
#[tokio::test]
async fn a_step_that_was_cut_off_goes_on_with_what_it_was_begun_with() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "
parallel: 2
memory: {x: one}
start: [hangs, pre]
nodes:
  hangs: {action: hangs, idempotent: true, with: {text: '{{ memory.x }}'}}
  pre: {action: keyed, remember: {x: '\"two\"'}}
  go: {action: effect, needs: pre}
outputs: {text: outputs.hangs}
";
    let checked = milepost_run::graph::check("g.yaml".as_ref(), text, &["effect", "keyed", "hangs"]);
    let graph = checked.graph.unwrap_or_else(|| panic!("{:?}", checked.found));
    let hangs = Arc::new(Hangs::default());
    let cut_off = || async {
        scene.clock.advance_ms(1);
        hangs.is_free.store(false, Ordering::SeqCst);
        // Both have begun, and one of them is done.
        let told = Arc::new(std::sync::Mutex::new(false));
        let heard = Arc::clone(&told);
        let runner = scene.runner(&engine).action("hangs", hangs.clone()).watch(Arc::new(move |_, event| {
            let is_it = event.kind == "step_intent" && event.data["node"] == "go";
            *heard.lock().unwrap() |= is_it;
        }));
        let stopped = runner.at_boundary(Arc::new(move |_| *told.lock().unwrap()));
        assert!(stopped.start(&graph, NewSession::default()).await.is_err());
        hangs.is_free.store(true, Ordering::SeqCst);
        engine.sessions(&Default::default()).await.unwrap().sessions[0].id
    };
    let runner = scene.runner(&engine).action("hangs", hangs.clone());
    let settle = BTreeMap::from([("go".to_owned(), Settle::RunAgain)]);
    let how = || Resume { take_over: true, ..Resume::latest() };
    let by_hand = |x: &str| how().set(StatePath::root().key("memory").key("x"), x);
    let id = cut_off().await;
    let (end, _) = runner.resume(id, how(), None, &settle).await.unwrap();
    assert_eq!(completed(&end)["text"]["text"], "one");
    // Somebody who changes what it reads is told.
    let id = cut_off().await;
    let refused = runner.resume(id, by_hand("three"), None, &settle).await.unwrap_err();
    let Error::Changed { node, difference } = &refused else { panic!("{refused}") };
    assert_eq!((node.as_str(), difference.as_str()), ("hangs", "text was \"one\" and is \"three\""));
    // Nothing was changed by that.
    let (end, _) = runner.resume(id, how(), None, &settle).await.unwrap();
    assert_eq!(completed(&end)["text"]["text"], "one");
    // Or somebody says that it runs as it is now.
    let id = cut_off().await;
    assert!(runner.resume(id, by_hand("three"), None, &settle).await.is_err());
    let settle = BTreeMap::from(["go", "hangs"].map(|node| (node.to_owned(), Settle::RunAgain)));
    let (end, _) = runner.resume(id, by_hand("three"), None, &settle).await.unwrap();
    assert_eq!(completed(&end)["text"]["text"], "three");
}

/// Nor is it another input of an agent's tool, which is filled in when it is called.
#[tokio::test]
async fn a_tool_of_an_agent_that_was_cut_off_goes_on_with_what_the_agent_was_begun_with() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "
parallel: 2
memory: {x: one}
start: [agent, pre]
nodes:
  agent:
    action: agent
    with:
      prompt: go
      tools: [{name: look, action: hangs, idempotent: true, with: {text: '{{ memory.x }} {{ input.at }}'}, input: {at: where}}]
  pre: {action: waits, remember: {x: '\"two\"'}}
  go: {action: effect, needs: pre}
outputs: {x: memory.x}
";
    let checked = milepost_run::graph::check("g.yaml".as_ref(), text, &["effect", "waits", "hangs"]);
    let graph = checked.graph.unwrap_or_else(|| panic!("{:?}", checked.found));
    let script = "replies: [{calls: [{name: look, input: {at: there}}]}, {calls: [{name: look, input: {at: here}}]}, {text: done}]\n";
    let hangs = Arc::new(Hangs::default());
    // The tool was called, then the other step wrote what its template names, and then that was the end.
    let called = Arc::new(tokio::sync::Notify::new());
    let told = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (heard, calls) = (Arc::clone(&told), Arc::clone(&called));
    let runner = scene.scripted(&engine, script).action("hangs", hangs.clone());
    let stopped = runner
        .clone()
        .action("waits", Arc::new(Waits(called)))
        .watch(Arc::new(move |_, event| match (event.kind.as_str(), event.data["node"].as_str()) {
            ("step_intent", Some("agent/turn_1.1.look")) => calls.notify_one(),
            ("step_intent", Some("go")) => heard.store(true, Ordering::SeqCst),
            _ => {}
        }))
        .at_boundary(Arc::new(move |_| told.load(Ordering::SeqCst)));
    assert!(stopped.start(&graph, NewSession::default()).await.is_err());
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let key = scene.section(id, "execution").await["below"]["agent"]["nodes"]["turn_1.1.look"]["key"].clone();
    assert!(key.is_string(), "{key}");
    assert_eq!(scene.section(id, "memory").await["x"], "two");
    hangs.is_free.store(true, Ordering::SeqCst);
    let settle = BTreeMap::from([("go".to_owned(), Settle::RunAgain)]);
    let how = Resume { take_over: true, ..Resume::latest() };
    let runner = runner.action("waits", Arc::new(Waits(Arc::default())));
    let (end, _) = runner.resume(id, how, None, &settle).await.unwrap();
    assert_eq!(completed(&end)["x"], "two");
    let said = scene.said(id, "agent").await;
    let results = [&said[2], &said[4]].map(|said| said.text().into_owned());
    assert_eq!(results, [r#"{"text":"one there"}"#, r#"{"text":"one here"}"#]);
    let after = scene.section(id, "execution").await["below"]["agent"]["nodes"]["turn_1.1.look"].clone();
    assert_eq!((&after["key"], &after["status"]), (&key, &json!("completed")), "it is the same step");
}

/// Waits until somebody says so.
struct Waits(Arc<tokio::sync::Notify>);

#[async_trait]
impl Action for Waits {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        self.0.notified().await;
        Ok(step.parameters)
    }
}

/// Hangs until it is told otherwise.
#[derive(Default)]
struct Hangs {
    is_free: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl Action for Hangs {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        if !self.is_free.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(step.parameters)
    }
}

/// Nobody tried anything in vain: the process was gone.
#[tokio::test]
async fn a_crash_is_no_failed_attempt() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "nodes: {p: {action: keyed, retry: {attempts: 3, backoff: 1ms}}}";
    let runner = || scene.runner(&engine).at_boundary(Arc::new(|n| n == 2));
    assert!(runner().start(&graph(text), NewSession::default()).await.is_err());
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    for _ in 0..4 {
        // What was left is noted, the attempt is noted, and that is the end.
        let runner = scene.runner(&engine).at_boundary(Arc::new(|n| n == 4));
        let how = Resume { take_over: true, ..Resume::latest() };
        assert!(matches!(runner.resume(id, how, None, &BTreeMap::new()).await, Err(Error::Stopped { .. })));
        assert_eq!(scene.section(id, "execution").await["nodes"]["p"]["status"], "running");
    }
    scene.effects.fail.store(2, Ordering::SeqCst);
    completed(&scene.resume(id).await);
    assert_eq!(scene.effects.counts()["p"], (1, 1));
}
