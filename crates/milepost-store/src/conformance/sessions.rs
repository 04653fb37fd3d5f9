//! Rules of the list of sessions: filters, orders, pages, the trash and what is hidden.

use milepost_model::{SessionId, Status, Timestamp};

use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;

/// Makes sessions that differ in everything a filter looks at.
async fn populate(scene: &Scene<'_>, count: u64) -> Outcome<Vec<SessionRow>> {
    let mut rows = Vec::new();
    for number in 0..count {
        let line = Line { session: scene.id(), timeline: scene.id(), length: 0, epoch: None };
        let pick = |of: u64, names: &[&str]| {
            names.get((number / of) as usize % (names.len() + 1)).map(|name| (*name).to_owned())
        };
        let made = SessionRow {
            status: Status::ALL[(number % 6) as usize],
            created: Timestamp(START.0 + (number * 7 % 5) as i64),
            active: Timestamp(START.0 + 100 + (number * 3 % 7) as i64),
            messages: number,
            checkpoints: number * 2,
            trashed: (number % 5 == 4).then(|| START.plus_ms(number as i64)),
            hidden: number % 7 == 6,
            title: pick(1, &["a title", "", "O'Brien \"quoted\"; DROP TABLE sessions"]),
            preview: pick(2, &["a preview \u{1f9ed}"]),
            keys: [
                pick(1, &["alpha", "beta"]),
                pick(2, &["dev", "ops"]),
                pick(3, &["feature"]),
                pick(4, &["task 1", "task 2"]),
                pick(5, &["planning"]),
            ],
            tags: [["red"].as_slice(), &[], &["red", "green"], &["re", "d%"], &["green", "blue"]]
                [(number % 5) as usize]
                .iter()
                .map(|tag| (*tag).to_owned())
                .collect(),
            detail: vec![number as u8, 0, 255],
            ..row(line.session, START)
        };
        let mut opening = scene.opening(&line, None);
        opening.row = Some(made.clone());
        scene.append(opening).await?;
        rows.push(made);
    }
    Ok(rows)
}

/// Lists with one filter and compares with what plain code finds.
async fn check(
    scene: &Scene<'_>,
    rows: &[SessionRow],
    filter: SessionFilter,
    accepts: impl Fn(&SessionRow) -> bool,
) -> Outcome {
    let filter = SessionFilter { limit: usize::MAX, ..filter };
    let mut expected: Vec<SessionRow> = rows
        .iter()
        .filter(|row| row.trashed.is_some() == filter.trashed && (filter.hidden || !row.hidden) && accepts(row))
        .cloned()
        .collect();
    expected.sort_by_key(|row| match filter.sort {
        SessionSort::Active => (row.active, row.id),
        SessionSort::Created => (row.created, row.id),
    });
    expected.reverse();
    let found = scene.backend.sessions(&scene.workspace, filter.clone()).await?;
    same!(found, expected, "{filter:?}");
    Ok(())
}

/// Each filter lists exactly the sessions that fit, with their rows as they were written.
pub async fn sessions_are_filtered(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let rows = populate(&scene, 60).await?;
    let none = SessionFilter::default();
    check(&scene, &rows, none.clone(), |_| true).await?;
    for status in [vec![Status::Active], vec![Status::Failed, Status::Paused], Status::ALL.to_vec()] {
        let filter = SessionFilter { status: status.clone(), ..none.clone() };
        check(&scene, &rows, filter, |row| status.contains(&row.status)).await?;
    }
    for (place, value) in
        [(0, "alpha"), (1, "ops"), (2, "feature"), (3, "task 2"), (4, "planning"), (0, "dev"), (0, ""), (3, "task _")]
    {
        let mut filter = none.clone();
        filter.keys[place] = Some(value.to_owned());
        check(&scene, &rows, filter, |row| row.keys[place].as_deref() == Some(value)).await?;
    }
    for tag in ["red", "green", "re", "d%", "d", "none", "%"] {
        let filter = SessionFilter { tag: Some(tag.to_owned()), ..none.clone() };
        check(&scene, &rows, filter, |row| row.tags.iter().any(|other| other == tag)).await?;
    }
    let moment = START.plus_ms(103);
    let filter = SessionFilter { active_from: Some(moment), ..none.clone() };
    check(&scene, &rows, filter, |row| row.active >= moment).await?;
    let filter = SessionFilter { active_to: Some(moment), ..none.clone() };
    check(&scene, &rows, filter, |row| row.active < moment).await?;
    let filter = SessionFilter {
        status: vec![Status::Active, Status::Waiting, Status::Completed],
        tag: Some("red".into()),
        keys: [Some("alpha".into()), None, None, None, None],
        active_from: Some(START.plus_ms(101)),
        active_to: Some(START.plus_ms(106)),
        sort: SessionSort::Created,
        ..none
    };
    let statuses = filter.status.clone();
    check(&scene, &rows, filter, |row| {
        statuses.contains(&row.status)
            && row.tags.contains(&"red".to_owned())
            && row.keys[0].as_deref() == Some("alpha")
            && row.active >= START.plus_ms(101)
            && row.active < START.plus_ms(106)
    })
    .await
}

/// Pages in both orders give every session exactly once, though many have the same time.
pub async fn sessions_are_paged_each_exactly_once(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let rows = populate(&scene, 40).await?;
    for sort in [SessionSort::Active, SessionSort::Created] {
        let whole = SessionFilter { sort, hidden: true, limit: usize::MAX, ..SessionFilter::default() };
        let expected = scene.backend.sessions(&scene.workspace, whole.clone()).await?;
        same!(expected.len(), rows.iter().filter(|row| row.trashed.is_none()).count(), "the number of sessions");
        let times: Vec<Timestamp> = expected.iter().map(|row| whole.sort_time(row)).collect();
        ensure!(times.is_sorted_by(|a, b| a >= b), "{sort:?} is not newest first");
        for limit in [1, 2, 3, 7, 100] {
            let mut filter = SessionFilter { limit, ..whole.clone() };
            let mut found = Vec::new();
            loop {
                let page = scene.backend.sessions(&scene.workspace, filter.clone()).await?;
                ensure!(page.len() <= limit, "a page of {limit} has {} rows", page.len());
                let Some(last) = page.last() else { break };
                filter.after = Some(SessionCursor { time: filter.sort_time(last), id: last.id });
                found.extend(page);
            }
            same!(found, expected, "all pages of {limit} by {sort:?}");
        }
        scene.reopen().await?;
    }
    let empty = SessionFilter { limit: 0, ..SessionFilter::default() };
    same!(scene.backend.sessions(&scene.workspace, empty).await?, [], "a page of none");
    Ok(())
}

/// What is in the trash is listed only when asked for, and so is what is kept only for its branches.
pub async fn trashed_and_hidden_sessions_are_listed_on_demand(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let rows = populate(&scene, 40).await?;
    let mut seen: Vec<SessionId> = Vec::new();
    for trashed in [false, true] {
        for hidden in [false, true] {
            let filter = SessionFilter { trashed, hidden, ..SessionFilter::default() };
            check(&scene, &rows, filter.clone(), |_| true).await?;
            let filter = SessionFilter { limit: usize::MAX, ..filter };
            if hidden {
                seen.extend(scene.backend.sessions(&scene.workspace, filter).await?.iter().map(|row| row.id));
            }
        }
    }
    seen.sort_unstable();
    same!(seen, rows.iter().map(|row| row.id).collect::<Vec<_>>(), "all lists together");
    Ok(())
}
