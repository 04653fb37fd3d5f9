//! A byte that flipped in the log: the run falls back to the newest checkpoint that is whole, and says so.

use std::collections::BTreeMap;

use milepost::{NewSession, Resume, SessionId};
use milepost_run::run::{Budget, End, Error, answer};

use crate::support::{Scene, completed, graph};

const TEXT: &str = "
nodes:
  a: {action: keyed}
  b: {action: effect, needs: a}
  q: {action: ask, with: {question: 'Go on?'}, needs: b}
";

/// Flips a byte of the change of the state that a step's end was stored with.
fn flip(scene: &Scene, from_the_end: u32) {
    let file = scene.dir.path().join("milepost.db");
    let database = rusqlite::Connection::open(file).unwrap();
    let which = format!("(SELECT id FROM entries WHERE kind = 2 ORDER BY id DESC LIMIT 1 OFFSET {from_the_end})");
    let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {which}");
    assert_eq!(database.execute(&sql, []).unwrap(), 1);
}

async fn begun(scene: &Scene, text: &str) -> SessionId {
    let engine = scene.engine().await;
    let (id, _) = scene.runner(&engine).start(&graph(text), NewSession::default()).await.unwrap();
    engine.close().await.unwrap();
    id
}

#[tokio::test]
async fn a_resume_falls_back_to_the_newest_checkpoint_that_is_whole() {
    let scene = Scene::new();
    let id = begun(&scene, &TEXT.replace("action: effect", "action: keyed")).await;
    flip(&scene, 0);
    let engine = scene.engine().await;
    assert!(engine.store().state(id).await.is_err(), "there is something to fall back from");
    let runner = scene.runner(&engine);
    let how = || Resume { take_over: true, ..Resume::latest() };
    let seen = runner.preview(id, &how(), None, &Default::default()).await.unwrap();
    assert!(seen.repeats.is_empty());
    // Answers count on the timeline on which they are given, and this is another.
    let (end, _) = runner.resume(id, how(), None, &BTreeMap::new()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    answer(&engine, id, "q", 0, "yes", "kim").await.unwrap();
    completed(&runner.resume(id, how(), None, &BTreeMap::new()).await.unwrap().0);
}

/// An answer that cannot be read any more does not keep a run from counting the others, on whichever timeline they are.
#[tokio::test]
async fn what_was_spent_is_counted_past_what_is_damaged() {
    let scene = Scene::new();
    let text = "
steps:
  - {id: a, action: model, with: {prompt: x}}
  - {id: b, action: model, with: {prompt: x}, needs: a}
  - {id: c, action: model, with: {prompt: x}, needs: b}
  - {id: q, action: ask, with: {question: 'Go on?'}, needs: c}
";
    let script = "after_last: repeat\nreplies: [{text: Yes., usage: {input_tokens: 100, output_tokens: 50}}]\n";
    let engine = scene.engine().await;
    let (id, _) = scene.scripted(&engine, script).start(&graph(text), NewSession::default()).await.unwrap();
    engine.close().await.unwrap();
    let database = rusqlite::Connection::open(scene.dir.path().join("milepost.db")).unwrap();
    let answers = "SELECT id FROM entries WHERE kind = 1 ORDER BY id LIMIT 1 OFFSET 3";
    let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = ({answers})");
    assert_eq!(database.execute(&sql, []).unwrap(), 1);
    drop(database);
    let engine = scene.engine().await;
    assert!(engine.analytics(id).await.is_err(), "the answer of b is damaged");
    let runner = scene.scripted(&engine, script).budget(Budget { tokens: Some(400), cost_usd: None });
    let how = || Resume { take_over: true, ..Resume::latest() };
    let (end, _) = runner.resume(id, how(), None, &BTreeMap::new()).await.unwrap();
    // Those of a and c, which was left behind, can be read; b is asked again, and then it is enough.
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("(450)")), "{end:?}");
}

/// What happened behind the checkpoint may not be repeated by itself: it is named. Whichever change of the state is damaged.
#[tokio::test]
async fn a_fall_back_behind_an_effect_needs_a_yes() {
    let (mut named, mut went_on) = (0, 0);
    for back in 0..6 {
        let scene = Scene::new();
        let id = begun(&scene, TEXT).await;
        flip(&scene, back);
        let engine = scene.engine().await;
        let how = Resume { take_over: true, ..Resume::latest() };
        match scene.runner(&engine).resume(id, how, None, &BTreeMap::new()).await {
            Err(Error::Repeats { steps }) => {
                assert_eq!(steps[0].0, "b");
                named += 1;
            }
            Ok(_) => went_on += 1,
            Err(other) => panic!("{back}: {other}"),
        }
        let ran = scene.effects.counts()["b"];
        assert_eq!(ran, (1, 1), "{back}: {:?}", scene.runner(&engine).events(id).await.unwrap());
    }
    assert!(named > 0 && went_on > 0, "{named}, {went_on}");
}
