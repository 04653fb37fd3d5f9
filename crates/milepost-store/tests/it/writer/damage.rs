//! Damage that loading and indexing meet.

use milepost_store::SessionQuery;

use super::*;

#[tokio::test]
async fn the_newest_whole_mark_is_loaded_and_the_damaged_ones_are_named() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let mut marks = Vec::new();
    for n in 0..5 {
        marks.push(writer.append(step(n)).await.unwrap().checkpoints[0]);
    }
    let newest = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!((newest.mark.checkpoint.id, newest.skipped.len()), (marks[4], 0));
    writer.release().await.unwrap();
    store.close().await.unwrap();

    // The newest mark itself, and the state change that the one before it needs.
    damage(&scratch.path(), newest.mark.at);
    let store = scratch.open().await;
    let before = store.mark(marks[3]).await.unwrap();
    damage(&scratch.path(), Position { seq: Seq(before.at.seq.0 - 1), ..before.at });
    sql(&scratch.path(), "DELETE FROM keyframes");
    let loaded = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!(loaded.mark.checkpoint.id, marks[2]);
    assert_eq!(loaded.state, state(json!({"memory": {"step": 2}})));
    let skipped: Vec<CheckpointId> = loaded.skipped.iter().map(|skipped| skipped.id).collect();
    assert_eq!(skipped, [marks[4], marks[3]]);
    assert!(loaded.skipped.iter().all(|skipped| skipped.why.contains("checksum")), "{:?}", loaded.skipped);
    assert!(store.load(marks[4]).await.unwrap_err().is_damage());
    assert!(store.load(marks[3]).await.unwrap_err().is_damage());
    let report = store.verify().await.unwrap();
    let named: Vec<Position> = report.problems.iter().filter_map(|problem| problem.at).collect();
    assert!(named.contains(&newest.mark.at), "{report:?}");
    // From the whole one the session goes on, also once the store had time to index its texts, and could not.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let writer = store.write(id, &claim()).await.unwrap();
    writer.restore(loaded.mark.at).await.unwrap();
    writer.append(step(9)).await.unwrap();
    assert_eq!(store.state(id).await.unwrap(), state(json!({"memory": {"step": 9}})));
}

#[tokio::test]
async fn damage_that_indexing_meets_keeps_nobody_from_writing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (hurt, other) = (create(&store).await, create(&store).await);
    let first = hurt.append(step(1)).await.unwrap();
    other.append(step(1)).await.unwrap();
    damage(&scratch.path(), last(&first));
    // Texts are indexed when nobody wrote for a moment: by then it has met the damage.
    tokio::time::sleep(Duration::from_millis(400)).await;
    other.append(step(2)).await.unwrap();
    assert_eq!(store.state(other.id()).await.unwrap(), state(json!({"memory": {"step": 2}})));
}

/// What a list shows follows from the log: damage to it hides no session, and keeps nobody from going on.
#[tokio::test]
async fn a_damaged_row_of_the_list_is_read_from_the_log() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let other = create(&store).await.id();
    let first = writer.append(step(1)).await.unwrap();
    writer.append(step(2)).await.unwrap();
    let known = store.session(id).await.unwrap();
    writer.release().await.unwrap();
    store.close().await.unwrap();
    sql(&scratch.path(), "UPDATE sessions SET detail = zeroblob(length(detail))");
    let store = scratch.open().await;
    assert_eq!(store.session(id).await.unwrap(), known);
    let listed: Vec<SessionId> =
        store.sessions(&SessionQuery::default()).await.unwrap().sessions.iter().map(|session| session.id).collect();
    assert!(listed.contains(&id) && listed.contains(&other), "{listed:?}");
    let report = store.verify().await.unwrap();
    assert!(!report.is_whole() && report.problems.iter().all(|problem| problem.derived), "{report:?}");
    // A message that is damaged, too, is still one that was said.
    damage(&scratch.path(), first.first);
    assert_eq!(store.session(id).await.unwrap().messages(), 2);
    let writer = store.write(id, &claim()).await.unwrap();
    writer.append(step(3)).await.unwrap();
    assert_eq!(store.session(id).await.unwrap().messages(), 3);
    writer.release().await.unwrap();
    // What cannot be made anew (the text of that message, if it was not indexed yet) stands in nobody else's way.
    let _ = store.reindex().await;
    let report = store.verify().await.unwrap();
    assert!(report.problems.iter().all(|problem| problem.session != Some(other)), "{report:?}");
}
