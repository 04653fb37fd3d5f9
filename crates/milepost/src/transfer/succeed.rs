//! Whether a session may take the place of its copy: when the copy has nothing of its own, and something was redacted since it
//! was made.
//!
//! The two are read side by side, without the entries that tell of redactions: those lie where the head was. An entry says
//! another thing in each only where a redaction that the other does not know of replaced it. What a branch shares is redacted
//! with the session that it belongs to, and told there; a copy of the branch stands by itself and tells of its own.

use std::collections::BTreeSet;

use milepost_model::{Body, Event, Hash, Position, Seq, SessionId, TimelineId, Timestamp};
use milepost_store::{CopyLine, Store};
use serde_json::Value;

use super::beside::{OnlyThere, only_there};
use super::outgoing::{Outgoing, Piece, PieceEntry};
use crate::error::{Error, Result};

/// The event of the store's that says that something was redacted.
const REDACTED: &str = "redacted";

/// What a session is to its copy in another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Succession {
    /// Everything of the copy is in the session.
    Whole {
        /// Something was redacted in the session that the copy may still hold.
        redacted_since: bool,
    },
    /// The copy has something of its own: what, and that it differs or is only there.
    Own(String),
    /// Something was redacted in the copy that the session may still hold.
    RedactedThere,
}

/// What was redacted at once: when, and which entries it replaced. A copy tells the same, but for the reason, which may have
/// been redacted itself, and for hashes, which are of the workspace.
type Redaction = (Timestamp, BTreeSet<(TimelineId, Seq)>);

/// Compares a session with its copy in another store.
pub(crate) async fn succession(from: &Store, to: &Store, session: SessionId) -> Result<Succession> {
    let (mut here, mut there) = (Outgoing::new(from, session).await?, Outgoing::new(to, session).await?);
    let (ours, theirs) = (redactions(from, &here).await?, redactions(to, &there).await?);
    let (since, alone) = (replaced(ours.difference(&theirs)), replaced(theirs.difference(&ours)));
    loop {
        let (own, copy) = (next_said(&mut here).await?, next_said(&mut there).await?);
        let Some(copy) = copy else { break };
        let Some(own) = own.filter(|own| is_of_one(own, &copy)) else {
            return Ok(Succession::Own(format!("{} is only there", copy.what())));
        };
        if own.entry.body == copy.entry.body && own.blobs == copy.blobs {
            continue;
        }
        if alone.contains(&place(&copy)) {
            return Ok(Succession::RedactedThere);
        }
        // What was erased by a purge was here, too.
        if !since.contains(&place(&own)) && own.entry.body.is_some() {
            return Ok(Succession::Own(format!("{} differs", copy.what())));
        }
    }
    Ok(match only_there(from, to, session).await? {
        OnlyThere::Nothing => Succession::Whole { redacted_since: !since.is_empty() },
        OnlyThere::Something(what) => Succession::Own(format!("{what} is only there")),
        OnlyThere::Redacted => Succession::RedactedThere,
    })
}

fn replaced<'a>(redactions: impl Iterator<Item = &'a Redaction>) -> BTreeSet<(TimelineId, Seq)> {
    redactions.flat_map(|(_, replaced)| replaced.iter().copied()).collect()
}

fn place(piece: &PieceEntry) -> (TimelineId, Seq) {
    (piece.entry.at.timeline, piece.entry.at.seq)
}

/// Whether two entries are the same one, whatever they say now. One that tells of a redaction moves those after it.
fn is_of_one(one: &PieceEntry, other: &PieceEntry) -> bool {
    let (one, other) = (&one.entry, &other.entry);
    (one.at.timeline, one.kind, one.time) == (other.at.timeline, other.kind, other.time)
}

/// The next entry that does not tell of a redaction.
async fn next_said(out: &mut Outgoing<'_>) -> Result<Option<PieceEntry>> {
    while let Some(piece) = out.next().await? {
        match piece {
            Piece::Entry(piece) if redacted(&piece.entry.body).is_none() => return Ok(Some(*piece)),
            _ => {}
        }
    }
    Ok(None)
}

fn redacted(body: &Option<Body>) -> Option<&Event> {
    match body {
        Some(Body::Event(event)) if event.kind == REDACTED => Some(event),
        _ => None,
    }
}

/// What was redacted in what is copied of a session, told by itself or by the sessions that it shares entries with.
async fn redactions(store: &Store, out: &Outgoing<'_>) -> Result<BTreeSet<Redaction>> {
    let owners: BTreeSet<SessionId> = out.lines().iter().map(|line| line.session).collect();
    let mut told = BTreeSet::new();
    for owner in owners {
        for line in store.copy_lines(owner).await?.iter().filter(|line| line.session == owner) {
            match redactions_in(store, line, out, &mut told).await {
                // Of another session only what is shared has to be whole.
                Err(Error::Store(error)) if owner != out.session.id && error.is_damage() => {}
                outcome => outcome?,
            }
        }
    }
    Ok(told)
}

async fn redactions_in(
    store: &Store,
    line: &CopyLine,
    out: &Outgoing<'_>,
    told: &mut BTreeSet<Redaction>,
) -> Result<()> {
    let mut next = line.begins();
    while next < line.end {
        for copied in store.copy_entries(line, next).await? {
            next = copied.entry.at.seq.next();
            let Some(event) = redacted(&copied.entry.body) else { continue };
            let list = event.data.get("replaced").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let parse = |one: &Value| serde_json::from_value::<(TimelineId, Seq, Hash)>(one.clone()).ok();
            let places = list.iter().filter_map(parse).map(|(timeline, seq, _)| Position { timeline, seq });
            let replaced: BTreeSet<_> = places.filter_map(|at| out.place_of(at)).collect();
            if !replaced.is_empty() {
                told.insert((copied.entry.time, replaced));
            }
        }
    }
    Ok(())
}
