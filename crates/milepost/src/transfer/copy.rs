//! Pushing and pulling: one session from store to store.

use std::collections::BTreeSet;

use milepost_model::{Body, EntryKind, SessionId, TimelineId, Timestamp};
use milepost_store::{Claim, DeleteMode, Store};
use serde_json::Value;

use super::beside::carry;
use super::incoming::Incoming;
use super::outgoing::{Outgoing, Piece};
use super::{Ids, OnProgress, Progress};
use crate::error::{Apart, Error, Result};
use crate::project::{Owner, Projects};

/// The event of the store's that says that something was redacted.
const REDACTED: &str = "redacted";

/// What a copy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// The session in the target.
    pub session: SessionId,
    /// Entries that the target did not have.
    pub entries: u64,
    /// The session was not there before.
    pub is_new: bool,
}

/// Copies a session into another store, with its artifacts and its log. Made again, it brings over only what is new, or takes the
/// place of a copy from before something was redacted here; when the copy went its own way, nothing is changed and the error says
/// where. With [`Ids::Remap`] every call makes a further copy.
pub async fn copy_session(
    from: &Store,
    to: &Store,
    session: SessionId,
    ids: Ids,
    claim: &Claim,
    progress: OnProgress<'_>,
) -> Result<Copied> {
    let (why, apart) = match Box::pin(copy_more(from, to, session, ids, claim, progress)).await {
        Err(Error::Apart { why, apart, .. }) => (why, apart),
        outcome => return outcome,
    };
    let (here, there) = (redactions(from, session).await?, redactions(to, session).await?);
    if here.is_empty() && there.is_empty() || !holds_all_of(from, to, session).await? {
        return Err(Error::Apart { session, why, apart });
    }
    if !there.is_subset(&here) {
        // Whatever that was, it must not come back.
        let why = format!(
            "{why}: a secret was erased there that may still be here; erase it here, delete the copy and copy again"
        );
        return Err(Error::Apart { session, why, apart });
    }
    to.delete(session, DeleteMode::Refuse, claim, false).await?;
    Projects::open(to).await?.forget(&Owner::Session(session)).await?;
    let copied = Box::pin(copy_more(from, to, session, ids, claim, progress)).await?;
    Ok(Copied { is_new: false, ..copied })
}

/// What a session tells of what was redacted in it: a copy tells the same.
async fn redactions(store: &Store, session: SessionId) -> Result<BTreeSet<String>> {
    let (mut out, mut told) = (Outgoing::new(store, session).await?, BTreeSet::new());
    while let Some(piece) = out.next().await? {
        if let Piece::Entry(piece) = piece
            && let Some(Body::Event(event)) = &piece.entry.body
            && event.kind == REDACTED
        {
            told.insert(format!("{} {}", piece.entry.time, Value::Object(event.data.clone())));
        }
    }
    Ok(told)
}

async fn copy_more(
    from: &Store,
    to: &Store,
    session: SessionId,
    ids: Ids,
    claim: &Claim,
    progress: OnProgress<'_>,
) -> Result<Copied> {
    let mut out = Outgoing::new(from, session).await?;
    let mut done = Progress { entries: 0, entries_total: out.counts().1 };
    let there = match ids {
        Ids::Preserve => find(to, session).await?,
        Ids::Remap => None,
    };
    let mut first = None;
    let is_new = there.is_none();
    let mut incoming = match there {
        None => Incoming::new(to, session, ids, claim),
        Some(mut there) => {
            first = skip_common(&mut out, &mut there, &mut done, progress).await?;
            if first.is_none() {
                carry(from, to, session, session).await?;
                return Ok(Copied { session, entries: 0, is_new: false });
            }
            Incoming::more(to, session, claim, &there.blobs).await?
        }
    };
    let outcome = pour(&mut out, first, &mut incoming, &mut done, progress).await;
    if let Err(error) = outcome {
        // What was appended to a copy that was there stays: it is as far as the copy came.
        incoming.discard().await?;
        return Err(error);
    }
    let imported = Box::pin(incoming.finish()).await?;
    carry(from, to, session, imported.session).await?;
    Ok(Copied { session: imported.session, entries: imported.entries, is_new })
}

async fn find(store: &Store, session: SessionId) -> Result<Option<Outgoing<'_>>> {
    match Outgoing::new(store, session).await {
        // One that is hidden is an import that was not finished.
        Ok(out) if out.session.hidden => Ok(None),
        Ok(out) => Ok(Some(out)),
        Err(Error::Store(milepost_store::Error::NotFound { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn pour(
    out: &mut Outgoing<'_>,
    first: Option<Piece>,
    incoming: &mut Incoming<'_>,
    done: &mut Progress,
    progress: OnProgress<'_>,
) -> Result<()> {
    let mut next = match first {
        Some(piece) => Some(piece),
        None => out.next().await?,
    };
    while let Some(piece) = next {
        done.entries += u64::from(matches!(piece, Piece::Entry(_)));
        incoming.take(piece).await?;
        progress(*done);
        next = out.next().await?;
    }
    Ok(())
}

/// Reads both as far as the target goes. The first piece that it does not have; none when it has all.
async fn skip_common(
    out: &mut Outgoing<'_>,
    there: &mut Outgoing<'_>,
    done: &mut Progress,
    progress: OnProgress<'_>,
) -> Result<Option<Piece>> {
    let session = out.session.id;
    loop {
        match (out.next().await?, there.next().await?) {
            (Some(here), Some(there)) if is_same(&here, &there) => {
                done.entries += u64::from(matches!(here, Piece::Entry(_)));
                progress(*done);
            }
            (new, None) => return Ok(new),
            (None, Some(more)) => {
                let why = format!("all of it is there, and more: {} is only there", more.what());
                return Err(Error::Apart { session, why, apart: Apart::Copy });
            }
            (Some(here), Some(there)) => {
                let why = format!("the copy went its own way: {} here is {} there", here.what(), there.what());
                let why = if here.what() == there.what() {
                    format!("the copy went its own way: {} differs", here.what())
                } else {
                    why
                };
                return Err(Error::Apart { session, why, apart: Apart::Both });
            }
        }
    }
}

fn is_same(here: &Piece, there: &Piece) -> bool {
    match (here, there) {
        // One may have grown.
        (Piece::Line(here), Piece::Line(there)) => here.id == there.id && here.parent == there.parent,
        (here, there) => here == there,
    }
}

/// Whether a store has everything of the copy of a session in another: messages, state changes and checkpoints, from the
/// first on. What they say may differ: it may have been redacted. Events do not count: redacting leaves one in each.
pub(crate) async fn holds_all_of(store: &Store, copy: &Store, session: SessionId) -> Result<bool> {
    let (mut own, mut other) = (Outgoing::new(store, session).await?, Outgoing::new(copy, session).await?);
    loop {
        match (next_said(&mut own).await?, next_said(&mut other).await?) {
            (_, None) => return Ok(true),
            (Some(own), Some(other)) if own == other => {}
            _ => return Ok(false),
        }
    }
}

async fn next_said(out: &mut Outgoing<'_>) -> Result<Option<(TimelineId, EntryKind, Timestamp)>> {
    while let Some(piece) = out.next().await? {
        match piece {
            Piece::Entry(piece) if piece.entry.kind != EntryKind::Event => {
                return Ok(Some((piece.entry.at.timeline, piece.entry.kind, piece.entry.time)));
            }
            _ => {}
        }
    }
    Ok(None)
}
