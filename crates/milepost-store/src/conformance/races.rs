//! Rules about two processes that write at once. Run them on a runtime with several threads: on one
//! thread they still pass, but try less.

use std::sync::Arc;

use milepost_model::EntryKind;
use tokio::task::JoinHandle;

use super::scene::*;
use super::{Failure, Outcome, Place};
use crate::backend::*;
use crate::error::{Conflict, Error, Result};

const ROUNDS: usize = 40;

/// Runs appends at once, each on its own opening of the place.
async fn race<T: Send + 'static>(tasks: Vec<JoinHandle<Result<T>>>) -> Outcome<Vec<Result<T>>> {
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.map_err(|error| Failure::new(format!("a racing task ended badly: {error}")))?);
    }
    Ok(outcomes)
}

fn spawn(backend: &Arc<dyn Backend>, scene: &Scene<'_>, batch: Batch) -> JoinHandle<Result<Appended>> {
    let (backend, workspace) = (Arc::clone(backend), scene.workspace.clone());
    tokio::spawn(async move { backend.append(&workspace, batch).await })
}

/// Of appends that race for one length exactly one is stored, whole; the others are conflicts.
pub async fn racing_appends_never_interleave(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let instances = [Arc::clone(&scene.backend), scene.another().await?];
    let mut line = scene.begin().await?;
    let mut expected = vec!["begin".to_owned()];
    for round in 0..ROUNDS {
        let mut tasks = Vec::new();
        for racer in 0..4 {
            let bodies: Vec<String> = (0..3).map(|part| format!("round {round}, racer {racer}, part {part}")).collect();
            let entries = bodies.into_iter().map(|body| entry(EntryKind::Message, body)).collect();
            tasks.push(spawn(&instances[racer % 2], &scene, scene.batch(&line, entries)));
        }
        let outcomes = race(tasks).await?;
        let mut winners = Vec::new();
        for (racer, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(answer) => {
                    same!(answer, Appended { length: line.length + 3, repeated: false }, "the winner's answer");
                    winners.push(racer);
                }
                Err(Error::Conflict(Conflict::Length { .. })) => {}
                Err(other) => return Err(Failure::new(format!("a racer was refused with {other:?}"))),
            }
        }
        same!(winners.len(), 1, "the number of winners in round {round}");
        expected.extend((0..3).map(|part| format!("round {round}, racer {}, part {part}", winners[0])));
        line.length += 3;
    }
    same!(scene.bodies(line.timeline).await?, expected, "the log after all rounds");
    instances[1].close().await?;
    Ok(())
}

/// Of restores that race, and of sessions begun twice at once, exactly one happens.
pub async fn racing_openings_leave_one_head(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let instances = [Arc::clone(&scene.backend), scene.another().await?];
    let mut line = scene.begin().await?;
    for round in 0..ROUNDS {
        let mut tasks = Vec::new();
        let mut lines = Vec::new();
        for racer in 0..4 {
            let at = line.at(line.length - 1);
            let next = Line { timeline: scene.id(), length: line.length, ..line };
            let mut batch = scene.opening(&next, Some(at));
            batch.open = Some(Opening { parent: Some(at), head: MAIN_HEAD.into(), replaces: Some(line.timeline) });
            tasks.push(spawn(&instances[racer % 2], &scene, batch));
            lines.push(next);
        }
        let outcomes = race(tasks).await?;
        let winners: Vec<usize> = (0..4).filter(|racer| outcomes[*racer].is_ok()).collect();
        for outcome in outcomes.into_iter().filter(Result::is_err) {
            refused!(outcome, Error::Conflict(Conflict::NotHead { .. }), "a restore that lost the race");
        }
        same!(winners.len(), 1, "the number of winners in round {round}");
        line = Line { length: line.length + 1, ..lines[winners[0]] };
        same!(scene.head(&line).await?.timeline.id, line.timeline, "the head after round {round}");
    }
    let lines = scene.backend.timelines(&scene.workspace, line.session).await?;
    same!(lines.len(), ROUNDS + 1, "the number of timelines");
    same!(lines.iter().filter(|line| line.head.is_some()).count(), 1, "the number of heads");

    for round in 0..ROUNDS {
        let session = scene.id();
        let tasks = (0..4).map(|racer| {
            let line = Line { session, timeline: scene.id(), length: 0, epoch: None };
            spawn(&instances[racer % 2], &scene, scene.opening(&line, None))
        });
        let outcomes = race(tasks.collect()).await?;
        same!(outcomes.iter().filter(|o| o.is_ok()).count(), 1, "how often a session began in round {round}");
        for outcome in outcomes.into_iter().filter(Result::is_err) {
            refused!(outcome, Error::Conflict(Conflict::Exists { .. }), "beginning a session that lost the race");
        }
    }
    instances[1].close().await?;
    Ok(())
}

/// Of claims that race for a lease or a record exactly one succeeds.
pub async fn racing_claims_have_one_winner(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let instances = [Arc::clone(&scene.backend), scene.another().await?];
    let line = scene.begin().await?;
    let key = RecordKey { kind: "wake-up".into(), key: "one".into() };
    let mut version = None;
    for round in 0..ROUNDS {
        let mut leases = Vec::new();
        let mut records = Vec::new();
        for racer in 0..4u64 {
            let instance = &instances[racer as usize % 2];
            let action = take(scene.id(), &format!("racer {racer}"), 1000);
            let (backend, workspace, session) = (Arc::clone(instance), scene.workspace.clone(), line.session);
            leases.push(tokio::spawn(async move { backend.lease(&workspace, session, action).await }));
            let record =
                Record { key: key.clone(), version: round as u64 * 4 + racer + 1, due: None, value: vec![racer as u8] };
            let (backend, workspace) = (Arc::clone(instance), scene.workspace.clone());
            records.push(tokio::spawn(async move { backend.put_record(&workspace, record, version).await }));
        }
        let outcomes = race(leases).await?;
        same!(outcomes.iter().filter(|o| o.is_ok()).count(), 1, "how many took the lease in round {round}");
        for outcome in outcomes.into_iter().filter(Result::is_err) {
            refused!(outcome, Error::Held { .. }, "a claim that lost the race");
        }
        let outcomes = race(records).await?;
        let winners: Vec<usize> = (0..4).filter(|racer| outcomes[*racer].is_ok()).collect();
        same!(winners.len(), 1, "how many wrote the record in round {round}");
        for outcome in outcomes.into_iter().filter(Result::is_err) {
            refused!(outcome, Error::Conflict(Conflict::Record { .. }), "a write that lost the race");
        }
        let found = scene.backend.record(&scene.workspace, key.clone()).await?;
        same!(found.map(|record| record.value), Some(vec![winners[0] as u8]), "the record after round {round}");
        version = Some(round as u64 * 4 + winners[0] as u64 + 1);
        scene.clock.advance_ms(1001);
    }
    instances[1].close().await?;
    Ok(())
}
