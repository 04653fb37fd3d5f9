//! What a session may cost, and what it will.

use std::collections::BTreeMap;

use milepost::{MarkQuery, NewSession, Point, Resume, SessionId};
use milepost_run::run::{Again, Basis, Budget, End};
use serde_json::json;

use crate::support::{Scene, Telling, completed, graph};

const SCRIPT: &str = "
replies:
  - {when: first, text: one, usage: {input_tokens: 90, output_tokens: 10}, cost_usd: 0.5}
  - {when: second, text: two, usage: {input_tokens: 190, output_tokens: 10}, cost_usd: 0.25}
  - {when: third, text: three, usage: {input_tokens: 10, output_tokens: 10}}
";

const PLAN: &str = "
budget: {tokens: 100}
steps:
  - {id: a, action: model, with: {prompt: first}}
  - {id: b, action: model, with: {prompt: second}, needs: a}
  - {id: c, action: effect, needs: b}
";

static EMPTY: BTreeMap<String, milepost_run::run::Settle> = BTreeMap::new();

#[tokio::test]
async fn a_budget_that_is_used_up_pauses_the_session_until_it_is_raised() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, SCRIPT);
    let (id, end) = runner.start(&graph(PLAN), NewSession::default()).await.unwrap();
    let why = "the session's budget of 100 tokens is used up (100); raise the budget, then resume";
    assert_eq!(end, End::Paused { node: None, why: why.into() });
    assert_eq!(scene.status(id).await, "paused");
    let again = runner.resume(id, Resume::latest(), None, &EMPTY).await.unwrap().0;
    assert!(matches!(again, End::Paused { .. }), "nothing changed: {again:?}");
    assert_eq!(scene.said(id, "b").await.len(), 0);
    let dollars = Budget { tokens: None, cost_usd: Some(0.75) };
    let end = runner.clone().budget(dollars).resume(id, Resume::latest(), None, &EMPTY).await.unwrap().0;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("budget of $0.75 is used up ($0.7500)")), "{end:?}");
    assert_eq!(scene.section(id, "execution").await["budget"], json!({"cost_usd": 0.75}));
    let still = runner.resume(id, Resume::latest(), None, &EMPTY).await.unwrap().0;
    assert!(matches!(&still, End::Paused { why, .. } if why.contains("$0.75")), "what was raised stays so: {still:?}");
    // A file that says otherwise than it did counts, too.
    let more = graph(&PLAN.replace("tokens: 100", "tokens: 1000"));
    let end = runner.resume(id, Resume::latest(), Some(&more), &EMPTY).await.unwrap().0;
    completed(&end);
    assert_eq!(scene.effects.nodes(), ["c"]);
}

/// Money that nobody can count is not spent in silence.
#[tokio::test]
async fn a_budget_of_money_pauses_at_an_answer_without_a_price() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "budget: {cost_usd: 5}\nsteps:\n  - {id: a, action: model, with: {prompt: third}}\n  - {id: c, action: effect, needs: a}\n";
    let (_, end) = scene.scripted(&engine, SCRIPT).start(&graph(text), NewSession::default()).await.unwrap();
    assert!(
        matches!(&end, End::Paused { why, .. } if why.starts_with("the price of an answer is not known")),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_budget_stops_an_agent_in_the_middle_of_its_loop() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "
replies:
  - {calls: [{name: pay, input: {}}], usage: {input_tokens: 90, output_tokens: 10}}
  - {text: done, usage: {input_tokens: 90, output_tokens: 10}}
";
    let text =
        "budget: {tokens: 50}\nnodes: {a: {action: agent, with: {prompt: go, tools: [{name: pay, action: effect}]}}}\n";
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(
        matches!(&end, End::Paused { node: Some(node), why } if node == "a" && why.contains("50 tokens")),
        "{end:?}"
    );
    let runner = runner.budget(Budget { tokens: Some(1000), cost_usd: None });
    completed(&runner.resume(id, Resume::latest(), None, &EMPTY).await.unwrap().0);
    assert_eq!(scene.effects.counts()["a/turn_1.1.pay"], (1, 1));
    assert_eq!(scene.section(id, "execution").await["spent"]["input_tokens"], 180);
}

