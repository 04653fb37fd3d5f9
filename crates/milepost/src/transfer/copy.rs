//! Pushing and pulling: one session from store to store.

use milepost_model::SessionId;
use milepost_store::{Claim, DeleteMode, Store};

use super::beside::{carry, check_carried};
use super::incoming::Incoming;
use super::outgoing::{Outgoing, Piece};
use super::succeed::{Succession, succession};
use super::{Ids, OnProgress, Progress};
use crate::error::{Apart, Error, Result};
use crate::project::{Owner, Projects};

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
/// place of a copy from before something was redacted here; when the copy went its own way, or has other artifacts under the
/// same names, nothing is changed and the error says where. With [`Ids::Remap`] every call makes a further copy.
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
    match Box::pin(succession(from, to, session)).await? {
        Succession::Whole { redacted_since: true } => {}
        Succession::Whole { redacted_since: false } => return Err(Error::Apart { session, why, apart }),
        Succession::Own(own) => {
            let why = if apart == Apart::Both { format!("the copy went its own way: {own}") } else { why };
            return Err(Error::Apart { session, why, apart });
        }
        // Whatever that was, it must not come back.
        Succession::RedactedThere => {
            let why = "a secret was erased in the copy that what is copied may still hold";
            let instead = "erase it there too and copy again; if they still differ, delete the copy first";
            return Err(Error::refused(format!("copying session {session}"), why, instead));
        }
    }
    to.delete(session, DeleteMode::Refuse, claim, false).await?;
    Projects::open(to).await?.forget(&Owner::Session(session)).await?;
    let copied = Box::pin(copy_more(from, to, session, ids, claim, progress)).await?;
    Ok(Copied { is_new: false, ..copied })
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
            check_carried(from, to, session).await?;
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
