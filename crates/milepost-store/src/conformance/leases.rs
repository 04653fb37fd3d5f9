//! Rules of leases: who may write, until when, and who is refused.

use milepost_model::{EntryKind, Epoch, OwnerId};

use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;
use crate::error::Error;

/// A lease keeps others out until it expires by the clock that the backend was given.
pub async fn a_lease_keeps_others_out_until_it_expires(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let line = scene.begin().await?;
    let (one, two): (OwnerId, OwnerId) = (scene.id(), scene.id());
    let lease = scene.lease(&line, take(one, "the first", 1000)).await?;
    same!(lease.owner, Some(one), "who holds the lease");
    same!(lease.holder, "the first", "who holds it in words");
    same!(lease.until, START.plus_ms(1000), "until when");
    same!(scene.head(&line).await?.lease, lease, "the lease of the session");
    for _ in 0..2 {
        refused!(
            scene.lease(&line, take(two, "the second", 1000)).await,
            Error::Held { session, ref holder, epoch, until }
                if session == line.session && holder == "the first" && epoch == lease.epoch && until == lease.until,
            "a lease that someone holds"
        );
        same!(scene.head(&line).await?.lease, lease, "the lease after a refused claim");
        scene.reopen().await?;
    }
    scene.clock.advance_ms(999);
    refused!(scene.lease(&line, take(two, "the second", 1000)).await, Error::Held { .. }, "the last moment");
    scene.clock.advance_ms(1);
    let next = scene.lease(&line, take(two, "the second", 1000)).await?;
    same!(next.epoch, Epoch(lease.epoch.0 + 1), "the epoch of the next lease");

    let own = scene.lease(&line, take(two, "the second, again", 5000)).await?;
    same!(own.epoch, Epoch(next.epoch.0 + 1), "the epoch of a lease that its owner takes again");
    same!(own.until, START.plus_ms(6000), "until when it lasts");

    let born = Line { session: scene.id(), timeline: scene.id(), length: 0, epoch: None };
    let mut opening = scene.opening(&born, None);
    opening.holder = Some((one, "the founder".into()));
    scene.append(opening).await?;
    let lease = scene.head(&born).await?.lease;
    let until = START.plus_ms(1000 + 30_000);
    let founded = Lease { epoch: Epoch(1), owner: Some(one), holder: "the founder".into(), until };
    same!(lease, founded, "the lease of whoever begins a session");
    refused!(scene.lease(&born, take(two, "the second", 1)).await, Error::Held { .. }, "the founder's lease");
    Ok(())
}

/// A lease can be taken over from whoever holds it.
pub async fn a_lease_can_be_taken_over(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let mut last = Epoch(0);
    for holder in ["one", "two", "three"] {
        let lease = scene.lease(&line, take_over(scene.id(), holder, 10_000)).await?;
        ensure!(lease.epoch > last, "the epoch did not go up: {lease:?}");
        same!(scene.head(&line).await?.lease, lease, "the lease of the session");
        line.epoch = Some(lease.epoch);
        scene.say(&mut line, &[holder]).await?;
        last = lease.epoch;
    }
    Ok(())
}

/// An append holds the session for longer, and never for shorter.
pub async fn an_append_renews_the_lease(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let lease = scene.lease(&line, take(scene.id(), "someone", 60_000)).await?;
    line.epoch = Some(lease.epoch);
    scene.say(&mut line, &["too early to need it"]).await?;
    same!(scene.head(&line).await?.lease.until, START.plus_ms(60_000), "a lease that was longer already");
    scene.clock.advance_ms(50_000);
    scene.say(&mut line, &["in time"]).await?;
    same!(scene.head(&line).await?.lease.until, START.plus_ms(80_000), "the lease after an append");
    let other = take(scene.id(), "another", 1000);
    refused!(scene.lease(&line, other.clone()).await, Error::Held { .. }, "the renewed lease");

    scene.clock.advance_ms(40_000);
    scene.say(&mut line, &["late, but nobody took it"]).await?;
    refused!(scene.lease(&line, other).await, Error::Held { .. }, "a lease that an append brought back");
    let renewed = scene.lease(&line, LeaseAction::Renew { epoch: lease.epoch, ttl_ms: 99_000 }).await?;
    same!(renewed, Lease { until: START.plus_ms(90_000 + 99_000), ..lease }, "a lease renewed without an append");
    Ok(())
}

/// A lease that was given back is free at once, and its epoch is not used again.
pub async fn a_released_lease_is_free(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let lease = scene.lease(&line, take(scene.id(), "the first", 60_000)).await?;
    let released = scene.lease(&line, LeaseAction::Release { epoch: lease.epoch }).await?;
    same!(released.owner, None, "who holds a lease that was given back");
    scene.reopen().await?;
    let renewed = scene.lease(&line, LeaseAction::Renew { epoch: lease.epoch, ttl_ms: 1000 }).await;
    refused!(renewed, Error::Fenced { .. }, "renewing what was given back");
    let next = scene.lease(&line, take(scene.id(), "the second", 60_000)).await?;
    ensure!(next.epoch > lease.epoch, "an epoch was used twice: {next:?}");
    line.epoch = Some(lease.epoch);
    let batch = scene.batch(&line, vec![entry(EntryKind::Event, "late")]);
    refused!(scene.append(batch).await, Error::Fenced { .. }, "an append under the lease that was given back");
    Ok(())
}

/// Whoever lost a lease can neither renew nor release the one that followed.
pub async fn an_old_lease_is_neither_renewed_nor_released(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let line = scene.begin().await?;
    let old = scene.lease(&line, take(scene.id(), "the first", 1000)).await?;
    let new = scene.lease(&line, take_over(scene.id(), "the second", 1000)).await?;
    for epoch in [old.epoch, Epoch(0), Epoch(new.epoch.0 + 1)] {
        for action in [LeaseAction::Renew { epoch, ttl_ms: 9999 }, LeaseAction::Release { epoch }] {
            refused!(
                scene.lease(&line, action.clone()).await,
                Error::Fenced { current, ref holder, .. } if current == new.epoch && holder == "the second",
                "{action:?}"
            );
        }
        let removed = scene.backend.remove(&scene.workspace, line.session, epoch).await;
        refused!(removed, Error::Fenced { .. }, "removing the session under epoch {epoch}");
    }
    same!(scene.head(&line).await?.lease, new, "the lease afterwards");
    Ok(())
}