#[tokio::test]
async fn answers_inside_of_a_graph_are_counted_once_and_before_the_next_step() {
    let text = "
nodes:
  inner:
    action: graph
    with:
      graph:
        steps:
          - {id: a, action: model, with: {prompt: first}}
          - {id: b, action: model, with: {prompt: second}, needs: a}
";
    for (tokens, spent, is_done) in [(150, 300, true), (100, 100, false)] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let runner = scene.scripted(&engine, SCRIPT).budget(Budget { tokens: Some(tokens), cost_usd: None });
        let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
        assert_eq!(matches!(end, End::Completed { .. }), is_done, "with {tokens}: {end:?}");
        let execution = scene.section(id, "execution").await;
        let counted = |value: &serde_json::Value| {
            value["input_tokens"].as_u64().unwrap() + value["output_tokens"].as_u64().unwrap()
        };
        assert_eq!(counted(&execution["spent"]), spent, "with {tokens}");
        assert_eq!(counted(&execution["usage"]["inner"]), spent, "with {tokens}");
    }
}

#[tokio::test]
async fn what_a_resume_will_cost_is_known_before() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, SCRIPT);
    let text = "
steps:
  - {id: a, action: model, with: {prompt: first}}
  - {id: q, action: ask, with: {question: x}, needs: a}
  - {id: b, action: model, with: {prompt: second}, needs: q}
  - {id: c, action: effect, needs: b}
";
    let (id, _) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    let forecast = runner.forecast(id, None).await.unwrap();
    assert_eq!(forecast.steps.len(), 1, "{forecast:?}");
    let step = &forecast.steps[0];
    assert_eq!(
        (step.node.as_str(), step.basis, step.tokens, step.cost_usd),
        ("b", Basis::Average, Some(100), Some(0.5))
    );
    assert_eq!((forecast.tokens, forecast.cost_usd, forecast.spent.tokens()), (Some(100), Some(0.5), 100));
    assert!(forecast.unknown.is_empty());

    // Another run of the same graph came further: it is the better guide.
    let (other, _) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    milepost_run::run::answer(&engine, other, "q", 0, "y", "kim").await.unwrap();
    completed(&runner.resume(other, Resume::latest(), None, &EMPTY).await.unwrap().0);
    let forecast = runner.forecast(id, None).await.unwrap();
    let step = &forecast.steps[0];
    assert_eq!((step.basis, step.tokens, step.cost_usd), (Basis::Recorded, Some(200), Some(0.25)));

    // Nothing is known of a model that was never asked.
    let text = "steps:\n  - {id: q, action: ask, with: {question: x}}\n  - {id: z, action: model, with: {prompt: third}, needs: q}\n";
    let (id, _) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    let forecast = runner.forecast(id, None).await.unwrap();
    assert_eq!((forecast.tokens, forecast.cost_usd, forecast.unknown.as_slice()), (None, None, &["z".to_owned()][..]));
}

/// What was sent and half received was paid for.
#[tokio::test]
async fn answers_that_were_cut_count() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.runner(&engine).model(Telling::cut("half a"));
    let text = "nodes:\n  a: {action: model, with: {prompt: x}, retry: {attempts: 2, backoff: 1ms}}\n";
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Paused { .. }), "{end:?}");
    let spent = &scene.section(id, "execution").await["spent"];
    assert_eq!((&spent["input_tokens"], &spent["output_tokens"]), (&json!(180), &json!(20)), "{spent}");
    assert_eq!(scene.said(id, "a/cut").await.len(), 2, "beside the conversation");
    // And a budget stops it.
    let runner = runner.budget(Budget { tokens: Some(100), cost_usd: None });
    let (_, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("budget of 100 tokens is used up")), "{end:?}");
}

#[tokio::test]
async fn a_run_waits_for_a_model_that_used_up_its_limit() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let now = milepost::model::Clock::now(&*scene.clock);
    let model = Telling::ready_at(now.plus_ms(600_000));
    let runner = scene.runner(&engine).model(model.clone());
    let text = "steps:\n  - {id: a, action: model, with: {prompt: x}}\n  - {id: b, action: model, with: {prompt: y}, needs: a}\n";
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Waiting { until: Some(until), .. } if *until == now.plus_ms(600_000)), "{end:?}");
    assert_eq!(model.asked(), 1);
    scene.clock.advance_ms(600_000);
    completed(&runner.resume(id, Resume::latest(), None, &EMPTY).await.unwrap().0);
    assert_eq!(model.asked(), 2);
}

const FOUR: &str = "
name: four
steps:
  - {id: a, action: model, with: {prompt: x}}
  - {id: b, action: model, with: {prompt: x}, needs: a}
  - {id: c, action: model, with: {prompt: x}, needs: b}
  - {id: d, action: model, with: {prompt: x}, needs: c}
";

/// Every answer costs 150 tokens and a quarter.
const EVEN: &str =
    "after_last: repeat\nreplies: [{text: Yes., usage: {input_tokens: 100, output_tokens: 50}, cost_usd: 0.25}]\n";

fn tokens(limit: u64) -> Budget {
    Budget { tokens: Some(limit), cost_usd: None }
}

/// The checkpoint that was taken when this step was done.
async fn after(scene: &Scene, id: SessionId, node: &str) -> Point {
    let marks = scene.engine().await.store().marks(id, &MarkQuery::default()).await.unwrap();
    let said = format!("after {node}");
    let found = marks.iter().find(|mark| mark.checkpoint.description.as_ref() == Some(&said));
    Point::Checkpoint(found.unwrap_or_else(|| panic!("{marks:?}")).checkpoint.id)
}

/// Tokens that were spent: as the budget counts them, as the state says, and as the figures do.
async fn thrice(scene: &Scene, id: SessionId) -> [u64; 3] {
    let engine = scene.engine().await;
    let counted = scene.runner(&engine).forecast(id, None).await.unwrap().spent.tokens();
    let state = scene.section(id, "execution").await["spent"].clone();
    let noted = state["input_tokens"].as_u64().unwrap() + state["output_tokens"].as_u64().unwrap();
    [counted, noted, engine.analytics(id).await.unwrap().usage.tokens()]
}

/// What going back left behind was paid for: a budget counts it, as the figures do.
#[tokio::test]
async fn a_budget_counts_what_going_back_left_behind() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, EVEN);
    let (id, end) = runner.clone().budget(tokens(300)).start(&graph(FOUR), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("(300)")), "{end:?}");
    let back = Resume { point: after(&scene, id, "a").await, ..Resume::latest() };
    let ask = runner.preview(id, &back, None, &EMPTY).await.unwrap().forecast;
    assert_eq!(ask.spent.tokens(), 300, "what it cost so far is told before");
    let (end, _) = runner.clone().budget(tokens(400)).repeat_effects().resume(id, back, None, &EMPTY).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("400 tokens is used up (450)")), "{end:?}");
    assert_eq!(thrice(&scene, id).await, [450; 3]);
    // Whoever restores in between, and how often, changes nothing about it. The budget is that of the moment.
    for _ in 0..2 {
        let held = engine.hold(id).await.unwrap();
        held.restore(&after(&scene, id, "a").await).await.unwrap();
        held.release().await.unwrap();
    }
    let (end, _) = runner.clone().repeat_effects().resume(id, Resume::latest(), None, &EMPTY).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("300 tokens is used up (450)")), "{end:?}");
    assert_eq!(thrice(&scene, id).await, [450; 3]);
    // Money is no other.
    let dollars = Budget { tokens: None, cost_usd: Some(1.0) };
    let (end, _) = runner.budget(dollars).repeat_effects().resume(id, Resume::latest(), None, &EMPTY).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("$1 is used up ($1.0000)")), "{end:?}");
    assert_eq!(thrice(&scene, id).await, [600; 3]);
}

/// A branch is a session of its own: what it shares was spent where it was written, and counts there.
#[tokio::test]
async fn a_branch_counts_what_it_spent_itself() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, EVEN).budget(tokens(300));
    let (id, _) = runner.start(&graph(FOUR), NewSession::default()).await.unwrap();
    let again = Again { node: "b".into(), round: None, input: serde_json::Map::new() };
    let (branch, end) = runner.rerun(id, &again, None, NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("300 tokens is used up (300)")), "{end:?}");
    assert_eq!((thrice(&scene, branch).await, thrice(&scene, id).await), ([300; 3], [300; 3]));
    assert_eq!(scene.section(branch, "execution").await["spent"]["answers"], 2, "b and c");
}
